"""The notebooks of the repository run from top to bottom on this machine's device, and their checks pass."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from blocknb.notebook.results import RESULT_MIME

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


#: The first lines of cells that show a card.
SHOWS = re.compile(
    r"%%blockkernel(?!.*--(?:interpret|quiet))|%(blockview|blockdiff|roofline) |found = blocknb.roofline"
)


def test_the_first_five_notebooks_exist():
    wanted = ["01_first_kernel", "02_softmax", "03_matmul", "04_the_card", "05_memory"]
    assert [path.stem for path in NOTEBOOKS][:5] == wanted


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_is_valid(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.fixture
def short_measurements(kernel_process):
    """No check of a notebook depends on a time."""
    assert kernel_process.run("%env BLOCKNB_TIMING_SCALE=0.001").status == "ok"
    yield
    kernel_process.run("import os; del os.environ['BLOCKNB_TIMING_SCALE']")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_all_its_checks_hold(path, kernel_process, short_measurements):
    notebook = nbformat.read(path, as_version=4)
    kernel_process.run("%reset -f")
    results, cards = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            answer = kernel_process.run(cell.source, timeout=120)
            assert answer.status == "ok", answer.error_text
            results += [bundle[RESULT_MIME] for bundle in answer.bundles if RESULT_MIME in bundle]
            cards += len(answer.cards)
            assert len(answer.cards) == bool(SHOWS.match(cell.source)), cell.source
    assert results and all(result["ok"] for result in results), results
    assert cards


#: Of 05_memory's exercises: what tells the cell, and what to write instead.
COLUMN_SUM = """
@blocknb.kernel
def column_sum(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)[:, None]
    values = tl.load(x + row * columns + column[None, :], mask=row < rows, other=0)
    tl.store(out + column, tl.sum(values, axis=0))

column_sum[16,](x, sums, 256, 512, ROWS=256, COLUMNS=32)
"""
LAYER_NORM = """
@blocknb.kernel
def layer_norm(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * columns, tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row + at, mask=inside, other=0)
    away = tl.where(inside, values - tl.sum(values, axis=0) / columns, 0)
    scale = tl.rsqrt(tl.sum(away * away, axis=0) / columns + 1e-5)
    tl.store(out + row + at, away * scale, mask=inside)

layer_norm[256,](y, normed, 2000, BLOCK=2048)
"""
SHORT_ROWS = "softmax_rows[128,](z, scaled, 1024, 96, ROWS=8, BLOCK=128, num_warps=4)"


def test_the_exercises_of_the_memory_notebook_are_unsolved_and_solvable(kernel_process):
    notebook = nbformat.read(next(path for path in NOTEBOOKS if path.stem == "05_memory"), as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    rows = next(text for text in code if "def softmax_rows" in text).replace(" --sweep ROWS=1,16", "")
    first = next(i for i, text in enumerate(code) if "def column_sum" in text)
    exercises = zip(code[first::2], code[first + 1 :: 2], (COLUMN_SUM, LAYER_NORM, SHORT_ROWS), strict=True)
    for cell in ("%reset -f", code[0], rows):
        assert kernel_process.run(cell, timeout=120).status == "ok"
    for given, check, solution in exercises:
        for cell, solved in ((given, False), ("%%blockkernel --quiet\n" + solution, True)):
            assert kernel_process.run(cell, timeout=120).status == "ok"
            answer = kernel_process.run(check)
            assert answer.status == "ok", answer.error_text
            assert [b[RESULT_MIME]["ok"] for b in answer.bundles if RESULT_MIME in b] == [True] * solved
            assert ("not yet" in answer.printed) == (not solved)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_to_other_notebooks_lead_somewhere(path):
    prose = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for linked in re.findall(r"\]\(([^)\s]+\.ipynb)\)", prose):
        assert (path.parent / linked).exists(), linked


#: Run in the kernel's process: each launch is examined before it runs, and the accused ones are collected.
EXAMINE = """
from blocknb.runtime import launch_context
from blocknb.runtime.kernel import Kernel, _without_left_out
_launch, _accused, _examined = Kernel._general, [], []
def _examining(self, grid, args, kwargs, tried=None):
    if not launch_context.this_thread.unobserved:
        given, named = _without_left_out(args, kwargs)
        found = self.footprint(grid)(*given, **{n: x for n, x in named.items() if n != "interpret"})
        _examined.append(found.kernel)
        _accused.extend((found.kernel, f.text) for f in found.accusations if found.kernel != 'add_unmasked')
    return _launch(self, grid, args, kwargs, tried)
Kernel._general = _examining
"""


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_launch_of_a_notebook_is_accused(path, kernel_process):
    """`add_unmasked` of the first notebook is wrong on purpose."""
    kernel_process.run("%reset -f")
    assert kernel_process.run(EXAMINE).status == "ok"
    try:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                answer = kernel_process.run(cell.source, timeout=240)
                assert answer.status == "ok", answer.error_text
        answer = kernel_process.run("assert _examined and not _accused, (len(_examined), _accused)")
        assert answer.status == "ok", answer.error_text
    finally:
        kernel_process.run("Kernel._general = _launch")
