"""Takes the pictures of the card that the notebooks of the course show in their texts, and stores them in the notebooks.

    python scripts/course_pictures.py             # all pictures
    python scripts/course_pictures.py blocks bug  # some of them
    python scripts/course_pictures.py --to DIR    # as PNG files only, to look at them

A text cell with `![what it shows](attachment:blocks.png)` gets the picture `blocks` as its attachment, so a notebook needs no other file.
A picture is the panel of a view, of a card that a cell makes: no GPU is necessary, and nothing is measured. The cache of kernels is empty.
The manifest docs/pictures.json gets the names that each picture shows. The extension must be built (`jlpm build`), because the
pictures come from its viewer in Chromium. Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
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
from card_shots import compress, read  # noqa: E402
from course_cells import CELLS, SETUP  # noqa: E402
from shown_names import Names, hash_of, write_manifest  # noqa: E402

COLOURS = 96
WIDTH = 880  # CSS pixels
SCALE = 1.5  # pixels of a picture per CSS pixel
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
        os.environ["BLOCKNB_CACHE_DIR"] = f"{folder}/cache"
        page = browser.open(viewport={"width": WIDTH + 60, "height": 1600}, deviceScaleFactor=SCALE)
        taken = {name: take(pictures[name], page, Path(folder)) for name in chosen}
    for name, (picture, _) in taken.items():
        if options.to is not None:
            options.to.mkdir(parents=True, exist_ok=True)
            (options.to / f"{name}.png").write_bytes(picture)
    places = attach({name: picture for name, (picture, _) in taken.items()}) if options.to is None else {}
    entries = {
        f"{(COURSE / file).relative_to(ROOT).as_posix()}:{name}.png": {
            "hash": hash_of(taken[name][0]),
            **taken[name][1],
        }
        for name, files in places.items()
        for file in files
    }
    if entries:
        write_manifest(entries, "scripts/course_pictures.py", whole=not options.names)
    for name, (picture, _) in taken.items():
        print(f"{name}: {len(picture):,} bytes, {', '.join(places.get(name, [])) or 'in no notebook'}")
    return 0


def take(picture: CardPicture, page: Page, folder: Path) -> tuple[bytes, Names]:
    """The PNG of a picture, and the names that it shows. It shows one panel of the card, and so no other tab."""
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
    found = panel(picture.part) if picture.part else panel
    found.screenshot(shot)
    compress(shot, COLOURS, int(SCALE * picture.most))
    return shot.read_bytes(), {**read(found), "tabs": [picture.view]}


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
