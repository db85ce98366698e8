"""Unit 8, A matrix product in tiles: one tile, the loop along K, the grid, the order of the tiles, and what follows the sum."""

from __future__ import annotations

from blocknb.learn.exercise import Prediction, Unit
from blocknb.learn.units.matrix_epilogue import GEMM_5
from blocknb.learn.units.matrix_grid import GEMM_3, GEMM_4
from blocknb.learn.units.matrix_one_tile import GEMM_1, GEMM_2

UNIT = Unit(8, "A matrix product in tiles", 60)


def fetched(down: int, across: int) -> int:
    """The tiles of `a` and `b` that programs in a rectangle of `down` x `across` tiles of `c` need, for one step along K."""
    places = [(row, column) for row in range(down) for column in range(across)]
    return len({row for row, _ in places}) + len({column for _, column in places})


PREDICT_TILES = Prediction(
    "predict-tiles",
    "Count the tiles that 64 programs fetch",
    question="""\
64 programs run at the same time, and each computes one tile of `c`. For one step along K, a program needs one tile of `a` and one of `b`.
All programs of a row need the same tile of `a`, and all programs of a column the same tile of `b`.

How many different tiles of `a` and `b` do the 64 programs need together, if they form a strip of 1 x 64 tiles? And a square of 8 x 8?
Answer with two numbers: `(strip, square)`.""",
    answer=lambda: (fetched(1, 64), fetched(8, 8)),
    wrong=(
        (
            (128, 128),
            "Each program needs two tiles, but programs of a row share their tile of `a`, and programs of a column that of `b`.",
        ),
        (
            (64, 64),
            "A strip needs 64 tiles of `b` and one tile of `a`, too. A square of 8 x 8 has 8 rows and 8 columns.",
        ),
        ((65, 64), "The square has 8 rows and 8 columns, and each of them needs one tile."),
        ((64, 16), "The strip needs 64 tiles of `b`, and also one tile of `a`."),
        (
            (65, 128),
            "Programs of the square share, too: 8 rows need 8 tiles of `a`, and 8 columns need 8 tiles of `b`.",
        ),
        ((16, 65), "The order of the answer is (strip, square)."),
        ((65, 17), "A square of 8 x 8 has 8 rows and 8 columns: count the tiles of each."),
    ),
    hints=(
        "How many different rows of tiles does a strip of 1 x 64 have? How many columns?",
        "Each row of tiles needs one tile of `a`, and each column one tile of `b`. Add the rows and the columns.",
        "A strip has 1 + 64 of them, and a square has 8 + 8.",
    ),
    reveals="Launch",
)

EXERCISES = (GEMM_1, GEMM_2, GEMM_3, PREDICT_TILES, GEMM_4, GEMM_5)
