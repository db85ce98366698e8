"""The notebooks of the repository: they run from top to bottom on this machine's device, and what they check holds."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from blocknb.notebook.results import RESULT_MIME

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


#: The first lines of cells that show a card.
SHOWS = re.compile(r"%%blockkernel(?!.*--interpret)|%(blockview|blockdiff|roofline) ")


def test_there_are_four_to_begin_with():
    assert [path.stem for path in NOTEBOOKS][:4] == ["01_first_kernel", "02_softmax", "03_matmul", "04_the_card"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_is_valid(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_all_its_checks_hold(path, kernel_process):
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_to_other_notebooks_lead_somewhere(path):
    prose = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for linked in re.findall(r"\]\(([^)\s]+\.ipynb)\)", prose):
        assert (path.parent / linked).exists(), linked
