"""`blocknb report NOTEBOOK`: one page with all cards of a saved notebook, which needs neither a network nor Jupyter.

The page contains the viewer and the documents of the notebook's outputs, as an exported card does (see `export`). Each document stands
under the number and the first line of its cell. A document is data: the viewer checks it, and no output of the notebook becomes part of the
page as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from blocknb.errors import LaunchError
from blocknb.notebook import document, export
from blocknb.runtime import whole_files

MOST_BYTES = 1 << 29  # of a notebook
_HEADING = '<h2 id="{id}">{title}</h2>\n<pre>{line}</pre>\n'


def write(notebook: str | Path, page: str | Path | None = None) -> Path:
    """Writes the page of a notebook, by default next to it as NAME.html, and returns its path.

    Raises LaunchError for a file that is no notebook of version 4, or has no cards; OSError for one that cannot be read or written."""
    source = Path(notebook)
    target = source.with_suffix(".html") if page is None else Path(page)
    if target.exists() and target.samefile(source):
        raise LaunchError(f"the page would replace the notebook {source}", hint="name another file with -o")
    found = [*_cards(_read(source))]
    if not found:
        raise LaunchError(
            f"{source} has no saved cards",
            hint="run its cells in JupyterLab or with jupyter nbconvert --execute, and save it",
        )
    parts = [
        _HEADING.format(id=f"cell-{number}", title=escape(title), line=escape(line)) + export.script(doc)
        for number, title, line, doc in found
    ]
    static = "".join(f"<p>{escape(title)}: {escape(str(doc.get('kernel', '')))}</p>\n" for _, title, _, doc in found)
    body = f"<h1>{escape(source.stem)}</h1>\n{''.join(parts)}"
    whole_files.write_text(target, export.filled(source.stem, body, static))
    return target


def _read(source: Path) -> dict[str, Any]:
    if source.stat().st_size > MOST_BYTES:
        raise LaunchError(f"{source} has more than {MOST_BYTES >> 20} MiB")
    try:
        found = json.loads(source.read_text("utf-8"))
    except ValueError as error:
        raise LaunchError(f"{source} is no notebook: {error}") from None
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        raise LaunchError(
            f"{source} is no notebook of version 4", hint="jupyter nbconvert --to notebook converts older ones"
        )
    return found


def _cards(notebook: dict[str, Any]) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """The number of a card, its heading, the first line of its cell, and its document."""
    number = 0
    for place, cell in enumerate(notebook["cells"], 1):
        if not isinstance(cell, dict):
            continue
        for output in cell.get("outputs") or ():
            found = output.get("data", {}).get(document.MIME) if isinstance(output, dict) else None
            if isinstance(found, dict):
                number += 1
                count = cell.get("execution_count")
                label = f"[{count}]" if isinstance(count, int) else f"cell {place}"
                line = "".join(cell.get("source", "")).split("\n", 1)[0]
                # The page has no kernel, so nothing could answer for the card or its missing parts.
                yield (
                    number,
                    f"{label} {found.get('kernel', '')}",
                    line[:200],
                    {**found, "model": None, "deferred": False},
                )


def command(notebook: str, page: str | None) -> int:
    """Runs `blocknb report`; returns its exit status."""
    import sys

    try:
        print(write(notebook, page))
    except (LaunchError, OSError) as error:
        print(f"blocknb report: {error}", file=sys.stderr)
        return 1
    return 0
