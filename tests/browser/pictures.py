"""Stored pictures of a card in JupyterLab, and their comparison with the present look.

The card is a saved output (pictures/card.json.gz), so its texts and numbers never change. Its width is set to 1000, 720 and 420 px, and to
half of each, which is the layout at a zoom of 200 %. Its fonts are those of Matplotlib, so they are the same on every machine. A picture is
stored at a fraction of its size. Two pictures are equal if they have nearly the same size and few pixels that differ clearly. Rasterised
text differs a little between machines, and a moved text differs a lot.

`python scripts/pictures.py` takes the pictures again.
"""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from browser import Page
from laboratory import MIME, Card, Lab, Notebook, change_theme
from PIL import Image

STORED = Path(__file__).parent / "pictures"
DOCUMENT = STORED / "card.json.gz"
HEADERS = ("Header", "Facts")
CONTENT = {
    "Code": ".cm-line:has-text('.target') >> nth=0",
    "Passes": ".cm-line:has-text('program_id') >> nth=0",
    "Tiles": ".bnb-sheet rect >> nth=0",
    "Launch": ".bnb-counters p",
    "Step": ".bnb-step-now >> nth=0",
    "Footprint": "canvas",
    "Timeline": "[data-span] >> nth=0",
    "History": ".bnb-summary",
}
ZOOMED = {1000: (1000, 100), 720: (720, 100), 420: (420, 100), 500: (1000, 200), 360: (720, 200), 210: (420, 200)}
WIDTHS = tuple(ZOOMED)  # CSS pixels
HEADER, PANEL = 2, 4  # the stored pictures are smaller by these factors
TALLEST = 1200  # CSS pixels of a picture; the rest below is cut
COLOURS = 64

CLEARLY = 48  # of 255: the difference of a channel that counts
MOST_DIFFERING = 0.015  # of the pixels
MOST_TALLER = 0.03  # of the height


#: The fonts of a card by the CSS variable that names them: files of Matplotlib.
FONTS = {"--jp-ui-font-family": "DejaVuSans.ttf", "--jp-code-font-family": "DejaVuSansMono.ttf"}
USE_FONTS = """async (card, fonts) => {
  for (const [variable, data] of Object.entries(fonts)) {
    const name = `picture${variable}`;
    const face = await new FontFace(name, `url(data:font/ttf;base64,${data})`).load();
    document.fonts.add(face);
    card.style.setProperty(variable, name);
  }
  card.style.setProperty('--jp-ui-font-size1', '13px');
  card.style.setProperty('--jp-code-font-size', '13px');
}"""


def _font(file: str) -> str:
    import matplotlib

    return base64.b64encode((Path(matplotlib.get_data_path()) / "fonts" / "ttf" / file).read_bytes()).decode()


@dataclass(frozen=True)
class Shot:
    """One picture: the header ("Header"), the header with all facts ("Facts") or the panel of a view, in a theme, at a width."""

    what: str
    theme: str
    width: int

    @property
    def file(self) -> Path:
        window, zoom = ZOOMED[self.width]
        return STORED / f"{self.what.lower()}-{self.theme}-{window}px-{zoom}.png"


class Studio:
    """The saved card in JupyterLab. The page becomes high enough for the whole card."""

    def __init__(self, lab: Lab, page: Page):
        self.page = page
        document = json.loads(gzip.decompress(DOCUMENT.read_bytes()))
        data = {MIME: document, "text/plain": ["a card"]}
        output = {"output_type": "display_data", "data": data, "metadata": {}}
        source = "%%blockkernel\n" + document["source"]["text"]
        cell = {"cell_type": "code", "id": "card", "metadata": {}, "source": source, "execution_count": None}
        lab.write("pictures.ipynb", [{**cell, "outputs": [output]}])
        self.size = page.run("() => ({ width: innerWidth, height: innerHeight })")
        page.ask("page", method="setViewportSize", args=[{"width": 1500, "height": 2400}])
        self.notebook = Notebook(page, "pictures.ipynb", start=False)
        self.card: Card = self.notebook.card(0)
        self.card.run(USE_FONTS, {name: _font(file) for name, file in FONTS.items()})

    def close(self) -> None:
        self.theme("light")
        self.notebook.close(shut_down=False)
        self.page.ask("page", method="setViewportSize", args=[self.size])

    def theme(self, name: str) -> None:
        change_theme(self.page, name)

    def take(self, what: str, theme: str) -> Iterator[tuple[Shot, Image.Image]]:
        """Takes the pictures of a header or of a view at all widths. The theme is set already."""
        self.card.run("(card, open) => { card.querySelector('details').open = open; }", what == "Facts")
        if what not in HEADERS:
            self.card.open(what)
            self.card.panel(CONTENT.get(what, "* >> nth=0")).wait("attached")  # texts are inflated asynchronously
        part = self.card(".bnb-head") if what in HEADERS else self.card.panel
        for width in WIDTHS:
            self.card.run("(card, width) => { card.style.width = `${width}px`; }", width)
            settled = "() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))"
            self.page.run(settled)
            yield Shot(what, theme, width), self._picture(part, HEADER if what in HEADERS else PANEL)
        self.card.run("(card) => { card.style.width = ''; card.querySelector('details').open = false; }")

    def _picture(self, part: Any, factor: int) -> Image.Image:
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            part.screenshot(Path(file.name))
            with Image.open(file.name) as whole:
                found = whole.convert("RGB").crop((0, 0, whole.width, min(whole.height, TALLEST)))
        return found.resize((max(1, found.width // factor), max(1, found.height // factor)), Image.Resampling.BOX)


def store(shot: Shot, picture: Image.Image) -> None:
    """Writes a picture with few colours."""
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(shot.file, optimize=True)


def differs(shot: Shot, picture: Image.Image) -> str:
    """How a picture differs from the stored one; "" if it does not."""
    if not shot.file.exists():
        return f"{shot.file.name} is missing"
    with Image.open(shot.file) as file:
        stored = file.convert("RGB")
    if abs(stored.height - picture.height) > max(2, MOST_TALLER * stored.height) or stored.width != picture.width:
        return f"{shot.file.name}: {picture.width} x {picture.height} pixels, not {stored.width} x {stored.height}"
    share = differing(stored, picture)
    return f"{shot.file.name}: {share:.1%} of the pixels differ" if share > MOST_DIFFERING else ""


def differing(stored: Image.Image, picture: Image.Image) -> float:
    """The share of the pixels that differ clearly. A pixel may be that of a direct neighbour: one line more or less is no difference."""
    rows = min(stored.height, picture.height)
    old, new = (np.asarray(one, np.int16)[:rows] for one in (stored, picture))
    padded = np.pad(old, ((1, 1), (1, 1), (0, 0)), mode="edge")
    shifted = [padded[y : y + rows, x : x + old.shape[1]] for y in range(3) for x in range(3)]
    nearest = np.min([np.abs(new - one).max(axis=2) for one in shifted], axis=0)
    return float((nearest > CLEARLY).mean())
