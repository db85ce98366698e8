"""The course's exercises and their checks: `check("add-1", kernel)` returns a Verdict.

`exercise` has the values, `catalog` finds exercises, and `checking` runs an answer. `rules` and `causes` make the sentences. `proving`
tests an exercise by right and wrong answers. docs/learn.md explains how to write an exercise.
"""

from blocknb.learn.catalog import UnknownExercise, exercise, exercises, load, unit_of, units
from blocknb.learn.checking import check, launch
from blocknb.learn.code_rules import (
    assembles,
    bytes_per_lane,
    emits,
    ideal_sectors,
    mma_utilization,
    no_spills,
    programs_per_multiprocessor,
    registers_at_most,
    shared_at_most,
    waves_busy,
)
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
from blocknb.learn.proving import ProofReport, prove
from blocknb.learn.rules import any_order, bytes_at_most, bytes_once, first_programs_load, no_race, stored_once

__all__ = [
    "Blank",
    "Case",
    "CaseResult",
    "CheckFinding",
    "Exercise",
    "Mistake",
    "Prediction",
    "ProofReport",
    "Rule",
    "Tolerance",
    "Unit",
    "UnknownExercise",
    "Verdict",
    "any_order",
    "assembles",
    "bytes_at_most",
    "bytes_once",
    "bytes_per_lane",
    "check",
    "emits",
    "exercise",
    "exercises",
    "first_programs_load",
    "ideal_sectors",
    "launch",
    "load",
    "mma_utilization",
    "no_race",
    "no_spills",
    "programs_per_multiprocessor",
    "prove",
    "registers_at_most",
    "shared_at_most",
    "stored_once",
    "unit_of",
    "units",
    "waves_busy",
]
