"""The three hunts of unit 5: kernels with one bug each, and the same check as for a kernel that the learner writes.

The skeleton of a hunt is a complete kernel, so its blank holds the wrong lines. hunt-1 ends in an error that names line, program and
element. hunt-2 gives wrong numbers without an error. hunt-3 is right as long as one program does all the work.
"""

from __future__ import annotations

import numpy as np

from blocknb import cdiv
from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Tolerance
from blocknb.learn.rules import bytes_once, no_race, stored_once
from blocknb.learn.units.row_cases import row_grid, rows_case

__all__ = ["hunt_1", "hunt_2", "hunt_3"]

# ---- hunt-1 --------------------------------------------------------------------------------------------------------------------

REVERSE = """@blocknb.kernel
def reverse_rows(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row + at, mask=inside)
    back = columns - 1 - at
    tl.store(out + row + back, values, mask=inside)
"""

_BACK = "back = columns - 1 - at"

hunt_1 = Exercise(
    name="hunt-1",
    title="Find the bug: each row turned around",
    task="""The kernel should reverse each row of `x`: the first element becomes the last.
`x` has `columns` columns, and its rows follow each other in memory.
Program `i` computes row `i`. `BLOCK` is the smallest power of two that is not below `columns`, and `out` has the shape of `x`.

The kernel has one bug. With 128 columns it is right, with 100 it is not. Find it and mend it.""",
    cases=(
        rows_case("8x128", 8, 128, out="element"),
        rows_case("50x100", 50, 100, out="element"),
        rows_case("4x1", 4, 1, out="element"),
        rows_case("9x5", 9, 5, out="element"),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=lambda x, **_: {"out": x[:, ::-1]},
    rules=(stored_once, no_race, bytes_once, assembles),
    solution=REVERSE,
    blanks=(Blank(7, 7, keep="back = BLOCK - 1 - at"),),
    hints=(
        "The error names a program and an element. Which address does lane 0 of this program store to, and which should it be?",
        "Record the program: `run = reverse_rows.interpret((2,), record=1)(...)`, and look at `run['back']`.",
        "A row ends at `columns`, not at `BLOCK`: `back = columns - 1 - at`.",
    ),
    mistakes=(
        Mistake(
            "the bug is still there: in rows that are shorter than the block, the store goes to wrong places",
            patch=(_BACK, "back = BLOCK - 1 - at"),
        ),
        Mistake("it is off by one: lane 0 stores to the place columns - 1", patch=(_BACK, "back = columns - at")),
        Mistake(
            "it is off by one: the last lane of the row stores to place 0", patch=(_BACK, "back = columns - 2 - at")
        ),
        Mistake(
            "a mask on the store hides the wrong address: some elements are never stored",
            patches=(
                (_BACK, "back = BLOCK - 1 - at"),
                ("values, mask=inside", "values, mask=inside & (back < columns)"),
            ),
        ),
        Mistake(
            "a remainder hides the wrong address: the row is also rotated",
            patch=(_BACK, "back = (BLOCK - 1 - at) % columns"),
        ),
        Mistake(
            "load and store are both reversed, so the row is copied",
            patch=("x + row + at", "x + row + columns - 1 - at"),
        ),
        Mistake("the row is copied, not reversed", patch=(_BACK, "back = at")),
        Mistake("`back` is below the row: it must not be negative", patch=(_BACK, "back = -at")),
        Mistake(
            "every program stores to row 0: the address of the store lacks `row`",
            patch=("out + row + back", "out + back"),
        ),
        Mistake("every program loads row 0: the address of the load lacks `row`", patch=("x + row + at", "x + at")),
        Mistake(
            "the rows are `columns` elements apart, not `BLOCK`",
            patch=("tl.program_id(0) * columns", "tl.program_id(0) * BLOCK"),
        ),
        Mistake(
            "the store lacks its mask: lanes beyond the row store before it", patch=("values, mask=inside", "values")
        ),
        Mistake(
            "the whole block is reversed, with its masked lanes",
            patches=((_BACK, "back = at"), ("out + row + back, values", "out + row + back, tl.flip(values)")),
        ),
    ),
    alternatives=(
        REVERSE.replace(_BACK, "back = columns - (at + 1)"),
        REVERSE.replace("x + row + at", "x + row + columns - 1 - at").replace(_BACK, "back = at"),
        REVERSE.replace("    " + _BACK + "\n", "").replace("row + back", "row + (columns - 1 - at)"),
        REVERSE.replace(_BACK, "back = columns - BLOCK + (BLOCK - 1 - at)"),
        REVERSE.replace("at = tl.arange(0, BLOCK)", "at = columns - 1 - tl.arange(0, BLOCK)").replace(
            "at < columns", "at >= 0"
        ),
        REVERSE.replace("values, mask=inside", "values, mask=back >= 0"),
    ),
)

# ---- hunt-2 --------------------------------------------------------------------------------------------------------------------

WEIGHTED = """@blocknb.kernel
def weighted_sum(x, weight, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + lane
        inside = at < columns
        values = tl.load(x + row + at, mask=inside, other=0.0)
        w = tl.load(weight + at, mask=inside, other=0.0)
        sums += values * w
    tl.store(out + tl.program_id(0), tl.sum(sums, axis=0))
"""

_WEIGHT = "weight + at"


def _weighted_case(name: str, rows: int, columns: int) -> Case:
    given = rows_case(name, rows, columns, "shifted", BLOCK=64).make

    def make(rng: np.random.Generator) -> dict[str, object]:
        a = given(rng)
        weight = rng.standard_normal(columns).astype(np.float32)
        return {"x": a["x"], "weight": weight, "out": a["out"], "columns": columns, "BLOCK": 64}

    return Case(name, make)


hunt_2 = Exercise(
    name="hunt-2",
    title="Find the bug: a weighted sum of each row",
    task="""The kernel should store the sum of `x[i, j] * weight[j]` over all columns `j` in `out[i]` (fp32).
`x` has `columns` columns, `weight` has `columns` elements.
Program `i` computes row `i`, in steps of `BLOCK` = 64 columns.

The kernel has one bug. It raises no error. With up to 64 columns it is right, with more it is not. Find it and mend it.""",
    cases=(
        _weighted_case("4x64", 4, 64),
        _weighted_case("8x256", 8, 256),
        _weighted_case("5x1000", 5, 1000),
        _weighted_case("9x5", 9, 5),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=lambda x, weight, **_: {"out": x.astype(np.float64) @ weight.astype(np.float64)},
    rules=(stored_once, no_race, assembles),
    tolerance=Tolerance(additions=1000, scale=20.0),
    solution=WEIGHTED,
    blanks=(Blank(10, 10, keep="w = tl.load(weight + lane, mask=inside, other=0.0)"),),
    hints=(
        "Which weights does the second step of the loop load, and which should it load?",
        "`run = weighted_sum.interpret((1,), record=0)(...)`. `run.accessed` has the addresses of each load, in order: compare the steps.",
        "The column of the weight moves with the loop: `weight + at`, not `weight + lane`.",
    ),
    mistakes=(
        Mistake(
            "the bug is still there: what one of the loads reads does not follow the loop",
            patch=(_WEIGHT, "weight + lane"),
        ),
        Mistake("each step loads one weight for all lanes: weight + at", patch=(_WEIGHT, "weight + start + 0 * lane")),
        Mistake("`start` is added twice: `at` contains it", patches=((_WEIGHT, "weight + (at + start) % columns"),)),
        Mistake(
            "each step loads the first values again, too",
            patches=((_WEIGHT, "weight + lane"), ("x + row + at", "x + row + lane")),
        ),
        Mistake("the weights have one row: their address has no `row`", patch=(_WEIGHT, "weight + row + at")),
        Mistake("only the last step counts: `sums +=`, not `sums =`", patch=("sums += ", "sums = ")),
        Mistake("the weights are added, not multiplied", patch=("values * w", "values + w")),
        Mistake("the weights are left out", patch=("sums += values * w", "sums += values")),
        Mistake(
            "the mask is that of the first step: it lacks `start`",
            patch=("inside = at < columns", "inside = lane < columns"),
        ),
        Mistake("the masked weights count as 1 and the masked values, too", patch=("other=0.0", "other=1.0")),
        Mistake("the loop ends one step early", patch=("range(0, columns, BLOCK)", "range(0, columns - BLOCK, BLOCK)")),
        Mistake("every program stores to out[0]", patch=("out + tl.program_id(0)", "out")),
        Mistake("the weights are squared", patch=("values * w", "values * w * w")),
    ),
    alternatives=(
        WEIGHTED.replace(_WEIGHT, "weight + start + lane"),
        WEIGHTED.replace("    for start", "    weight += lane\n    for start").replace(_WEIGHT, "weight + start"),
        WEIGHTED.replace("        sums += values * w", "        sums = tl.fma(values, w, sums)"),
        WEIGHTED.replace("        w = tl.load", "        column = lane + start\n        w = tl.load").replace(
            _WEIGHT, "weight + column"
        ),
        WEIGHTED.replace("tl.zeros((BLOCK,), tl.float32)", "0.0")
        .replace("values * w", "tl.sum(values * w, axis=0)")
        .replace("tl.sum(sums, axis=0)", "sums"),
        WEIGHTED.replace("w = tl.load(weight + at, mask=inside, other=0.0)", "w = tl.load(weight + at, mask=inside)"),
    ),
)

# ---- hunt-3 --------------------------------------------------------------------------------------------------------------------

TURN = """@blocknb.kernel
def turn_around(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n // 2
    left = tl.load(x + at, mask=inside)
    right = tl.load(x + n - 1 - at, mask=inside)
    tl.store(x + at, right, mask=inside)
    tl.store(x + n - 1 - at, left, mask=inside)
"""

_BUGGY = """inside = at < n
left = tl.load(x + at, mask=inside)
tl.store(x + n - 1 - at, left, mask=inside)"""


def _turn_case(name: str, n: int, BLOCK: int) -> Case:
    return Case(name, lambda rng: {"x": rng.standard_normal(n).astype(np.float32), "n": n, "BLOCK": BLOCK})


hunt_3 = Exercise(
    name="hunt-3",
    title="Find the bug: an array turned around in place",
    task="""The kernel should reverse the `n` numbers of `x` (fp32) *in place*: `x` itself holds the result, and there is no second array.
There is one program per `BLOCK` numbers. Some of the programs may have nothing to do.

The kernel has one bug. With one program it is right, with several it is not. Find it and mend it.""",
    cases=(
        _turn_case("1024 numbers, 8 programs", 1024, 128),
        _turn_case("1001 numbers, 16 programs", 1001, 64),
        _turn_case("130 numbers, 2 programs", 130, 128),
        _turn_case("5 numbers, 1 program", 5, 16),
        _turn_case("1 number, 1 program", 1, 16),
    ),
    outputs=("x",),
    updated=("x",),
    grid=lambda n, BLOCK, **_: (cdiv(n, BLOCK),),
    reference=lambda x, **_: {"x": x[::-1]},
    rules=(no_race, assembles),
    solution=TURN,
    blanks=(Blank(4, 8, keep=_BUGGY),),
    hints=(
        "Program 0 stores to the last elements of `x`. Which program still needs them?",
        "A program that loads both elements of a pair before it stores them needs no other program. Which programs then have no work?",
        "Load `x + at` and `x + n - 1 - at`, both where `at < n // 2`, and store each in the place of the other.",
    ),
    mistakes=(
        Mistake(
            "the bug is still there: a program stores over elements that another program still needs",
            source=TURN[: TURN.index("    inside")] + "".join(f"    {line}\n" for line in _BUGGY.split("\n")),
        ),
        Mistake("two programs exchange the same pair: only the first half may do it", patch=("at < n // 2", "at < n")),
        Mistake(
            "the right half keeps its elements, and the left half is lost: store `left` in the right half",
            patch=("    tl.store(x + n - 1 - at, left, mask=inside)\n", ""),
        ),
        Mistake(
            "the left half keeps its elements, and the right half is lost: store `right` in the left half",
            patch=("    tl.store(x + at, right, mask=inside)\n", ""),
        ),
        Mistake(
            "each element is stored where it was: exchange `left` and `right`",
            patches=(
                ("x + at, right", "x + at, other"),
                ("n - 1 - at, left", "n - 1 - at, right"),
                ("x + at, other", "x + at, left"),
            ),
        ),
        Mistake(
            "the right element is loaded after the left one is stored",
            patches=(
                ("    right = tl.load(x + n - 1 - at, mask=inside)\n", ""),
                ("x + at, right, mask=inside)", "x + n - 1 - at, left, mask=inside)"),
                (
                    "tl.store(x + n - 1 - at, left, mask=inside)\n    tl.store(x + n - 1 - at, left, mask=inside)",
                    "tl.store(x + n - 1 - at, left, mask=inside)\n    tl.store(x + at, tl.load(x + n - 1 - at, mask=inside), mask=inside)",
                ),
            ),
        ),
        Mistake("the pair of element 0 is element n - 1, not n", patch=("n - 1 - at", "n - at")),
        Mistake("the pair of element 0 is element n - 1, not n - 2", patch=("n - 1 - at", "n - 2 - at")),
        Mistake("only the first quarter is exchanged: n // 2", patch=("n // 2", "n // 4")),
        Mistake(
            "each program turns its own block around, but the blocks stay in their order",
            patches=(
                ("n - 1 - at", "tl.minimum((tl.program_id(0) + 1) * BLOCK, n) - 1 - tl.arange(0, BLOCK)"),
                (
                    "inside = at < n // 2",
                    "inside = (at < n) & (2 * tl.arange(0, BLOCK) < tl.minimum(BLOCK, n - tl.program_id(0) * BLOCK) - 1)",
                ),
            ),
        ),
        Mistake(
            "every program exchanges the first pairs: the address lacks `program_id`",
            patch=("tl.program_id(0) * BLOCK + ", ""),
        ),
        Mistake(
            "only program 0 works: the other pairs are not exchanged",
            patch=("at < n // 2", "(at < n // 2) & (at < BLOCK)"),
        ),
        Mistake("the stores have no mask", patches=(("right, mask=inside", "right"), ("left, mask=inside", "left"))),
        Mistake("the pair in the middle stays: exchange n // 2 pairs", patch=("n // 2", "(n - 1) // 2")),
    ),
    alternatives=(
        TURN.replace("at < n // 2", "at < (n + 1) // 2"),
        TURN.replace("at < n // 2", "at < n - 1 - at"),
        TURN.replace("at < n // 2", "2 * at < n"),
        TURN.replace("    left =", "    mirror = n - 1 - at\n    left =").replace("x + n - 1 - at", "x + mirror"),
        TURN.replace("    tl.store(x + at, right, mask=inside)\n", "") + "    tl.store(x + at, right, mask=inside)\n",
        TURN.replace("    right = tl.load(x + n - 1 - at, mask=inside)\n", "").replace(
            "    left =", "    right = tl.load(x + n - 1 - at, mask=inside)\n    left ="
        ),
    ),
)
