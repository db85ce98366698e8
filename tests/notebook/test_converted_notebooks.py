"""`jupyter nbconvert --to html` of the notebooks holds every plot and diff: images are decoded and compared with the records."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from nbconvert.exporters import HTMLExporter
from test_measurements import affine, drawn, pictures
from test_sweep import shell  # noqa: F401

from blocknb.notebook import plot_data, plots
from blocknb.notebook.document import MIME

NOTEBOOKS = Path(__file__).parents[2] / "notebooks" / "reference"
SMALL = """%%blockkernel --sweep BLOCK=256,1024,4096
@blocknb.kernel
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

scale[lambda meta: (blocknb.cdiv(4096, meta["BLOCK"]),)](x, out, 4096, BLOCK=1024);"""
CELLS = [
    SMALL,
    "%blockdiff scale:parse scale:layout_assignment",
    "scale.sweep(BLOCK=[512, 1024], num_warps=[1, 2])",
    'scale.bench({"NumPy": lambda: np.multiply(x, 2)})',
]


def converted(source: Path, folder: Path) -> tuple[Any, str]:
    """Executes a notebook and converts it; returns it with its outputs, and the HTML."""
    for options in (["--to", "notebook", "--execute"], ["--to", "html"]):
        file = source if "--execute" in options else folder / "ran.ipynb"
        name = "ran" if "--execute" in options else "page"
        command = [sys.executable, "-m", "nbconvert", file, *options, "--output", name, "--output-dir", folder]
        subprocess.run([*command, "--ExecutePreprocessor.timeout=300"], check=True, timeout=500, capture_output=True)
    return nbformat.read(folder / "ran.ipynb", as_version=4), (folder / "page.html").read_text("utf-8")


def examine(notebook: Any, page: str) -> tuple[int, int, int]:
    """Compares the plots, diffs and comparisons of a page with the documents of the notebook's outputs; returns how many there are."""
    bundles = [o["data"] for cell in notebook.cells for o in cell.get("outputs", ()) if MIME in o.get("data", {})]
    wanted = [
        (name, b[MIME][name])
        for b in bundles
        for name in plots.DRAWN
        if name != "history" and plots.drawable(name, b[MIME].get(name))
    ]
    found = [picture for picture in pictures(page) if "blocknb" or picture]
    assert len(found) == len(wanted)
    for (name, part), (kind, picture, alt) in zip(wanted, found, strict=True):
        assert kind == "svg+xml" and alt
        if name == "sweep" and not part.get("second"):
            for i, series in enumerate(plot_data.sweep(part).series):
                known = [v for v in series.median if v is not None]
                assert affine(known, [y for _, y in drawn(picture, f"series-{i}")]) < 0.1
        if name == "roofline":
            assert all(f'id="point-{i}"'.encode() in picture for i in range(len(plot_data.roofline(part))))
    diffs = [b for b in bundles if "diff" in b[MIME]]
    shown = re.findall(r'<div class="blocknb-diff">(.*?)</div>', page, re.DOTALL)
    assert len(shown) == len(diffs)
    for text, bundle in zip(shown, diffs, strict=True):
        added = [
            line for line in bundle["text/plain"].splitlines() if line.startswith("+") and not line.startswith("+++")
        ]
        assert text.count("<ins>+ ") >= min(len(added), 1) and (
            "omitted" in text or text.count("<ins>+ ") == len(added) + 1
        )
    compared = [b for b in bundles if b[MIME].get("kind") == "compare"]
    words = html.unescape(re.sub(r"<[^>]+>", "", page))
    for bundle in compared:
        assert all(line.strip() in words for line in bundle["text/plain"].replace("`", "").splitlines()[:3])
    return len(wanted), len(diffs), len(compared)


def test_outputs_that_a_notebook_saved(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    published = CapturingDisplayPublisher(shell=shell)
    monkeypatch.setattr(shell, "display_pub", published)
    shell.user_ns.update(x=np.ones(4096, np.float32), out=np.zeros(4096, np.float32))
    notebook = nbformat.v4.new_notebook()
    for source in CELLS:
        published.outputs.clear()
        found = shell.run_cell(source)
        found.raise_error()
        shown = [output["data"] for output in published.outputs]
        if found.result is not None and (made := shell.display_formatter.format(found.result)[0]):
            shown.append(made)
        outputs = [nbformat.v4.new_output("display_data", data=bundle) for bundle in shown]
        notebook.cells.append(nbformat.v4.new_code_cell(source, outputs=outputs))
    page, _ = HTMLExporter().from_notebook_node(notebook)
    # The card of the diff has the sweep of its kernel, too.
    assert examine(notebook, page) == (4, 1, 0)


@pytest.mark.full
@pytest.mark.parametrize(("name", "least"), [("the_card", (4, 1, 1)), ("memory", (2, 1, 0))])
def test_a_notebook_of_the_repository(name: str, least: tuple[int, int, int], tmp_path: Path) -> None:
    count = examine(*converted(NOTEBOOKS / f"{name}.ipynb", tmp_path))
    assert all(found >= fewest for found, fewest in zip(count, least, strict=True)), count
