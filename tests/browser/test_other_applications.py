"""The extension in an older JupyterLab and in Notebook 7: it loads, a card connects to its kernel, and its lines are linked. In Voila
the widgets are live.

Each application runs in its own environment, with a kernel that uses blocknb from this tree. These tests are slow and run with --full.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Part, eventually
from laboratory import EXTENSION, SCRIPT, Lab, Notebook
from softmax import CHECK, RIGHT, SETUP, cell
from widgets_notebook import SOURCES, follow_each_other

APPLICATIONS = {
    "JupyterLab 4.4": ("lab", ["jupyterlab==4.4.*", "ipywidgets"]),
    "Notebook 7": ("tree", ["notebook>=7,<8", "ipywidgets"]),
}


def environment(folder: Path, packages: list[str]) -> str:
    """Creates an environment with these packages and returns its Python. Its kernels use the environment of the tests."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "-q", "--python", python, *packages], check=True)
    kernel = [sys.executable, "-m", "ipykernel", "install", "--prefix", str(folder), "--name", "python3"]
    subprocess.run(kernel, check=True, capture_output=True)
    return python


@pytest.mark.full
@pytest.mark.parametrize("name", APPLICATIONS)
def test_card_connects_and_its_lines_are_linked_and_a_widget_is_live(name, browser, tmp_path):
    app, packages = APPLICATIONS[name]
    lab = Lab(tmp_path / "lab", environment(tmp_path / "venv", packages), app)
    try:
        path = lab.write("softmax.ipynb", [SETUP, cell(RIGHT, CHECK)])
        if app == "lab":
            page = lab.page(browser)
            notebook = Notebook(page, path)
        else:
            page = browser.open(SCRIPT)
            page.goto(f"{lab.url}/notebooks/{path}?token=t")
            page.until("() => !!window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
            notebook = Notebook.in_front(page)
        notebook.run(0, 1)
        card = notebook.card(1)
        card.until_state("live")
        card.open("Code")
        code = card.listing("Machine code")
        eventually(lambda: code.code, lambda text: "ex2.approx" in text)
        code.line(code.find("ex2.approx")).hover()
        line = next(i for i, text in enumerate(notebook.source(1).split("\n"), 1) if "tl.exp" in text)
        eventually(lambda: notebook.lit(1), lambda lit: lit == [line])
        card.open("Knobs")("[data-knob='BLOCK']").press("ArrowRight")
        eventually(
            lambda: notebook.document(1).get("modified", {}).get("settings"), lambda found: found == "BLOCK=2048"
        )
        widget = notebook.add("from blocknb.widgets import Diff\nDiff(softmax, stage='coalesce')")
        notebook.run(widget)
        notebook.cell(widget)(".bnb-widget [data-view='diff'] .bnb-sides").until_text("IR after coalesce")
        page.close()
    finally:
        lab.close()


@pytest.mark.full
def test_widgets_follow_each_other_in_voila(browser, tmp_path):
    lab = Lab(tmp_path / "lab", environment(tmp_path / "venv", ["jupyterlab", "ipywidgets", "voila>=0.5,<0.6"]))
    try:
        installed = lab.place / "jupyter" / "labextensions" / "blocknb"
        installed.unlink()  # Voila serves no links
        shutil.copytree(EXTENSION, installed)
        page = browser.open(SCRIPT)
        page.goto(f"{lab.url}/voila/render/{lab.write('widgets.ipynb', SOURCES)}?token=t")
        page("[data-view='code']").wait()
        follow_each_other(page, lambda cell: Part(page, "body"))
        page("img").wait()  # Matplotlib's plot beside the knobs
        assert not [error for error in page.errors() if "blocknb" in error]
        page.close()
    finally:
        lab.close()
