"""The second half of unit 4: a variance, rows that are longer than a block, and several short rows per program."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.code_rules import assembles, no_spills
from blocknb.learn.exercise import Blank, Exercise, Mistake, Tolerance
from blocknb.learn.rules import bytes_once, no_race, stored_once
from blocknb.learn.units.row_cases import row_grid, rows_case

__all__ = ["rows_1", "sum_2", "var_1"]

# ---- var-1 ---------------------------------------------------------------------------------------------------------------------

VAR = """@blocknb.kernel
def row_var(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    away = tl.where(inside, values - mean, 0.0)
    tl.store(out + row, tl.sum(away * away, axis=0) / columns)
"""

_AWAY = "tl.where(inside, values - mean, 0.0)"
_VARIANCE = "tl.sum(away * away, axis=0) / columns"

var_1 = Exercise(
    name="var-1",
    title="Compute the variance of each row",
    task="""`x` is a matrix of fp32 numbers with `columns` columns. Its rows follow each other in memory.
Program `i` computes row `i`, and the grid has one program per row.
`BLOCK` is the smallest power of two that is not below `columns`.

Store the variance of row `i` in `out[i]` (fp32): the mean of the squared distances from the mean of the row, as `np.var` does.
The numbers may be far from zero, so subtract the mean before you square.""",
    cases=(
        rows_case("8x128", 8, 128),
        rows_case("50x100", 50, 100, "shifted"),
        rows_case(
            "20x2 near 1000", 20, 2, "offset"
        ),  # two elements have one order of addition, so that digits are lost alike
        rows_case("4x1", 4, 1, "negative"),
        rows_case("9x5", 9, 5, "negative"),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=lambda x, **_: {"out": x.astype(np.float64).var(axis=1)},
    rules=(stored_once, no_race, assembles),
    tolerance=Tolerance(additions=300, scale=10.0),
    solution=VAR,
    blanks=(Blank(7, 9, "the mean, the distances from it, and their mean square"),),
    hints=(
        "After `values - mean`, what do the masked lanes hold? They loaded 0.",
        "Select: lanes inside of the row keep `values - mean`, the others become 0. Divide by the number of elements, not of lanes.",
        "`away = tl.where(inside, values - mean, 0.0)`, then `tl.sum(away * away, axis=0) / columns`.",
    ),
    mistakes=(
        Mistake("masked lanes count in the variance: they hold 0 - mean", patch=(_AWAY, "values - mean")),
        Mistake(
            "masked lanes count in the number: divide the sum of squares by `columns`",
            patch=(_VARIANCE, "tl.sum(away * away, axis=0) / BLOCK"),
        ),
        Mistake(
            "masked lanes count in the mean: divide its sum by `columns`",
            patch=("axis=0) / columns\n    away", "axis=0) / BLOCK\n    away"),
        ),
        Mistake(
            "`tl.where` has its branches exchanged: lanes of the row become 0",
            patch=(_AWAY, "tl.where(inside, 0.0, values - mean)"),
        ),
        Mistake(
            "it divides by columns - 1, which is the sample variance",
            patch=(_VARIANCE, "tl.sum(away * away, axis=0) / (columns - 1)"),
        ),
        Mistake("it stores the standard deviation: no square root here", patch=(_VARIANCE, f"tl.sqrt({_VARIANCE})")),
        Mistake("it stores the mean of the squares: subtract the mean first", patch=(_AWAY, "values")),
        Mistake(
            "mean(x * x) - mean * mean loses its digits where numbers are far from 0: subtract the mean before you square",
            patch=(_VARIANCE, "tl.sum(values * values, axis=0) / columns - mean * mean"),
        ),
        Mistake("it stores the mean, not the variance", patch=(_VARIANCE, "mean")),
        Mistake("it stores the mean distance: square the distances", patch=("away * away", "tl.abs(away)")),
        Mistake("the distances add up to 0: square them", patch=("away * away", "away")),
        Mistake("it stores the sum of squares: divide by `columns`", patch=(_VARIANCE, "tl.sum(away * away, axis=0)")),
        Mistake(
            "it takes the distance from the sum, not from the mean",
            patch=("axis=0) / columns\n    away", "axis=0)\n    away"),
        ),
        Mistake("every program stores to out[0]: the store lacks `row`", patch=("out + row", "out")),
    ),
    alternatives=(
        VAR.replace(_AWAY, "(values - mean) * inside.to(tl.float32)"),
        VAR.replace(_AWAY, "values - mean").replace("tl.sum(away * away", "tl.sum(tl.where(inside, away * away, 0.0)"),
        VAR.replace(_AWAY, "tl.load(x + row * columns + at, mask=inside, other=mean) - mean"),
        VAR.replace(_AWAY, "tl.where(at >= columns, 0.0, mean - values)"),
        VAR.replace(_AWAY, "tl.where(inside, values, mean) - mean"),
        VAR.replace(
            "mean = tl.sum(values, axis=0) / columns",
            "first = tl.load(x + row * columns)\n    mean = first + tl.sum(tl.where(inside, values - first, 0.0)) / columns",
        ),
    ),
)

# ---- sum-2 ---------------------------------------------------------------------------------------------------------------------

LONG = """@blocknb.kernel
def long_row_sum(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        sums += tl.load(x + row * columns + start + at, mask=inside, other=0.0)
    tl.store(out + row, tl.sum(sums, axis=0))
"""

_PIECE = "tl.load(x + row * columns + start + at, mask=inside, other=0.0)"

sum_2 = Exercise(
    name="sum-2",
    title="Sum rows that are longer than a block",
    task="""`x` is a matrix of fp32 numbers with `columns` columns. Its rows follow each other in memory.
Program `i` computes row `i`. `BLOCK` is 256 in every case, and a row may have fewer elements, or many more.

Store the sum of row `i` in `out[i]` (fp32). Walk through the row in steps of `BLOCK`, and load each element once.""",
    cases=(
        rows_case("8x1024", 8, 1024, BLOCK=256),
        rows_case("5x1000", 5, 1000, "shifted", BLOCK=256),
        rows_case("3x20001", 3, 20001, BLOCK=256),
        rows_case("6x256", 6, 256, "negative", BLOCK=256),
        rows_case("7x3", 7, 3, "shifted", BLOCK=256),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=lambda x, **_: {"out": x.astype(np.float64).sum(axis=1)},
    rules=(stored_once, no_race, bytes_once, no_spills, assembles),
    tolerance=Tolerance(additions=20_000, scale=4.0),
    solution=LONG,
    blanks=(Blank(5, 9, "a block of sums, the loop, and the store"),),
    hints=(
        "A row of 1000 elements takes four steps of 256. Which elements does step `start` load, and which of them exist?",
        "Keep a block of 256 partial sums, add a loaded block to it in each step, and reduce it once, after the loop.",
        "`for start in range(0, columns, BLOCK):` loads at `x + row * columns + start + at` with the mask `start + at < columns`.",
    ),
    mistakes=(
        Mistake("only the last block counts: `sums +=`, not `sums =`", patch=("sums += ", "sums = ")),
        Mistake(
            "each step loads the first block again: the address lacks `start`",
            patch=("columns + start + at", "columns + at"),
        ),
        Mistake(
            "the mask lacks `start`: the last step reads beyond the row", patch=("start + at < columns", "at < columns")
        ),
        Mistake(
            "only the first block is loaded: the row needs a loop",
            patch=("range(0, columns, BLOCK)", "range(0, 1, BLOCK)"),
        ),
        Mistake(
            "the loop ends one block early: the last block is missing",
            patch=("range(0, columns, BLOCK)", "range(0, columns - BLOCK, BLOCK)"),
        ),
        Mistake(
            "the loop begins at the second block", patch=("range(0, columns, BLOCK)", "range(BLOCK, columns, BLOCK)")
        ),
        Mistake(
            "the loop counts blocks, but `start` counts elements",
            patch=("range(0, columns, BLOCK)", "range(0, (columns + BLOCK - 1) // BLOCK)"),
        ),
        Mistake("masked lanes count as 1 in the sum: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake(
            "the partial sums begin at 1, not at 0",
            patch=("tl.zeros((BLOCK,), tl.float32)", "tl.full((BLOCK,), 1.0, tl.float32)"),
        ),
        Mistake("the rows are `columns` elements apart, not `BLOCK`", patch=("row * columns", "row * BLOCK")),
        Mistake(
            "every program loads row 0: the address lacks `row * columns`",
            patch=("x + row * columns + start", "x + start"),
        ),
        Mistake("every program stores to out[0]: the store lacks `row`", patch=("out + row", "out")),
        Mistake("the load has no mask: the last step reads beyond the row", patch=(", mask=inside, other=0.0", "")),
        Mistake(
            "store each element once, after the last change of its value",
            patch=("    tl.store(out", "        tl.store(out"),
        ),
        Mistake("it stores the largest partial sum: reduce by `tl.sum`", patch=("tl.sum(sums", "tl.max(sums")),
    ),
    alternatives=(
        LONG.replace("tl.zeros((BLOCK,), tl.float32)", "0.0")
        .replace(_PIECE, f"tl.sum({_PIECE}, axis=0)")
        .replace("tl.sum(sums, axis=0)", "sums"),
        LONG.replace("start + at < columns", "at < columns - start"),
        LONG.replace(
            "sums += " + _PIECE, "values = " + _PIECE + "\n        sums = sums + tl.where(inside, values, 0.0)"
        ),
        LONG.replace("range(0, columns, BLOCK)", "range(0, tl.cdiv(columns, BLOCK))").replace(
            "start + at", "start * BLOCK + at"
        ),
        LONG.replace("for start in range(0, columns, BLOCK):", "start = 0\n    while start < columns:").replace(
            _PIECE, _PIECE + "\n        start += BLOCK"
        ),
        LONG.replace("(BLOCK,), tl.float32", "[BLOCK], dtype=tl.float32").replace(
            "for start in range(0, columns, BLOCK)", "for start in tl.range(0, columns, BLOCK)"
        ),
    ),
)

# ---- rows-1 --------------------------------------------------------------------------------------------------------------------

SHORT = """@blocknb.kernel
def short_rows_sum(x, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + row, tl.sum(values, axis=1), mask=row < rows)
"""

_INSIDE = "(row < rows)[:, None] & (column < columns)[None, :]"


def _tile_case(name: str, rows: int, columns: int, values: str, ROWS: int) -> Any:
    return rows_case(name, rows, columns, values, more=lambda rng: {"rows": rows}, ROWS=ROWS)


rows_1 = Exercise(
    name="rows-1",
    title="Sum several short rows in one program",
    task="""`x` is a matrix of fp32 numbers with `rows` rows and `columns` columns. The rows are short and follow each other in memory.
Each program computes `ROWS` rows, as one tile of shape `(ROWS, BLOCK)`. The last program may have fewer rows left.
`BLOCK` is the smallest power of two that is not below `columns`.

Store the sum of row `i` in `out[i]` (fp32).""",
    cases=(
        _tile_case("64x16", 64, 16, "normal", 16),
        _tile_case("50x12", 50, 12, "shifted", 16),
        _tile_case("33x16", 33, 16, "shifted", 16),
        _tile_case("7x100", 7, 100, "negative", 4),
        _tile_case("1x3", 1, 3, "shifted", 2),
    ),
    outputs=("out",),
    grid=lambda rows, ROWS, **_: (cdiv(rows, ROWS),),
    reference=lambda x, **_: {"out": x.astype(np.float64).sum(axis=1)},
    rules=(stored_once, no_race, assembles),
    tolerance=Tolerance(additions=100, scale=4.0),
    solution=SHORT,
    blanks=(Blank(5, 7, "a mask for the tile, the load, and the store"),),
    hints=(
        "The tile has `ROWS` rows and `BLOCK` columns. Along which of its two axes does one row of the matrix lie?",
        "The mask needs rows that exist and columns that exist. The result has one element per row, and so has the mask of the store.",
        "`inside = (row < rows)[:, None] & (column < columns)[None, :]`; `tl.sum(values, axis=1)` is stored with `mask=row < rows`.",
    ),
    mistakes=(
        Mistake(
            "it sums along axis 0, down the columns: axis=1 runs along a row",
            patches=(
                ("axis=1", "axis=0"),
                ("out + row,", "out + tl.program_id(0) * BLOCK + column,"),
                ("mask=row < rows", "mask=tl.program_id(0) * BLOCK + column < rows"),
            ),
        ),
        Mistake(
            "the store has no mask: the last program stores rows that do not exist", patch=(", mask=row < rows", "")
        ),
        Mistake(
            "the mask forgets the columns: the next row is added, too",
            patch=(_INSIDE, "(row < rows)[:, None] & (column >= 0)[None, :]"),
        ),
        Mistake(
            "the mask forgets the rows: the last program loads rows that do not exist",
            patch=(_INSIDE, "(row < rows + ROWS)[:, None] & (column < columns)[None, :]"),
        ),
        Mistake("the mask joins rows and columns by `|`: both must exist", patch=("[:, None] &", "[:, None] |")),
        Mistake(
            "the rows are `columns` elements apart, not `BLOCK`",
            patch=("row[:, None] * columns", "row[:, None] * BLOCK"),
        ),
        Mistake(
            "the column is multiplied by `columns`, not the row",
            patch=("row[:, None] * columns + column[None, :]", "row[:, None] + column[None, :] * columns"),
        ),
        Mistake(
            "every program computes the first rows: the row lacks `program_id`",
            patch=("tl.program_id(0) * ROWS + ", ""),
        ),
        Mistake(
            "program i begins at row i * ROWS, not at row i", patch=("tl.program_id(0) * ROWS", "tl.program_id(0)")
        ),
        Mistake("masked lanes count as 1 in the sum: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake("it stores the mean: do not divide by `columns`", patch=("axis=1)", "axis=1) / columns")),
        Mistake("it stores the maximum, not the sum", patch=("tl.sum", "tl.max")),
        Mistake("the mask of the rows is `<=`", patch=("(row < rows)[", "(row <= rows)[")),
        Mistake(
            "the mask of the columns is `<=`: the first element of the next row is added",
            patch=("column < columns", "column <= columns"),
        ),
    ),
    alternatives=(
        SHORT.replace("axis=1)", "1)"),
        SHORT.replace(_INSIDE, "(row[:, None] < rows) & (column[None, :] < columns)"),
        SHORT.replace("row[:, None] * columns + column[None, :]", "tl.expand_dims(row * columns, 1) + column"),
        SHORT.replace("tl.sum(values, axis=1)", "tl.sum(tl.trans(values), axis=0)"),
        SHORT.replace("tl.sum(values, axis=1), mask", "tl.sum(tl.where(inside, values, 0.0), axis=1), mask").replace(
            ", other=0.0", ""
        ),
        SHORT.replace("row[:, None] * columns + column[None, :]", "column[:, None] + (row * columns)[None, :]")
        .replace(_INSIDE, "(column < columns)[:, None] & (row < rows)[None, :]")
        .replace("axis=1", "axis=0"),
    ),
)
