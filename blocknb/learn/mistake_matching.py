"""Matches an answer with the known mistakes of its exercise: each mistake's cell runs on the same inputs, and its wrong results are
compared.

A mistake fits if it gives the learner's result in every case. That is the same wrong numbers, the same error, or a right result where the
learner's is right. Numbers that say little (nothing but NaN), and errors, prove less, so the sources decide with them (`structure`). If
several mistakes fit, and the sources are no closer to one of them, none is named.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import ElementError, KernelError
from blocknb.learn.cell import Answer, WrongCell, answer_of
from blocknb.learn.exercise import Case, Exercise, Mistake
from blocknb.learn.running import Attempt, TimeUp, attempt, differs
from blocknb.learn.structure import Nodes, contradicts, evidence, similarity

SECONDS = 5.0  # of this thread, for all mistakes together
EACH = 4.0  # of one launch
ENOUGH = 0.6  # of the step from the solution to a mistake that a source must have taken if its numbers say little
MARGIN = 0.005  # by which a source must be closer to one mistake than to another


@functools.lru_cache(maxsize=1024)
def answer_in(exercise: Exercise, source: str) -> Answer | WrongCell:
    """The answer in a cell, made once, or why there is none."""
    try:
        return answer_of(exercise, source)
    except WrongCell as error:
        return error


@functools.lru_cache(maxsize=256)
def interpreted(exercise: Exercise, answer: Answer, case: Case, seed: int) -> Attempt:
    """The interpreted launch of a case, made once."""
    return attempt(exercise, answer, case, seed, "interpreted", EACH)


@dataclass(frozen=True)
class Symptom:
    """The result of one launch: its error, or the arrays that it left. `weak`: it says little about the cause."""

    error: tuple[Any, ...] | None
    arrays: dict[str, np.ndarray]
    weak: bool = False


def symptom(made: Attempt) -> Symptom:
    """The symptom of a launch. Launches with an error are compared as interpreted, where the first program with an error is reported."""
    if made.device != "interpreted" and isinstance(made.raised, ElementError):
        made = interpreted(made.exercise, made.answer, made.case, made.seed)
    if made.raised is not None:
        return Symptom(_error(made), {}, True)
    arrays = {name: value for name, value in made.left.items() if isinstance(value, np.ndarray)}
    values = [arrays[name][flags] for name, flags in made.wrong.items()]
    wrong = np.concatenate([v.astype(np.float64).reshape(-1) for v in values]) if values else np.empty(0)
    finite = wrong[np.isfinite(wrong)]
    return Symptom(None, arrays, len(np.unique(finite)) < 3)


def _error(made: Attempt) -> tuple[Any, ...]:
    error: Any = made.raised
    if isinstance(error, TimeUp):
        return ("time",)
    text = error.message if isinstance(error, KernelError) else str(error)
    names = made.names if not isinstance(error, WrongCell) else {}
    text = re.sub(r"`(\w+)`", lambda m: f"`{names.get(m[1], m[1])}`", text.split(":")[0])
    if isinstance(error, ElementError):
        return type(error).__name__, error.program, error.index, text
    return type(error).__name__, text


def same(a: Symptom, b: Symptom, exercise: Exercise) -> bool:
    """Whether two launches did the same."""
    if a.error is not None or b.error is not None:
        return a.error == b.error
    return all(not differs(a.arrays[n], b.arrays[n], exercise.tolerance).any() for n in a.arrays)


def fitting(attempts: Sequence[Attempt]) -> list[Mistake]:
    """The mistakes that explain all attempts of an answer and that its source does not contradict; at most two. Empty if the time
    ends before all mistakes are compared on the first attempt: another one may fit as well."""
    exercise, answer = attempts[0].exercise, attempts[0].answer
    deadline = time.thread_time() + SECONDS
    candidates: list[tuple[Mistake, Answer]] = []
    for mistake in exercise.mistakes:
        try:
            found = answer_in(exercise, mistake.applied(exercise.solution))
        except ValueError:  # the solution has changed since: `prove` reports it
            continue
        if isinstance(found, Answer):
            candidates.append((mistake, found))
    ordered = sorted(attempts, key=lambda made: (made.passed, _elements(made)))
    strong = False
    for number, made in enumerate(ordered):
        mine = symptom(made)
        kept: list[tuple[Mistake, Answer]] = []
        compared = True
        for mistake, other in candidates:
            if time.thread_time() > deadline:
                if number == 0:
                    return []
                kept.append((mistake, other))  # later cases only confirm what earlier ones say
                compared = False
                continue
            theirs = interpreted(exercise, other, made.case, made.seed)
            if theirs.passed == made.passed and (made.passed or same(mine, symptom(theirs), exercise)):
                kept.append((mistake, other))
        candidates = kept
        if not candidates:
            return []
        strong |= not made.passed and not mine.weak and compared
    return _chosen(candidates, answer, ordered[0], strong)


def _elements(made: Attempt) -> int:
    return sum(value.size for value in made.given.values() if isinstance(value, np.ndarray))


def _chosen(candidates: list[tuple[Mistake, Answer]], answer: Answer, made: Attempt, strong: bool) -> list[Mistake]:
    """The candidates that the source supports: all numbers agree with each of them."""
    nodes = Nodes()
    own = nodes.of(answer, made.given)
    solution = answer_in(made.exercise, made.exercise.solution)
    right = nodes.of(solution, made.given) if isinstance(solution, Answer) else own
    known = [(nodes.of(other, made.given), mistake) for mistake, other in candidates]
    if isinstance(solution, Answer):
        known = [(wrong, mistake) for wrong, mistake in known if not contradicts(own, wrong, right, nodes)]
    if len(known) == 1 and strong:
        return [known[0][1]]
    if not strong:
        known = [(wrong, mistake) for wrong, mistake in known if evidence(own, wrong, right) > ENOUGH]
    ranked = sorted(((similarity(own, wrong), mistake) for wrong, mistake in known), key=lambda x: -x[0])
    best = [mistake for score, mistake in ranked if score > ranked[0][0] - MARGIN]
    return best if len(best) <= 2 else []


def sentences(mistakes: Sequence[Mistake]) -> Iterator[str]:
    """The sentence about one mistake, or about two of which either explains the result."""
    says = list(dict.fromkeys(mistake.says for mistake in mistakes))
    if says:
        yield says[0] if len(says) == 1 else f"either {says[0]}; or {says[1]}"
