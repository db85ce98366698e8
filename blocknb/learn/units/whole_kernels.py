"""The exercises of unit 1 in which the reader writes a whole body or finds a bug: `scale-1`, `reverse-1` and `bug-1`."""

from __future__ import annotations

import numpy as np

from blocknb.learn.exercise import Blank, Case, Exercise, Mistake
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.variants import variant
from blocknb.learn.units.vectors import INDICES, RIGHT_INDICES, WRONG_INDICES, one_axis, vector, vectors

SCALE = """\
@blocknb.kernel
def scale(x, out, a, b, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + at, mask=inside)
    tl.store(out + at, a * values + b, mask=inside)
"""

scale_1 = Exercise(
    name="scale-1",
    title="Compute a * x + b, from an empty body",
    task="""\
Store `a * x + b` to `out`. `x` and `out` hold `n` fp32 numbers, and `a` and `b` are numbers. The grid has `n / BLOCK` programs, rounded up.

Write the whole body: find the indices, load, compute, and store.
""",
    cases=vectors("x", a=2.5, b=-0.75),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, a, b, **_: {"out": a * x.astype(np.float64) + b},
    rules=(stored_once, no_race),
    solution=SCALE,
    blanks=(Blank(3, 7, "where, load, compute, store"),),
    hints=(
        "Three questions: which elements are mine? How do I get them? Where does the result go?",
        "The first three lines are those of `add-1`. Then one `tl.load` and one `tl.store`, both with the mask.",
        "`tl.store(out + at, a * tl.load(x + at, mask=inside) + b, mask=inside)`",
    ),
    mistakes=(
        *WRONG_INDICES,
        Mistake("the masks are missing: the last program accesses elements past the end", patch=(", mask=inside", "")),
        Mistake("the store has no mask: the last program stores past the end", patch=("+ b, mask=inside)", "+ b)")),
        Mistake(
            "the load has no mask: the last program loads past the end", patch=("(x + at, mask=inside)", "(x + at)")
        ),
        Mistake("`at <= n` lets one element too many in: the last index is n - 1", patch=("at < n", "at <= n")),
        Mistake("b is multiplied by a, too: the result is a * (x + b)", patch=("a * values + b", "a * (values + b)")),
        Mistake("a and b are exchanged", patch=("a * values + b", "b * values + a")),
        Mistake("b is not added", patch=("a * values + b", "a * values")),
        Mistake("the kernel multiplies the indices, not the loaded values", patch=("a * values + b", "a * at + b")),
        Mistake("the kernel writes to its input `x`, not to `out`", patch=("tl.store(out", "tl.store(x")),
        Mistake(
            "nothing is stored", patch=("tl.store(out + at, a * values + b, mask=inside)", "result = a * values + b")
        ),
    ),
    alternatives=(
        *(variant(SCALE, patch) for patch in RIGHT_INDICES),
        variant(SCALE, ("a * values + b", "tl.fma(values, a, b)")),
        variant(SCALE, ("a * values + b", "b + values * a")),
        variant(SCALE, ("x + at", "x + pid * BLOCK + tl.arange(0, BLOCK)")),
        variant(SCALE, ("(x + at, mask=inside)", "(x + at, mask=inside, other=0.0)")),
    ),
)

REVERSE = """\
@blocknb.kernel
def reverse(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + (n - 1 - at), mask=inside)
    tl.store(out + at, values, mask=inside)
"""
BACKWARDS = "x + (n - 1 - at)"

reverse_1 = Exercise(
    name="reverse-1",
    title="Reverse a vector",
    task="""\
Store `x[::-1]` to `out`: the last element of `x` becomes the first element of `out`. Both hold `n` fp32 numbers.
The grid has `n / BLOCK` programs, rounded up.

The indices of a load and those of a store need not be the same. A negative index does not count from the end as in NumPy: `x - 1` is the
address before the array.
""",
    cases=vectors("x"),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, **_: {"out": x[::-1]},
    rules=(stored_once, no_race),
    solution=REVERSE,
    blanks=(Blank(6, 7, "load from one place, store to another"),),
    hints=(
        "Which element of `x` belongs to `out[0]`? Which one to `out[1]`, and which one to `out[i]`?",
        "Only the index of the load changes. It must be n - 1 where `at` is 0, and 0 where `at` is n - 1.",
        "`values = tl.load(x + (n - 1 - at), mask=inside)`",
    ),
    mistakes=(
        Mistake("one too far: `out[0]` needs `x[n - 1]`, and `x[n]` does not exist", patch=(BACKWARDS, "x + (n - at)")),
        Mistake(
            "each block is reversed, but the blocks keep their order",
            patch=(BACKWARDS, "x + (pid * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK))"),
        ),
        Mistake(
            "the order of the blocks is reversed, but not the elements within a block",
            patch=(BACKWARDS, "x + ((tl.num_programs(0) - 1 - pid) * BLOCK + tl.arange(0, BLOCK))"),
        ),
        Mistake(
            "each block is reversed, but the blocks keep their order",
            patch=("tl.load(x + (n - 1 - at), mask=inside)", "tl.flip(tl.load(x + at, mask=inside))"),
        ),
        Mistake("load and store are both reversed, so nothing changes", patch=("out + at", "out + (n - 1 - at)")),
        Mistake("the load reads the elements in their old order", patch=(BACKWARDS, "x + at")),
        Mistake("a negative index does not count from the end here", patch=(BACKWARDS, "x + (-1 - at)")),
        Mistake(
            "the masks are missing: the last program accesses elements outside of the arrays",
            patch=(", mask=inside", ""),
        ),
        Mistake(
            "the store has no mask: the last program stores past the end", patch=("values, mask=inside)", "values)")
        ),
        Mistake(
            "the load has no mask: the last program loads in front of the array", patch=("at), mask=inside)", "at))")
        ),
        Mistake(
            "the number of the program is missing: every program works on the first block",
            patch=(INDICES, "at = tl.arange(0, BLOCK)"),
        ),
        Mistake(
            "`x` is reversed as if it had BLOCK elements for each program: use n",
            patch=(BACKWARDS, "x + (BLOCK * tl.num_programs(0) - 1 - at)"),
        ),
        Mistake("the kernel writes to its input `x`, not to `out`", patch=("tl.store(out", "tl.store(x")),
    ),
    alternatives=(
        variant(REVERSE, (BACKWARDS, "x + at"), ("out + at", "out + (n - 1 - at)")),
        variant(REVERSE, (BACKWARDS, "x + n - 1 - at")),
        variant(REVERSE, ("    values", "    back = n - at - 1\n    values"), (BACKWARDS, "x + back")),
        variant(REVERSE, (BACKWARDS, "(x + (n - 1)) - at")),
        variant(REVERSE, ("inside = at < n", "inside = (n - 1 - at) >= 0")),
        variant(REVERSE, (INDICES, "at = tl.arange(0, BLOCK) + BLOCK * pid")),
    ),
)

SQUARE = """\
@blocknb.kernel
def square(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + at, mask=inside)
    tl.store(out + at, values * values, mask=inside)
"""


def _short_vectors(n: int, block: int) -> Case:
    return Case(
        f"{n} elements in blocks of {block}",
        lambda rng: {"x": vector(rng, n), "out": np.empty(n, np.float32), "n": n, "BLOCK": block},
    )


bug_1 = Exercise(
    name="bug-1",
    title="Find the bug: eight programs, one block",
    task="""\
This kernel should store `x * x` to `out`. Both hold `n` fp32 numbers. It runs without an error, and the first 128 elements are right.

Run it, look at the Footprint tab of the card, and change one line. Which programs store which elements?
""",
    cases=(_short_vectors(1024, 128), _short_vectors(1000, 128), _short_vectors(20, 16)),
    outputs=("out",),
    grid=one_axis,
    reference=lambda x, **_: {"out": x.astype(np.float64) ** 2},
    rules=(stored_once, no_race),
    solution=SQUARE,
    blanks=(Blank(4, 4, keep="at = tl.arange(0, BLOCK)"),),
    hints=(
        "All eight programs run. Why does only one stretch of `out` have an owner?",
        "Look at `at`. What is its value in program 0, and what is it in program 5?",
        "`at = pid * BLOCK + tl.arange(0, BLOCK)`",
    ),
    mistakes=(
        *WRONG_INDICES[1:],  # without the given bug, which is for the reader to find
        Mistake("the masks are missing: the last program accesses elements past the end", patch=(", mask=inside", "")),
        Mistake("`at <= n` lets one element too many in: the last index is n - 1", patch=("at < n", "at <= n")),
        Mistake(
            "the store still leaves out the program number",
            patch=("tl.store(out + at,", "tl.store(out + tl.arange(0, BLOCK),"),
        ),
        Mistake(
            "the load still leaves out the program number",
            patch=("tl.load(x + at,", "tl.load(x + tl.arange(0, BLOCK),"),
        ),
    ),
    alternatives=(
        *(variant(SQUARE, patch) for patch in RIGHT_INDICES),
        variant(
            SQUARE, ("at = pid * BLOCK + tl.arange(0, BLOCK)", "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)")
        ),
        variant(SQUARE, (INDICES, "at = (pid + 1) * BLOCK - BLOCK + tl.arange(0, BLOCK)")),
    ),
)
