"""`%%blockkernel --exercise NAME`: checks the kernel of a cell, and launches it once more for the card below the cell.

The card shows the launch of a case that fails, else of the first case; so the Step, Footprint and Tiles views show the failure. A case
that ends with an error has no launch to show. Without any launch, the verdict alone is the output of the cell.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import numpy as np
from IPython.core.error import UsageError

from blocknb.learn import help_texts, progress
from blocknb.learn.catalog import UnknownExercise
from blocknb.learn.catalog import exercise as find
from blocknb.learn.cell import IMPORTS, WrongCell, answer_of, is_kernel, kernel_in, matched
from blocknb.learn.checking import check
from blocknb.learn.exercise import CheckFinding, Exercise, Prediction, Verdict
from blocknb.learn.progress import ItemProgress
from blocknb.learn.running import Attempt, attempt
from blocknb.notebook import verdicts
from blocknb.runtime.launch_context import unobserved

MOST_ELEMENTS = 1 << 21  # of the arrays of a launch that a card shows

_KEPT = "_exercise_arguments"

#: The exercise of the newest cell or magic, for `%hint` and `%solution` without a name.
current: list[str] = []


@dataclass
class ExerciseCell:
    """A running cell with `--exercise`. `before` are the functions and kernels that existed before it, by their ids; they stay alive, so
    that no new one gets the id of an old one. `part` is the document's part "verdict", and `shown` the kernel whose card has it."""

    exercise: Exercise
    before: Mapping[int, Any]
    part: dict[str, Any] | None = None
    shown: Any = None


def found(name: str) -> Exercise | Prediction:
    """The exercise or prediction of a name. Raises UsageError for an unknown one."""
    try:
        return find(name)
    except UnknownExercise as error:
        raise UsageError(str(error)) from None


def begin_exercise(name: str, shell: Any) -> ExerciseCell:
    """Prepares the user's namespace for the body of the cell. Raises UsageError."""
    exercise = found(name)
    if isinstance(exercise, Prediction):
        raise UsageError(f"{name} is a prediction, not an exercise: answer it with %predict {name} ...")
    current[:] = [name]
    names = shell.user_ns
    imported: dict[str, Any] = {}
    exec(IMPORTS, imported)
    for alias in ("np", "blocknb", "tl"):
        names.setdefault(alias, imported[alias])
    if exercise.setup:
        file = f"<setup of {name}>"
        linecache.cache[file] = len(exercise.setup), None, exercise.setup.splitlines(keepends=True), file
        exec(compile(exercise.setup, file, "exec"), names)
    return ExerciseCell(exercise, {id(value): value for value in names.values() if _is_code(value)})


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType) or is_kernel(value)


def answer_in(task: ExerciseCell, names: Mapping[str, Any]) -> Any:
    """The answer among the functions and kernels that the cell defined: a kernel, a Python function, or None."""
    new = {name: v for name, v in names.items() if _is_code(v) and id(v) not in task.before and name[:1] != "_"}
    codes = [_function(value).__code__ for value in new.values()]
    if not codes:
        return None
    return kernel_in(task.exercise, {**new, "__file__": codes[-1].co_filename})


def _function(value: Any) -> Any:
    while not isinstance(value, FunctionType):
        value = value.fn
    return value


def check_cell(task: ExerciseCell, shell: Any, cell: str) -> dict[str, Any] | None:
    """Checks the answer after the body has run, keeps the result, and launches the answer for the card. Returns the verdict as an output if
    there was nothing to launch."""
    exercise, given = task.exercise, answer_in(task, shell.user_ns)
    verdict = check(exercise, given) if grid_is_here(exercise, given, cell, shell) else _without_grid(exercise)
    source = cell.partition("\n")[2] if cell.startswith("%%") else cell
    if source.strip() == exercise.skeleton.strip():  # "Run All" is no try
        done = progress.of(exercise.name)
    else:
        done = progress.update(exercise.name, lambda old: old.tried(exercise.hash, verdict.passed, source))
    task.part = part_of(exercise, verdict, done)
    if verdict.cases:
        task.shown, task.part["shown"] = launched(exercise, given, verdict)
    return None if task.shown is not None else verdicts.bundle(task.part)


def grid_is_here(exercise: Exercise, given: Any, cell: str, shell: Any) -> bool:
    """Whether the cell defines the `grid` that the exercise wants from it. One of an earlier cell may be for another kernel."""
    if exercise.grid is not None or not is_kernel(given):
        return True
    body = cell.partition("\n")[2] if cell.startswith("%%") else cell
    return any(
        (isinstance(node, ast.FunctionDef) and node.name == "grid")
        or (isinstance(node, ast.Name) and node.id == "grid" and isinstance(node.ctx, ast.Store))
        for node in ast.walk(ast.parse(shell.transform_cell(body)))
    )


def _without_grid(exercise: Exercise) -> Verdict:
    text = (
        "the cell defines no `grid`, and that of an earlier cell does not count: write `grid = lambda ...: (programs,)`"
    )
    return Verdict(False, exercise.name, (), (CheckFinding(text, "cell", True),))


def part_of(exercise: Exercise, verdict: Verdict, done: ItemProgress) -> dict[str, Any]:
    """The document's part "verdict". `hint` is the number of the hint to offer (0: none), and `hints` are those that the card shows.
    `shown` is the case whose launch the card shows."""
    hint = help_texts.offered(exercise, done)
    return {
        "exercise": exercise.name,
        "title": exercise.title,
        "passed": verdict.passed,
        "headline": replace(verdict, hints=hint).headline,
        "tries": done.tries,
        "cases": [[case.name, case.passed, case.device, case.text] for case in verdict.cases],
        "findings": [{"text": f.text, "line": f.line, "case": f.case} for f in verdict.findings],
        "notes": list(verdict.notes),
        "hint": hint,
        "of": len(exercise.hints),
        "hints": [],
        "shown": "",
        "solution": not verdict.passed and not help_texts.tries_left(exercise, done),
    }


def launched(exercise: Exercise, given: Any, verdict: Verdict) -> tuple[Any, str]:
    """Launches the answer where the card sees it; returns the kernel and the name of the case. (None, ""): each case ends with an error."""
    try:
        answer, own = answer_of(exercise, given), answer_of(exercise, given, own=True)
    except WrongCell:
        return None, ""
    failed = {case.name for case in verdict.cases if not case.passed}
    numbered = list(enumerate(exercise.cases))
    for number, case in sorted(numbered, key=lambda pair: pair[1].name not in failed):
        with unobserved():
            made = attempt(exercise, answer, case, verdict.seed + number)
        if made.raised is None and _size(made) <= MOST_ELEMENTS:
            arguments = matched(own, made.fresh())
            own.kernel[made.grid](**arguments)
            vars(own.base)[_KEPT] = (
                arguments  # the card refers to the arrays weakly, and a page may ask for more of the launch
            )
            return own.base, case.name
    return None, ""


def _size(made: Attempt) -> int:
    return sum(value.size for value in made.given.values() if isinstance(value, np.ndarray))


def add_verdict(task: ExerciseCell, record: Any, found: Any) -> None:
    """Adds the verdict to the findings of options about the kernel of the answer."""
    if task.part is None or record.kernel is not task.shown:
        return
    found.parts[verdicts.VERDICT] = task.part
    found.ok, found.checked = task.part["passed"], f"exercise {task.exercise.name}"
    said = "correct" if found.ok else "✗ WRONG"
    names = {case[0] for case in task.part["cases"]}
    good = len(names - {case[0] for case in task.part["cases"] if not case[1]})
    refused = ", but the answer is not accepted" if good == len(names) and not found.ok else ""
    found.facts.append(("check", f"{said}: exercise `{task.exercise.name}`, {good} of {len(names)} cases{refused}"))
