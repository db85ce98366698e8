"""Unit 1, Blocks: a loop over an array cut into programs. Program number, block of indices, grid, pointer and mask."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Prediction, Unit
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.variants import variant
from blocknb.learn.units.vectors import INDICES, RIGHT_INDICES, WRONG_INDICES, one_axis, vector, vectors
from blocknb.learn.units.whole_kernels import bug_1, reverse_1, scale_1

UNIT = Unit(1, "Blocks", minutes=30)

NEGATE = """\
@blocknb.kernel
def negate(x, out, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    start = pid * BLOCK
    at = start + tl.arange(0, BLOCK)
    tl.store(out + at, -tl.load(x + at))
"""
START = "start = pid * BLOCK"


def _whole_blocks(blocks: int, block: int) -> Any:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {"x": vector(rng, blocks * block), "out": np.empty(blocks * block, np.float32), "BLOCK": block}

    return make


negate_1 = Exercise(
    name="negate-1",
    title="Change the sign of a vector, one block per program",
    task="""\
Store `-x` to `out`. Both hold fp32 numbers. Their length is a multiple of `BLOCK`, and the grid has one program per block.

Only one line is missing: the index of the first element of this program's block. Program 0 begins at element 0, program 1 at
element `BLOCK`.
""",
    cases=(
        Case("4 blocks of 1024", _whole_blocks(4, 1024)),
        Case("37 blocks of 32", _whole_blocks(37, 32)),
        Case("1 block of 16", _whole_blocks(1, 16)),
    ),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, **_: {"out": -x},
    rules=(stored_once, no_race),
    solution=NEGATE,
    blanks=(Blank(4, 4, "the index of the first element of this program's block"),),
    hints=(
        "Where does the block of program 0 begin? Where does that of program 1 begin, and that of program 2?",
        "The line `start = ...` needs the number of the program, `pid`, and the size of a block, `BLOCK`.",
        "`start = pid * BLOCK`",
    ),
    mistakes=(
        Mistake("every program starts at element 0: the program number is missing", patch=(START, "start = 0")),
        Mistake("`pid` is not multiplied by BLOCK: the blocks overlap", patch=(START, "start = pid")),
        Mistake(
            "every program starts at the second block: the program number is missing", patch=(START, "start = BLOCK")
        ),
        Mistake(
            "the blocks start one block too late: program 0 must start at element 0",
            patch=(START, "start = (pid + 1) * BLOCK"),
        ),
        Mistake("the start counts bytes: `x + at` already counts elements", patch=(START, "start = 4 * pid * BLOCK")),
        Mistake(
            "a block has BLOCK elements, not BLOCK - 1: neighbouring blocks overlap",
            patch=(START, "start = pid * (BLOCK - 1)"),
        ),
        Mistake("the blocks start one element too late", patch=(START, "start = pid * BLOCK + 1")),
        Mistake("there is a gap of a block after every block", patch=(START, "start = 2 * pid * BLOCK")),
        Mistake(
            "the store leaves out the start: every program stores to the first block",
            patch=("tl.store(out + at,", "tl.store(out + tl.arange(0, BLOCK),"),
        ),
        Mistake(
            "the load leaves out the start: every program loads the first block",
            patch=("tl.load(x + at)", "tl.load(x + tl.arange(0, BLOCK))"),
        ),
        Mistake("nothing is stored", patch=("tl.store(out + at, -tl.load(x + at))", "values = -tl.load(x + at)")),
        Mistake(
            "load and store are exchanged: the kernel reads `out` and writes to `x`",
            patch=("tl.store(out + at, -tl.load(x + at))", "tl.store(x + at, -tl.load(out + at))"),
        ),
    ),
    alternatives=(
        variant(NEGATE, (START, "start = BLOCK * pid")),
        variant(NEGATE, ("start = pid * BLOCK\n    at = start + tl.arange(0, BLOCK)", INDICES)),
        variant(NEGATE, ("out + at, -tl.load(x + at)", "out + at, -tl.load(x + at), mask=at >= 0")),
        variant(NEGATE, (START, "start = (pid + 1) * BLOCK - BLOCK")),
        variant(NEGATE, ("pid = tl.program_id(0)\n    start = pid * BLOCK", "start = tl.program_id(0) * BLOCK")),
        variant(NEGATE, (START, "start = (tl.num_programs(0) - 1 - pid) * BLOCK")),
    ),
)

ADD = """\
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)
"""
STORE_TOTAL = "tl.store(out + at, total, mask=inside)"

add_1 = Exercise(
    name="add-1",
    title="Add two vectors of any length",
    task="""\
Store `x + y` to `out`. The three vectors hold `n` fp32 numbers, and `n` can be any number. The grid has `n / BLOCK` programs, rounded up.

Two lines are missing: `at`, the indices of this program's elements, and `inside`, which is true for the indices below `n`.
""",
    cases=vectors("x", "y"),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, y, **_: {"out": x.astype(np.float64) + y},
    rules=(stored_once, no_race),
    solution=ADD,
    blanks=(
        Blank(4, 4, "the indices of this program's elements, a block of BLOCK numbers"),
        Blank(5, 5, "true for the indices below n"),
    ),
    hints=(
        "Which elements does program 0 add? Which elements does program 1 add, and where does it stop if there are fewer left?",
        "`at` is the start of the block, `pid * BLOCK`, plus the numbers 0, 1, 2 and so on. `inside` compares `at` with `n`.",
        "`at = pid * BLOCK + tl.arange(0, BLOCK)`, and then `inside = at < n`",
    ),
    mistakes=(
        *WRONG_INDICES,
        Mistake("the masks are missing: the last program accesses elements past the end", patch=(", mask=inside", "")),
        Mistake(
            "the store has no mask: the last program stores past the end",
            patch=(STORE_TOTAL, "tl.store(out + at, total)"),
        ),
        Mistake(
            "the loads have no mask: the last program loads past the end",
            patches=((", mask=inside) +", ") +"), ("(y + at, mask=inside)", "(y + at)")),
        ),
        Mistake("`at <= n` lets one element too many in: the last index is n - 1", patch=("at < n", "at <= n")),
        Mistake("`at < n - 1` leaves out the last element", patch=("at < n", "at < n - 1")),
        Mistake("`at < BLOCK` is true in the first block only: compare with n", patch=("at < n", "at < BLOCK")),
        Mistake(
            "nothing is stored: the kernel computes the total and drops it", patch=("    " + STORE_TOTAL + "\n", "")
        ),
        Mistake("the kernel returns before it stores", patch=(STORE_TOTAL, "return\n    " + STORE_TOTAL)),
        Mistake("the kernel adds x to itself instead of y", patch=("tl.load(y + at", "tl.load(x + at")),
        Mistake("the kernel writes to `y`, which is an input", patch=("tl.store(out", "tl.store(y")),
        Mistake(
            "every element is stored to `out[0]`: `+ at` is missing",
            patch=("tl.store(out + at,", "tl.store(out + 0 * at,"),
        ),
    ),
    alternatives=(
        *(variant(ADD, patch) for patch in RIGHT_INDICES),
        variant(ADD, ("inside = at < n", "inside = n > at")),
        variant(ADD, ("inside = at < n", "inside = at <= n - 1")),
        variant(
            ADD,
            ("mask=inside) +", "mask=inside, other=0) +"),
            ("(y + at, mask=inside)", "(y + at, mask=inside, other=0)"),
        ),
        variant(ADD, ("x + at", "x + pid * BLOCK + tl.arange(0, BLOCK)")),
        variant(ADD, ("pid = tl.program_id(0)", "x += 0\n    pid = tl.num_programs(0) - 1 - tl.program_id(0)")),
    ),
)

CLAMP = """\
@blocknb.kernel
def clamp(x, out, low, high, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + at, mask=inside)
    values = tl.minimum(tl.maximum(values, low), high)
    tl.store(out + at, values, mask=inside)
"""
LIMIT = "tl.minimum(tl.maximum(values, low), high)"

clamp_1 = Exercise(
    name="clamp-1",
    title="Limit every element to a range",
    task="""\
Store `np.clip(x, low, high)` to `out`. Numbers below `low` become `low`, numbers above `high` become `high`, and all others stay.
`x` and `out` hold `n` fp32 numbers, `low` and `high` are two numbers with `low < high`.

The indices and the mask are given. Load the block, limit it, and store it. `tl.minimum(a, b)` and `tl.maximum(a, b)` work like
`np.minimum` and `np.maximum`, for a block and a number, too.
""",
    cases=vectors("x", low=-0.5, high=0.75),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, low, high, **_: {"out": np.clip(x.astype(np.float64), low, high)},
    rules=(stored_once, no_race),
    solution=CLAMP,
    blanks=(Blank(6, 8, "load, limit and store the block"),),
    hints=(
        "A number below `low` must become `low`. Is `low` the smaller or the larger of the two numbers?",
        "Three lines: `values = tl.load(...)`, then `tl.maximum` with `low` and `tl.minimum` with `high`, then `tl.store(...)`.",
        "`values = tl.minimum(tl.maximum(values, low), high)`",
    ),
    mistakes=(
        Mistake("numbers below `low` stay: only the upper limit is there", patch=(LIMIT, "tl.minimum(values, high)")),
        Mistake("numbers above `high` stay: only the lower limit is there", patch=(LIMIT, "tl.maximum(values, low)")),
        Mistake(
            "minimum and maximum are exchanged: the result is `low` or `high` everywhere",
            patch=(LIMIT, "tl.maximum(tl.minimum(values, low), high)"),
        ),
        Mistake("`low` and `high` are exchanged", patch=(LIMIT, "tl.minimum(tl.maximum(values, high), low)")),
        Mistake("`low` and `high` are exchanged", patch=(LIMIT, "tl.clamp(values, high, low)")),
        Mistake(
            "numbers outside of the range become 0 instead of the limit",
            patch=(LIMIT, "tl.where((values >= low) & (values <= high), values, 0.0)"),
        ),
        Mistake(
            "both limits are `high`: -high takes the place of `low`",
            patch=(LIMIT, "tl.minimum(tl.maximum(values, -high), high)"),
        ),
        Mistake(
            "the block is stored as it was loaded: the limits are not applied",
            patch=("values = " + LIMIT, "limited = " + LIMIT),
        ),
        Mistake(
            "the load has no mask: the last program loads past the end",
            patch=("tl.load(x + at, mask=inside)", "tl.load(x + at)"),
        ),
        Mistake(
            "the store has no mask: the last program stores past the end", patch=("values, mask=inside)\n", "values)\n")
        ),
        Mistake("the kernel writes to its input `x`, not to `out`", patch=("tl.store(out", "tl.store(x")),
        Mistake("nothing is stored", patch=("    tl.store(out + at, values, mask=inside)\n", "")),
        Mistake(
            "numbers below `low` become `high`, and the other way round",
            patch=(LIMIT, "tl.where(values < low, high, tl.where(values > high, low, values))"),
        ),
    ),
    alternatives=(
        variant(CLAMP, (LIMIT, "tl.maximum(tl.minimum(values, high), low)")),
        variant(CLAMP, (LIMIT, "tl.clamp(values, low, high)")),
        variant(CLAMP, (LIMIT, "tl.where(values < low, low, tl.where(values > high, high, values))")),
        variant(
            CLAMP, ("values = " + LIMIT, "values = tl.maximum(values, low)\n    values = tl.minimum(values, high)")
        ),
        variant(CLAMP, ("mask=inside)\n    values", "mask=inside, other=low)\n    values")),
        variant(CLAMP, (LIMIT, "tl.minimum(high, tl.maximum(low, values))")),
    ),
)


def _blocks() -> tuple[int, int]:
    """The number of programs for 10,000 elements in blocks of 1024, and the masked lanes of the last one."""
    programs = cdiv(10_000, 1024)
    return programs, programs * 1024 - 10_000


predict_blocks = Prediction(
    name="predict-blocks",
    title="How many programs, and how many masked lanes?",
    question="""\
A vector has 10,000 elements, and `BLOCK` is 1024. How many programs does the grid need? How many lanes of the last program are masked off?

Answer with two numbers.
""",
    answer=_blocks,
    wrong=(
        ((9, 240), "9 programs cover 9,216 elements, so 784 would have no program: round up"),
        ((9, 784), "9 programs cover 9,216 elements, so 784 would have no program: round up"),
        ((10, 784), "784 is the number of elements of the last program. Its other lanes are masked off"),
        ((10, 0), "10 blocks of 1024 are 10,240 lanes, for 10,000 elements"),
        ((10_000, 0), "each program works on a whole block of 1024 elements, not on one"),
        ((1024, 0), "1024 is the size of a block. The grid counts the blocks"),
        ((16, 240), "the number of programs need not be a power of two, only the size of a block must be"),
    ),
    hints=(
        "How often does 1024 fit into 10,000, and what is left?",
        "10,000 / 1024 is 9.77. Each program covers a whole block.",
        "10 programs cover 10 * 1024 lanes. Subtract 10,000.",
    ),
    reveals="Footprint",
)

EXERCISES = (predict_blocks, negate_1, add_1, clamp_1, scale_1, reverse_1, bug_1)
