"""The notebooks of the course: skeletons, pictures, and the sentences and terms that scripts/course_prose.py checks."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from blocknb.learn import Exercise, exercises

ROOT = Path(__file__).parents[2]
UNITS = [file.stem for file in sorted((ROOT / "notebooks" / "course").glob("*.ipynb"))]
PICTURED = [unit for unit in UNITS if not unit.startswith("12")]


@pytest.fixture(scope="module")
def prose():
    spec = importlib.util.spec_from_file_location("course_prose", ROOT / "scripts" / "course_prose.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["course_prose"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def complaints(prose):
    """The files with texts, and what the script finds in all of them: a term may be explained in an earlier file."""
    found = list(prose.texts())
    lists = (*prose.long_sentences(found), *prose.early_terms(found), *prose.early_options())
    return {text.file for text in found}, lists


def made(prose, *texts):
    return [prose.CourseText("a.ipynb", number, text) for number, text in enumerate(texts)]


def test_a_long_sentence_is_found_and_code_counts_as_one_word(prose):
    words = " ".join(["word"] * 26)
    code = " ".join(["word"] * 24) + " `tl.load(x + i, mask=i < n, other=0)`."
    assert len(prose.long_sentences(made(prose, f"Short. {words}. Short.", code))) == 1


def test_tables_headings_code_blocks_and_links_are_no_prose(prose):
    row = "| " + " ".join(["word"] * 30) + " |"
    fence = "```python\n" + " ".join(["word"] * 30) + "\n```"
    heading = "# " + " ".join(["word"] * 30)
    link = "See [the page](https://example.org/a-page)."
    assert not prose.long_sentences(made(prose, f"{heading}\n\n{row}\n\n{fence}\n\n{link}"))


def test_a_term_before_its_explanation_is_found(prose):
    found = prose.early_terms(
        made(prose, "Each warp loads.", "A **warp** has 32 threads.", "A **[lane](x)** is a place. Lanes.")
    )
    assert [line.split(": ")[1] for line in found] == [
        "warp, explained in a.ipynb, cell 1",
        "thread, explained nowhere",
    ]


def test_code_and_the_line_for_readers_of_cuda_may_name_terms(prose):
    aside = "**Where this stands in CUDA and Triton.** A program is\na thread block there."
    assert not [
        f
        for f in prose.early_terms(made(prose, "`tl.program_id` is a function.", aside))
        if "thread" in f or "program" in f
    ]


@pytest.mark.parametrize("unit", UNITS)
def test_the_course_has_no_long_sentence_and_no_term_before_its_explanation(complaints, unit):
    files, lists = complaints
    assert f"{unit}.ipynb" in files
    assert not [line for line in lists if line.startswith(unit)]


def test_an_option_in_code_before_a_text_names_it_is_found(prose, tmp_path):
    cells = [
        ("code", "f[1](x, num_stages=3, num_warps=1)"),
        ("markdown", "`num_warps` sets the warps."),
        ("code", "num_stages=2"),
    ]
    content = {"cells": [{"cell_type": kind, "source": [source]} for kind, source in cells[1:] + cells[:1]]}
    (tmp_path / "a.ipynb").write_text(json.dumps(content))
    assert prose.early_options(tmp_path) == [
        "a.ipynb, cell 1: the code passes num_stages, which no text cell has named"
    ]


@pytest.mark.parametrize("unit", UNITS)
def test_a_notebook_has_every_item_of_its_unit_as_its_skeleton_and_keeps_no_card(unit):
    cells = json.loads((ROOT / "notebooks" / "course" / f"{unit}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for item in exercises(int(unit[:2])):
        if isinstance(item, Exercise):
            assert f"%%blockkernel --exercise {item.name}\n{item.skeleton.rstrip()}" in sources
        else:
            assert f"%predict {item.name}" in sources
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert outputs
    assert not [
        o for o in outputs if o["output_type"] == "error" or any("blocknb" in mime for mime in o.get("data", {}))
    ]


@pytest.mark.parametrize("unit", PICTURED)
def test_the_pictures_of_a_notebook_are_attached_and_have_alternative_texts(unit):
    cells = json.loads((ROOT / "notebooks" / "course" / f"{unit}.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = 0
    for cell in cells:
        for alt, name in re.findall(r"!\[([^\]]*)\]\(attachment:([\w.]+)\)", "".join(cell["source"])):
            assert len(alt.split()) > 5
            assert cell["attachments"][name]["image/png"]
            shown += 1
    assert shown
