"""The exercise online-1 of unit 6: the softmax of rows that do not fit into registers, in two walks instead of three."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.code_rules import assembles, no_spills
from blocknb.learn.exercise import Blank, Exercise, Mistake, Tolerance
from blocknb.learn.rules import bytes_at_most, no_race, stored_once
from blocknb.learn.units.row_cases import row_grid, rows_case

__all__ = ["online_1"]

ONLINE = """@blocknb.kernel
def online_softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside, other=-float("inf"))
        new_largest = tl.maximum(largest, tl.max(values, axis=0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(values - new_largest), axis=0)
        largest = new_largest
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside)
        tl.store(out + row + start + at, tl.exp(values - largest) / total, mask=inside)
"""

_RESCALED = "total * tl.exp(largest - new_largest)"
_MAXIMUM = "tl.maximum(largest, tl.max(values, axis=0))"
_SECOND = """    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside)
"""
_FIRST = ONLINE[ONLINE.index("    for start") : ONLINE.index(_SECOND)]
_LANES = """    largest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside, other=-float("inf"))
        new_largest = tl.maximum(largest, values)
        total = total * tl.exp(largest - new_largest) + tl.exp(values - new_largest)
        largest = new_largest
    lanes = largest
    largest = tl.max(lanes, axis=0)
    total = tl.sum(total * tl.exp(lanes - largest), axis=0)
"""
_THREE = """    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(values, axis=0))
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside, other=-float("inf"))
        total += tl.sum(tl.exp(values - largest), axis=0)
"""


def _softmax64(x: np.ndarray, **_: Any) -> dict[str, Any]:
    x = x.astype(np.float64)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return {"out": powers / powers.sum(axis=1, keepdims=True)}


online_1 = Exercise(
    name="online-1",
    title="Write the softmax of a long row in two walks",
    task="""`x` is a matrix of fp32 numbers with `columns` columns. Its rows follow each other in memory.
Program `i` computes row `i`. `BLOCK` is 512 in every case, and a row may have fewer elements, or many more.

Store the softmax of row `i` in row `i` of `out` (fp32, in the shape of `x`). Walk through the row twice, in steps of `BLOCK`.
The first walk finds the maximum and the sum together, and the second walk stores the result.
So the kernel loads each element twice, not three times.""",
    cases=(
        rows_case("2x1536", 2, 1536, out="element", BLOCK=512),
        rows_case("3x1100", 3, 1100, "negative", out="element", BLOCK=512),
        rows_case("2x1300, falling", 2, 1300, "falling", out="element", BLOCK=512),
        rows_case("2x1300, rising", 2, 1300, "rising", out="element", BLOCK=512),
        rows_case("2x1400, rising slowly", 2, 1400, "rising slowly", out="element", BLOCK=512),
        rows_case("9x5 below -280", 9, 5, "low", out="element", BLOCK=512),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=_softmax64,
    rules=(stored_once, no_race, bytes_at_most(2), no_spills, assembles),
    tolerance=Tolerance(additions=300),
    solution=ONLINE,
    blanks=(Blank(10, 12, "the new maximum, the new sum, and the step to the next block"),),
    hints=(
        "After some blocks, `total` is the sum of `exp(x - largest)`. A new block holds a larger number: by which factor is `total` off?",
        "exp(x - new) = exp(x - old) * exp(old - new). Multiply the old sum by the last factor before you add the new block.",
        "`total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(values - new_largest), axis=0)`; then `largest = new_largest`.",
    ),
    mistakes=(
        Mistake(
            "the old sum is not rescaled when the maximum grows: total * exp(largest - new_largest)",
            patch=(_RESCALED, "total"),
        ),
        Mistake(
            "the factor of the old sum is upside down: exp(largest - new_largest)",
            patch=("tl.exp(largest - new_largest)", "tl.exp(new_largest - largest)"),
        ),
        Mistake(
            "the new block is rescaled, too: only the old sum needs the factor",
            patches=(
                (
                    _RESCALED + " + tl.sum(tl.exp(values - new_largest), axis=0)",
                    "(total + tl.sum(tl.exp(values - new_largest), axis=0)) * tl.exp(largest - new_largest)",
                ),
            ),
        ),
        Mistake("`largest` is the maximum of the last block only", patch=(_MAXIMUM, "tl.max(values, axis=0)")),
        Mistake("`largest` is never updated: it stays -inf", patch=("        largest = new_largest\n", "")),
        Mistake(
            "`largest` changes before the old sum is rescaled: keep the old maximum for `exp(largest - new_largest)`",
            patches=(
                ("new_largest = " + _MAXIMUM, "largest = " + _MAXIMUM),
                (_RESCALED, "total * tl.exp(largest - largest)"),
                ("tl.exp(values - new_largest)", "tl.exp(values - largest)"),
                ("        largest = new_largest\n", ""),
            ),
        ),
        Mistake("the old sum is lost: add the new block to it", patch=(f"{_RESCALED} + ", "")),
        Mistake(
            "the new block is added with the old maximum",
            patch=("tl.exp(values - new_largest)", "tl.exp(values - largest)"),
        ),
        Mistake(
            "masked lanes count as 0 in the maximum and in the sum: other=-float('inf')",
            patch=('other=-float("inf")', "other=0.0"),
        ),
        Mistake("the result is not divided by the sum", patch=(") / total,", "),")),
        Mistake(
            "the second walk subtracts the maximum of its block, not of the row",
            patch=(
                "tl.exp(values - largest) / total",
                'tl.exp(values - tl.max(tl.where(inside, values, -float("inf")), axis=0)) / total',
            ),
        ),
        Mistake(
            "the programs load `x` 3 times in lines 9, 13 and 17: at most 2 times is wanted", patch=(_FIRST, _THREE)
        ),
        Mistake(
            "the masks lack `start`: the last step goes beyond the row", patch=("start + at < columns", "at < columns")
        ),
        Mistake(
            "each step loads the first block again: the address of the loads lacks `start`",
            patch=("x + row + start + at", "x + row + at"),
        ),
        Mistake(
            "the store lacks `start`: each step stores to the first block",
            patch=("out + row + start + at", "out + row + at"),
        ),
        Mistake(
            "the walks end one block early", patch=("range(0, columns, BLOCK)", "range(0, columns - BLOCK, BLOCK)")
        ),
        Mistake("only the first block is used", patch=("range(0, columns, BLOCK)", "range(0, 1, BLOCK)")),
        Mistake(
            "the rows are `columns` elements apart, not `BLOCK`",
            patch=("tl.program_id(0) * columns", "tl.program_id(0) * BLOCK"),
        ),
        Mistake(
            "the sum begins at 1, not at 0", patches=((_RESCALED, "tl.where(start == 0, 1.0, " + _RESCALED + ")"),)
        ),
        Mistake(
            "the exponential is missing in the factor of the old sum",
            patch=("tl.exp(largest - new_largest)", "(largest - new_largest)"),
        ),
        Mistake(
            "the maximum begins at 0, which is above all numbers of a negative row",
            patch=('    largest = -float("inf")', "    largest = 0.0"),
        ),
    ),
    alternatives=(
        ONLINE.replace(", axis=0", ""),
        ONLINE.replace(ONLINE[ONLINE.index("    largest = -float") : ONLINE.index(_SECOND)], _LANES),
        ONLINE.replace('largest = -float("inf")', "largest = -1e30"),
        ONLINE.replace("tl.exp(values - largest) / total", "tl.exp(values - (largest + tl.log(total)))"),
        ONLINE.replace("        total = total", "        total = tl.exp(largest - new_largest) * total").replace(
            "* total * tl.exp(largest - new_largest)", "* total"
        ),
        ONLINE.replace(
            _SECOND.rstrip("\n"),
            "    scale = 1.0 / total\n" + _SECOND.rstrip("\n"),
        ).replace(" / total, mask", " * scale, mask"),
        ONLINE.replace("tl.maximum(largest, tl.max(values, axis=0))", "tl.max(tl.maximum(values, largest), axis=0)"),
    ),
)
