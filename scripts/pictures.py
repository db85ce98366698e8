"""Takes the stored pictures of the card again (tests/browser/pictures/), after a wanted change of its look.

    python scripts/pictures.py              # takes the pictures of the stored document
    python scripts/pictures.py Passes Code  # those of some views only
    python scripts/pictures.py --document   # compiles and measures a new document first, as a new view needs

The extension must be built (`jlpm build`). Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT)]

import pictures  # noqa: E402
import softmax  # noqa: E402
from browser import Browser, find  # noqa: E402
from laboratory import MIME, THEMES, VIEWS, Lab  # noqa: E402

OPTIONS = f"{softmax.CHECK} --sweep BLOCK=1024,2048,4096 --baseline np.exp(x) --without coalesce"
OPTIONS += " --launch-view --step 0 --footprint"
PRODUCT = """from blocknb.bench.suite.steps import STEPS, matmul, run_step
run_step(matmul, STEPS[-1], *(np.zeros((256, 256), np.float16) for _ in range(3)))"""


def main() -> int:
    """Writes the pictures, and with `--document` the document that they show."""
    every = (*pictures.HEADERS, *VIEWS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="VIEW", help=f"all by default: {', '.join(every)}")
    parser.add_argument("--document", action="store_true", help="compile and measure a new document first")
    given = parser.parse_args()
    if unknown := set(given.names) - set(every):
        parser.error(f"no view {', '.join(sorted(unknown))}: VIEWS of tests/browser/laboratory.py lists them")
    if given.document:
        text = json.dumps(document(), separators=(",", ":"))
        pictures.DOCUMENT.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    executable = find()
    assert executable, "no Chromium or Chrome found"
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        lab = Lab(Path(place))
        try:
            studio = pictures.Studio(lab, lab.page(browser))
            for theme in THEMES:
                studio.theme(theme)
                for what in given.names or every:
                    for shot, picture in studio.take(what, theme):
                        pictures.store(shot, picture)
        finally:
            lab.close()
    total = sum(file.stat().st_size for file in pictures.STORED.iterdir())
    print(f"{pictures.STORED.relative_to(ROOT)}: {total:,} bytes")
    return 0


def document() -> dict[str, Any]:
    """The document of a card with content in every view: a wrong softmax, with the timeline of a matrix product and a roofline."""
    from dataclasses import replace

    from IPython.core.interactiveshell import InteractiveShell

    from blocknb.notebook import live, page_measurements

    shell = InteractiveShell.instance()
    shown: list[dict[str, Any]] = []
    shell.display_pub.publish = lambda data=None, **_: shown.append(data)
    for cell in (softmax.SETUP, softmax.cell(softmax.RIGHT), softmax.cell(softmax.WRONG, OPTIONS)):
        shell.run_cell(cell).raise_error()
    found = next(reversed(live._cards.values()))
    parts = page_measurements.measure(found.cell, "roofline", {}, shell).parts
    made = replace(found.cell, parts={**found.cell.parts, **parts}, opened=("code",)).bundle(model=None)[MIME]
    made["knobs"] = shown[-1][MIME]["knobs"]
    shell.run_cell(f"%%blockkernel\n{PRODUCT}").raise_error()
    return anonymous({**made, "timeline": shown[-1][MIME]["timeline"], "model": None, "deferred": False})


def anonymous(made: dict[str, Any]) -> dict[str, Any]:
    """A document without the names of this machine's processor."""
    from blocknb.profile.ceilings import name_of
    from blocknb.target import Target

    text = json.dumps(made)
    for name, instead in ((name_of(-1), "CPU"), (Target.parse("cpu").arch, "znver4")):
        text = text.replace(json.dumps(name)[1:-1], instead)
    found: dict[str, Any] = json.loads(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
