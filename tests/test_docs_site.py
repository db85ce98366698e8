"""The documentation site: the folds of the course, the cards of notebooks, the API reference, and the check of links."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import blocknb
import blocknb.language as tl
from blocknb import learn
from blocknb.notebook.document import MIME

SCRIPTS = Path(__file__).parents[1] / "scripts" / "docs_site"


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of scripts/docs_site. Its additions to the search path end with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_solutions_and_answers_are_folded(monkeypatch):
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
    notebook = loaded("notebooks", monkeypatch).with_solutions(nbformat.v4.new_notebook(cells=cells))
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
    assert notebook.cells[2].source.startswith('<details class="fold"><summary>Answer to predict-blocks</summary>')
    assert notebook.cells[4].source == "%predict predict-blocks 10, 240"
    assert notebook.cells[6].source == f"%%blockkernel --exercise add-1\n{add.solution.rstrip()}"
    assert notebook.cells[6].metadata.tags == ["hide-cell"]


def test_the_page_of_a_notebook_has_its_cards_its_pictures_and_lower_case_anchors(monkeypatch, tmp_path):
    text = nbformat.v4.new_markdown_cell("![A](attachment:a.png) [costs](x.ipynb#What-a-tile-costs)")
    text.attachments = {"a.png": {"image/png": "iVBO"}}
    card = nbformat.v4.new_output("display_data", {MIME: {"name": "</script>"}, "text/html": "<p>static</p>"})
    file = tmp_path / "page.ipynb"
    cells = [text, nbformat.v4.new_code_cell("%%blockkernel", outputs=[card])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
    notebook = loaded("notebooks", monkeypatch).page_notebook(file)
    assert notebook.cells[0].source == "![A](data:image/png;base64,iVBO) [costs](x.ipynb#what-a-tile-costs)"
    html = notebook.cells[1].outputs[0].data["text/html"]
    assert html.startswith(f'<script type="{MIME}">') and html.endswith("<noscript><p>static</p></noscript>")
    assert html.count("</script>") == 1  # the text of the user does not end the element


def test_dead_files_and_anchors_of_the_site_are_found(monkeypatch, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="one">A</h1><a href="b.html#two">b</a><a href="#one">a</a><img src="c.png">'
    )
    (tmp_path / "b.html").write_text(
        '<a href="a.html#One">a</a><a href="https://example.org">e</a><a href="a.html">a</a>'
    )
    dead, outside = loaded("links", monkeypatch).check(tmp_path)
    assert dead == [
        "a.html: the page has no anchor b.html#two",
        "a.html: there is no file c.png",
        "b.html: the page has no anchor a.html#One",
    ]
    assert dict(outside) == {"https://example.org": ["b.html"]}


def test_the_api_reference_has_signatures_members_and_code_in_fences(monkeypatch):
    pytest.importorskip("sphinx")
    api = loaded("api", monkeypatch)
    assert api.entry("cdiv", blocknb.cdiv).startswith(
        "```{py:function} cdiv(x: int, y: int) -> int\n\nx / y rounded up"
    )
    assert "{py:method} compile(" in api.entry("Kernel", blocknb.Kernel)
    text = api.page("blocknb.language")
    assert "Example:\n\n```default\ntl.abs(" in text
    assert "{py:data} float16\n:type: DType\n" in text
    assert "\nslice\n" not in text and "slice(" not in text


def test_a_signature_has_no_default_that_sphinx_cannot_parse(monkeypatch):
    pytest.importorskip("sphinx")
    api = loaded("api", monkeypatch)
    assert api.arguments(learn.ProofReport).startswith(
        "(name: str, failures: list[str] = ..., mistakes: tuple[int, int] = (0, 0)"
    )
    assert not api.arguments(learn.Unit).endswith("None"), "a class returns no None"
    assert api.arguments(tl.PropagateNan) == ""
    assert "propagate_nan=PropagateNan.NONE" in api.arguments(tl.clamp)
    assert learn.no_spills.says in api.entry("no_spills", learn.no_spills)
    assert "[](../docs/learn.md)" in api.markdown(learn)


def test_a_long_name_may_break_and_a_short_one_stays(monkeypatch):
    pytest.importorskip("sphinx")
    conf = loaded("conf", monkeypatch)
    page = {"body": '<span class="pre">tests/browser/test_page.py::test_a</span> <span class="pre">num_warps</span>'}
    conf._breaks(None, "page", "page.html", page, None)
    assert "tests/<wbr>browser/<wbr>test_<wbr>page.<wbr>py::<wbr>test_<wbr>a<" in page["body"]
    assert ">num_warps<" in page["body"]
