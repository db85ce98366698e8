"""Takes the pictures of the card that the notebooks of the course show in their texts, and stores them in the notebooks.

    python scripts/course_pictures.py             # all pictures
    python scripts/course_pictures.py blocks bug  # some of them
    python scripts/course_pictures.py --to DIR    # as PNG files only, to look at them

A text cell with `![what it shows](attachment:blocks.png)` gets the picture `blocks` as its attachment, so a notebook needs no other file.
A picture is the panel of a view, of a card that a cell makes: no GPU is necessary, and nothing is measured. The extension must be built
(`jlpm build`), because the pictures come from its viewer in Chromium. Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COURSE = ROOT / "notebooks" / "course"
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT)]

from browser import Browser, Page, find  # noqa: E402
from course_cells import CELLS, SETUP  # noqa: E402

COLOURS = 96
WIDTH = 880  # CSS pixels
SETTLED = "() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))"


@dataclass(frozen=True)
class CardPicture:
    """A picture: the `cell` that makes the card, the `view` of it, and the `part` of the view's panel, as a selector. `before` is
    JavaScript that gets the panel first, such as a click. `most` is the height in CSS pixels at which the picture is cut."""

    cell: str
    view: str
    part: str = ""
    before: str = ""
    most: int = 900


def main() -> int:
    """Takes the pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description="Takes the pictures of the course's notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the pictures to take; all by default")
    parser.add_argument("--to", type=Path, metavar="DIR", help="write PNG files to DIR, and change no notebook")
    options = parser.parse_args()
    pictures = {name: CardPicture(**cell) for name, cell in CELLS.items()}
    if unknown := [name for name in options.names if name not in pictures]:
        parser.error(f"unknown pictures: {', '.join(unknown)}; there are {', '.join(pictures)}")
    executable = find()
    if executable is None:
        print("Chromium or Chrome is missing: set BLOCKNB_CHROMIUM to its path.", file=sys.stderr)
        return 1
    chosen = options.names or list(pictures)
    with Browser(executable) as browser, tempfile.TemporaryDirectory() as folder:
        page = browser.open(viewport={"width": WIDTH + 60, "height": 1600}, deviceScaleFactor=1.5)
        taken = {name: take(pictures[name], page, Path(folder)) for name in chosen}
    for name, picture in taken.items():
        if options.to is not None:
            options.to.mkdir(parents=True, exist_ok=True)
            (options.to / f"{name}.png").write_bytes(picture)
    places = attach(taken) if options.to is None else {}
    for name, picture in taken.items():
        print(f"{name}: {len(picture):,} bytes, {', '.join(places.get(name, [])) or 'in no notebook'}")
    return 0


def take(picture: CardPicture, page: Page, folder: Path) -> bytes:
    """The PNG of a picture."""
    file = folder / "card.html"
    file.write_text(page_of(picture), encoding="utf-8")
    page.goto(file.as_uri())
    page(".bnb-card").wait()
    page.run(f"() => {{ document.querySelector('.bnb-card').style.width = '{WIDTH}px'; }}")
    page(f"[role=tab]:has-text('{picture.view}')").click()
    panel = page(".bnb-panel:visible")
    panel.wait()
    page.run(SETTLED)
    if picture.before:
        panel.run(picture.before)
        page.run(SETTLED)
    shot = folder / "shot.png"
    (panel(picture.part) if picture.part else panel).screenshot(shot)
    return compressed(shot, picture.most)


def page_of(picture: CardPicture) -> str:
    """The page of the card that the picture's cell makes."""
    from IPython.core.interactiveshell import InteractiveShell

    from blocknb.notebook import document, export

    shell = InteractiveShell.instance()
    shown: list[dict[str, Any]] = []
    shell.display_pub.publish = lambda data=None, **_: shown.append(data)
    for source in (SETUP, picture.cell):
        shell.run_cell(source).raise_error()
    found = next(data[document.MIME] for data in reversed(shown) if document.MIME in data)
    found = {**found, "model": None, "deferred": False}
    return export.filled("A card", export.script(found), "")


def compressed(file: Path, most: int) -> bytes:
    """The picture with few colours, cut at `most` CSS pixels."""
    from PIL import Image

    with Image.open(file) as whole:
        found = whole.convert("RGB").crop((0, 0, whole.width, min(whole.height, int(1.5 * most))))
    small = found.quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    return file.read_bytes()


def attach(taken: dict[str, bytes]) -> dict[str, list[str]]:
    """Stores the pictures in the text cells that show them. Returns the notebooks by picture."""
    places: dict[str, list[str]] = {}
    for file in sorted(COURSE.glob("*.ipynb")):
        before = file.read_text(encoding="utf-8")
        notebook = json.loads(before)
        for cell in notebook["cells"]:
            text = "".join(cell["source"])
            for name in re.findall(r"\(attachment:(\w+)\.png\)", text) if cell["cell_type"] == "markdown" else ():
                if name in taken:
                    data = base64.b64encode(taken[name]).decode()
                    cell.setdefault("attachments", {})[f"{name}.png"] = {"image/png": data}
                    places.setdefault(name, []).append(file.name)
        if json.loads(before) != notebook:
            file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return places


if __name__ == "__main__":
    sys.exit(main())
