"""Takes the pictures of docs/torch/ again: the table, the graph and a card of a transformer block that torch.compile compiled.

    python scripts/torch_pictures.py

It needs PyTorch (`make test-torch` installs it), a browser, and the built extension (`jlpm build`). Look at the pictures before you commit
them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT)]

from browser import Browser, find  # noqa: E402
from laboratory import Card, Lab, Notebook  # noqa: E402
from PIL import Image  # noqa: E402
from torch_notebook import COMPARED, RUN, SETUP  # noqa: E402

PLACE = ROOT / "docs" / "torch"
COLOURS, TALLEST = 64, 1100  # of a picture; its height in pixels


def main() -> int:
    """Writes the pictures."""
    executable = find()
    assert executable, "no Chromium or Chrome found"
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        lab = Lab(Path(place))
        try:
            page = lab.page(browser)
            page.ask("page", method="setViewportSize", args=[{"width": 1480, "height": 1800}])
            notebook = Notebook(page, lab.write("torch.ipynb", [SETUP, RUN, COMPARED]))
            notebook.run(0, 1, 2)
            notebook.show(2)
            card = Card(page, f"{notebook.cell(2).selector} >> .bnb-card >> nth=0")
            card.until_state("live")
            take(card, "kernels")
            card.open("Graph")(".bnb-fusion-kernel")[1].click()
            take(card, "graph")
            card.open("Reasons")
            take(card, "reasons")
            card.open("Kernels")(".bnb-kernel-name:has-text('softmax')").click()
            inner = Card(page, f"{card.selector} >> .bnb-kernel-card .bnb-card")
            inner(".cm-line:has-text('.target') >> nth=0").wait()
            take(inner, "card")
        finally:
            lab.close()
    return 0


def take(card: Card, name: str) -> None:
    """Writes a picture with few colours."""
    file = PLACE / f"{name}.png"
    card.screenshot(file)
    with Image.open(file) as picture:
        found = picture.convert("RGB").crop((0, 0, picture.width, min(picture.height, TALLEST)))
    found.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
