"""Takes the pictures of docs/torch/ again: the table, the graph and a card of a transformer block that torch.compile compiled.

    python scripts/torch_pictures.py

It needs PyTorch (`make test-torch` installs it), a browser, and the built extension (`jlpm build`). Look at the pictures before you commit
them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT)]

from browser import Browser, find  # noqa: E402
from card_shots import PictureFolder  # noqa: E402
from laboratory import Card, Lab, Notebook  # noqa: E402
from torch_notebook import COMPARED, RUN, SETUP  # noqa: E402


def main() -> int:
    """Writes the pictures and their entries in the manifest."""
    executable = find()
    assert executable, "no Chromium or Chrome found"
    pictures = PictureFolder(ROOT / "docs" / "torch", "scripts/torch_pictures.py")
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{place}/inductor"
        lab = Lab(Path(place))
        try:
            page = lab.page(browser)
            page.ask("page", method="setViewportSize", args=[{"width": 1480, "height": 1800}])
            notebook = Notebook(page, lab.write("torch.ipynb", [SETUP, RUN, COMPARED]))
            notebook.run(0, 1, 2)
            notebook.show(2)
            card = Card(page, f"{notebook.cell(2).selector} >> .bnb-card >> nth=0")
            card.until_state("live")
            pictures.take(card, "kernels")
            card.open("Graph")(".bnb-fusion-kernel")[1].click()
            pictures.take(card, "graph")
            card.open("Reasons")
            pictures.take(card, "reasons")
            card.open("Kernels")(".bnb-kernel-name:has-text('softmax')").click()
            inner = Card(page, f"{card.selector} >> .bnb-kernel-card .bnb-card")
            inner(".cm-line:has-text('.target') >> nth=0").wait()
            pictures.take(inner, "card")
        finally:
            lab.close()
    pictures.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
