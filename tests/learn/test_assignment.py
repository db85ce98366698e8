"""Assignments: the cells that nbgrader reads, and no solution in the notebook of a student (docs/teaching.md records a trial)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blocknb import learn
from blocknb.cli import main
from blocknb.learn import assignment
from blocknb.learn.exercise import Exercise

ADD = learn.exercise("add-1")


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def cleared(text: str, stub: str = "...") -> str:
    """What nbgrader makes of a solution cell."""
    return re.sub(r"( *)### BEGIN SOLUTION\n.*?### END SOLUTION", rf"\1{stub}", text, flags=re.DOTALL)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("item", [i for i in learn.exercises() if isinstance(i, Exercise)], ids=lambda item: item.name)
def test_without_what_nbgrader_removes_a_solution_is_refused_and_with_it_is_the_solution(item: Exercise) -> None:
    marked = assignment.marked_solution(item)
    kept = "\n".join(line for line in marked.split("\n") if not line.lstrip().startswith("#"))
    own = "\n".join(line for line in item.solution.strip().split("\n") if not line.lstrip().startswith("#"))
    assert kept == own
    assert not learn.check(item, cleared(marked)).passed
    compile(cleared(marked), "cleared", "exec")
    assert assignment.kernel_name(item) in item.solution


def test_the_student_notebook_has_skeletons_and_locked_tests(tmp_path: Path) -> None:
    assert main(["learn", "assignment", "unit1", "--student", "-o", str(tmp_path / "a.ipynb"), "--points", "2"]) == 0
    notebook = json.loads((tmp_path / "a.ipynb").read_text())
    cells = {cell["id"]: cell for cell in notebook["cells"]}
    assert len(cells) == len(notebook["cells"])
    assert source(cells["add-1"]) == f"%%blockkernel --exercise add-1\n{ADD.skeleton.rstrip()}"
    text = json.dumps(notebook)
    for item in learn.exercises(1):
        if isinstance(item, Exercise):
            assert json.dumps(item.solution.strip())[1:-1] not in text
    grader = cells["add-1-test"]["metadata"]["nbgrader"]
    assert (grader["grade"], grader["locked"], grader["solution"], grader["points"]) == (True, True, False, 2)
    assert cells["add-1"]["metadata"]["nbgrader"]["solution"]
    assert not cells["add-1"]["metadata"]["nbgrader"]["locked"]


def test_the_test_cell_passes_for_the_solution_and_fails_for_a_wrong_answer() -> None:
    notebook = assignment.notebook("Unit", [ADD], 1, student=False)
    test = source(next(cell for cell in notebook["cells"] if cell["id"] == "add-1-test"))
    assert compile(test, "test", "exec")
    for text, passes in ((ADD.solution, True), (ADD.solution.replace("at < n", "at <= n"), False)):
        from blocknb.learn.cell import run

        names = {**run(text, "", "add-1"), "learn": learn}
        if passes:
            exec(test, names)
        else:
            with pytest.raises(AssertionError, match="of 4 cases"):
                exec(test, names)


def test_an_unknown_unit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "assignment", "unit77"]) == 1
    assert "unit77" in capsys.readouterr().err
