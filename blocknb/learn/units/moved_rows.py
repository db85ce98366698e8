"""The exercises of unit 2 that move parts of a matrix: `gather-1`, `flip-1` and `border-1`."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.exercise import Blank, Case, Exercise, Mistake
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrices import INSIDE, WRONG_TILES, Arrays, numbers, tile_cases, tile_grid
from blocknb.learn.units.variants import variant

GATHER = """\
@blocknb.kernel
def gather(x, index, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    source = tl.load(index + row)
    values = tl.load(x + source * columns + at, mask=inside)
    tl.store(out + row * columns + at, values, mask=inside)
"""
FROM = "x + source * columns + at"
TO = "out + row * columns + at"
SOURCE = "source = tl.load(index + row)"


def _picked_rows(rows: int, columns: int, picked: int, block: int) -> Case:
    """`picked` rows of a matrix of `rows` x `columns`, some of them several times."""

    def make(rng: np.random.Generator) -> Arrays:
        return {
            "x": numbers(rng, rows, columns),
            "index": rng.integers(0, rows, picked).astype(np.int32),
            "out": np.empty((picked, columns), np.float32),
            "columns": columns,
            "BLOCK": block,
        }

    return Case(f"{picked} of {rows} rows of {columns}", make)


def _one_per_row(index: Any, **_: Any) -> tuple[int, ...]:
    return (index.size,)


gather_1 = Exercise(
    name="gather-1",
    title="Gather rows by their numbers",
    task="""\
Store `x[index]` to `out`: row r of `out` is row `index[r]` of `x`. `x` is a row-major matrix of fp32 with `columns` columns, `index` holds
int32 numbers of rows, and `out` has one row for each of them.

The grid has one program for each row of `out`. A block covers a whole row: `columns <= BLOCK`. Three lines are missing: load the
number of the row, load that row of `x`, and store it.
""",
    cases=(
        _picked_rows(20, 64, 30, 64),
        _picked_rows(50, 100, 41, 128),
        _picked_rows(30, 77, 30, 256),
        _picked_rows(3, 5, 7, 8),
    ),
    outputs=("out",),
    grid=_one_per_row,
    reference=lambda x, index, **_: {"out": x[index]},
    rules=(stored_once, no_race),
    solution=GATHER,
    blanks=(Blank(6, 8, "load the number of the row, load the row, store it"),),
    hints=(
        "Which number says where row r of `out` comes from? Is it one number or a block?",
        "`tl.load(index + row)` is one number, without a mask. Use it for the load from `x`, and `row` for the store to `out`.",
        "`values = tl.load(x + tl.load(index + row) * columns + at, mask=inside)`",
    ),
    mistakes=(
        Mistake("the load takes row `row` of x, not row `index[row]`", patch=(FROM, "x + row * columns + at")),
        Mistake(
            "the rows are scattered: the number of the row belongs to the load, not to the store",
            patches=((FROM, "x + row * columns + at"), (TO, "out + source * columns + at")),
        ),
        Mistake("the store goes to row `index[row]`, not to row `row`", patch=(TO, "out + source * columns + at")),
        Mistake("a row of x has `columns` elements, not BLOCK", patch=(FROM, FROM.replace("columns", "BLOCK"))),
        Mistake("a row of out has `columns` elements, not BLOCK", patch=(TO, TO.replace("columns", "BLOCK"))),
        Mistake(
            "the number of the row is used as an index of elements: multiply it by `columns`",
            patch=(FROM, "x + source + at"),
        ),
        Mistake("the rows of out have no step: multiply `row` by `columns`", patch=(TO, "out + row + at")),
        Mistake(
            "numbers of rows are used as indices of elements: multiply `source` and `row` by `columns`",
            patches=((FROM, "x + source + at"), (TO, "out + row + at")),
        ),
        Mistake("every program loads `index[0]`: add `row` to the pointer", patch=(SOURCE, "source = tl.load(index)")),
        Mistake(
            "the number of the row is never loaded: `index + row` is an address", patch=(SOURCE, "source = index + row")
        ),
        Mistake("the store leaves out the program number: every program stores to row 0", patch=(TO, "out + at")),
        Mistake(
            "the store has no mask: the end of the block lands in the next row", patch=("values, mask=inside", "values")
        ),
        Mistake("`at <= columns` lets one element of the next row in", patch=("at < columns", "at <= columns")),
        Mistake("nothing is stored", patch=("    tl.store(out + row * columns + at, values, mask=inside)\n", "")),
    ),
    alternatives=(
        variant(GATHER, ("    " + SOURCE + "\n", ""), (FROM, "x + tl.load(index + row) * columns + at")),
        variant(GATHER, (FROM, "x + columns * source + at")),
        variant(GATHER, ("    values", "    x += source * columns\n    values"), (FROM, "x + at")),
        variant(GATHER, ("at, mask=inside)\n    tl", "at, mask=inside, other=0.0)\n    tl")),
        variant(GATHER, ("inside = at < columns", "inside = columns > at")),
        variant(GATHER, (TO, "out + (row * columns + at)")),
    ),
)

FLIP = """\
@blocknb.kernel
def flip(x, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    source = i[:, None] * columns + (columns - 1 - j[None, :])
    place = i[:, None] * columns + j[None, :]
    tl.store(out + place, tl.load(x + source, mask=inside), mask=inside)
"""
MIRRORED = "source = i[:, None] * columns + (columns - 1 - j[None, :])"

flip_1 = Exercise(
    name="flip-1",
    title="Flip a matrix from left to right",
    task="""\
Store `x[:, ::-1]` to `out`: the last column becomes the first one, and the rows stay. `x` and `out` are row-major matrices of `rows` x
`columns` fp32 numbers.

Each program makes one tile of `BM` x `BN` elements. The last three lines are missing: where to load, where to store, and the load
and store.
""",
    cases=tile_cases(
        lambda rng, rows, columns: {"x": numbers(rng, rows, columns), "out": np.empty((rows, columns), np.float32)}
    ),
    outputs=("out",),
    grid=tile_grid,
    reference=lambda x, **_: {"out": x[:, ::-1]},
    rules=(stored_once, no_race),
    solution=FLIP,
    blanks=(Blank(6, 8, "where to load, where to store, load and store"),),
    hints=(
        "Which column of `x` becomes column 0 of `out`? Which one becomes column j?",
        "The load needs column `columns - 1 - j` of the same row. The store goes to column j.",
        "`source = i[:, None] * columns + (columns - 1 - j[None, :])`",
    ),
    mistakes=(
        *WRONG_TILES,
        Mistake(
            "one too far: column 0 needs column `columns - 1`",
            patch=(MIRRORED, MIRRORED.replace("columns - 1 - j", "columns - j")),
        ),
        Mistake(
            "each tile is flipped, but the tiles keep their order",
            patch=(
                MIRRORED,
                "source = i[:, None] * columns + (tl.program_id(1) * BN + BN - 1 - tl.arange(0, BN)[None, :])",
            ),
        ),
        Mistake(
            "each tile is flipped, but the tiles keep their order",
            patches=(
                (
                    MIRRORED,
                    "back = tl.program_id(1) * BN + BN - 1 - tl.arange(0, BN)\n"
                    "    source = i[:, None] * columns + back[None, :]",
                ),
                ("x + source, mask=inside", "x + source, mask=(i[:, None] < rows) & (back[None, :] < columns)"),
            ),
        ),
        Mistake(
            "the matrix is flipped upside down: the rows are reversed, not the columns",
            patch=(MIRRORED, "source = (rows - 1 - i[:, None]) * columns + j[None, :]"),
        ),
        Mistake(
            "rows and columns are both reversed",
            patch=(MIRRORED, "source = (rows - 1 - i[:, None]) * columns + (columns - 1 - j[None, :])"),
        ),
        Mistake("nothing is flipped", patch=(MIRRORED, "source = i[:, None] * columns + j[None, :]")),
        Mistake(
            "load and store are both flipped, so nothing changes",
            patch=(
                "place = i[:, None] * columns + j[None, :]",
                "place = i[:, None] * columns + (columns - 1 - j[None, :])",
            ),
        ),
        Mistake(
            "the step from row to row is `columns`, not `rows`",
            patches=(
                ("place = i[:, None] * columns", "place = i[:, None] * rows"),
                ("source = i[:, None] * columns", "source = i[:, None] * rows"),
            ),
        ),
        Mistake(
            "a negative index does not count from the end here",
            patch=(MIRRORED, "source = i[:, None] * columns + (-1 - j[None, :])"),
        ),
        Mistake("the store has no mask", patch=("=inside), mask=inside)", "=inside))")),
        Mistake("the kernel writes to its input `x`, not to `out`", patch=("tl.store(out", "tl.store(x")),
    ),
    alternatives=(
        variant(FLIP, (MIRRORED, "source = (i + 1)[:, None] * columns - 1 - j[None, :]")),
        variant(
            FLIP,
            (MIRRORED, "source = i[:, None] * columns + j[None, :]"),
            ("place = i[:, None] * columns + j[None, :]", "place = i[:, None] * columns + (columns - 1 - j[None, :])"),
        ),
        variant(FLIP, (MIRRORED, "back = columns - 1 - j\n    source = i[:, None] * columns + back[None, :]")),
        variant(FLIP, (INSIDE, "inside = (i < rows)[:, None] & (j < columns)[None, :]")),
        variant(FLIP, ("tl.load(x + source, mask=inside)", "tl.load(x + source, mask=inside, other=0.0)")),
        variant(FLIP, (MIRRORED, "source = columns * i[:, None] + columns - j[None, :] - 1")),
    ),
)

BORDER = """\
@blocknb.kernel
def border(x, out, edge, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < rows + 2) & (j[None, :] < columns + 2)
    center = (i[:, None] >= 1) & (i[:, None] <= rows) & (j[None, :] >= 1) & (j[None, :] <= columns)
    source = (i[:, None] - 1) * columns + (j[None, :] - 1)
    values = tl.load(x + source, mask=center, other=edge)
    place = i[:, None] * (columns + 2) + j[None, :]
    tl.store(out + place, values, mask=inside)
"""
CENTER = "center = (i[:, None] >= 1) & (i[:, None] <= rows) & (j[None, :] >= 1) & (j[None, :] <= columns)"
SHIFTED = "source = (i[:, None] - 1) * columns + (j[None, :] - 1)"
WIDER = "place = i[:, None] * (columns + 2) + j[None, :]"

border_1 = Exercise(
    name="border-1",
    title="Put a border around a matrix",
    task="""\
Store `np.pad(x, 1, constant_values=edge)` to `out`. `x` is a row-major matrix of `rows` x `columns` fp32 numbers. `out` has two more rows
and two more columns: `x` stands in its middle, and the number `edge` all around it.

The tiles cover `out`, so i runs to `rows + 1`. Two masks differ here: `inside` is true within `out`, `center` is true where `x` stands.
`tl.load(..., mask=center, other=edge)` gives `edge` where the mask is false. Three lines are missing: `source`, `values` and `place`.
""",
    cases=tile_cases(
        lambda rng, rows, columns: {
            "x": numbers(rng, rows, columns),
            "out": np.empty((rows + 2, columns + 2), np.float32),
            "edge": -1.5,
        }
    ),
    outputs=("out",),
    grid=lambda rows, columns, BM, BN, **_: (cdiv(rows + 2, BM), cdiv(columns + 2, BN)),
    reference=lambda x, edge, **_: {"out": np.pad(x, 1, constant_values=edge)},
    rules=(stored_once, no_race),
    solution=BORDER,
    blanks=(
        Blank(7, 7, "the index in x of each element of the tile"),
        Blank(8, 8, "load x in the center, and edge around it"),
        Blank(9, 9, "the index in out of each element of the tile"),
    ),
    hints=(
        "Element (1, 1) of `out` is element (0, 0) of `x`. How long is a row of `out`?",
        "`source` uses i - 1 and j - 1 with the step `columns`. `place` uses i and j with the step `columns + 2`.",
        "`values = tl.load(x + (i[:, None] - 1) * columns + (j[None, :] - 1), mask=center, other=edge)`",
    ),
    mistakes=(
        *WRONG_TILES,
        Mistake("the border is 0: the load needs `other=edge`", patch=(", other=edge", "")),
        Mistake(
            "a row of out has `columns + 2` elements, not `columns`",
            patch=(WIDER, WIDER.replace("(columns + 2)", "columns")),
        ),
        Mistake(
            "a row of x has `columns` elements, not `columns + 2`",
            patch=(SHIFTED, SHIFTED.replace("* columns", "* (columns + 2)")),
        ),
        Mistake(
            "x is not shifted: element (1, 1) of out is element (0, 0) of x",
            patch=(SHIFTED, "source = i[:, None] * columns + j[None, :]"),
        ),
        Mistake("x is shifted the wrong way", patch=(SHIFTED, SHIFTED.replace("- 1", "+ 1"))),
        Mistake(
            "only the rows are shifted: the column needs j - 1",
            patch=(SHIFTED, SHIFTED.replace("(j[None, :] - 1)", "j[None, :]")),
        ),
        Mistake(
            "the load uses the mask of the store: it reads outside of x at the border",
            patch=("mask=center", "mask=inside"),
        ),
        Mistake(
            "the store uses the mask of the load: the border is never stored",
            patch=("values, mask=inside", "values, mask=center"),
        ),
        Mistake("`other` is 1: the border must be the number `edge`", patch=("other=edge", "other=1.0")),
        Mistake("the border is 0: the load needs `other=edge`", patch=("other=edge", "other=0.0")),
        *(
            Mistake(
                "the border is 0: the load needs `other=edge`",
                patches=((SHIFTED, "source = (i[:, None] - 1) * columns + j[None, :] - 1"), (", other=edge", other)),
            )
            for other in ("", ", other=0.0")
        ),
        Mistake("the store has no mask", patch=("values, mask=inside", "values")),
        Mistake(
            "the kernel adds edge to the whole matrix",
            patch=("tl.load(x + source, mask=center, other=edge)", "tl.load(x + source, mask=center) + edge"),
        ),
    ),
    alternatives=(
        variant(BORDER, ("mask=center, other=edge)", "mask=center)\n    values = tl.where(center, values, edge)")),
        variant(BORDER, (SHIFTED, "source = i[:, None] * columns + j[None, :] - columns - 1")),
        variant(BORDER, (SHIFTED, "source = (i - 1)[:, None] * columns + (j - 1)[None, :]")),
        variant(BORDER, (WIDER, "place = (2 + columns) * i[:, None] + j[None, :]")),
        variant(
            BORDER,
            (
                "tl.load(x + source, mask=center, other=edge)",
                "tl.load(x - columns - 1 + i[:, None] * columns + j[None, :], mask=center, other=edge)",
            ),
        ),
        variant(
            BORDER,
            (
                CENTER,
                "center = (i >= 1)[:, None] & (i <= rows)[:, None] & (j >= 1)[None, :] & (j < columns + 1)[None, :]",
            ),
        ),
    ),
)
