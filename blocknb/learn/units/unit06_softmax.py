"""Unit 6, softmax: several array steps become one kernel that loads each element once.

The rows of the cases are those for which a wrong softmax fails. Some have numbers so large that the exponential overflows. Some are so wide
that a probability rounds to 0. Others have their maximum in the first block or in the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Exercise, Mistake, Prediction, Tolerance, Unit
from blocknb.learn.rules import bytes_once, no_race, stored_once
from blocknb.learn.units.long_softmax import online_1
from blocknb.learn.units.row_cases import row_grid, rows_case
from blocknb.learn.units.row_norms import layernorm_1

UNIT = Unit(6, "Softmax: fuse", minutes=40)


def softmax64(x: np.ndarray, **_: Any) -> dict[str, Any]:
    """The softmax of each row in float64."""
    x = x.astype(np.float64)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return {"out": powers / powers.sum(axis=1, keepdims=True)}


def log_softmax64(x: np.ndarray, **_: Any) -> dict[str, Any]:
    """The logarithm of the softmax of each row in float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return {"out": x - np.log(np.exp(x).sum(axis=1, keepdims=True))}


def _cases() -> Any:
    return (
        rows_case("8x128", 8, 128, out="element"),
        rows_case("50x100", 50, 100, "negative", out="element"),
        rows_case("6x300 of large numbers", 6, 300, "large", out="element"),
        rows_case("6x200 of a wide range", 6, 200, "wide", out="element"),
        rows_case("9x5 below -280", 9, 5, "low", out="element"),
    )


TASK = """`x` is a matrix of fp32 numbers with `columns` columns. Its rows follow each other in memory.
Program `i` computes row `i`, and the grid has one program per row.
`BLOCK` is the smallest power of two that is not below `columns`."""

# ---- softmax-1 -----------------------------------------------------------------------------------------------------------------

SOFTMAX = """@blocknb.kernel
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    total = tl.sum(powers, axis=0)
    tl.store(out + row * columns + at, powers / total, mask=inside)
"""

_LOAD = 'tl.load(x + row * columns + at, mask=inside, other=-float("inf"))'
_EXP = "tl.exp(values - tl.max(values, axis=0))"

softmax_1 = Exercise(
    name="softmax-1",
    title="Write the softmax of a row in one kernel",
    task=f"""{TASK}

Store the softmax of row `i` in row `i` of `out` (fp32, in the shape of `x`):
`exp(x - m) / sum(exp(x - m))`, where `m` is the maximum of the row.
Load each element of `x` once.""",
    cases=_cases(),
    outputs=("out",),
    grid=row_grid,
    reference=softmax64,
    rules=(stored_once, no_race, bytes_once, assembles),
    tolerance=Tolerance(additions=100),
    solution=SOFTMAX,
    blanks=(Blank(6, 9, "load, subtract, exponential, sum, store"),),
    hints=(
        "Which value in a masked lane leaves the maximum unchanged? What does the exponential make of this value, and what does the sum?",
        "Four lines: load with `other`, subtract the maximum and take the exponential, sum, store the quotient with the mask.",
        '`other=-float("inf")`: the masked lanes never win the maximum, and `exp(-inf)` adds 0 to the sum.',
    ),
    mistakes=(
        Mistake(
            "masked lanes count as 0 in the maximum and in the sum: other=-float('inf')", patch=('-float("inf")', "0.0")
        ),
        Mistake(
            "masked lanes count as 0 in the maximum and in the sum: the load has no `other`",
            patch=(', other=-float("inf")', ""),
        ),
        Mistake("the exponential overflows: subtract the maximum of the row first", patch=(_EXP, "tl.exp(values)")),
        Mistake(
            "it subtracts the minimum, so the exponential overflows: subtract the maximum",
            patch=("tl.max(values", "tl.min(tl.where(inside, values, 1e30)"),
        ),
        Mistake(
            "it subtracts the mean, so the exponential overflows: subtract the maximum",
            patch=("tl.max(values, axis=0)", "tl.sum(tl.where(inside, values, 0.0), axis=0) / columns"),
        ),
        Mistake("it stores the exponentials: divide them by their sum", patch=("powers / total", "powers")),
        Mistake("it divides by the largest exponential: divide by the sum", patch=("tl.sum(powers", "tl.max(powers")),
        Mistake(
            "it divides by the sum of the numbers: divide by the sum of their exponentials",
            patch=("tl.sum(powers", "tl.sum(tl.where(inside, values, 0.0)"),
        ),
        Mistake("it multiplies by the sum: divide by it", patch=("powers / total", "powers * total")),
        Mistake(
            "it stores 1 / softmax: the exponentials stand above the sum", patch=("powers / total", "total / powers")
        ),
        Mistake("the exponential is missing", patch=(_EXP, "values - tl.max(values, axis=0)")),
        Mistake("the exponential has the wrong base: `tl.exp`, not `tl.exp2`", patch=("tl.exp(", "tl.exp2(")),
        Mistake(
            "the exponential has the wrong sign: x - m, not m - x",
            patch=(
                "tl.exp(values - tl.max(values, axis=0))",
                "tl.where(inside, tl.exp(tl.max(values, axis=0) - values), 0.0)",
            ),
        ),
        Mistake("it divides by the number of columns: divide by the sum", patch=("powers / total", "powers / columns")),
        Mistake(
            "the store has no mask: it overwrites the next row", patch=("powers / total, mask=inside", "powers / total")
        ),
        Mistake(
            "the mask is `<=`: the first element of the next row takes part", patch=("at < columns", "at <= columns")
        ),
        Mistake("the rows are `columns` elements apart, not `BLOCK`", patch=("row * columns", "row * BLOCK")),
        Mistake(
            "every program loads row 0: the address of the load lacks `row * columns`", patch=("x + row * columns", "x")
        ),
        Mistake(
            "every program stores to row 0: the address of the store lacks `row * columns`",
            patch=("out + row * columns", "out"),
        ),
        Mistake(
            "the programs load `x` 2 times in lines 6 and 8: once is enough",
            patch=(
                "total = tl.sum(powers, axis=0)",
                f"total = tl.sum(tl.exp({_LOAD} - tl.max(values, axis=0)), axis=0)",
            ),
        ),
    ),
    alternatives=(
        SOFTMAX.replace(", axis=0", ""),
        SOFTMAX.replace(', other=-float("inf")', ", other=0.0")
        .replace("tl.max(values,", "tl.max(tl.where(inside, values, -1e30),")
        .replace("tl.sum(powers,", "tl.sum(tl.where(inside, powers, 0.0),"),
        SOFTMAX.replace("    powers =", "    values -= tl.max(values, axis=0)\n    powers =").replace(
            _EXP, "tl.exp(values)"
        ),
        SOFTMAX.replace(_EXP, "tl.exp2((values - tl.max(values, axis=0)) * 1.4426950408889634)"),
        SOFTMAX.replace("powers / total", "powers * (1.0 / total)"),
        SOFTMAX.replace("    powers = " + _EXP + "\n    total = tl.sum(powers, axis=0)\n", "").replace(
            "powers / total", "tl.softmax(values)"
        ),
        SOFTMAX.replace('-float("inf")', "-1e30"),
    ),
)

# ---- log-softmax-1 -------------------------------------------------------------------------------------------------------------

LOG_SOFTMAX = """@blocknb.kernel
def log_softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    shifted = values - tl.max(values, axis=0)
    total = tl.sum(tl.exp(shifted), axis=0)
    tl.store(out + row * columns + at, shifted - tl.log(total), mask=inside)
"""

_RESULT = "shifted - tl.log(total)"

log_softmax_1 = Exercise(
    name="log-softmax-1",
    title="Write the logarithm of the softmax",
    task=f"""{TASK}

Store the logarithm of the softmax of row `i` in row `i` of `out` (fp32, in the shape of `x`).
No result may be infinite, not even where the softmax itself rounds to 0. Load each element of `x` once.""",
    cases=_cases(),
    outputs=("out",),
    grid=row_grid,
    reference=log_softmax64,
    rules=(stored_once, no_race, bytes_once, assembles),
    tolerance=Tolerance(additions=100, scale=20.0),
    solution=LOG_SOFTMAX,
    blanks=(Blank(6, 9, "load, subtract, sum, store"),),
    hints=(
        "The logarithm of a quotient is a difference. What is the logarithm of `exp(x - m)`?",
        "Keep `shifted = values - m` in a variable. The sum needs its exponential, and the result needs `shifted` itself.",
        "`tl.store(out + row * columns + at, shifted - tl.log(total), mask=inside)`",
    ),
    mistakes=(
        Mistake(
            "the logarithm of a softmax that rounds to 0 is -inf: subtract logarithms instead",
            patch=(_RESULT, "tl.log(tl.exp(shifted) / total)"),
        ),
        *(
            Mistake(
                "a small number in tl.log hides the -inf, but no result falls below its logarithm: subtract logarithms instead",
                patch=(_RESULT, f"tl.log({inner})"),
            )
            for small in ("1e-10", "1e-20", "1e-30")
            for inner in (f"tl.exp(shifted) / total + {small}", f"tl.maximum(tl.exp(shifted) / total, {small})")
        ),
        Mistake(
            "masked lanes count as 0 in the maximum and in the sum: other=-float('inf')", patch=('-float("inf")', "0.0")
        ),
        Mistake(
            "masked lanes count as 0 in the maximum and in the sum: the load has no `other`",
            patch=(', other=-float("inf")', ""),
        ),
        Mistake(
            "the exponential overflows: subtract the maximum of the row first",
            patch=("values - tl.max(values, axis=0)", "values"),
        ),
        Mistake("it subtracts the sum: subtract the logarithm of the sum", patch=(_RESULT, "shifted - total")),
        Mistake("it adds the logarithm of the sum: subtract it", patch=(_RESULT, "shifted + tl.log(total)")),
        Mistake("it lacks the logarithm of the sum", patch=(_RESULT, "shifted")),
        Mistake(
            "the result is too large by the maximum: subtract the logarithm from x - m, not from x",
            patch=(_RESULT, "values - tl.log(total)"),
        ),
        Mistake("it stores the softmax, not its logarithm", patch=(_RESULT, "tl.exp(shifted) / total")),
        Mistake("the logarithm has the wrong base: `tl.log`, not `tl.log2`", patch=("tl.log(total)", "tl.log2(total)")),
        Mistake(
            "the sum lacks the exponential", patch=("tl.sum(tl.exp(shifted)", "tl.sum(tl.where(inside, -shifted, 0.0)")
        ),
        Mistake("it takes the maximum of the exponentials, not their sum", patch=("tl.sum(tl.exp", "tl.max(tl.exp")),
        Mistake(
            "the store has no mask: it overwrites the next row", patch=("tl.log(total), mask=inside", "tl.log(total)")
        ),
        Mistake("the rows are `columns` elements apart, not `BLOCK`", patch=("row * columns", "row * BLOCK")),
        Mistake(
            "every program stores to row 0: the address of the store lacks `row * columns`",
            patch=("out + row * columns", "out"),
        ),
    ),
    alternatives=(
        LOG_SOFTMAX.replace(", axis=0", ""),
        LOG_SOFTMAX.replace(
            "    shifted = values - tl.max(values, axis=0)",
            "    largest = tl.max(values, axis=0)\n    shifted = values - largest",
        ).replace(_RESULT, "values - (largest + tl.log(total))"),
        LOG_SOFTMAX.replace("tl.log(total)", "tl.log2(total) * 0.6931471805599453"),
        LOG_SOFTMAX.replace(_RESULT, "shifted + tl.log(1.0 / total)"),
        LOG_SOFTMAX.replace(', other=-float("inf")', ", other=0.0")
        .replace("tl.max(values,", "tl.max(tl.where(inside, values, -1e30),")
        .replace("tl.exp(shifted)", "tl.where(inside, tl.exp(shifted), 0.0)"),
        LOG_SOFTMAX.replace(_RESULT, "-(tl.log(total) - shifted)"),
    ),
)

# ---- predictions ---------------------------------------------------------------------------------------------------------------

#: The array steps of a softmax: (code, arrays of the size of x that the step reads, and writes).
STEPS = (
    ("m = x.max(axis=1, keepdims=True)", 1, 0),
    ("shifted = x - m", 1, 1),
    ("powers = np.exp(shifted)", 1, 1),
    ("total = powers.sum(axis=1, keepdims=True)", 1, 0),
    ("out = powers / total", 1, 1),
)

PREDICTIONS = (
    Prediction(
        name="predict-bytes",
        title="Predict the passes of five array steps",
        question="NumPy computes a softmax in five steps:\n\n```python\n"
        + "\n".join(code for code, _, _ in STEPS)
        + "\n```\n\nEach step reads its arrays from memory and writes its result there. "
        "A *pass* is one array of the size of `x`, read or written. "
        "How many passes do the five steps make? Leave out `m` and `total`, which have one column.",
        answer=lambda: sum(read + written for _, read, written in STEPS),
        wrong=(
            (5, "5 counts the reads only. Three of the steps write an array of the size of `x`."),
            (3, "3 counts the writes only. Each step reads an array of the size of `x`."),
            (10, "10 counts a write in each step. The maximum and the sum have one column only."),
            (2, "2 passes are the least that a softmax needs. NumPy writes each intermediate result to memory."),
        ),
        hints=(
            "Take the steps one by one: which arrays of the size of `x` does each read, and which does it write?",
            "All five steps read one such array.",
            "`shifted`, `powers` and `out` are written: 5 + 3.",
        ),
    ),
    Prediction(
        name="predict-loops",
        title="Predict the bytes of a softmax in three loops",
        question="A row does not fit into the registers of a program, so a kernel walks through it three times. "
        "The walks find the maximum, the sum and the result. Each walk loads the row, and the last one also stores it. "
        "The bytes that a kernel *issues* are those of all its loads and stores. "
        "Its *unique* bytes count each byte of `x` and `out` once. What is issued / unique?",
        answer=lambda: (3 + 1) / (1 + 1),
        wrong=(
            (4, "4 is the number of passes. The unique bytes are 2 passes: one of `x`, one of `out`."),
            (3, "The row is loaded three times, but `out` is stored once only: 4 passes for 2."),
            (1.5, "1.5 is the ratio for two walks. Here are three."),
        ),
        hints=(
            "How many passes does the kernel make over `x`, and how many over `out`?",
            "Three loads and one store are issued.",
            "One load and one store are needed: 4 passes divided by 2.",
        ),
    ),
)

EXERCISES = (PREDICTIONS[0], softmax_1, log_softmax_1, layernorm_1, PREDICTIONS[1], online_1)
