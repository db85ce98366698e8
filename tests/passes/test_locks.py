"""Loops with locks: which loads pass them, and conversions that stay in the branches that need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb.language as bl
from blocknb import kernel, passes
from blocknb.ir import interp
from blocknb.ir.core import Block, Func
from blocknb.target import Target

HALF = np.float16
STEPS, TILES = 4, 3


@kernel
def shared_tiles(a, b, c, flags, each, WAY: bl.constexpr):
    """Rows of 16 of a @ b; a program with a tile's first steps adds its sum when the program with the last steps has stored its own."""
    start = bl.program_id(0) * each
    end = bl.minimum(start + each, 12)
    at = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    total = bl.zeros((16, 16), bl.float32)
    for i in range(start, end):
        tile, step = i // 4, i % 4
        x = bl.load(a + (tile * 16 + at[0]) * 64 + step * 16 + at[1])
        y = bl.load(b + (step * 16 + at[0]) * 16 + at[1])
        total = bl.dot(x, y, total)
        to = c + (tile * 16 + at[0]) * 16 + at[1]
        if step == 3:
            bl.store(to, total)
            if WAY != "never":
                bl.atomic_xchg(flags + tile, 1)
            if WAY == "written":
                bl.store(a + at[0] * 64 + at[1], total.to(bl.float16))
            total = bl.zeros((16, 16), bl.float32)
        elif i == end - 1:
            while bl.atomic_cas(flags + tile, 1, 1, scope="sys" if WAY == "system" else "gpu") != 1:
                pass
            bl.atomic_add(to, total)


def lowered(way: str, each: int = 12) -> tuple[Func, list[str], dict[str, Any]]:
    """The memory IR, the notes of `software_pipelining`, and the arguments."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(HALF) for shape in ((16 * TILES, 64), (64, 16)))
    arguments = {
        "a": a, "b": b, "c": np.full((16 * TILES, 16), np.nan, np.float32), "flags": np.zeros(TILES, np.int32), "each": each,
        "WAY": way,
    }  # fmt: skip
    func = Case("shared_tiles", shared_tiles, dict, dict).parse(arguments, num_warps=2)
    func, stages = passes.run(func, Target.parse("sm_80"))
    notes = next(stage.notes for stage in stages if stage.name == "software_pipelining")
    return func, [note.text for note in notes], arguments


def copies(func: Func) -> int:
    return sum(op.name == "copy_async" for loop in func.ops() if loop.name == "for" for op in loop.blocks[0].ops)


def test_loads_pass_a_lock_that_programs_of_the_launch_release() -> None:
    func, notes, arguments = lowered("released")
    assert copies(func) == 2 and sum(note.startswith("pipelined") for note in notes) == 2
    expected = arguments["a"].astype(float) @ arguments["b"].astype(float)
    interp.run(func, [value for name, value in arguments.items() if name != "WAY"], 1)
    np.testing.assert_array_equal(arguments["c"], expected)


@pytest.mark.parametrize(("way", "copied"), [("never", 0), ("system", 0), ("written", 1)])
def test_loads_stay_after_a_lock_that_others_may_release_or_that_guards_their_array(way: str, copied: int) -> None:
    func, notes, _ = lowered(way)
    assert copies(func) == copied
    assert sum("may wait for other programs" in note or "keeps later accesses" in note for note in notes) == 2 - copied


def test_a_conversion_that_only_branches_need_is_in_these_branches() -> None:
    def stores(block: Block, branch: bool) -> Iterator[bool]:
        """Whether each store of fp32 to shared memory is in a branch."""
        for op in block.ops:
            if op.name == "local_store" and op.args[1].type.dtype == bl.float32:
                yield branch
            for inner in op.blocks:
                yield from stores(inner, branch or op.name == "if")

    found = list(stores(lowered("released")[0].body, False))
    assert found and all(found)
