"""The JupyterLab extension as Python sees it: which version is installed, and which version the page has loaded.

The two differ if the server runs in another environment than the kernel. `installed()` looks for the files in this environment. `ask()`
opens a comm to the page that shows the notebook, and a loaded extension answers with its version (labextension/src/core/hello.ts). The
answer arrives after the running cell has ended, so only the next card can use it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELLO_TARGET = "blocknb.hello"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement of a page: the extension's version, and the newest document schema that it can show."""

    version: str
    schema: int


def data_directories() -> list[Path]:
    """Where Jupyter in this environment looks for its data: `jupyter --paths`, or the environment's own without Jupyter."""
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        extra = [p for p in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if p]
        return [Path(p) for p in [*extra, os.path.join(sys.prefix, "share", "jupyter")]]
    return [Path(p) for p in jupyter_path()]


def installed() -> tuple[str, Path] | None:
    """Version and folder of the lab extension installed in this environment, or None."""
    for directory in data_directories():
        manifest = directory / "labextensions" / "blocknb" / "package.json"
        if manifest.is_file():
            return str(json.loads(manifest.read_text())["version"]), manifest.parent
    return None


#: The answers of pages so far, the newest last.
answers: list[Announcement] = []


def page() -> str | None:
    """A description of what the newest page has loaded; None if no page has answered yet."""
    if not answers:
        return None
    loaded, here = answers[-1].version, installed()
    other = f"; this environment has {here[0]}" if here and here[0] != loaded else ""
    return f"lab extension {loaded} loaded{other}"


def ask(answered: Callable[[Announcement], None]) -> None:
    """Asks the page which extension it has loaded. `answered` is called once for every page that has one, and never by a
    page that has none. Needs a running kernel (ipykernel brings `comm`)."""
    from comm import create_comm

    def take(message: dict[str, Any]) -> None:
        data = message["content"]["data"]
        answered(Announcement(str(data["version"]), int(data["schema"])))

    create_comm(target_name=HELLO_TARGET).on_msg(take)
