"""Writes a file as a whole: under a temporary name next to it, which then replaces it (the usual atomic rename of POSIX).

A reader sees the former content or the new one, also if the process ends meanwhile. `private_files` does the same for caches, whose files
belong to one user; these are files that the user names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def write_text(path: str | Path, text: str) -> None:
    """Writes a text in UTF-8, with line ends as they are. Keeps the permissions of a file that exists. Raises OSError.

    A symbolic link stays, and its target is replaced. A device such as /dev/stdout is written directly, and so is a file in a folder that
    takes no others.
    """
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{place.name}.{os.getpid()}.new")
    if place.exists() and not (place.is_file() and os.access(place.parent, os.W_OK)):
        place.write_text(text, encoding="utf-8", newline="")
        return
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
        if place.exists():
            shutil.copymode(place, temporary)
        os.replace(temporary, place)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None  # not the temporary name
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
