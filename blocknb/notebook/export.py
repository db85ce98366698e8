"""Exports a card as one file that works offline: `kernel.export_html(path)`.

The file holds the whole document (nothing is left out), the viewer of the lab extension, and the static page for readers without scripts.
It opens no connection. The user's texts may contain anything, so each one is escaped for its place in the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocknb.errors import LaunchError
from blocknb.notebook import document, extension
from blocknb.runtime import whole_files

if TYPE_CHECKING:
    from blocknb.notebook.card import Card
    from blocknb.runtime.kernel import Kernel

EVERYTHING = 1 << 40  # bytes
_POLICY = "default-src 'none'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>{static}</noscript>
{body}<script>{viewer}</script>
</body>
</html>
"""
_FOOTER = "Enable JavaScript to see all passes and the machine code, linked line by line."


def export_html(kernel: Kernel, path: str | Path) -> Path:
    """Writes the newest card of a kernel to one HTML file that needs no network and no kernel; returns its path.

    Raises LaunchError when the kernel was neither launched nor compiled, or when the viewer is not installed.
    """
    from blocknb.notebook.card import example, newest
    from blocknb.notebook.observe import record_of

    kernel = getattr(kernel, "kernel", kernel)  # unwraps an autotuner
    record = record_of(kernel)
    if record is None:
        raise LaunchError(f"{kernel.__name__} has not been launched, so it has no card to export", hint=example(kernel))
    if not isinstance(path, str | Path):
        raise LaunchError(f"a path is a string or a Path, not of type {type(path).__name__}", hint="write 'card.html'")
    file = Path(path)
    whole_files.write_text(file, page(replace(newest(record), whole=True)))
    return file


def page(card: Card) -> str:
    """The text of the file."""
    found: dict[str, Any] = card.bundle(EVERYTHING)[document.MIME]
    return filled(f"{card.name}: {card.where}", script(found), card.html(EVERYTHING, _FOOTER))


def filled(title: str, body: str, static: str) -> str:
    """A page with the viewer. `body` and `static` are HTML. Readers without scripts see `static`."""
    style, viewer = _viewer()
    return _PAGE.format(policy=_POLICY, title=escape(title), style=style, static=static, body=body, viewer=viewer)


def script(found: Mapping[str, Any]) -> str:
    """The element that holds a document. The viewer inserts the card after it."""
    # In JSON, `<` occurs only in strings, where the escape has the same meaning, so no tag can begin or end.
    text = json.dumps(found, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="{document.MIME}">{text}</script>\n'


def _viewer() -> tuple[str, str]:
    """The style sheet and the script of the viewer, escaped for embedding in a page."""
    found = extension.installed()
    folder = found[1] / "viewer" if found else None
    if folder is None or not (folder / "viewer.js").is_file():
        raise LaunchError(
            "the viewer for exported pages is not installed in this environment",
            hint="the JupyterLab extension contains it: run pip install blocknb, or jlpm build in a source tree",
        )
    script, style = (folder / "viewer.js").read_text("utf-8"), (folder / "blocknb.css").read_text("utf-8")
    return re.sub(r"</(?=style)", r"<\\/", style, flags=re.I), _in_script(script)


def _in_script(script: str) -> str:
    """Escapes a program so that no text ends its element; `</script` and `<!--` occur only in its strings and patterns."""
    return re.sub(r"<(?=/script|script|!--)", r"\\x3c", script, flags=re.I)
