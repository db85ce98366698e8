"""`blocknb learn assignment UNIT`: exercises as a notebook for nbgrader, or as the notebook that students get.

A solution cell begins with `%%blockkernel --exercise NAME` and marks what nbgrader removes with `### BEGIN SOLUTION`. The test cell below
it is locked and calls `learn.check`. nbgrader's format of cells: https://nbgrader.readthedocs.io/en/stable/contributor_guide/metadata.html
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blocknb.learn.exercise import Blank, Exercise, Prediction

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SETUP = (
    "%load_ext blocknb\nimport numpy as np\n\nimport blocknb\nimport blocknb.language as tl\nfrom blocknb import learn"
)
ABOUT = """# {title}

Each exercise has a cell for your kernel, and a locked cell that checks it. Run a cell with Shift+Enter. A cell with `--exercise` says what
is wrong. `%hint` shows a hint."""


def notebook(
    title: str, items: Sequence[Exercise | Prediction], points: float, student: bool, file: str = ""
) -> dict[str, Any]:
    """The notebook in nbformat 4. With `student`, it has the skeletons instead of the solutions. `file` is the name of the Python file with
    the exercises, which the notebook then loads from its own folder."""
    setup = SETUP + (f"\n\nlearn.load({file!r});  # the exercises" if file else "")
    cells = [_cell("about", "markdown", ABOUT.format(title=title)), _cell("setup", "code", setup, locked=True)]
    for item in items:
        cells += _exercise(item, points, student) if isinstance(item, Exercise) else _prediction(item, points, student)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write(
    place: Path, title: str, items: Sequence[Exercise | Prediction], points: float, student: bool, file: str = ""
) -> None:
    """Writes the notebook to a file. Raises OSError."""
    text = json.dumps(notebook(title, items, points, student, file), indent=1, ensure_ascii=False)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text + "\n", "utf-8")


def _exercise(item: Exercise, points: float, student: bool) -> list[dict[str, Any]]:
    rules = "\n".join(f"- {rule.says}" for rule in item.rules)
    task = f"## {item.title}\n\n{item.task.strip()}" + (f"\n\n{rules}" if rules else "")
    if has_own_start(item) and not student:  # nbgrader leaves nothing of a solution
        task += f"\n\nBegin with this kernel:\n\n```python\n{item.skeleton.rstrip()}\n```"
    source = item.skeleton.rstrip() if student else marked_solution(item)
    return [
        _cell(f"{item.name}-task", "markdown", task, locked=True),
        _cell(item.name, "code", f"%%blockkernel --exercise {item.name}\n{source}", solution=True),
        _test(item.name, kernel_name(item), points),
    ]


def _prediction(item: Prediction, points: float, student: bool) -> list[dict[str, Any]]:
    name = item.name.replace("-", "_")
    value = item.value
    if isinstance(value, tuple | list):
        value = tuple(value)
    answer = f"{name} = ..." if student else f"{BEGIN}\n{name} = {value!r}\n{END}"
    return [
        _cell(
            f"{item.name}-task", "markdown", f"## {item.title}\n\n{item.question.strip()}\n\nSet `{name}`.", locked=True
        ),
        _cell(item.name, "code", answer, solution=True),
        _test(item.name, name, points),
    ]


def _test(name: str, variable: str, points: float) -> dict[str, Any]:
    source = f'verdict = learn.check("{name}", {variable})\nprint(verdict)\nassert verdict.passed, verdict.headline'
    return _cell(f"{name}-test", "code", source, locked=True, grade=True, points=points)


def _cell(
    name: str,
    kind: str,
    source: str,
    locked: bool = False,
    solution: bool = False,
    grade: bool = False,
    points: float = 0,
) -> dict[str, Any]:
    grader: dict[str, Any] = {"grade": grade, "grade_id": name, "locked": locked, "schema_version": 3, "task": False}
    grader["solution"] = solution
    if grade:
        grader["points"] = points
    metadata = {"nbgrader": grader} if locked or solution or grade else {}
    lines = source.splitlines(keepends=True)
    cell = {"cell_type": kind, "id": name[:64], "metadata": metadata, "source": lines}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}


def has_own_start(item: Exercise) -> bool:
    """Whether learners begin with other code in place of a blank, not with `...`."""
    return any(isinstance(blank, Blank) and blank.keep for blank in item.blanks)


def marked_solution(item: Exercise) -> str:
    """The solution with a pair of marks around each blank, or around all of it if learners begin with other code."""
    lines = item.solution.strip("\n").split("\n")
    if has_own_start(item):
        return "\n".join([BEGIN, *lines, END])
    for given in sorted(item.blanks, key=lambda b: -(b if isinstance(b, Blank) else Blank(*b)).first):
        blank = given if isinstance(given, Blank) else Blank(*given)
        body = lines[blank.first - 1 : blank.last]
        indent = body[0][: len(body[0]) - len(body[0].lstrip())]
        name = re.match(r"\s*([\w, ]+) = ", body[0]) if len(body) == 1 else None
        comment = ": ".join(filter(None, [f"`{name[1]}`" if name else "", blank.says]))
        says = [f"{indent}# {comment}"] if comment else []
        lines[blank.first - 1 : blank.last] = [*says, f"{indent}{BEGIN}", *body, f"{indent}{END}"]
    return "\n".join(lines)


def kernel_name(item: Exercise) -> str:
    """The name of the solution's kernel, which the skeleton shares: the one called like the exercise, else `kernel`, else the last one."""
    functions = [node.name for node in ast.parse(item.solution).body if isinstance(node, ast.FunctionDef)]
    wanted = (item.name.rsplit("-", 1)[0].replace("-", "_"), "kernel")
    return next((name for name in wanted if name in functions), functions[-1])
