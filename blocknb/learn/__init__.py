"""The course's exercises and their checks: `check("add-1", kernel)` returns a Verdict.

`exercise` has the values, `catalog` finds exercises, `checking` runs an answer, `rules` and `causes` make the sentences, and `proving`
tests an exercise by right and wrong answers. docs/learn.md explains how to write an exercise.
"""

from blocknb.learn.catalog import UnknownExercise, exercise, exercises, load, unit_of, units
from blocknb.learn.checking import check, launch
from blocknb.learn.exercise import (
    Blank,
    Case,
    CaseResult,
    CheckFinding,
    Exercise,
    Mistake,
    Prediction,
    Rule,
    Tolerance,
    Unit,
    Verdict,
)
from blocknb.learn.rules import no_race, stored_once

__all__ = [
    "Blank",
    "Case",
    "CaseResult",
    "CheckFinding",
    "Exercise",
    "Mistake",
    "Prediction",
    "Rule",
    "Tolerance",
    "Unit",
    "UnknownExercise",
    "Verdict",
    "check",
    "exercise",
    "exercises",
    "launch",
    "load",
    "no_race",
    "stored_once",
    "unit_of",
    "units",
]
