"""The exercises of unit 3 on the width of an access: `pad-1` and `tail-1`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from blocknb import cdiv
from blocknb.learn.code_rules import bytes_per_lane
from blocknb.learn.exercise import Blank, Case, CheckFinding, Exercise, Mistake, Rule
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.running import Attempt
from blocknb.learn.units.matrices import Arrays, numbers
from blocknb.learn.units.variants import variant
from blocknb.learn.units.vectors import WRONG_INDICES


def _wide() -> Rule:
    """Every load and store moves 16 bytes per lane. If the mask prevents it, the sentence says so in the words of the unit."""
    rule = bytes_per_lane(16)

    def check(made: Attempt) -> Iterator[CheckFinding]:
        for found in rule.check(made):
            moved, _, why = found.text.partition(": ")
            masked = why.startswith("the mask")
            yield replace(found, text=f"{moved}: the mask may end between four adjacent elements") if masked else found

    return replace(rule, check=check)


PAD = """\
@blocknb.kernel
def double(x, out, n, room, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    inside = at < room
    tl.store(out + at, 2.0 * tl.load(x + at, mask=inside), mask=inside)
"""
IN_ROOM = "inside = at < room"


def _padded(n: int, room: int) -> Case:
    """Arrays with `room` elements, of which the first `n` count. The others are NaN, whether the kernel doubles them or not."""

    def make(rng: np.random.Generator) -> Arrays:
        x = numbers(rng, room)
        x[n:] = np.nan
        return {"x": x, "out": np.empty(room, np.float32), "n": n, "room": room, "BLOCK": 1024}

    return Case(f"n = {n} with room for {room}", make)


pad_1 = Exercise(
    name="pad-1",
    title="Get the wide accesses back, with padded arrays",
    task="""\
The kernel stores `2 * x` to `out`, for `n` elements. `n` is odd, so the compiler cannot know whether four adjacent elements are all inside.
It loads each element on its own: 4 bytes per lane.

The arrays are longer than `n`: they have room for `room` elements, a multiple of 16. What lies beyond `n` is padding, and does not matter.
Change one line, so that every lane moves 16 bytes with one instruction, and nothing outside of the arrays is accessed.
""",
    cases=(_padded(10_003, 10_016), _padded(4095, 4096), _padded(5, 16)),
    outputs=("out",),
    grid=lambda n, BLOCK, **_: (cdiv(n, BLOCK),),
    reference=lambda x, **_: {"out": 2 * x.astype(np.float64)},
    rules=(no_race, _wide()),  # what is stored to the padding does not matter
    solution=PAD,
    blanks=(Blank(5, 5, keep="inside = at < n"),),
    hints=(
        "The mask is false from element n on. May it be true for some elements of the padding, too?",
        "Compare with a number that is a multiple of 4. There is one among the arguments.",
        "`inside = at < room`",
    ),
    mistakes=(
        *WRONG_INDICES,
        Mistake(
            "the mask may end between four adjacent elements",
            patch=(IN_ROOM, "inside = n > at"),
        ),
        Mistake(
            "the masks are missing: the last program accesses elements outside of the arrays",
            patch=(", mask=inside", ""),
        ),
        Mistake("the mask lets one element past the end in", patch=("at < room", "at <= room")),
        Mistake("n is rounded down: the last elements are left out", patch=(IN_ROOM, "inside = at < n // 4 * 4")),
        Mistake(
            "n + 16 is as odd as n: the mask ends inside of four elements again",
            patch=(IN_ROOM, "inside = at < n + 16"),
        ),
        Mistake(
            "a lane moves 4 bytes of `out`",
            patch=("at, mask=inside), mask=inside", "at, mask=inside), mask=at < n"),
        ),
        Mistake(
            "the mask covers whole blocks, and the arrays end before",
            patch=(IN_ROOM, "inside = at < tl.num_programs(0) * BLOCK"),
        ),
    ),
    alternatives=(
        variant(PAD, (IN_ROOM, "inside = at < (n + 3) // 4 * 4")),
        variant(PAD, (IN_ROOM, "inside = at < tl.cdiv(n, 16) * 16")),
        variant(PAD, (IN_ROOM, "inside = room > at")),
        variant(PAD, (IN_ROOM, "inside = at // 4 < (n + 3) // 4")),
        variant(PAD, (IN_ROOM, "inside = at // 16 < room // 16")),
        variant(
            PAD,
            (IN_ROOM, "inside = at < room"),
            ("tl.load(x + at, mask=inside)", "tl.load(x + at, mask=inside, other=0.0)"),
        ),
    ),
)

TAIL = """\
@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    if (pid + 1) * BLOCK <= n:
        tl.store(out + at, 2.0 * tl.load(x + at))
    else:
        inside = at < n
        tl.store(out + at, 2.0 * tl.load(x + at, mask=inside), mask=inside)
"""
WHOLE = "if (pid + 1) * BLOCK <= n:"
MASKED = """\
inside = at < n
tl.store(out + at, 2.0 * tl.load(x + at, mask=inside), mask=inside)"""


def _exact(n: int, block: int) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        return {"x": numbers(rng, n), "out": np.empty(n, np.float32), "n": n, "BLOCK": block}

    return Case(f"n = {n} in blocks of {block}", make)


def _whole_blocks(rule: Rule) -> Rule:
    """A rule for launches of three programs or more: the one in the middle, which rules about code look at, then has a whole block."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        return rule.check(made) if made.given["n"] > 2 * made.given["BLOCK"] else iter(())

    return replace(rule, check=check)


tail_1 = Exercise(
    name="tail-1",
    title="Get the wide accesses back, without padding",
    task="""\
The same kernel, but now the arrays have exactly `n` elements, and `n` is odd. There is no padding.

Only the last program needs a mask. Let all others, whose whole block is inside, load and store without one: then each lane moves 16 bytes
with one instruction. A kernel may use `if` with a condition that is one number, such as `pid`.
""",
    cases=(_exact(10_003, 1024), _exact(4096, 1024), _exact(1027, 512), _exact(1023, 512), _exact(5, 512)),
    outputs=("out",),
    grid=lambda n, BLOCK, **_: (cdiv(n, BLOCK),),
    reference=lambda x, **_: {"out": 2 * x.astype(np.float64)},
    rules=(stored_once, no_race, _whole_blocks(_wide())),
    solution=TAIL,
    equivalent={
        "(pid + 1) * BLOCK <= n -> (pid + 1) * BLOCK < n": "a whole block at the end of the array takes the mask, too",
        "(pid + 1) * BLOCK <= n -> (pid + 1) * BLOCK <= n - 1": "the same condition",
    },
    blanks=(Blank(5, 9, keep=MASKED),),
    hints=(
        "For which programs is every element of the block inside? How can a program find out?",
        "The block of a program ends at `(pid + 1) * BLOCK`. If that is at most n, no mask is necessary. Otherwise keep the two lines.",
        "`if (pid + 1) * BLOCK <= n:` and below it `tl.store(out + at, 2.0 * tl.load(x + at))`, then `else:` with the masked lines",
    ),
    mistakes=(
        *WRONG_INDICES,
        Mistake("the mask may end between four adjacent elements", patch=(WHOLE, "if n < 0:")),
        Mistake(
            "the condition asks where the block begins, not where it ends: the last program has no mask",
            patch=(WHOLE, "if pid * BLOCK < n:"),
        ),
        Mistake("the masks are missing: the last program accesses elements past the end", patch=(", mask=inside", "")),
        Mistake(
            "the last program does nothing: the `else` is missing",
            patches=(
                (
                    "    else:\n        inside = at < n\n        tl.store(out + at, 2.0 * tl.load(x + at, mask=inside), mask=inside)\n",
                    "",
                ),
            ),
        ),
        Mistake(
            "the condition is the wrong way round: whole blocks use the mask",
            patch=(WHOLE, "if (pid + 1) * BLOCK > n:"),
        ),
        Mistake(
            "the mask is rounded up, but here is no padding: the last program accesses elements past the end",
            patches=((WHOLE, "if n < 0:"), ("inside = at < n", "inside = at < (n + 3) // 4 * 4")),
        ),
        Mistake(
            "the condition looks one element too far: a block that ends one past n has no mask",
            patch=(WHOLE, "if (pid + 1) * BLOCK <= n + BLOCK:"),
        ),
        Mistake(
            "only whole blocks are doubled: the tail is copied",
            patch=("2.0 * tl.load(x + at, mask", "1.0 * tl.load(x + at, mask"),
        ),
    ),
    alternatives=(
        variant(TAIL, (WHOLE, "if pid * BLOCK + BLOCK <= n:")),
        variant(TAIL, (WHOLE, "if (pid + 1) * BLOCK < n:")),
        variant(TAIL, (WHOLE, "if n - pid * BLOCK >= BLOCK:")),
        variant(TAIL, (WHOLE, "if pid < n // BLOCK:")),
        variant(TAIL, (WHOLE, "if pid < tl.num_programs(0) - 1:")),
        """\
@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    end = (tl.program_id(0) + 1) * BLOCK
    if end > n:
        tl.store(out + at, 2.0 * tl.load(x + at, mask=at < n), mask=at < n)
    if end <= n:
        tl.store(out + at, 2.0 * tl.load(x + at))
""",
    ),
)
