"""Takes the pictures of docs/card/ again: the views of a softmax and of a matrix product, the kernels of the tour of the card.

    python scripts/card_pictures.py

The cells are those of notebooks/reference/the_card.ipynb, so the pictures show what a reader of the tour sees. They run on the CPU in a
notebook of their own, with an empty cache. The extension must be built (`jlpm build`). Look at the pictures before you commit them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT)]

from browser import Browser, eventually, find  # noqa: E402
from card_shots import PictureFolder  # noqa: E402
from laboratory import Card, Lab, Notebook  # noqa: E402

TOUR = ROOT / "notebooks" / "reference" / "the_card.ipynb"
WIDTH = 1000  # CSS pixels of a card
#: JupyterLab's buttons in a cell would be cut at the right edge of the picture.
NO_BUTTONS = "() => document.head.append(Object.assign(document.createElement('style'), {textContent: '.jp-cell-toolbar {display: none}'}))"
#: The cells of the tour that the pictures need, by the name of their id.
SETUP, SOFTMAX, WRONG, SCALED, ARRAYS, PRODUCT, SWEEP, ROOFLINE = (
    f"code-{i:02}" for i in (1, 3, 9, 14, 20, 21, 27, 32)
)
CELLS = (SETUP, SOFTMAX, WRONG, SCALED, ARRAYS, PRODUCT, SWEEP, ROOFLINE)


def main() -> int:
    """Writes the pictures and their entries in the manifest."""
    executable = find()
    assert executable, "no Chromium or Chrome found"
    pictures = PictureFolder(ROOT / "docs" / "card", "scripts/card_pictures.py")
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        lab = Lab(Path(place))
        try:
            page = lab.page(browser)
            page.ask("page", method="setViewportSize", args=[{"width": 1480, "height": 1800}])
            page.run(NO_BUTTONS)
            Tour(Notebook(page, lab.write("the_card.ipynb", tour())), pictures).run()
        finally:
            lab.close()
    pictures.close()
    return 0


def tour() -> list[str]:
    """The sources of the cells."""
    found = {cell["id"]: "".join(cell["source"]) for cell in json.loads(TOUR.read_text(encoding="utf-8"))["cells"]}
    return [found[cell] for cell in CELLS]


class Tour:
    """The notebook, run cell by cell. Each method takes the pictures of one card, when its cell is the newest that ran."""

    def __init__(self, notebook: Notebook, pictures: PictureFolder):
        self.notebook, self.pictures = notebook, pictures

    def run(self) -> None:
        """Takes all pictures."""
        self.notebook.run(0)
        self.code_and_passes(self.card(SOFTMAX))
        self.card(WRONG)
        self.history(self.card(SCALED))
        self.notebook.run(CELLS.index(ARRAYS))
        self.product(self.card(PRODUCT))
        for cell, title in ((SWEEP, "Sweep"), (ROOFLINE, "Roofline")):
            card = self.card(cell)
            card.open(title)("svg >> nth=0").wait()
            self.pictures.take(card, title.lower())

    def card(self, cell: str) -> Card:
        """Runs a cell. Returns its card once it is complete."""
        number = CELLS.index(cell)
        self.notebook.run(number)
        card = self.notebook.complete(number)
        card.run(f"(card) => {{ card.style.boxSizing = 'border-box'; card.style.width = '{WIDTH}px'; }}")
        return card

    def code_and_passes(self, card: Card) -> None:
        """The lines of the load in the cell, in the IR and in the PTX; then the IR around the pass that chooses layouts."""
        card.target("sm_90a")
        panel = card.open("Code")
        for column, level in (("in the middle", "IR after barriers"), ("on the right", "PTX")):
            panel(f"select[aria-label='Level {column}']").choose(level)
        ir, code = card.listing("IR"), card.listing("Machine code")
        eventually(lambda: code.code, lambda text: "ld.global" in text)
        code.line(code.find("ld.global"))
        ir.line(ir.find(" = load ")).hover()
        eventually(lambda: code.lit, bool)
        self.pictures.take(card, "code", whole=self.notebook.cell(CELLS.index(SOFTMAX)))
        card.leave()
        panel = card.open("Passes")
        panel('.bnb-stage[data-name="coalesce"]').click()
        panel(".bnb-stages").press("d")
        panel(".bnb-sides >> nth=0").until_text("IR after coalesce")
        self.pictures.take(card, "passes")

    def history(self, card: Card) -> None:
        """The three versions, and the sources of the two correct ones."""
        panel = card.open("History")
        panel("[aria-label='version 1 on the left']").check()
        panel(".bnb-summary").until_text("on the left")
        self.pictures.take(card, "history", tallest=1250)

    def product(self, card: Card) -> None:
        """The views of a matrix product, and a tile of twice the height."""
        card.target("sm_90a")
        card.open("Resources")("table >> nth=0").wait()
        self.pictures.take(card, "resources")
        panel: Any = card.open("Tiles")
        panel(".bnb-stages >> text=copy b >> nth=0").click()
        panel(".bnb-sheet rect >> nth=0").wait()
        self.pictures.take(card, "tiles")
        card.open("Bench")("table >> nth=0").wait()
        self.pictures.take(card, "bench")
        panel = card.open("Knobs")
        panel("[data-knob=BM]").press("ArrowRight")
        panel(".bnb-verdict").wait()
        working = ("compiling", "measuring")
        eventually(lambda: panel("[role=status]").text.lower(), lambda text: not text.startswith(working))
        self.pictures.take(card, "knobs")


if __name__ == "__main__":
    sys.exit(main())
