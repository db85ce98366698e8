"""Unit 9, Tensor cores: half precision, the instructions that multiply tiles, banks of shared memory, and the resources of a tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from blocknb.layouts import wgmma
from blocknb.learn.exercise import Prediction, Unit
from blocknb.learn.units.matrix_half import DOT_1, FIT_1, HALF_1

UNIT = Unit(9, "Tensor cores and shared memory", 45)
BANKS, LANES = 32, 32


def ways(place: Callable[[int, int], int], column: int = 0) -> int:
    """How many accesses one after another a warp needs for a column of a 32 x 32 tile of fp32. `place(row, column)` is the number of the
    4-byte word of an element; bank `word % 32` serves one word at a time."""
    words = {place(row, column) for row in range(LANES)}
    return max(Counter(word % BANKS for word in words).values())


PREDICT_BANK = Prediction(
    "predict-bank",
    "Count bank conflicts of a column",
    question="""\
A tile of 32 x 32 fp32 numbers lies in shared memory, row after row, so element (r, c) is word `32 * r + c`. Word `w` belongs to bank `w %
32`, and a bank serves one word at a time. The 32 lanes of a warp read column 0 with one instruction.

How many words must the busiest bank serve

1. with this plain layout,
2. with rows padded to 33 words: word `33 * r + c`,
3. with columns permuted in each row: word `32 * r + (c ^ r)`, where `^` is xor?

Answer with three numbers: `(plain, padded, xor)`.""",
    answer=lambda: (
        ways(lambda row, column: 32 * row + column),
        ways(lambda row, column: 33 * row + column),
        ways(lambda row, column: 32 * row + (column ^ row)),
    ),
    wrong=(
        ((1, 1, 1), "In the plain layout the words 0, 32, 64 ... of column 0 all belong to bank 0."),
        ((32, 32, 32), "With rows of 33 words the words are 0, 33, 66 ...: each belongs to another bank."),
        ((32, 1, 32), "With xor, column 0 of row r stands at position r: 0, 1, 2 ..., so each lane has its own bank."),
        ((32, 2, 1), "33 * r % 32 is r: no two rows share a bank."),
        ((32, 33, 1), "The padding moves each row by one bank, so that no two lanes share one."),
        ((1, 32, 1), "It is the plain layout that has the conflicts: its words 0, 32, 64 ... share bank 0."),
        ((1, 32, 32), "It is the plain layout that has the conflicts: its words 0, 32, 64 ... share bank 0."),
        ((32, 1, 16), "0 ^ r is r, and r takes all values from 0 to 31."),
    ),
    hints=(
        "Write the words of rows 0, 1 and 2 of column 0. What are they modulo 32?",
        "Plain: 0, 32, 64. Padded: 0, 33, 66. With xor: 0, 33, 66, because 0 ^ r is r.",
        "The plain words are all 0 modulo 32; the others are 0, 1, 2 ... modulo 32.",
    ),
    reveals="Tiles",
)


def instructions(m: int, n: int, k: int) -> tuple[int, int, int]:
    """The instructions for m x n x k multiply-adds: fma and mma.sync per warp, and wgmma per four warps."""
    fma, mma = LANES, 16 * 8 * 16
    return m * n * k // fma, m * n * k // mma, m * n * k // (wgmma.ROWS * n * 16)


PREDICT_FMA = Prediction(
    "predict-fma",
    "Count instructions of one step",
    question="""\
One step along K of a tile of 128 x 128 with BK = 64 takes 128 * 128 * 64 multiply-adds in fp16. How many instructions does the program
issue for it, over all its warps,

1. with `fma`, where an instruction does one multiply-add for each of the 32 lanes of a warp,
2. with `mma.sync.m16n8k16`, where an instruction of a warp does 16 x 8 x 16 of them,
3. with `wgmma.m64n128k16`, where an instruction of four warps does 64 x 128 x 16? Count it once for the four warps.

Answer with three numbers: `(fma, mma, wgmma)`.""",
    answer=lambda: instructions(128, 128, 64),
    wrong=(
        ((1048576, 512, 8), "An `fma` instruction serves all 32 lanes of a warp: divide by 32."),
        ((32768, 16384, 8), "An `mma.sync` does 16 * 8 * 16 = 2048 multiply-adds: divide 1,048,576 by that."),
        ((32768, 512, 32), "A `wgmma` of four warps counts once: 1,048,576 / (64 * 128 * 16)."),
        ((32768, 512, 2), "64 x 128 covers half of the rows, and k16 a quarter of BK = 64: 2 * 4 instructions."),
        ((32768, 512, 4), "The tile has 128 rows and the instruction 64, so there are two for each quarter of BK."),
        ((8192, 128, 2), "Count the instructions of all warps together."),
        ((8, 512, 32768), "The order of the answer is (fma, mma, wgmma)."),
    ),
    hints=(
        "How many multiply-adds are there in total? How many does one instruction do?",
        "128 * 128 * 64 is 1,048,576. Divide it by 32, by 16 * 8 * 16, and by 64 * 128 * 16.",
        "1,048,576 / 32 is 32,768. The other two quotients are below 1000.",
    ),
    reveals="Code",
)

EXERCISES = (PREDICT_FMA, HALF_1, DOT_1, PREDICT_BANK, FIT_1)
