"""Unit 12, Your own: two finished exercises as patterns, a scan and a convolution. The others are written by the learner."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Tolerance, Unit
from blocknb.learn.rules import bytes_once, no_race, stored_once
from blocknb.learn.units.matrix_cases import integers, patched

UNIT = Unit(12, "Your own", 60)

# ---- scan-1 --------------------------------------------------------------------------------------------------------------------

SCAN = """@blocknb.kernel
def scan(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    before = 0.0
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        values = tl.load(x + row + start + at, mask=inside, other=0.0)
        tl.store(out + row + start + at, before + tl.cumsum(values, axis=0), mask=inside)
        before += tl.sum(values, axis=0)
"""

_VALUE = "before + tl.cumsum(values, axis=0)"
_CARRY = "        before += tl.sum(values, axis=0)\n"


def _rows(rows: int, columns: int, block: int) -> Case:
    """`x` and `out` (rows, columns) in fp32. Integers have exact sums."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = integers(rng, (rows, columns))
        return {"x": x, "out": np.empty_like(x), "columns": columns, "BLOCK": block}

    return Case(f"{rows}x{columns}, blocks of {block}", make)


SCAN_1 = Exercise(
    "scan-1",
    "Add up each row from its start",
    task="""\
`x` is a matrix of fp32 numbers with `columns` columns, row-major. Program `i` computes row `i`, in steps of `BLOCK` elements.

Store in `out[i, j]` the sum of `x[i, 0]` to `x[i, j]`. This is a *scan*: NumPy calls it `np.cumsum(x, axis=1)`.
`tl.cumsum(values, axis=0)` is the scan of one block. Load each element once.""",
    cases=(_rows(4, 128, 32), _rows(5, 77, 16), _rows(3, 40, 64), _rows(2, 1, 8)),
    outputs=("out",),
    grid=lambda x: (len(x),),
    reference=lambda x: {"out": np.cumsum(x.astype(np.float64), axis=1)},
    rules=(stored_once, no_race, bytes_once, assembles),
    tolerance=Tolerance(additions=100),
    solution=SCAN,
    blanks=(
        Blank(5, 5, "what a block needs to know of the blocks before it"),
        Blank(9, 10, "store; then the next block"),
    ),
    hints=(
        "The scan of the second block alone begins at 0. By how much is each of its elements too small?",
        "A number goes through the loop: the sum of all blocks so far. It is added to the scan of a block.",
        f"Store `{_VALUE}`; then `before += tl.sum(values, axis=0)`.",
    ),
    mistakes=(
        Mistake(
            "each block begins at 0: add the sum of the blocks before it", patch=(_VALUE, "tl.cumsum(values, axis=0)")
        ),
        Mistake("the sum of the blocks before is never updated", patch=(_CARRY, "")),
        Mistake("only the last block counts: add its sum to the old one", patch=("before += tl", "before = tl")),
        Mistake(
            "the block's own sum is added to it: update the sum after the store",
            patch=(_VALUE, f"tl.sum(values, axis=0) + {_VALUE}"),
        ),
        Mistake(
            "an element does not count for itself: its sum has `x[i, j]`, too", patch=(_VALUE, f"{_VALUE} - values")
        ),
        Mistake(
            "the scan runs from the end of the block",
            patch=("tl.cumsum(values, axis=0)", "tl.cumsum(values, axis=0, reverse=True)"),
        ),
        Mistake(
            "each element is the sum of its block: use tl.cumsum",
            patch=("tl.cumsum(values, axis=0)", "tl.sum(values, axis=0) + 0.0 * values"),
        ),
        Mistake("it multiplies: use tl.cumsum", patch=("tl.cumsum(", "tl.cumprod(")),
        Mistake(
            "the sum of the blocks before is their largest element", patch=("+= tl.sum(values", "+= tl.max(values")
        ),
        Mistake(
            "the rows are `columns` elements apart, not `BLOCK`",
            patch=("tl.program_id(0) * columns", "tl.program_id(0) * BLOCK"),
        ),
        Mistake(
            "each step loads the first block: the address lacks `start`", patch=("x + row + start + at", "x + row + at")
        ),
        Mistake("only the first block is computed", patch=("range(0, columns, BLOCK)", "range(0, 1, BLOCK)")),
    ),
    alternatives=(
        patched(SCAN, (", axis=0", "")),
        patched(SCAN, (_VALUE, "tl.cumsum(values, axis=0) + before")),
        patched(SCAN, ("before += tl.sum(values, axis=0)", "before = before + tl.sum(values, axis=0)")),
        patched(SCAN, (", other=0.0", "")),
        patched(SCAN, (_VALUE, "before + tl.cumsum(tl.where(inside, values, 0.0), 0)")),
        patched(SCAN, ("        inside = start + at < columns", "        inside = at < columns - start")),
    ),
)

# ---- conv-1 --------------------------------------------------------------------------------------------------------------------

CONV = """@blocknb.kernel
def convolve(x, w, out, n, taps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(0, taps):
        total += tl.load(w + tap) * tl.load(x + at + tap, mask=inside, other=0.0)
    tl.store(out + at, total, mask=inside)
"""

_TERM = "tl.load(w + tap) * tl.load(x + at + tap, mask=inside, other=0.0)"


def _signal(n: int, taps: int, block: int) -> Case:
    """`x` (n + taps - 1), `w` (taps) and `out` (n) in fp32. Integers have exact sums."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x, w = integers(rng, (n + taps - 1,)), integers(rng, (taps,))
        return {"x": x, "w": w, "out": np.empty(n, np.float32), "n": n, "taps": taps, "BLOCK": block}

    return Case(f"n={n}, {taps} weights", make)


CONV_1 = Exercise(
    "conv-1",
    "Weigh the neighbours of each element",
    task="""\
`w` holds `taps` weights. `out` has `n` elements, and `x` has `n + taps - 1`. All are fp32.

Store `w[0] * x[i] + w[1] * x[i + 1] + ...` in `out[i]`, up to the last weight. Neural networks call this a convolution; NumPy calls it
`np.correlate(x, w)`. Program `p` computes the `BLOCK` elements from `p * BLOCK` on.""",
    cases=(_signal(256, 4, 64), _signal(100, 7, 32), _signal(50, 1, 16), _signal(3, 5, 16)),
    outputs=("out",),
    grid=lambda n, BLOCK: (-(-n // BLOCK),),
    reference=lambda x, w: {"out": np.correlate(x.astype(np.float64), w.astype(np.float64))},
    rules=(stored_once, no_race, assembles),
    tolerance=Tolerance(additions=100),
    solution=CONV,
    blanks=(Blank(5, 7, "the weighted sum of the neighbours", keep="total = ..."),),
    hints=(
        "Which element of `x` does weight 0 meet in `out[i]`? And weight 3?",
        "A loop over the weights adds one block of products per weight. The block of `x` moves by one element each time.",
        "`tl.load(w + tap)` is one number, and `tl.load(x + at + tap, mask=inside, other=0.0)` is the moved block.",
    ),
    mistakes=(
        Mistake("the weights are in reverse: weight `tap` meets `x[i + tap]`", patch=("w + tap", "w + taps - 1 - tap")),
        Mistake("every neighbour gets weight 0: the address of the weight lacks `tap`", patch=("w + tap", "w")),
        Mistake("each weight meets the same element: the address of `x` lacks `tap`", patch=("x + at + tap", "x + at")),
        Mistake("the last weight is left out", patch=("range(0, taps)", "range(0, taps - 1)")),
        Mistake("the first weight is left out: weights count from 0", patch=("range(0, taps)", "range(1, taps)")),
        Mistake("only the last weight counts: add up with `+=`", patch=("total += tl", "total = tl")),
        Mistake("the weights are added, not multiplied", patch=("tl.load(w + tap) * tl", "tl.load(w + tap) + tl")),
        Mistake("the sum is divided by the number of weights", patch=("total, mask", "total / taps, mask")),
        Mistake(
            "every program computes the first block: add program_id", patch=("tl.program_id(0) * BLOCK + tl", "tl")
        ),
        Mistake(
            "the blocks overlap: program p begins at p * BLOCK", patch=("tl.program_id(0) * BLOCK", "tl.program_id(0)")
        ),
        Mistake(
            "the blocks are `taps` apart, not BLOCK", patch=("tl.program_id(0) * BLOCK", "tl.program_id(0) * taps")
        ),
        Mistake(
            "the sum begins at the element of `x`: begin with 0",
            patch=("tl.zeros((BLOCK,), tl.float32)", "tl.load(x + at, mask=inside, other=0.0)"),
        ),
    ),
    alternatives=(
        patched(CONV, ("range(0, taps)", "range(taps)")),
        patched(CONV, ("total += tl", "total = total + tl")),
        patched(CONV, (_TERM, "tl.load(x + at + tap, mask=inside, other=0.0) * tl.load(w + tap)")),
        patched(CONV, (", other=0.0", "")),
        patched(CONV, ("w + tap)", "w + taps - 1 - tap)"), ("x + at + tap", "x + at + taps - 1 - tap")),
        patched(CONV, ("tl.zeros((BLOCK,), tl.float32)", "tl.full((BLOCK,), 0, tl.float32)")),
    ),
)

EXERCISES = (SCAN_1, CONV_1)
