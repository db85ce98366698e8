"""What `blocknb.learn.prove` finds, and the proof of each exercise of the course.

A quick run proves a fixed sample, interpreted. `--full` proves all exercises, compiled: about half a minute each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learn.examples import SOFTMAX

from blocknb import learn
from blocknb.learn.mutants import mutants

QUICK = ("add-1", "predict-blocks", "predict-sectors-1")
NAMES = [item.name for item in learn.exercises()]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_an_exercise_of_the_course_is_sound(name: str, request: pytest.FixtureRequest) -> None:
    full = request.config.getoption("--full")
    report = learn.prove(learn.exercise(name), compiled=full, seeds=(1, 2, 3) if full else (1,))
    assert report.sound, report


def test_a_proof_finds_what_is_wrong_with_an_exercise() -> None:
    mistakes = (*SOFTMAX.mistakes, learn.Mistake("the maximum is wrong", patch=("row * n", "n * row")))
    other = SOFTMAX.mistakes[1].applied(SOFTMAX.solution)
    friendly = SOFTMAX.cases[0]
    bad = replace(
        SOFTMAX, mistakes=mistakes, alternatives=(other,), cases=(friendly, friendly, friendly), hints=("One?",) * 3
    )
    report = learn.prove(bad, compiled=False, course=False, seeds=(1,))
    said = str(report)
    assert "a mistake passes: the maximum is wrong" in said
    assert "a mistake passes: masked lanes count as 0 in the maximum" in said
    assert "alternative 1 is refused" in said
    assert "a cheat passes: it knows one shape only" not in said, "all cases have one shape"
    assert "a mutant passes, line 5: lanes < n -> lanes <= n" in said
    assert not report.sound


def test_a_broken_solution_ends_the_proof() -> None:
    report = learn.prove(
        replace(SOFTMAX, solution=SOFTMAX.mistakes[1].applied(SOFTMAX.solution)), compiled=False, course=False
    )
    assert len(report.failures) == 1
    assert report.failures[0].startswith("the solution is refused (interpreted, seed 1): 0 of 3 cases")


def test_an_exercise_of_the_course_needs_mistakes_alternatives_and_hints() -> None:
    said = str(learn.prove(replace(SOFTMAX, hints=()), compiled=False))
    assert "4 mistakes, and 8 are wanted" in said
    assert "0 alternatives, and 5 are wanted" in said
    assert "0 hints: give three" in said


def test_mutants_change_one_place() -> None:
    source = """\
@blocknb.kernel
def f(x, out, n, m, BLOCK: tl.constexpr):
    at = tl.program_id(0) * m + tl.arange(0, BLOCK)[:, None]
    tl.store(out + at, tl.sum(tl.load(x + at, mask=at < n, other=1.0), axis=1), mask=at < n)
"""
    found = {mutant.text for mutant in mutants(source, ("n", "m"))}
    load = "tl.load(x + at, mask=at < n, other=1.0)"
    assert {
        f"{load} -> tl.load(x + at, other=1.0)",
        f"{load} -> tl.load(x + at, mask=at < n)",
        "at < n -> at <= n",
        "at < n -> at < n + 1",
        "at < n -> at < n - 1",
        "tl.program_id(0) -> tl.program_id(1)",
        "tl.program_id(0) * m -> tl.program_id(0) * n",
        "tl.arange(0, BLOCK)[:, None] -> tl.arange(0, BLOCK)[None, :]",
        "axis=1 -> axis=0",
    } <= found
    assert not any(text.startswith(("1 ->", "0 -> -2")) for text in found)


def test_the_exercise_of_the_docs_page_is_sound() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learn.md").read_text()
    (source,) = re.findall(r"```python\n(# mine.py\n.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    assert source.count("\n") < 40
    report = learn.prove(names["MAX"], compiled=False, course=False, seeds=(1,))
    assert report.failures == ["it has 1 cases: give a friendly, a ragged and a tiny one"]


def test_a_key_of_equivalent_names_its_line_if_several_lines_contain_the_text() -> None:
    source = SOFTMAX.solution.replace("row = tl.program_id(0)", "row = tl.program_id(0) + 0")
    both = replace(SOFTMAX, solution=source, mistakes=(), equivalent={"0 -> 1": "?"})
    said = str(learn.prove(both, compiled=False, course=False, seeds=(1,)))
    assert "`equivalent` excuses '0 -> 1' in 2 lines" in said
    one = replace(both, equivalent={"row = tl.program_id(0) + 0: 0 -> 1": "?"})
    report = learn.prove(one, compiled=False, course=False, seeds=(1,))
    assert report.equivalent == 1
    assert "excuses" not in str(report)
    never = replace(one, equivalent={**one.equivalent, "lanes < m -> lanes <= m": "?"})
    said = str(learn.prove(never, compiled=False, course=False, seeds=(1,)))
    assert "`equivalent` lists 'lanes < m -> lanes <= m', which is no mutant of the solution" in said
