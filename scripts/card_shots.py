"""Takes pictures of cards in a browser: few colours, a limited height, and the names that a picture shows, for the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from shown_names import ROOT, Names, hash_of, shown, write_manifest

COLOURS, TALLEST = 64, 1100  # of a picture; its height in pixels
#: The visible texts of a card's tabs, of what may name passes, and of the heads of tables.
READ = """(card) => {
  const seen = (selector) => [...card.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const texts = (selector) => seen(selector).map((e) => e.textContent.trim());
  return {
    tabs: texts('[role=tab]'),
    texts: [
      ...texts('.bnb-stage-name, .bnb-switch, tbody th, .bnb-heading'),
      ...seen('select').map((e) => e.selectedOptions[0]?.textContent ?? ''),
    ],
    labels: texts('th'),
  };
}"""


class PictureFolder:
    """A folder of pictures that a script takes. `entries` are theirs in the manifest."""

    def __init__(self, folder: Path, script: str):
        self.folder, self.script = folder, script
        self.entries: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, card: Any, name: str, whole: Any = None, tallest: int = TALLEST) -> None:
        """Writes the picture of a card, or of the element `whole` around it."""
        names = read(card)
        file = self.folder / f"{name}.png"
        (whole or card).screenshot(file)
        if whole is not None:
            crop(file, *(element.run("(e) => e.getBoundingClientRect().toJSON()") for element in (whole, card)))
        compress(file, tallest=tallest)
        self.entries[file.relative_to(ROOT).as_posix()] = {"hash": hash_of(file.read_bytes()), **names}
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes", flush=True)

    def close(self) -> None:
        """Removes pictures that were not taken, and writes the manifest."""
        for file in self.folder.glob("*.png"):
            if file.relative_to(ROOT).as_posix() not in self.entries:
                file.unlink()
        write_manifest(self.entries, self.script)


def read(card: Any) -> Names:
    """The names that a card shows."""
    return shown(**card.run(READ))


def crop(file: Path, outer: dict[str, float], inner: dict[str, float]) -> None:
    """Cuts the picture of an element at the left and the right edge of an element in it. Both are boxes in pixels of the page."""
    left = round(inner["left"] - outer["left"])
    with Image.open(file) as picture:
        found = picture.crop((left, 0, left + round(inner["width"]), picture.height))
    found.save(file)


def compress(file: Path, colours: int = COLOURS, tallest: int = TALLEST) -> None:
    """Reduces the colours of a picture, and cuts it at a height in pixels."""
    with Image.open(file) as picture:
        found = picture.convert("RGB").crop((0, 0, picture.width, min(picture.height, tallest)))
    found.quantize(colours, dither=Image.Dither.NONE).save(file, optimize=True)
