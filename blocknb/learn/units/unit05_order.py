"""Unit 5, when programs meet: the order of programs, races, atomics, and three kernels to debug.

On a CPU the programs of a small launch often run in the order of their numbers. So a kernel with a race can give the right result there.
The exercises therefore have rules about the accesses, and cases with many programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Case, CheckFinding, Exercise, Mistake, Prediction, Rule, Tolerance, Unit
from blocknb.learn.rules import any_order, no_race, stored_once
from blocknb.learn.running import Attempt
from blocknb.learn.units.bug_hunts import hunt_1, hunt_2, hunt_3

UNIT = Unit(5, "When programs meet", minutes=30)


def block_grid(n: int, BLOCK: int, **_: Any) -> tuple[int, ...]:
    """One program per block of `n` elements."""
    return (cdiv(n, BLOCK),)


TWO_STEPS = "load and store are two steps, and another program may come between them: use tl.atomic_add"


def _updated_by_atomics(name: str) -> Rule:
    """The rule that programs change an array by atomics only. It says more than `no_race` about a load, an addition and a store."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        array = made.whole_footprint[made.parameter(name)]
        if array.stores:
            plain = (
                f"a tl.store to `{array.name}` deletes what other programs have added before: use tl.atomic_add only"
            )
            yield CheckFinding(TWO_STEPS if array.loads else plain, "rule", True)

    return Rule("updated_by_atomics", f"The programs change `{name}` by atomics only.", check)


# ---- total-1 -------------------------------------------------------------------------------------------------------------------

TOTAL = """@blocknb.kernel
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(out, tl.sum(values, axis=0))
"""

_ADD = "tl.atomic_add(out, tl.sum(values, axis=0))"


def _sum_case(name: str, n: int, BLOCK: int, mean: float = 2.0) -> Case:
    return Case(
        name,
        lambda rng: {
            "x": (mean + rng.standard_normal(n)).astype(np.float32),
            "out": np.zeros(1, np.float32),
            "n": n,
            "BLOCK": BLOCK,
        },
    )


total_1 = Exercise(
    name="total-1",
    title="Add all elements, by all programs",
    task="""`x` holds `n` fp32 numbers. Each program reads `BLOCK` of them; the last program may have fewer left.
`out` has one element (fp32), which is 0 before the launch. Add the sum of all numbers to it.

The programs run in any order, and many at the same time. The result must not depend on that.""",
    cases=(
        _sum_case("1024 numbers, 8 programs", 1024, 128),
        _sum_case("1000 numbers, 8 programs", 1000, 128, -2.0),
        _sum_case("3001 numbers, 188 programs", 3001, 16),
        _sum_case("3 numbers, 1 program", 3, 16),
    ),
    outputs=("out",),
    updated=("out",),
    grid=block_grid,
    reference=lambda x, **_: {"out": np.array([x.astype(np.float64).sum()])},
    rules=(_updated_by_atomics("out"), no_race, any_order(), assembles),
    tolerance=Tolerance(additions=3000, scale=500.0),
    solution=TOTAL,
    blanks=(Blank(4, 5, "load, and add to `out`"),),
    hints=(
        "Each program can sum its own block. Then all of them add to one element. Which operation reads, adds and writes in one step?",
        "`tl.sum` makes one number of a block, with `other=0.0` for the lanes beyond the end. `tl.atomic_add` adds it to memory.",
        "`tl.atomic_add(out, tl.sum(values, axis=0))`",
    ),
    mistakes=(
        Mistake(
            TWO_STEPS,
            patch=(_ADD, "tl.store(out, tl.load(out) + tl.sum(values, axis=0))"),
        ),
        Mistake(
            "every program stores its own sum over that of the others: use tl.atomic_add",
            patch=(_ADD, "tl.store(out, tl.sum(values, axis=0))"),
        ),
        Mistake("the atomic replaces the value instead of adding to it", patch=("tl.atomic_add", "tl.atomic_xchg")),
        Mistake("the atomic keeps the largest sum instead of adding", patch=("tl.atomic_add", "tl.atomic_max")),
        Mistake(
            "only program 0 adds its sum",
            patch=(_ADD, "if tl.program_id(0) == 0:\n        tl.atomic_add(out, tl.sum(values, axis=0))"),
        ),
        Mistake(
            "every program reads the first block: the address lacks `program_id`",
            patch=("tl.program_id(0) * BLOCK + ", ""),
        ),
        Mistake(
            "the blocks overlap: program i begins at i * BLOCK", patch=("tl.program_id(0) * BLOCK", "tl.program_id(0)")
        ),
        Mistake("masked lanes count as 1 in the sum: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake("the load has no mask: the last program reads beyond the end", patch=(", mask=at < n, other=0.0", "")),
        Mistake("the mask is `<=`: one element beyond the end is read", patch=("at < n", "at <= n")),
        Mistake("the block's maximum is added, not its sum", patch=("tl.sum", "tl.max")),
        Mistake(
            "each lane adds the sum of the whole block: one program adds it once",
            patch=(_ADD, "tl.atomic_add(out + 0 * at, tl.sum(values, axis=0) + 0.0 * values)"),
        ),
        Mistake(
            "the mean of the blocks is added: do not divide",
            patch=("tl.sum(values, axis=0)", "tl.sum(values, axis=0) / BLOCK"),
        ),
        Mistake(
            "the first element of each block is added, not the sum",
            patch=("tl.sum(values, axis=0)", "tl.load(x + tl.program_id(0) * BLOCK)"),
        ),
        Mistake(
            "the old value is added, too: tl.atomic_add adds to memory by itself",
            patch=(_ADD, "tl.atomic_add(out, tl.load(out) + tl.sum(values, axis=0))"),
        ),
        Mistake(
            "sums below 0 are left out", patch=("tl.sum(values, axis=0)", "tl.maximum(tl.sum(values, axis=0), 0.0)")
        ),
    ),
    alternatives=(
        TOTAL.replace(", axis=0", ""),
        TOTAL.replace(_ADD, "tl.atomic_add(out + 0 * at, values, mask=at < n)"),
        TOTAL.replace(_ADD, 'tl.atomic_add(out, tl.sum(values, axis=0), sem="relaxed")'),
        TOTAL.replace(", other=0.0", "").replace("tl.sum(values,", "tl.sum(tl.where(at < n, values, 0.0),"),
        TOTAL.replace(_ADD, "part = tl.sum(values, axis=0)\n    before = tl.atomic_add(out, part)"),
        TOTAL.replace(_ADD, "tl.atomic_add(out + tl.arange(0, 1), tl.sum(values[None, :], axis=1))"),
    ),
)

# ---- histogram-1 ---------------------------------------------------------------------------------------------------------------

HISTOGRAM = """@blocknb.kernel
def histogram(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    bins = tl.load(x + at, mask=inside, other=0)
    tl.atomic_add(counts + bins, 1, mask=inside)
"""

_COUNT = "tl.atomic_add(counts + bins, 1, mask=inside)"


def _bins_case(name: str, n: int, bins: int, BLOCK: int) -> Case:
    return Case(
        name,
        lambda rng: {
            "x": rng.integers(0, bins, n).astype(np.int32),
            "counts": np.zeros(bins, np.int32),
            "n": n,
            "BLOCK": BLOCK,
        },
    )


histogram_1 = Exercise(
    name="histogram-1",
    title="Count how often each number occurs",
    task="""`x` holds `n` integers (int32), each from 0 to `len(counts) - 1`. Each program reads `BLOCK` of them.
`counts` (int32) is 0 before the launch. Afterwards `counts[v]` must be the number of elements of `x` that equal `v`.

The number decides the address: several lanes, and several programs, add to the same element.""",
    cases=(
        _bins_case("1024 numbers, 10 bins", 1024, 10, 128),
        _bins_case("5000 numbers, 7 bins", 5000, 7, 64),
        _bins_case("100 numbers, 300 bins", 100, 300, 32),
        _bins_case("5 numbers, 2 bins", 5, 2, 16),
    ),
    outputs=("counts",),
    updated=("counts",),
    grid=block_grid,
    reference=lambda x, counts, **_: {"counts": np.bincount(x, minlength=len(counts))},
    rules=(_updated_by_atomics("counts"), no_race, any_order(), assembles),
    equivalent={
        "bins = tl.load(x + at, mask=inside, other=0): 0 -> 1": "masked lanes count in no bin",
        "bins = tl.load(x + at, mask=inside, other=0): 0 -> -1": "masked lanes count in no bin",
    },
    solution=HISTOGRAM,
    blanks=(Blank(5, 6, "load, and count"),),
    hints=(
        "In NumPy you would write `np.add.at(counts, x, 1)`. At which address does a lane with the number `v` add, and what does it add?",
        "`counts + bins` is a block of addresses, one per lane. Lanes beyond the end must not count.",
        "`tl.atomic_add(counts + bins, 1, mask=inside)`",
    ),
    mistakes=(
        Mistake(
            "load and store are two steps: lanes and programs with the same number overwrite each other",
            patch=(_COUNT, "tl.store(counts + bins, tl.load(counts + bins, mask=inside) + 1, mask=inside)"),
        ),
        Mistake(
            "it stores 1 in every bin that occurs: add with tl.atomic_add",
            patch=(_COUNT, "tl.store(counts + bins, 1, mask=inside)"),
        ),
        Mistake(
            "the lanes beyond the end count as number 0: the atomic needs the mask, too", patch=("1, mask=inside", "1")
        ),
        Mistake("it adds the number itself: add 1", patch=("counts + bins, 1", "counts + bins, bins")),
        Mistake(
            "it counts places, not numbers: the address is counts + bins",
            patches=((_COUNT, "tl.atomic_add(counts + at % 2, 1, mask=inside)"),),
        ),
        Mistake("the atomic keeps the maximum instead of adding", patch=("tl.atomic_add", "tl.atomic_max")),
        Mistake("the atomic replaces the count instead of adding to it", patch=("tl.atomic_add", "tl.atomic_xchg")),
        Mistake(
            "every program reads the first block: the address lacks `program_id`",
            patch=("tl.program_id(0) * BLOCK + ", ""),
        ),
        Mistake(
            "the blocks overlap: program i begins at i * BLOCK", patch=("tl.program_id(0) * BLOCK", "tl.program_id(0)")
        ),
        Mistake(
            "the bins count from 0: the address is one element too far", patch=("counts + bins", "counts + bins + 1")
        ),
        Mistake("it counts down: add 1, not -1", patch=("bins, 1, mask", "bins, -1, mask")),
        Mistake("only program 0 counts", patch=("mask=inside)\n", "mask=inside & (at < BLOCK))\n")),
        Mistake(
            "all numbers are counted in bin 0: the address lacks `bins`", patch=("counts + bins", "counts + 0 * bins")
        ),
        Mistake("the mask is `<=`: one element beyond the end is read", patch=("at < n", "at <= n")),
        Mistake("the number 0 is left out", patch=("1, mask=inside", "1, mask=inside & (bins > 0)")),
    ),
    alternatives=(
        HISTOGRAM.replace("counts + bins, 1, mask=inside", "counts + bins, inside.to(tl.int32), mask=inside"),
        HISTOGRAM.replace(_COUNT, "tl.atomic_add(counts + bins, tl.where(inside, 1, 0))"),
        HISTOGRAM.replace(", other=0", ""),
        HISTOGRAM.replace(_COUNT, 'tl.atomic_add(counts + bins, 1, mask=inside, sem="relaxed")'),
        HISTOGRAM.replace("    inside = at < n\n", "").replace("mask=inside", "mask=at < n"),
        HISTOGRAM.replace(_COUNT, "tl.atomic_add(counts + bins, tl.full((BLOCK,), 1, tl.int32), mask=inside)"),
    ),
)

# ---- stencil-1 -----------------------------------------------------------------------------------------------------------------

STENCIL = """@blocknb.kernel
def stencil(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    left = tl.load(x + at - 1, mask=inside & (at > 0), other=0.0)
    here = tl.load(x + at, mask=inside, other=0.0)
    right = tl.load(x + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(out + at, (left + here + right) / 3, mask=inside)
"""

_LEFT = "tl.load(x + at - 1, mask=inside & (at > 0), other=0.0)"
_RIGHT = "tl.load(x + at + 1, mask=at + 1 < n, other=0.0)"


def _line_case(name: str, n: int, BLOCK: int) -> Case:
    return Case(
        name,
        lambda rng: {
            "x": (3 + rng.standard_normal(n)).astype(np.float32),
            "out": np.empty(n, np.float32),
            "n": n,
            "BLOCK": BLOCK,
        },
    )


def _smoothed(x: np.ndarray, **_: Any) -> dict[str, Any]:
    padded = np.pad(x.astype(np.float64), 1)
    return {"out": (padded[:-2] + padded[1:-1] + padded[2:]) / 3}


stencil_1 = Exercise(
    name="stencil-1",
    title="Average each element with its neighbours",
    task="""`x` holds `n` fp32 numbers. Store the mean of `x[i - 1]`, `x[i]` and `x[i + 1]` in `out[i]` (fp32).
A neighbour that does not exist, at either end, counts as 0; divide by 3 at the ends, too.
Each program stores `BLOCK` elements; the last program may have fewer left. Do not write to `x`.""",
    cases=(
        _line_case("1024", 1024, 128),
        _line_case("1000", 1000, 64),
        _line_case("129", 129, 128),
        _line_case("1", 1, 16),
        _line_case("5", 5, 16),
    ),
    outputs=("out",),
    grid=block_grid,
    reference=_smoothed,
    rules=(stored_once, no_race, assembles),
    tolerance=Tolerance(additions=3, scale=4.0),
    solution=STENCIL,
    blanks=(Blank(5, 8, "load three neighbours, and store their mean"),),
    hints=(
        "The first lane of program 3 needs an element that program 2 also loads. Is that a race? And if programs stored to `x`?",
        "Three loads, at `at - 1`, `at` and `at + 1`, each with its own mask; one store to `out`.",
        "`left = tl.load(x + at - 1, mask=inside & (at > 0), other=0.0)`; the mask of the right one is `at + 1 < n`.",
    ),
    mistakes=(
        Mistake("it stores to `x`, which other programs still read: store to `out`", patch=("out + at", "x + at")),
        Mistake(
            "it reads results of other programs: load the neighbours from `x`, not from `out`",
            patch=("x + at - 1", "out + at - 1"),
        ),
        Mistake(
            "the left neighbour has no mask: program 0 reads x[-1]", patch=("mask=inside & (at > 0)", "mask=inside")
        ),
        Mistake(
            "the right neighbour has the mask of the middle: the last program reads x[n]",
            patch=("mask=at + 1 < n", "mask=inside"),
        ),
        Mistake(
            "neighbours in other blocks are left out: the masks end at the block",
            patches=(
                ("(at > 0)", "(tl.arange(0, BLOCK) > 0)"),
                ("at + 1 < n", "(at + 1 < n) & (tl.arange(0, BLOCK) + 1 < BLOCK)"),
            ),
        ),
        Mistake("the left neighbour is missing", patch=("left + here + right", "here + right")),
        Mistake("the right neighbour is missing", patch=("left + here + right", "left + here")),
        Mistake("the element itself is missing", patch=("left + here + right", "left + right")),
        Mistake("it stores the sum: divide by 3", patch=("(left + here + right) / 3", "left + here + right")),
        Mistake("it divides by 2: the mean is that of three numbers", patch=("/ 3", "/ 2")),
        Mistake(
            "the ends divide by 2: a missing neighbour counts as 0",
            patch=("/ 3", "/ tl.where((at == 0) | (at == n - 1), 2, 3)"),
        ),
        Mistake(
            "the ends divide by the number of elements that exist: divide by 3 there, too",
            patch=("/ 3", "/ (1.0 + tl.where(at > 0, 1.0, 0.0) + tl.where(at + 1 < n, 1.0, 0.0))"),
        ),
        Mistake("a missing neighbour counts as 1: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake(
            "at the ends the element takes the place of the missing neighbour: it counts as 0",
            patches=(
                (_LEFT, "tl.load(x + tl.maximum(at - 1, 0), mask=inside)"),
                (_RIGHT, "tl.load(x + tl.minimum(at + 1, n - 1), mask=inside)"),
            ),
        ),
        Mistake(
            "the ends wrap around: a missing neighbour counts as 0",
            patches=(
                (_LEFT, "tl.load(x + (at + n - 1) % n, mask=inside)"),
                (_RIGHT, "tl.load(x + (at + 1) % n, mask=inside)"),
            ),
        ),
        Mistake("element 1 has no left neighbour: the mask is `at > 0`", patch=("at > 0", "at > 1")),
        Mistake("the store has no mask: the last program stores beyond the end", patch=("/ 3, mask=inside", "/ 3")),
        Mistake(
            "every program computes the first block: the address lacks `program_id`",
            patch=("tl.program_id(0) * BLOCK + ", ""),
        ),
        Mistake(
            "the last element but one has a right neighbour: the mask is `at + 1 < n`",
            patch=("at + 1 < n", "at + 2 < n"),
        ),
    ),
    alternatives=(
        STENCIL.replace("inside & (at > 0)", "(at > 0) & (at <= n - 1)"),
        STENCIL.replace(_LEFT, "tl.where(at > 0, tl.load(x + tl.maximum(at - 1, 0), mask=inside, other=0.0), 0.0)"),
        STENCIL.replace("(left + here + right) / 3", "(left + here + right) * (1.0 / 3.0)"),
        STENCIL.replace("mask=at + 1 < n", "mask=at < n - 1"),
        STENCIL.replace("here = tl.load(x + at, mask=inside, other=0.0)", "here = tl.load(x + at, mask=inside)"),
        STENCIL.replace("left + here + right", "here + (right + left)"),
    ),
)

# ---- predictions ---------------------------------------------------------------------------------------------------------------

RACES = """@blocknb.kernel
def a(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1)

@blocknb.kernel
def b(x, BLOCK: tl.constexpr):
    tl.store(x, tl.program_id(0))

@blocknb.kernel
def c(x, BLOCK: tl.constexpr):
    tl.atomic_add(x, tl.program_id(0))

@blocknb.kernel
def d(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at + 1))
"""


def _without_race() -> str:
    """The letters of the kernels whose footprint has no error, for 8 programs of 128 elements."""
    from blocknb.learn.cell import is_kernel, run

    names = run(RACES, "", "predict-race")
    x = np.arange(8 * 128 + 1, dtype=np.int32)
    kernels = {name: value for name, value in names.items() if is_kernel(value)}
    return "".join(name for name, kernel in kernels.items() if not kernel.footprint((8,))(x, BLOCK=128).errors)


WHY = {
    "a": "In a, each program accesses its own elements only, so it belongs to the answer.",
    "b": "In b, all programs store different numbers to x[0]. The last one wins, and any may be the last.",
    "c": "c belongs to the answer: the sum of the numbers 0 to 7 does not depend on their order.",
    "d": "In d, the last lane of a program loads the first element of the next program, which may have changed it already.",
}


def _wrong_letters() -> Iterator[tuple[str, str]]:
    """Every wrong answer with the sentence about the first kernel that is judged wrongly."""
    for size in range(5):
        for letters in itertools.combinations("abcd", size):
            wrong = [name for name in "abcd" if (name in letters) != (name in "ac")]
            if wrong:
                yield "".join(letters), WHY[wrong[0]]


def _smallest_count(programs: int = 8) -> int:
    """The least result of `programs` programs that each load a number, add 1 and store it, in any order of loads and stores. In the worst
    order, the first program loads 0, and its store is the last one."""
    loaded_first, stored_last = 0, 1
    return loaded_first + stored_last if programs else 0


PREDICTIONS = (
    Prediction(
        name="predict-lost",
        title="Predict the smallest count",
        question="`count` holds 0. Eight programs each run `tl.store(count, tl.load(count) + 1)`. They run at the same time, "
        "so their loads and stores may mix in any order. What is the smallest number that `count` may hold afterwards?",
        answer=_smallest_count,
        wrong=(
            (8, "8 is the largest result: it needs each program to load what the one before has stored."),
            (0, "Each program stores at least 1, and none stores 0."),
            (7, "More than one program can lose its 1. What if all eight load before any of them stores?"),
        ),
        hints=(
            "A program loads, then it stores. What may the other programs do between the two?",
            "Suppose all eight programs load first. What does each of them store?",
            "All load 0, and all store 0 + 1.",
        ),
    ),
    Prediction(
        name="predict-race",
        title="Predict which kernels have a race",
        question="Eight programs run each of these kernels on an array `x` of integers. `BLOCK` is 128.\n\n```python\n"
        + RACES
        + "```\n\n"
        "Which kernels give the same result in every order of the programs? Answer with their letters, such as `abd`.",
        answer=_without_race,
        accepts=("ca", "a,c", "a, c", "a c", "a and c"),
        wrong=tuple(_wrong_letters()),
        hints=(
            "For each kernel ask: is there an element that one program stores, and another one loads or stores?",
            "b: who stores to x[0]? d: who loads the first element of program 1?",
            "Atomic additions may come in any order.",
        ),
    ),
)

EXERCISES = (PREDICTIONS[0], total_1, histogram_1, PREDICTIONS[1], stencil_1, hunt_1, hunt_2, hunt_3)
