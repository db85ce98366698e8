"""Unit 2, Rows and columns: matrices in flat memory. Row-major order, strides, `[:, None]`, views and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Prediction, Unit
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrices import INSIDE, WRONG_TILES, numbers, tile_cases, tile_grid
from blocknb.learn.units.moved_rows import border_1, flip_1, gather_1
from blocknb.learn.units.variants import variant

UNIT = Unit(2, "Rows and columns", minutes=35)

OUTER = """\
@blocknb.kernel
def outer(x, y, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    left = tl.load(x + i, mask=i < rows)
    right = tl.load(y + j, mask=j < columns)
    product = left[:, None] * right[None, :]
    place = i[:, None] * columns + j[None, :]
    tl.store(out + place, product, mask=inside)
"""
PRODUCT = "product = left[:, None] * right[None, :]"
PLACE = "place = i[:, None] * columns + j[None, :]"

outer_1 = Exercise(
    name="outer-1",
    title="Compute all products of two vectors",
    task="""\
Store `x[:, None] * y[None, :]` to `out`: element (i, j) of `out` is `x[i] * y[j]`. `x` has `rows` fp32 numbers, `y` has `columns`, and
`out` is a matrix of `rows` x `columns` in row-major order.

Each program makes one tile of `BM` x `BN` elements. Axis 0 of the grid counts the tiles downwards, axis 1 counts them to the right.
Two lines are missing: `product`, the tile of results, and `place`, the index of each element of the tile in memory.
""",
    cases=tile_cases(
        lambda rng, rows, columns: {
            "x": numbers(rng, rows),
            "y": numbers(rng, columns),
            "out": np.empty((rows, columns), np.float32),
        }
    ),
    outputs=("out",),
    grid=tile_grid,
    reference=lambda x, y, **_: {"out": x[:, None].astype(np.float64) * y[None, :]},
    rules=(stored_once, no_race),
    solution=OUTER,
    blanks=(
        Blank(8, 8, "a tile of BM x BN products"),
        Blank(9, 9, "where each element of the tile lies in memory"),
    ),
    hints=(
        "`left` has BM numbers and `right` has BN. Which of the two walks along memory, and which one jumps from row to row?",
        "`[:, None]` makes a column of a block, `[None, :]` makes a row. The step from row to row is the number of columns.",
        "`product = left[:, None] * right[None, :]`, and then `place = i[:, None] * columns + j[None, :]`",
    ),
    mistakes=(
        *WRONG_TILES,
        Mistake(
            "the step from row to row is `columns`, not `rows`: a row has `columns` elements",
            patch=(PLACE, PLACE.replace("columns", "rows")),
        ),
        Mistake(
            "rows and columns are exchanged in memory: the result is stored column by column",
            patch=(PLACE, "place = i[:, None] + j[None, :] * rows"),
        ),
        Mistake(
            "the step from row to row is `columns` of the matrix, not BN of the tile",
            patch=(PLACE, PLACE.replace("columns", "BN")),
        ),
        Mistake(
            "the rows have no step: all rows of the tile lie on top of each other",
            patch=(PLACE, PLACE.replace(" * columns", "")),
        ),
        Mistake("the kernel adds where it should multiply", patch=(PRODUCT, PRODUCT.replace("*", "+"))),
        Mistake(
            "`right` is left out: every column is x",
            patch=(PRODUCT, "product = left[:, None] + tl.zeros((BM, BN), tl.float32)"),
        ),
        Mistake(
            "the mask leaves out the columns: what is past the end of a row lands in the next row",
            patch=(INSIDE, "inside = (i[:, None] < rows) & (j[None, :] >= 0)"),
        ),
        Mistake(
            "the mask leaves out the rows: the last tile stores past the end",
            patch=(INSIDE, "inside = (i[:, None] >= 0) & (j[None, :] < columns)"),
        ),
        Mistake("the store has no mask", patch=("product, mask=inside", "product")),
        Mistake("nothing is stored", patch=("    tl.store(out + place, product, mask=inside)\n", "")),
        Mistake(
            "left and right are exchanged: `left` belongs to the rows, `right` to the columns",
            patch=(PRODUCT, "product = left[None, :] * right[:, None]"),
        ),
    ),
    alternatives=(
        variant(OUTER, (PRODUCT, "product = right[None, :] * left[:, None]")),
        variant(OUTER, (PLACE, "place = j[None, :] + columns * i[:, None]")),
        variant(OUTER, (PLACE, "place = (i * columns)[:, None] + j[None, :]")),
        variant(OUTER, (PLACE, "place = tl.expand_dims(i, 1) * columns + tl.expand_dims(j, 0)")),
        variant(OUTER, (PRODUCT, "product = left.expand_dims(1) * right.expand_dims(0)")),
        variant(
            OUTER,
            ("x + i, mask=i < rows", "x + i[:, None], mask=i[:, None] < rows"),
            ("y + j, mask=j < columns", "y + j[None, :], mask=j[None, :] < columns"),
            (PRODUCT, "product = left * right"),
        ),
    ),
)

COPY = """\
@blocknb.kernel
def copy(x, out, start, row_step, column_step, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    source = start + i[:, None] * row_step + j[None, :] * column_step
    place = i[:, None] * columns + j[None, :]
    tl.store(out + place, tl.load(x + source, mask=inside), mask=inside)
"""
SOURCE = "source = start + i[:, None] * row_step + j[None, :] * column_step"

#: Views of a matrix in C order: its shape, and the view.
VIEWS: tuple[tuple[str, tuple[int, int], Any, int, int], ...] = (
    ("every second row", (128, 64), lambda x: x[::2], 16, 32),
    ("x[::2, ::-1] of 99x70", (99, 70), lambda x: x[::2, ::-1], 16, 16),
    ("the transpose of 41x30", (41, 30), lambda x: x.T, 8, 32),
    ("x[::-1, 1::3] of 3x14", (3, 14), lambda x: x[::-1, 1::3], 4, 8),
)


def _view_case(name: str, shape: tuple[int, int], cut: Any, bm: int, bn: int) -> Case:
    """A view as its first index and its two steps in the flat array, all counted in elements."""
    at = cut(np.arange(shape[0] * shape[1]).reshape(shape))

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": numbers(rng, shape[0] * shape[1]),
            "out": np.empty(at.shape, np.float32),
            "start": int(at[0, 0]),
            "row_step": int(at[1, 0] - at[0, 0]),
            "column_step": int(at[0, 1] - at[0, 0]),
            "rows": at.shape[0],
            "columns": at.shape[1],
            "BM": bm,
            "BN": bn,
        }

    return Case(name, make)


def _viewed(x: np.ndarray, start: int, row_step: int, column_step: int, rows: int, columns: int, **_: Any) -> Any:
    return {"out": x[start + np.arange(rows)[:, None] * row_step + np.arange(columns)[None, :] * column_step]}


copy_2 = Exercise(
    name="copy-2",
    title="Copy a view with two steps",
    task="""\
Copy a view of a matrix to `out`. The view has `rows` x `columns` fp32 numbers, and `x` is the flat memory that holds them. Element
(0, 0) is `x[start]`. The next row is `row_step` elements further, and the next column is `column_step` elements further. The steps can
be negative.

`out` is a matrix of `rows` x `columns` in row-major order. Two lines are missing: `source`, the indices in `x`, and `place`, the
indices in `out`.
""",
    cases=tuple(_view_case(*view) for view in VIEWS),
    outputs=("out",),
    grid=tile_grid,
    reference=_viewed,
    rules=(stored_once, no_race),
    solution=COPY,
    blanks=(
        Blank(6, 6, "the index in x of each element of the tile"),
        Blank(7, 7, "the index in out of each element of the tile"),
    ),
    hints=(
        "Where in `x` is element (0, 0) of the view? Where is element (1, 0), where is (0, 1), and where is (i, j)?",
        "Both lines add a column of numbers, made from `i[:, None]`, and a row of numbers, made from `j[None, :]`.",
        "`source = start + i[:, None] * row_step + j[None, :] * column_step`",
    ),
    mistakes=(
        *WRONG_TILES,
        Mistake(
            "the two steps are exchanged: rows take `row_step`",
            patch=(SOURCE, "source = start + i[:, None] * column_step + j[None, :] * row_step"),
        ),
        Mistake(
            "the view is read as if it had no gaps: the steps are missing",
            patch=(SOURCE, "source = start + i[:, None] * columns + j[None, :]"),
        ),
        Mistake("`start` is missing: the view begins at `x[start]`", patch=(SOURCE, SOURCE.replace("start + ", ""))),
        Mistake("the step from column to column is missing", patch=(SOURCE, SOURCE.replace(" * column_step", ""))),
        Mistake(
            "the step from row to row is `row_step`, not `columns`",
            patch=(SOURCE, SOURCE.replace("row_step", "columns")),
        ),
        Mistake(
            "the steps count elements, not bytes: do not multiply by 4",
            patch=(SOURCE, "source = start + 4 * (i[:, None] * row_step + j[None, :] * column_step)"),
        ),
        Mistake(
            "`out` is dense: its step from row to row is `columns`",
            patch=(PLACE, "place = i[:, None] * row_step + j[None, :] * column_step"),
        ),
        Mistake(
            "the step of `out` from row to row is `columns`, not `rows`",
            patch=(PLACE, PLACE.replace("columns", "rows")),
        ),
        Mistake(
            "`out` is stored column by column: rows and columns are exchanged",
            patch=(PLACE, "place = i[:, None] + j[None, :] * rows"),
        ),
        Mistake("the store has no mask", patch=("=inside), mask=inside)", "=inside))")),
        Mistake(
            "the mask leaves out the columns: what is past the end of a row lands in the next row",
            patch=(INSIDE, "inside = (i[:, None] < rows) & (j[None, :] >= 0)"),
        ),
    ),
    alternatives=(
        variant(COPY, (SOURCE, "source = j[None, :] * column_step + start + row_step * i[:, None]")),
        variant(COPY, (SOURCE, "source = (start + i * row_step)[:, None] + (j * column_step)[None, :]")),
        variant(
            COPY, ("    " + SOURCE, "    x += start\n    source = i[:, None] * row_step + j[None, :] * column_step")
        ),
        variant(COPY, (PLACE, "place = columns * i[:, None] + j[None, :]")),
        variant(COPY, ("tl.load(x + source, mask=inside)", "tl.load(x + source, mask=inside, other=1.0)")),
        variant(COPY, (INSIDE, "inside = (i < rows)[:, None] & (j < columns)[None, :]")),
    ),
)

TRANSPOSE = """\
@blocknb.kernel
def transpose(x, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    tile = tl.load(x + i[:, None] * columns + j[None, :], mask=inside)
    place = j[None, :] * rows + i[:, None]
    tl.store(out + place, tile, mask=inside)
"""
TRANSPOSED_PLACE = "place = j[None, :] * rows + i[:, None]"
LOADED = "x + i[:, None] * columns + j[None, :]"

transpose_1 = Exercise(
    name="transpose-1",
    title="Transpose a matrix, tile by tile",
    task="""\
Store the transpose of `x` to `out`. `x` is a matrix of `rows` x `columns` fp32 numbers, `out` has `columns` x `rows`, both in row-major
order. Element (i, j) of `x` becomes element (j, i) of `out`.

The kernel loads a tile of `BM` x `BN` elements of `x`. Store each of its elements where it belongs in `out`. One line is missing: `place`.
""",
    cases=tile_cases(
        lambda rng, rows, columns: {"x": numbers(rng, rows, columns), "out": np.empty((columns, rows), np.float32)}
    ),
    outputs=("out",),
    grid=tile_grid,
    reference=lambda x, **_: {"out": x.T},
    rules=(stored_once, no_race),
    solution=TRANSPOSE,
    blanks=(Blank(7, 7, "where in out each element of the tile belongs"),),
    hints=(
        "Take `x[2, 5]`. In which row and in which column of `out` does it land? How many elements of `out` lie before it?",
        "In `out`, j is the number of the row and i is the number of the column. A row of `out` has `rows` elements.",
        "`place = j[None, :] * rows + i[:, None]`",
    ),
    mistakes=(
        *WRONG_TILES,
        Mistake("the tile is stored where it was loaded: nothing is transposed", patch=(TRANSPOSED_PLACE, PLACE)),
        Mistake(
            "a row of `out` has `rows` elements, not `columns`: the step from row to row is wrong",
            patch=(TRANSPOSED_PLACE, TRANSPOSED_PLACE.replace("rows", "columns")),
        ),
        Mistake(
            "the matrix keeps its order, with the step of the transpose: i must walk along a row of `out`",
            patch=(TRANSPOSED_PLACE, "place = i[:, None] * rows + j[None, :]"),
        ),
        Mistake("the rows of `out` have no step", patch=(TRANSPOSED_PLACE, "place = j[None, :] + i[:, None]")),
        Mistake(
            "`place` has the shape of the transposed tile: keep `i[:, None]` and `j[None, :]`, and change what they are multiplied by",
            patch=(TRANSPOSED_PLACE, "place = j[:, None] * rows + i[None, :]"),
        ),
        Mistake(
            "the step from row to row is `rows` of the matrix, not BM of the tile",
            patch=(TRANSPOSED_PLACE, TRANSPOSED_PLACE.replace("rows", "BM")),
        ),
        Mistake("the store has no mask", patch=("tile, mask=inside)", "tile)")),
        Mistake("the load has no mask", patch=("j[None, :], mask=inside)", "j[None, :])")),
        Mistake(
            "load and store are both transposed: the two cancel",
            patch=(LOADED, "x + j[None, :] * rows + i[:, None]"),
        ),
        Mistake(
            "the mask exchanges rows and columns",
            patch=(INSIDE, "inside = (i[:, None] < columns) & (j[None, :] < rows)"),
        ),
        Mistake("the kernel writes to its input `x`, not to `out`", patch=("tl.store(out", "tl.store(x")),
        Mistake("nothing is stored", patch=("    tl.store(out + place, tile, mask=inside)\n", "")),
    ),
    alternatives=(
        variant(
            TRANSPOSE,
            (TRANSPOSED_PLACE, "place = j[:, None] * rows + i[None, :]"),
            ("tile, mask=inside)", "tl.trans(tile), mask=tl.trans(inside))"),
        ),
        variant(
            TRANSPOSE,
            (TRANSPOSED_PLACE, "place = j[:, None] * rows + i[None, :]"),
            ("tile, mask=inside)", "tile.T, mask=(j[:, None] < columns) & (i[None, :] < rows))"),
        ),
        variant(TRANSPOSE, (TRANSPOSED_PLACE, "place = i[:, None] + rows * j[None, :]")),
        variant(TRANSPOSE, (TRANSPOSED_PLACE, "place = (j * rows)[None, :] + i[:, None]")),
        variant(TRANSPOSE, (TRANSPOSED_PLACE, TRANSPOSED_PLACE.replace("j[None, :] * rows", "rows * j[None, :]"))),
        variant(
            TRANSPOSE,
            (LOADED, "x + i[None, :] * columns + j[:, None]"),
            (TRANSPOSED_PLACE, "place = j[:, None] * rows + i[None, :]"),
            (INSIDE, "inside = (j[:, None] < columns) & (i[None, :] < rows)"),
        ),
    ),
)


def _indices(order: str) -> np.ndarray:
    """A 7 x 11 array whose elements are their own index in memory."""
    return np.arange(77).reshape((7, 11), order="F" if order == "F" else "C")


predict_address = Prediction(
    name="predict-address",
    title="Where is element (3, 4)?",
    question="""\
An array has 7 rows and 11 columns. In C order, NumPy's usual order, its rows lie in memory one after the other. How many elements lie
before element (3, 4)?
""",
    answer=lambda: int(_indices("C")[3, 4]),
    wrong=(
        (25, "3 * 7 + 4 takes the number of rows as the step. A row has 11 elements"),
        (31, "3 + 4 * 7 is the answer for columns that lie one after the other (F order)"),
        (47, "rows and columns are exchanged: the row number comes first"),
        (38, "indices begin at 0: before element (3, 4) lie 4 elements of its row, not 5"),
        (37 * 4, "this counts bytes; the question is for elements"),
    ),
    hints=("How many whole rows lie before row 3?", "Each of them has 11 elements.", "3 * 11 + 4"),
)

predict_address_f = Prediction(
    name="predict-address-f",
    title="The same element in F order",
    question="""\
Now the same array of 7 rows and 11 columns in F order (`np.asfortranarray`): its columns lie in memory one after the other. How many
elements lie before element (3, 4)?
""",
    answer=lambda: int(_indices("F")[3, 4]),
    wrong=(
        (37, "3 * 11 + 4 is the answer for C order. Here the columns lie one after the other"),
        (47, "a column has 7 elements, because there are 7 rows"),
        (25, "4 whole columns lie before column 4, and each has 7 elements"),
    ),
    hints=("How many whole columns lie before column 4?", "Each of them has 7 elements.", "4 * 7 + 3"),
)

predict_address_view = Prediction(
    name="predict-address-view",
    title="An element of a view",
    question="""\
`x` has 7 rows and 11 columns in C order. `v = x[::2, ::-1]` takes every second row, and the columns from right to left. It copies
nothing. How many elements of `x` lie before element (3, 4) of `v`?
""",
    answer=lambda: int(_indices("C")[::2, ::-1][3, 4]),
    wrong=(
        (37, "this is element (3, 4) of x. Row 3 of v is row 6 of x"),
        (39, "row 3 of v is row 6 of x: the step between the rows is 22"),
        (70, "the columns run from right to left: column 4 of v is column 6 of x"),
        (73, "column 0 of v is column 10 of x, so column 4 of v is column 6 of x"),
    ),
    hints=(
        "Which row of x is row 3 of v? Which column of x is column 4 of v?",
        "Row 3 of v is row 6 of x. Column 0 of v is column 10 of x.",
        "6 * 11 + (10 - 4)",
    ),
)

EXERCISES = (
    predict_address,
    predict_address_f,
    outer_1,
    predict_address_view,
    copy_2,
    transpose_1,
    gather_1,
    flip_1,
    border_1,
)
