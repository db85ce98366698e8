"""The exercises of unit 3 in which neighbouring lanes must access neighbouring elements: `stripes-1`, `pairs-1` and `column-sum`."""

from __future__ import annotations

import numpy as np

from blocknb import cdiv
from blocknb.learn.code_rules import ideal_sectors
from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Tolerance
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrices import Arrays, numbers
from blocknb.learn.units.variants import variant
from blocknb.learn.units.vectors import INDICES, RIGHT_INDICES, WRONG_INDICES, one_axis, vectors

HALVE = """\
@blocknb.kernel
def halve(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, 0.5 * tl.load(x + at, mask=inside), mask=inside)
"""
STRIPES = "at = pid + tl.arange(0, BLOCK) * tl.num_programs(0)"

stripes_1 = Exercise(
    name="stripes-1",
    title="Give neighbouring elements to neighbouring lanes",
    task="""\
The kernel stores `x / 2` to `out`, and its result is right. But it deals the elements out like cards: with 10 programs, program 3 takes
elements 3, 13, 23 and so on. Its lanes access elements that lie far apart, so each lane needs a sector of its own.

Change one line: let each program take a stretch of adjacent elements.
""",
    cases=vectors("x"),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, **_: {"out": 0.5 * x.astype(np.float64)},
    rules=(stored_once, no_race, ideal_sectors),
    solution=HALVE,
    blanks=(Blank(4, 4, keep=STRIPES),),
    hints=(
        "Which elements do lane 0 and lane 1 of program 0 access? How many elements lie between them?",
        "The step between lanes is `tl.num_programs(0)`. It must be 1, so the programs must start a whole block apart.",
        "`at = pid * BLOCK + tl.arange(0, BLOCK)`",
    ),
    mistakes=(
        *WRONG_INDICES,
        Mistake(
            "let neighbouring lanes access neighbouring elements",
            patch=(INDICES, "at = tl.num_programs(0) * tl.arange(0, BLOCK) + tl.program_id(0)"),
        ),
        Mistake(
            "only the load is contiguous: the store must use the same indices",
            patch=("out + at,", "out + pid + tl.arange(0, BLOCK) * tl.num_programs(0),"),
        ),
        Mistake(
            "neighbouring lanes are two elements apart: half of each sector is wasted",
            patch=(INDICES, "at = pid // 2 * 2 * BLOCK + 2 * tl.arange(0, BLOCK) + pid % 2"),
        ),
        Mistake("the masks are missing: the last program accesses elements past the end", patch=(", mask=inside", "")),
        Mistake("`at <= n` lets one element too many in: the last index is n - 1", patch=("at < n", "at <= n")),
        Mistake(
            "nothing is stored",
            patch=(
                "tl.store(out + at, 0.5 * tl.load(x + at, mask=inside), mask=inside)",
                "values = 0.5 * tl.load(x + at, mask=inside)",
            ),
        ),
    ),
    alternatives=(
        *(variant(HALVE, patch) for patch in RIGHT_INDICES),
        variant(HALVE, (INDICES, "at = (tl.num_programs(0) - 1 - pid) * BLOCK + tl.arange(0, BLOCK)")),
        variant(HALVE, (INDICES, "at = pid * BLOCK + (BLOCK - 1 - tl.arange(0, BLOCK))")),
    ),
)

PAIRS = """\
@blocknb.kernel
def pairs(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    place = 2 * at[:, None] + tl.arange(0, 2)[None, :]
    values = tl.load(x + place, mask=inside[:, None], other=0.0)
    tl.store(out + at, tl.sum(values, axis=1), mask=inside)
"""
PAIR = "place = 2 * at[:, None] + tl.arange(0, 2)[None, :]"
TWO_LOADS = """\
first = tl.load(x + 2 * at, mask=inside)
second = tl.load(x + 2 * at + 1, mask=inside)
tl.store(out + at, first + second, mask=inside)"""


def _pairs(n: int, block: int) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        return {"x": numbers(rng, 2 * n), "out": np.empty(n, np.float32), "n": n, "BLOCK": block}

    return Case(f"{n} pairs in blocks of {block}", make)


pairs_1 = Exercise(
    name="pairs-1",
    title="Add the two numbers of each pair",
    task="""\
`x` holds `n` pairs of fp32 numbers, one pair after the other: `x[0], x[1]`, then `x[2], x[3]`. Store the sum of pair i to `out[i]`.

The kernel below is right, but each of its two loads takes every second element. A sector has both numbers of a pair, and is read twice.
Load each pair at once instead: a tile of `BLOCK` rows and 2 columns. `tl.sum(tile, axis=1)` adds up each row, like `tile.sum(axis=1)`.
""",
    cases=(_pairs(4096, 1024), _pairs(5003, 512), _pairs(5, 64)),
    outputs=("out",),
    grid=lambda n, BLOCK, **_: (cdiv(n, BLOCK),),
    reference=lambda x, **_: {"out": x.astype(np.float64).reshape(-1, 2).sum(axis=1)},
    rules=(stored_once, no_race, ideal_sectors),
    solution=PAIRS,
    blanks=(Blank(5, 7, keep=TWO_LOADS),),
    hints=(
        "If you see `x` as a matrix of n rows and 2 columns, which indices does a tile of BLOCK rows have?",
        "The tile has the indices `2 * at[:, None]` plus a row of 0 and 1. The mask is `inside[:, None]`.",
        "`values = tl.load(x + 2 * at[:, None] + tl.arange(0, 2)[None, :], mask=inside[:, None])`",
    ),
    mistakes=(
        Mistake(
            "let neighbouring lanes access neighbouring elements",
            source=variant(
                PAIRS,
                ("    " + PAIR + "\n", ""),
                (
                    "values = tl.load(x + place, mask=inside[:, None], other=0.0)",
                    "values = tl.load(x + 1 + 2 * at, mask=inside) + tl.load(x + 2 * at, mask=inside)",
                ),
                ("tl.sum(values, axis=1)", "values"),
            ),
        ),
        Mistake("the pairs overlap: pair i begins at element 2 * i", patch=(PAIR, PAIR.replace("2 * at", "at"))),
        Mistake(
            "x is read as two halves, not as pairs: the two numbers of a pair are adjacent",
            patch=(PAIR, "place = at[:, None] + n * tl.arange(0, 2)[None, :]"),
        ),
        Mistake(
            "the first number of the pair is counted twice",
            patch=(PAIR, PAIR.replace("tl.arange(0, 2)", "(0 * tl.arange(0, 2))")),
        ),
        Mistake("the larger number of each pair is stored, not the sum", patch=("tl.sum", "tl.max")),
        Mistake(
            "the mask is missing: the last program loads past the end", patch=(", mask=inside[:, None], other=0.0", "")
        ),
        Mistake(
            "the store has no mask: the last program stores past the end", patch=("axis=1), mask=inside)", "axis=1))")
        ),
        Mistake("the program number is missing", patch=("tl.program_id(0) * BLOCK + ", "")),
        Mistake(
            "the sum runs over the wrong axis: axis 0 adds up all pairs of the block",
            patch=("axis=1", "axis=0"),
        ),
        Mistake(
            "the two numbers are subtracted",
            patch=("tl.sum(values, axis=1)", "tl.sum(values * (1 - 2 * tl.arange(0, 2)), axis=1)"),
        ),
        Mistake("the mask compares with 2 * n: it must count pairs", patch=("inside = at < n", "inside = at < 2 * n")),
        Mistake(
            "the sum is divided by 2: that is the mean", patch=("tl.sum(values, axis=1)", "tl.sum(values, axis=1) / 2")
        ),
    ),
    alternatives=(
        """\
@blocknb.kernel
def pairs(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    both = pid * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    values = tl.load(x + both, mask=both < 2 * n, other=0.0)
    first, second = tl.split(tl.reshape(values, (BLOCK, 2)))
    tl.store(out + at, first + second, mask=at < n)
""",
        """\
@blocknb.kernel
def pairs(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    both = pid * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    values = tl.load(x + both, mask=both < 2 * n, other=0.0)
    tl.store(out + at, tl.sum(tl.reshape(values, (BLOCK, 2)), axis=1), mask=at < n)
""",
        variant(PAIRS, ("[:, None], other=0.0", "[:, None]")),
        variant(PAIRS, (PAIR, "place = at[:, None] * 2 + tl.arange(0, 2)[None, :]")),
        variant(PAIRS, (PAIR, "place = tl.arange(0, 2)[None, :] + (at + at)[:, None]")),
        variant(
            PAIRS,
            (
                "tl.load(x + place, mask=inside[:, None], other=0.0)",
                "tl.load(x + place, mask=place < 2 * n, other=0.0)",
            ),
        ),
    ),
)

COLUMN_SUM = """\
@blocknb.kernel
def column_sum(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    for row in range(rows):
        total += tl.load(x + row * columns + column, mask=inside, other=0.0)
    tl.store(out + column, total, mask=inside)
"""
DOWNWARDS = """\
row = tl.arange(0, ROWS)
for c in range(COLUMNS):
    column = tl.program_id(0) * COLUMNS + c
    inside = (row < rows) & (column < columns)
    values = tl.load(x + row * columns + column, mask=inside, other=0.0)
    tl.store(out + column, tl.sum(values, axis=0), mask=column < columns)"""


def _table(rows: int, columns: int, ROWS: int) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        return {
            "x": numbers(rng, rows, columns),
            "out": np.empty(columns, np.float32),
            "rows": rows,
            "columns": columns,
            "ROWS": ROWS,
            "COLUMNS": 32,
        }

    return Case(f"{rows}x{columns}", make)


column_sum = Exercise(
    name="column-sum",
    title="Add up each column, along the rows",
    task="""\
Store `x.sum(axis=0)` to `out`. `x` is a row-major matrix of `rows` x `columns` fp32 numbers, `out` has `columns`. The grid has one program
for every `COLUMNS` columns, 32 of them. `ROWS` is a power of two, and at least `rows`.

The kernel below is right, but it walks down one column after the other. So the lanes of a warp access elements that are a row apart.
Let the lanes walk along the rows instead: no access may touch more sectors than its elements need. The new kernel need not use `ROWS`.
""",
    cases=(_table(64, 128, 64), _table(50, 72, 64), _table(37, 40, 64), _table(3, 8, 4)),
    outputs=("out",),
    grid=lambda columns, COLUMNS, **_: (cdiv(columns, COLUMNS),),
    reference=lambda x, **_: {"out": x.astype(np.float64).sum(axis=0)},
    tolerance=Tolerance(additions=64, scale=4.0),
    rules=(stored_once, no_race, ideal_sectors),
    solution=COLUMN_SUM,
    blanks=(Blank(3, 8, keep=DOWNWARDS),),
    hints=(
        "Which elements does one `tl.load` of the kernel access? How far apart are they? Which ones lie next to each other?",
        "Let `column` be a block of COLUMNS indices, and loop over the rows: one load per row, added to a block of totals.",
        "`total += tl.load(x + row * columns + column, mask=inside, other=0.0)`, and `total` starts as `tl.zeros((COLUMNS,), tl.float32)`",
    ),
    mistakes=(
        Mistake(
            "let neighbouring lanes access neighbouring elements",
            source="""\
@blocknb.kernel
def column_sum(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    for c in range(COLUMNS):
        column = tl.program_id(0) * COLUMNS + c
        row = tl.arange(0, ROWS)
        values = tl.load(x + column + columns * row, mask=(row < rows) & (column < columns), other=0.0)
        tl.store(out + column, tl.sum(values, axis=0), mask=column < columns)
""",
        ),
        Mistake("only the last row counts: the sum is not carried from row to row", patch=("total +=", "total =")),
        Mistake("the first row is left out", patch=("range(rows)", "range(1, rows)")),
        Mistake("the last row is left out", patch=("range(rows)", "range(rows - 1)")),
        Mistake("the loop runs over `columns`, not over `rows`", patch=("range(rows)", "range(columns)")),
        Mistake("the loop runs to ROWS, past the last row: ROWS is rounded up", patch=("range(rows)", "range(ROWS)")),
        Mistake("a row has `columns` elements, not `rows`", patch=("row * columns", "row * rows")),
        Mistake("a row has `columns` elements, not COLUMNS", patch=("row * columns", "row * COLUMNS")),
        Mistake(
            "the program number is missing: every program adds up the first columns",
            patch=("tl.program_id(0) * COLUMNS + ", ""),
        ),
        Mistake(
            "the masks are missing: the last program accesses columns past the end",
            patches=((", mask=inside, other=0.0", ""), ("total, mask=inside", "total")),
        ),
        Mistake("the store has no mask: the last program stores past the end", patch=("total, mask=inside", "total")),
        Mistake(
            "the total starts at 1, not at 0",
            patch=("tl.zeros((COLUMNS,), tl.float32)", "tl.full((COLUMNS,), 1.0, tl.float32)"),
        ),
        Mistake(
            "the sum is divided by the rows: that is the mean",
            patch=("out + column, total", "out + column, total / rows"),
        ),
        Mistake(
            "the first row is added again and again: the loop variable is missing in the address",
            patch=("x + row * columns + column", "x + column"),
        ),
    ),
    alternatives=(
        """\
@blocknb.kernel
def column_sum(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(values, axis=0), mask=column < columns)
""",
        """\
@blocknb.kernel
def column_sum(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, rows, 4):
        row = start + tl.arange(0, 4)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        total += tl.sum(tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0), axis=0)
    tl.store(out + column, total, mask=column < columns)
""",
        variant(
            COLUMN_SUM,
            ("    for row", "    x += column\n    for row"),
            ("x + row * columns + column, mask=inside, other=0.0)", "x, mask=inside, other=0.0)\n        x += columns"),
        ),
        variant(COLUMN_SUM, ("range(rows)", "range(rows - 1, -1, -1)")),
        variant(COLUMN_SUM, (", other=0.0", "")),
        variant(COLUMN_SUM, ("total += tl.load", "total = total + tl.load")),
    ),
)
