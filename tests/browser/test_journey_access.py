"""For everybody: the keyboard alone, dark and light, no meaning by colour alone, and what axe-core finds."""

from __future__ import annotations

import json

import pytest
from browser import eventually
from laboratory import ROOT, Notebook
from softmax import cell, SETUP, RIGHT, CHECK

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ["Code", "Passes", "Resources", "Tiles", "Roofline", "Sweep", "Bench", "History", "Knobs"]
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@pytest.fixture(scope="module")
def full(lab, shared_page):
    """A card in which every view has something to show."""
    magic = f"{CHECK} --without coalesce --baseline np.exp(x) --sweep num_warps=1,2,4"
    notebook = Notebook(shared_page, lab.write("full.ipynb", [SETUP, cell(RIGHT.replace("softmax", "rows_softmax")), "%roofline softmax"]))
    assert magic
    notebook.run(0, 1)
    yield notebook
    notebook.close()
