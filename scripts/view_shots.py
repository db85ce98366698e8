"""Takes pictures of views of a card in JupyterLab, in both themes, for the review of a new or changed view.

    python scripts/view_shots.py Resources               # views by the titles of their tabs, of a softmax
    python scripts/view_shots.py Bench --cell cell.py    # of a cell of your own, which begins with %%blockkernel
    python scripts/view_shots.py Code Tiles --width 420  # on a narrow page

The pictures are build/views/VIEW-THEME.png. The script builds the extension if a source is newer, and needs Chromium or Chrome. It fails
if the page logs an error. Its cell can use np, blocknb, tl, and the arrays x and out of `tests/browser/softmax.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT)]

import softmax  # noqa: E402
from browser import Browser, Page, find  # noqa: E402
from laboratory import THEMES, Card, Lab, Notebook, change_theme, complaints  # noqa: E402

FOLDER = ROOT / "build" / "views"
SETTLED = (
    "() => new Promise((done) => setTimeout(() => done(true), 600))"  # views inflate texts and draw after they open
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("views", nargs="+", metavar="VIEW", help="the title of a tab, such as Resources")
    parser.add_argument("--cell", type=Path, metavar="FILE", help="the text of a cell; a softmax by default")
    parser.add_argument("--width", type=int, default=1000, metavar="N", help="CSS pixels of the card (1000)")
    given = parser.parse_args()
    executable = find()
    if executable is None:
        return failed("no Chromium or Chrome found: apt-get install chromium")
    build()
    cell = given.cell.read_text("utf-8") if given.cell else softmax.cell(softmax.RIGHT, softmax.CHECK)
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        lab = Lab(Path(place))
        try:
            page = lab.page(browser)
            page.ask("page", method="setViewportSize", args=[{"width": given.width + 480, "height": 1800}])
            notebook = Notebook(page, lab.write("view_shots.ipynb", [softmax.SETUP, cell]))
            notebook.run(0, 1)
            card = notebook.complete(1)
            if unknown := [title for title in given.views if title not in card.titles]:
                return failed(f"the card has no tab {unknown[0]}; it has {', '.join(card.titles)}")
            take(page, card, given.views, given.width)
            errors = complaints(page)
        finally:
            lab.close()
    return failed("the page logged errors:\n" + "\n".join(errors)) if errors else 0


def failed(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


def build() -> None:
    """Builds the extension if it is missing or one of its sources is newer."""
    sources = [
        file for folder in ("src", "style") for file in (ROOT / "labextension" / folder).rglob("*") if file.is_file()
    ]
    viewer = ROOT / "labextension" / "dist" / "viewer" / "viewer.js"  # the build writes it last
    if not viewer.is_file() or max(file.stat().st_mtime for file in sources) > viewer.stat().st_mtime:
        print("building the extension (jlpm build)", flush=True)
        tools = Path(sys.executable).parent
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            [tools / "jlpm", "build"], cwd=ROOT, env={**os.environ, "PATH": path}, check=True, stdout=subprocess.DEVNULL
        )


def take(page: Page, card: Card, views: list[str], width: int) -> None:
    """Writes the pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    card.run("(card, width) => { card.style.boxSizing = 'border-box'; card.style.width = `${width}px`; }", width)
    for theme in THEMES:
        change_theme(page, theme)
        for title in views:
            card.open(title)
            page.run(SETTLED)
            file = FOLDER / f"{title.lower().replace(' ', '-')}-{theme}.png"
            card.screenshot(file)
            print(file.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    sys.exit(main())
