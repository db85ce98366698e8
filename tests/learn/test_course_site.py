"""The pages of the course: below each exercise a folded solution, below each question a folded answer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import nbformat
import pytest

from blocknb import learn

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("nbconvert")
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("course_site", ROOT / "scripts" / "course_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full  # nbconvert takes two seconds to import
def test_solutions_and_answers_are_folded(site):
    add = learn.exercise("add-1")
    code = nbformat.v4.new_code_cell
    cells = [
        nbformat.v4.new_markdown_cell("# Blocks\nSee [unit 2](02_rows.ipynb)."),
        code("%predict predict-blocks"),
        code("%%blockkernel --predict predict-blocks --footprint\nx = 1"),
        code(f"%%blockkernel --exercise add-1\n{add.skeleton}"),
        code("%predict predict-blocks 3, 7"),
        code("%%blockkernel --exercise row-dot-1\nx = 1"),
    ]
    notebook = site.with_solutions(nbformat.v4.new_notebook(cells=cells))
    assert [cell.metadata.get("fold") for cell in notebook.cells] == [
        None,
        None,
        "Answer to predict-blocks",
        None,
        "The card after the answer to predict-blocks",
        None,
        "Solution of add-1",
        None,
        None,
    ]
    assert notebook.cells[4].source == "%predict predict-blocks 10, 240"
    assert notebook.cells[6].source == f"%%blockkernel --exercise add-1\n{add.solution.rstrip()}"
    page = site.page_of(notebook, "Blocks")
    assert page.count('<details class="fold"><summary>') == page.count("</details>") == 3
    assert 'href="02_rows.html"' in page
