"""Caches that an administrator fills for all users of a machine: the folders that BLOCKNB_SHARED_CACHE names.

They are the second level below the private cache: a miss of the private one reads them, and nothing but `blocknb cache build` writes them.
An entry is machine code, so a folder, its inner folders and its files are trusted under the rules of `private_files`. The group and others
must have no write permission, and the owner must be able to run code as this user anyway. These are the user, root, and the owner of
blocknb's own source files, since this process runs them. Folders of all other users stay refused, with one line per folder.
"""

from __future__ import annotations

import functools
import os

from blocknb.runtime import private_files
from blocknb.runtime.private_files import UntrustedFile, UntrustedFolder, warn_once

VARIABLE = "BLOCKNB_SHARED_CACHE"
#: The user id that Linux shows for owners without an id in a container (kernel.overflowuid): different users share it.
_UNKNOWN_USER = 65534


@functools.cache
def administrators() -> tuple[int, ...]:
    """The user id that owns blocknb's installation, or () where it is not known."""
    try:
        owner = os.stat(__file__).st_uid
    except OSError:  # imported from an archive
        return ()
    return () if owner == _UNKNOWN_USER else (owner,)


class SharedFolder:
    """One folder that this process reads and never writes."""

    def __init__(self, root: str):
        self.root = root
        self._looked = False

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of a file ("ab/cd.bnb") of at most `limit` bytes, or None. Warns once about a folder or file that is refused."""
        try:
            data = private_files.read(self.root, name, limit, administrators(), touch=False)
        except UntrustedFolder as error:
            self._warn(f"{error}; its owner must be root, you or the user who has installed blocknb")
        except UntrustedFile as error:
            self.refuse(str(error))
        except OSError as error:
            self._warn(error.strerror or str(error))
        else:
            if data is None and not self._looked and not os.path.isdir(self.root):
                self._warn("there is no such folder")
            self._looked = True
            return data
        return None

    def refuse(self, why: str) -> None:
        """Reports once that the folder has a file that is not used."""
        warn_once(
            f"a file of {self.root}",
            f"blocknb ignores a file in the shared cache {self.root}: {why}. Its administrator finds and removes such files by "
            f"`blocknb cache check --fix {self.root}`.",
            3,
        )

    def _warn(self, why: str) -> None:
        warn_once(
            self.root,
            f"blocknb does not use the shared cache {self.root}, which {VARIABLE} names: {why}. "
            f"`blocknb cache check {self.root}` tells its administrator what to do.",
            3,
        )


def folders() -> tuple[SharedFolder, ...]:
    """The folders of $BLOCKNB_SHARED_CACHE, separated as in PATH. A relative path is refused with a warning: what it names depends on the
    notebook's folder, in which others may write."""
    found = []
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        if not (name := name.strip()):
            continue
        if not os.path.isabs(name):
            warn_once(name, f"blocknb does not use the shared cache {name}: write an absolute path into {VARIABLE}")
        elif not hasattr(os, "geteuid"):
            warn_once(name, f"blocknb does not use the shared cache {name}: Windows has no owners and modes to check")
        else:
            found.append(SharedFolder(os.path.normpath(name)))
    return tuple(found)
