"""Unit 4, reductions: sums, maxima, their places and variances of rows, when the row is no power of two.

Every exercise has rows that are shorter than their block. Reductions usually go wrong in the lanes beyond the row. A mask keeps these lanes
from memory, but not out of a sum or a maximum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Exercise, Mistake, Prediction, Tolerance, Unit
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.row_cases import row_grid, rows_case
from blocknb.learn.units.row_reductions import rows_1, sum_2, var_1

UNIT = Unit(4, "Reductions", minutes=35)

ROWS_TASK = """`x` is a matrix of fp32 numbers with `columns` columns. Its rows follow each other in memory.
Program `i` computes row `i`, and the grid has one program per row.
`BLOCK` is the smallest power of two that is not below `columns`."""


def _each_row(function: Any, dtype: Any = np.float64) -> Any:
    return lambda x, **_: {"out": function(x.astype(np.float64), axis=1).astype(dtype)}


# ---- sum-1 ---------------------------------------------------------------------------------------------------------------------

SUM = """@blocknb.kernel
def row_sum(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    tl.store(out + row, tl.sum(values, axis=0))
"""

_TOTAL = "tl.sum(values, axis=0)"

sum_1 = Exercise(
    name="sum-1",
    title="Sum each row",
    task=f"{ROWS_TASK}\n\nStore the sum of row `i` in `out[i]` (fp32).",
    cases=(
        rows_case("8x128", 8, 128),
        rows_case("50x100", 50, 100, "shifted"),
        rows_case("3x1500", 3, 1500, "negative"),
        rows_case("9x5", 9, 5, "shifted"),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=_each_row(np.sum),
    rules=(stored_once, no_race, assembles),
    tolerance=Tolerance(additions=1500, scale=4.0),
    solution=SUM,
    blanks=(Blank(5, 7, "mask, load, and store one number"),),
    hints=(
        "A block of 128 lanes holds a row of 100 elements. What do the other 28 lanes load, and what must they add to the sum?",
        "Three lines are missing: a mask, a load with this mask, and a store. The store writes one number per program.",
        "`inside = at < columns`; `tl.load(x + row * columns + at, mask=inside, other=0.0)`; `tl.sum(values, axis=0)` goes to `out + row`.",
    ),
    mistakes=(
        Mistake(
            "the load has no mask: the lanes beyond the row load elements of the next row",
            patch=(", mask=inside, other=0.0", ""),
        ),
        Mistake(
            "the mask is `<=`: the first element of the next row is added, too", patch=("at < columns", "at <= columns")
        ),
        Mistake("the mask excludes the last element of the row", patch=("at < columns", "at < columns - 1")),
        Mistake("masked lanes count as 1 in the sum: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake(
            "every program loads row 0: the address lacks `row * columns`", patch=("x + row * columns + at", "x + at")
        ),
        Mistake("the rows are `columns` elements apart, not `BLOCK`", patch=("row * columns", "row * BLOCK")),
        Mistake("the rows are `columns` elements apart, not 1", patch=("row * columns", "row")),
        Mistake("every program stores to out[0]: the store lacks `row`", patch=("out + row", "out")),
        Mistake("the sum belongs in out[row], not in out[row * columns]", patch=("out + row", "out + row * columns")),
        Mistake("it stores the maximum, not the sum", patch=("tl.sum", "tl.max")),
        Mistake("it stores the mean: do not divide by `columns`", patch=(_TOTAL, _TOTAL + " / columns")),
        Mistake("it stores the mean of the block: do not divide by `BLOCK`", patch=(_TOTAL, _TOTAL + " / BLOCK")),
        Mistake("the kernel stores nothing", patch=(f"tl.store(out + row, {_TOTAL})", f"total = {_TOTAL}")),
        Mistake("it stores the first element of the row, not the sum", patch=(_TOTAL, "tl.load(x + row * columns)")),
        Mistake(
            "it stores the loaded block instead of its sum",
            patch=(f"out + row, {_TOTAL}", "out + row + at, values, mask=inside"),
        ),
    ),
    alternatives=(
        SUM.replace(", axis=0", ""),
        SUM.replace(_TOTAL, "tl.sum(tl.where(inside, values, 0.0), axis=0)").replace(", other=0.0", ""),
        SUM.replace("    at = tl", "    x += row * columns\n    at = tl").replace("x + row * columns + at", "x + at"),
        SUM.replace(_TOTAL, "tl.sum(values[None, :], axis=1)").replace("out + row", "out + row + tl.arange(0, 1)"),
        SUM.replace(_TOTAL, "tl.reduce(values, 0, plus)").replace(
            "@blocknb", "@blocknb.jit\ndef plus(a, b):\n    return a + b\n\n\n@blocknb"
        ),
        SUM.replace("    inside = at < columns\n", "").replace("mask=inside", "mask=columns > at"),
    ),
)

# ---- max-1 ---------------------------------------------------------------------------------------------------------------------

MAX = """@blocknb.kernel
def row_max(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    tl.store(out + row, tl.max(values, axis=0))
"""

max_1 = Exercise(
    name="max-1",
    title="Find the maximum of each row",
    task=f"{ROWS_TASK}\n\nStore the maximum of row `i` in `out[i]` (fp32). All numbers of a row may be negative.",
    cases=(
        rows_case("8x128", 8, 128),
        rows_case("50x100", 50, 100, "negative"),
        rows_case("3x1500", 3, 1500, "shifted"),
        rows_case("4x1", 4, 1, "negative"),
        rows_case("9x5", 9, 5, "deep"),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=_each_row(np.max),
    rules=(stored_once, no_race, assembles),
    solution=MAX,
    blanks=(Blank(5, 6, "load with a mask and `other`, and store one number"),),
    hints=(
        "A row holds -3, -5 and -2, and the block has four lanes. Which value of the fourth lane leaves the maximum at -2?",
        "The argument `other=` of `tl.load` is the value of the masked lanes. No number may be below it.",
        '`tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))`, then `tl.max(values, axis=0)`.',
    ),
    mistakes=(
        Mistake("masked lanes count as 0 in the maximum: other=-float('inf')", patch=('-float("inf")', "0.0")),
        Mistake("masked lanes count as 0 in the maximum: the load has no `other`", patch=(', other=-float("inf")', "")),
        Mistake(
            "masked lanes hold +inf, which always wins: other=-float('inf')", patch=('-float("inf")', 'float("inf")')
        ),
        Mistake("masked lanes count as -1, which wins in rows below -1", patch=('-float("inf")', "-1.0")),
        Mistake(
            "the load has no mask: the next row takes part", patch=(', mask=at < columns, other=-float("inf")', "")
        ),
        Mistake(
            "the mask is `<=`: the first element of the next row takes part", patch=("at < columns", "at <= columns")
        ),
        Mistake("it stores the minimum", patch=("tl.max(values", "tl.min(values")),
        Mistake("it stores the sum", patch=("tl.max(values", "tl.sum(values")),
        Mistake("it stores the maximum of the absolute values", patch=("tl.max(values", "tl.max(tl.abs(values)")),
        Mistake("the rows are `columns` elements apart, not `BLOCK`", patch=("row * columns", "row * BLOCK")),
        Mistake(
            "every program loads row 0: the address lacks `row * columns`", patch=("x + row * columns + at", "x + at")
        ),
        Mistake("every program stores to out[0]: the store lacks `row`", patch=("out + row", "out")),
        Mistake("it stores the place of the maximum, not its value", patch=("tl.max(values", "tl.argmax(values")),
        Mistake(
            "it compares with 0: negative rows need no such limit",
            patch=("axis=0))", "axis=0, ) * (tl.max(values) > 0))"),
        ),
    ),
    alternatives=(
        MAX.replace(", axis=0", ""),
        MAX.replace(', other=-float("inf")', "").replace(
            "tl.max(values,", 'tl.max(tl.where(at < columns, values, -float("inf")),'
        ),
        MAX.replace("tl.max(values, axis=0)", "-tl.min(-values, axis=0)"),
        MAX.replace('-float("inf")', "-3.4e38"),
        MAX.replace("tl.arange(0, BLOCK)", "tl.minimum(tl.arange(0, BLOCK), columns - 1)").replace(
            ', mask=at < columns, other=-float("inf")', ""
        ),
        MAX.replace("tl.max(values, axis=0)", "tl.max(values[:, None], axis=0)").replace(
            "out + row", "out + row + tl.arange(0, 1)"
        ),
    ),
)

# ---- argmax-1 ------------------------------------------------------------------------------------------------------------------

ARGMAX = MAX.replace("row_max", "row_argmax").replace("tl.max(", "tl.argmax(")

argmax_1 = Exercise(
    name="argmax-1",
    title="Find the column of the maximum",
    task=f"{ROWS_TASK}\n\nStore the column of the maximum of row `i` in `out[i]` (int32), counted from 0. "
    "If several columns hold the maximum, store the first.",
    cases=(
        rows_case("8x128", 8, 128, dtype=np.int32),
        rows_case("50x100", 50, 100, "negative", dtype=np.int32),
        rows_case("20x300 with ties", 20, 300, "ties", dtype=np.int32),
        rows_case("falling", 3, 70, "falling", dtype=np.int32),
        rows_case("rising", 3, 70, "rising", dtype=np.int32),
        rows_case("9x5", 9, 5, "deep", dtype=np.int32),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=_each_row(np.argmax, np.int64),
    rules=(stored_once, no_race, assembles),
    solution=ARGMAX,
    blanks=(Blank(5, 6, "load, and store the column"),),
    hints=(
        "If a masked lane wins, which column does the kernel report?",
        "The load is that of max-1. `tl.argmax` takes the place of `tl.max`.",
        "`tl.store(out + row, tl.argmax(values, axis=0))`",
    ),
    mistakes=(
        Mistake(
            "masked lanes count as 0 and win in negative rows: other=-float('inf')", patch=('-float("inf")', "0.0")
        ),
        Mistake(
            "masked lanes count as 0 and win in negative rows: the load has no `other`",
            patch=(', other=-float("inf")', ""),
        ),
        Mistake("masked lanes hold +inf and win: other=-float('inf')", patch=('-float("inf")', 'float("inf")')),
        Mistake("it stores the maximum, not its column", patch=("tl.argmax", "tl.max")),
        Mistake("it stores the column of the minimum", patch=("tl.argmax", "tl.argmin")),
        Mistake(
            "it stores the place in the whole matrix: the column counts from the start of the row",
            patch=("tl.argmax(values, axis=0)", "row * columns + tl.argmax(values, axis=0)"),
        ),
        Mistake(
            "the columns count from 0, not from 1", patch=("tl.argmax(values, axis=0)", "tl.argmax(values, axis=0) + 1")
        ),
        Mistake(
            "of several maxima it stores the last column, not the first",
            patch=("tl.argmax(values, axis=0)", "tl.max(tl.where(values == tl.max(values, axis=0), at, 0), axis=0)"),
        ),
        Mistake(
            "it stores the number of maxima, not the column",
            patch=("tl.argmax(values, axis=0)", "tl.sum((values == tl.max(values, axis=0)).to(tl.int32), axis=0)"),
        ),
        Mistake("the rows are `columns` elements apart, not `BLOCK`", patch=("row * columns", "row * BLOCK")),
        Mistake(
            "every program loads row 0: the address lacks `row * columns`", patch=("x + row * columns + at", "x + at")
        ),
        Mistake("every program stores to out[0]: the store lacks `row`", patch=("out + row", "out")),
        Mistake("it takes the absolute value first", patch=("tl.argmax(values", "tl.argmax(tl.abs(values)")),
    ),
    alternatives=(
        ARGMAX.replace(", axis=0", ", 0"),
        ARGMAX.replace(
            "tl.argmax(values, axis=0)", "tl.min(tl.where(values == tl.max(values, axis=0), at, BLOCK), axis=0)"
        ),
        ARGMAX.replace(
            "    tl.store(out + row, tl.argmax(values, axis=0))",
            "    largest, place = tl.max(values, axis=0, return_indices=True)\n    tl.store(out + row, place)",
        ),
        ARGMAX.replace("tl.argmax(values", "tl.argmin(-values"),
        ARGMAX.replace(', other=-float("inf")', "").replace(
            "tl.argmax(values,", 'tl.argmax(tl.where(at < columns, values, -float("inf")),'
        ),
        ARGMAX.replace('-float("inf")', "-1e30"),
    ),
)

# ---- predictions ---------------------------------------------------------------------------------------------------------------


def _padded_maximum() -> float:
    """The maximum of three numbers in a block of four lanes, if the masked lane holds 0."""
    return float(np.max(np.array([-3.0, -5.0, -2.0, 0.0])))


def _shuffle_steps(lanes: int = 32) -> int:
    """The steps in which each lane adds the number of another lane to its own, until one lane holds the sum of all."""
    steps, held = 0, 1
    while held < lanes:
        steps, held = steps + 1, 2 * held
    return steps


PREDICTIONS = (
    Prediction(
        name="predict-other",
        title="Predict the maximum of a padded row",
        question="A row holds -3, -5 and -2. A program loads it into a block of four lanes with `other=0.0`. What does `tl.max` return?",
        answer=_padded_maximum,
        wrong=(
            (-2, "-2 is the maximum of the row. The block has a fourth lane, and it takes part, too."),
            (-5, "-5 is the minimum. The fourth lane takes part, too."),
        ),
        hints=(
            "The mask keeps the fourth lane from memory. Does it keep it out of the maximum?",
            "The fourth lane holds the value of `other`.",
            "Take the maximum of -3, -5, -2 and 0.",
        ),
    ),
    Prediction(
        name="predict-steps",
        title="Predict the steps of a sum in a warp",
        question="32 lanes hold one number each. In a step, every lane may add the number of one other lane to its own. "
        "After how many steps can a lane hold the sum of all 32 numbers?",
        answer=_shuffle_steps,
        wrong=(
            (31, "31 additions are needed, but the lanes add at the same time."),
            (32, "One lane would need 31 additions; the lanes add at the same time."),
            (16, "After one step each lane holds a sum of two numbers. How many does it hold after the second step?"),
            (6, "After one step a lane holds two numbers, after five steps 32."),
        ),
        hints=(
            "After one step, of how many numbers does a lane hold the sum?",
            "The count doubles with each step: 2, 4, 8, ...",
            "2 to the power of which number is 32?",
        ),
    ),
)

EXERCISES = (PREDICTIONS[0], sum_1, max_1, argmax_1, PREDICTIONS[1], var_1, rows_1, sum_2)
