"""The function behind `kernel.export_html`. `runtime` may not import `notebook`, so `notebook` registers the function here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Export = Callable[[Any, Any], Any]
_provided: list[Export] = []


def provide(function: Export) -> None:
    """Registers `function(kernel, path)`, which writes a kernel's newest card to a file and returns the path."""
    _provided[:] = [function]


def export(kernel: Any, path: Any) -> Any:
    """Writes the newest card of a kernel to an HTML file, and returns its path."""
    return _provided[0](kernel, path)
