"""Unit 1, Blocks: a loop cut into pieces. Program ids, tl.arange, grids, pointers, masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Unit
from blocknb.learn.rules import no_race, stored_once

UNIT = Unit(1, "Blocks", 30)


def _vectors(n: int, block: int) -> Any:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        x, y = rng.standard_normal((2, n)).astype(np.float32)
        return {"x": x, "y": y, "out": np.empty_like(x), "n": n, "BLOCK": block}

    return make


ADD_1 = Exercise(
    "add-1",
    "Add two vectors, one block per program",
    task="""\
`x` and `y` are float32 vectors of `n` elements. Store `x + y` in `out`.

The grid has `cdiv(n, BLOCK)` programs. Program `p` adds the elements from `p * BLOCK` up to `(p + 1) * BLOCK`, as far as they are inside.
`n` need not be a multiple of `BLOCK`.""",
    cases=(
        Case("n=1024", _vectors(1024, 128)),
        Case("n=1000", _vectors(1000, 128)),
        Case("n=3", _vectors(3, 16)),
        Case("n=130", _vectors(130, 64)),
    ),
    outputs=("out",),
    grid=lambda n, BLOCK: (-(-n // BLOCK),),
    reference=lambda x, y: {"out": x.astype(np.float64) + y},
    rules=(stored_once, no_race),
    solution="""\
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)
""",
    blanks=(Blank(4, 4, "the elements of this program"), Blank(5, 5, "which of them exist")),
    hints=(
        "Which elements does program 0 add? And program 1?",
        "The first element of a program is `pid * BLOCK`. `at` needs all BLOCK of them.",
        "`at = pid * BLOCK + tl.arange(0, BLOCK)` and `inside = at < n`",
    ),
    mistakes=(
        Mistake("the accesses have no mask: the last program leaves the arrays", patches=((", mask=inside", ""),)),
        Mistake("the store has no mask: the last program stores outside of `out`", patch=("total, mask=inside", "total")),
        Mistake("the mask lets element n pass: at < n", patch=("at < n", "at <= n")),
        Mistake("the mask turns the last element off: at < n", patch=("at < n", "at < n - 1")),
        Mistake("every program adds the first block: at needs pid * BLOCK", patch=("pid * BLOCK + ", "")),
        Mistake("blocks overlap: the first element of a program is pid * BLOCK", patch=("pid * BLOCK", "pid")),
        Mistake("the first element of a program is pid * BLOCK, not pid * n", patch=("pid * BLOCK", "pid * n")),
        Mistake("the kernel adds x to itself", patch=("tl.load(y", "tl.load(x")),
        Mistake("the kernel stores to `y`", patch=("tl.store(out", "tl.store(y")),
        Mistake("the kernel stores all sums to the first element: out + at", patch=("out + at", "out")),
        Mistake("the kernel stores nothing: end with tl.store", patch=("    tl.store(out + at, total, mask=inside)\n", "")),
        Mistake("pointers count elements, not bytes", patch=("x + at", "x + at * 4")),
    ),
    alternatives=(
        """\
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK) + tl.program_id(0) * BLOCK
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0) + tl.load(y + at, mask=at < n, other=0.0), mask=at < n)
""",
        """\
@blocknb.kernel
def kernel(a, b, c, count, SIZE: tl.constexpr):
    first = tl.program_id(0) * SIZE
    lanes = tl.arange(0, SIZE)
    inside = lanes < count - first
    tl.store(c + first + lanes, tl.load(b + first + lanes, mask=inside) + tl.load(a + first + lanes, mask=inside), mask=inside)
""",
        """\
@blocknb.kernel
def part(array, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return tl.load(array + at, mask=at < n)

@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, part(x, n, BLOCK) + part(y, n, BLOCK), mask=n > at)
""",
        """\
@blocknb.kernel(num_warps=1)
def add(x, y, out, n, BLOCK: tl.constexpr):
    for half in range(2):
        at = tl.program_id(0) * BLOCK + half * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
""",
        """\
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    at = tl.minimum(at, n - 1)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))
""",
    ),
)  # fmt: skip

EXERCISES = (ADD_1,)
