"""The common parts of the exercises on matrices: cases of rows and columns, the grid of tiles, and mistakes with indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.exercise import Case, Mistake

Arrays = dict[str, Any]

#: rows, columns, and the rows (BM) and columns (BN) of a tile. Tiles are square in one case, and wide or high in the others.
SHAPES = ((64, 128, 16, 32), (50, 100, 16, 16), (70, 20, 32, 8), (3, 5, 4, 8))

I_LINE = "i = tl.program_id(0) * BM + tl.arange(0, BM)"
J_LINE = "j = tl.program_id(1) * BN + tl.arange(0, BN)"
INSIDE = "inside = (i[:, None] < rows) & (j[None, :] < columns)"

#: Mistakes with the indices of a tile. They apply to every solution that has the lines `I_LINE` and `J_LINE`.
WRONG_TILES = (
    Mistake(
        "`j` leaves out the program number: every program works on the first columns",
        patch=(J_LINE, "j = tl.arange(0, BN)"),
    ),
    Mistake(
        "`i` leaves out the program number: every program works on the first rows",
        patch=(I_LINE, "i = tl.arange(0, BM)"),
    ),
    Mistake(
        "the axes of the grid are exchanged: axis 0 counts the tiles downwards, axis 1 to the right",
        patches=((I_LINE, I_LINE.replace("(0) *", "(1) *")), (J_LINE, J_LINE.replace("(1) *", "(0) *"))),
    ),
    Mistake(
        "BM and BN are exchanged in the first index of the tile",
        patches=((I_LINE, I_LINE.replace("* BM", "* BN")), (J_LINE, J_LINE.replace("* BN", "* BM"))),
    ),
    Mistake(
        "`j` uses the program number of axis 0: only tiles on the diagonal get a program",
        patch=(J_LINE, J_LINE.replace("(1)", "(0)")),
    ),
)


def tile_cases(make: Callable[[np.random.Generator, int, int], Arrays]) -> tuple[Case, ...]:
    """Cases of all `SHAPES`. `make(rng, rows, columns)` returns the arrays by name; rows, columns, BM and BN are added."""

    def case(rows: int, columns: int, bm: int, bn: int) -> Case:
        return Case(
            f"{rows}x{columns} in tiles of {bm}x{bn}",
            lambda rng: {**make(rng, rows, columns), "rows": rows, "columns": columns, "BM": bm, "BN": bn},
        )

    return tuple(case(*shape) for shape in SHAPES)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """An fp32 array of normally distributed numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def tile_grid(rows: int, columns: int, BM: int, BN: int, **_: Any) -> tuple[int, ...]:
    """As many programs as there are tiles: axis 0 counts them downwards, axis 1 to the right."""
    return cdiv(rows, BM), cdiv(columns, BN)
