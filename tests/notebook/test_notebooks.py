"""The notebooks of the repository run from top to bottom on this machine's device, and their checks pass."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from blocknb.notebook import extension
from blocknb.notebook.results import RESULT_MIME

STORED = sorted((Path(__file__).parents[2] / "notebooks" / "reference").glob("*.ipynb"))
#: Those that need torch run in tests/pytorch.
NOTEBOOKS = [path for path in STORED if not path.stem.startswith("pytorch_")]


#: The first lines of cells that show a card.
SHOWS = re.compile(
    r"%%blockkernel(?!.*--(?:interpret|quiet))|%(blockview|blockdiff|roofline) |found = blocknb.roofline"
)


def test_the_reference_notebooks_exist():
    assert [path.stem for path in NOTEBOOKS] == ["13_many_gpus", "memory", "tensor_cores", "the_card"]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
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
    sizes = "Sizes(copy=1 << 25, iterations=250, matrix=512, rounds=3)"  # of what %roofline measures of this machine
    assert (
        kernel_process.run(f"from blocknb.profile import ceilings\nceilings.CPU_SIZES = ceilings.{sizes}").status
        == "ok"
    )
    yield
    kernel_process.run("import os; del os.environ['BLOCKNB_TIMING_SCALE']")


#: `make test` runs the tour of the card; `make demo` and `make test-full` run all of them.
RUN = [path if path.stem == "the_card" else pytest.param(path, marks=pytest.mark.full) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_a_notebook_runs_and_all_its_checks_hold(path, kernel_process, short_measurements):
    notebook = nbformat.read(path, as_version=4)
    # A notebook has a process of its own; here they share one, so the histories of equal names go.
    kernel_process.run("%reset -f\nfrom blocknb.notebook import history; history._histories.clear()")
    results, cards = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            answer = kernel_process.run(cell.source, timeout=120)
            assert answer.status == "ok", answer.error_text
            results += [bundle[RESULT_MIME] for bundle in answer.bundles if RESULT_MIME in bundle]
            cards += len(answer.cards)
            assert len(answer.cards) == bool(SHOWS.match(cell.source)), cell.source
    # A checkout whose lab extension was not built cannot make one of the checks.
    possible = (True,) if extension.installed() else (True, None)
    assert results and all(result["ok"] in possible for result in results), results
    assert cards


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_links_to_other_notebooks_lead_somewhere(path):
    prose = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for linked in re.findall(r"\]\(([^)\s]+\.ipynb)\)", prose):
        assert (path.parent / linked).exists(), linked


#: Run in the kernel's process: each launch is examined before it runs, and the accused ones are collected.
EXAMINE = """
from blocknb.runtime import launch_context
from blocknb.runtime.binding import without_left_out
from blocknb.runtime.kernel import Kernel
_launch, _accused, _examined = Kernel._general, [], []
def _examining(self, grid, args, kwargs, tried=None):
    if not launch_context.this_thread.unobserved:
        given, named = without_left_out(args, kwargs)
        found = self.footprint(grid)(*given, **{n: x for n, x in named.items() if n != "interpret"})
        _examined.append(found.kernel)
        _accused.extend((found.kernel, f.text) for f in found.problems)
    return _launch(self, grid, args, kwargs, tried)
Kernel._general = _examining
"""


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_launch_of_a_notebook_is_accused(path, kernel_process):
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
