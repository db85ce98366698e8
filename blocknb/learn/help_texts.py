"""Hints and solutions: which ones a learner may see now, and the solution as a difference to their own cell.

An exercise has three hints: a question, the place, and the line. The solution opens when the exercise is passed, or after three tries.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from blocknb.learn import progress
from blocknb.learn.exercise import Exercise, Prediction
from blocknb.learn.progress import ItemProgress

FAILURES_BEFORE_A_HINT = 2
TRIES_BEFORE_THE_SOLUTION = {Exercise: 3, Prediction: 2}


def offered(item: Exercise | Prediction, done: ItemProgress) -> int:
    """The number of the hint to offer after a failed try; 0 for none."""
    ready = not done.passed and done.tries >= FAILURES_BEFORE_A_HINT and done.hints < len(item.hints)
    return done.hints + 1 if ready else 0


def next_hint(item: Exercise | Prediction) -> tuple[int, str]:
    """The number and the text of the next hint, which the progress then counts. After the last one, returns it again; (0, "") if the
    exercise has none."""
    if not item.hints:
        return 0, ""
    done = progress.update(item.name, lambda old: replace(old, hints=min(old.hints + 1, len(item.hints))))
    number = max(1, min(done.hints, len(item.hints)))
    return number, item.hints[number - 1]


def tries_left(item: Exercise | Prediction, done: ItemProgress) -> int:
    """How many tries a learner must make before the solution opens; 0 if it is open."""
    return 0 if done.passed else max(0, TRIES_BEFORE_THE_SOLUTION[type(item)] - done.tries)


def solution_diff(exercise: Exercise, own: str) -> list[str]:
    """The lines of the solution, each with a sign: "-" for a line of `own` alone, "+" for one of the solution alone, " " for both."""
    theirs = [line.rstrip() for line in own.strip("\n").split("\n")] if own.strip() else []
    right = exercise.solution.strip("\n").split("\n")
    return [line for line in difflib.ndiff(theirs, right) if line[0] != "?"]


def diff_text(exercise: Exercise, own: str) -> str:
    """The solution as text: as it is, or as a difference to the learner's own cell."""
    lines = solution_diff(exercise, own)
    if all(line[0] == " " for line in lines) or not own.strip():
        return exercise.solution.strip("\n")
    return "\n".join(line.rstrip() for line in lines)
