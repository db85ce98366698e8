"""The barriers that `barriers` inserts for arrays that a kernel reads and writes; the interpreter detects missing ones as races."""

from __future__ import annotations

import pytest
import seeds
from kernels import CASES
from kernels.base import Case, normal, wide

import blocknb
import blocknb.language as bl
from blocknb.ir.core import Func


@blocknb.kernel
def in_place(x, BLOCK: bl.constexpr):
    place = x + bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(place, bl.load(place) + 1)


IN_PLACE = Case(
    "in_place", in_place, lambda rng: {"x": normal(rng, 512), "BLOCK": 256}, lambda a: {"x": wide(a["x"]) + 1}, (2,)
)


def placed(case: Case) -> tuple[Func, int]:
    """The memory IR of a kernel, and its number of barriers. Fails if the kernel has a race for any of several seeds."""
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a")
    for seed in range(4):
        case.interpret(func, arguments, seed=seed)
    return func, sum(op.name == "barrier" for op in func.ops())


def test_thread_that_accesses_only_its_own_elements_needs_no_barrier():
    assert placed(IN_PLACE)[1] == 0


def test_elements_shared_by_threads_are_read_before_any_is_written():
    assert placed(CASES["repeated_places"])[1] == 1


@pytest.mark.parametrize("name", ["sliding", "limit_in_memory"])
def test_write_read_by_the_next_iteration_needs_a_barrier_in_the_loop(name):
    func, _ = placed(CASES[name])
    (loop,) = (op for op in func.ops() if op.name in ("for", "while"))
    assert any(op.name == "barrier" for block in loop.blocks for op in block.ops)


def test_store_after_a_while_loop_waits_for_its_last_condition():
    func, _ = placed(CASES["limit_in_memory"])
    names = [op.name for op in func.body.ops]
    assert "barrier" in names[names.index("while") :]


@blocknb.kernel
def advancing(x, out, STEP: bl.constexpr, BLOCK: bl.constexpr):
    """Adds one to a tile in each iteration, and moves on by STEP elements."""
    lanes = bl.arange(0, BLOCK)
    for i in range(4):
        place = x + i * STEP + lanes
        bl.store(place, bl.load(place) + 1)
    bl.store(out + lanes, bl.load(x + 3 * STEP + lanes))


def advanced(step: int, block: int = 256) -> Case:
    def expected(a):
        x = wide(a["x"]).copy()
        for i in range(4):
            x[i * step : i * step + block] += 1
        return {"x": x, "out": x[3 * step : 3 * step + block]}

    return Case(
        f"advancing_{step}", advancing,
        lambda rng: {"x": normal(rng, 4096), "out": normal(rng, block), "STEP": step, "BLOCK": block}, expected, (1,),
    )  # fmt: skip


def in_loop(func: Func) -> int:
    """The number of barriers in the loops of a function."""
    loops = [op for op in func.ops() if op.name in ("for", "while")]
    return sum(op.name == "barrier" for loop in loops for block in loop.blocks for op in block.ops)


@pytest.mark.parametrize(("step", "barriers"), [(256, 0), (300, 0), (255, 1), (128, 1), (1, 1)])
def test_tile_that_moves_past_itself_needs_no_barrier_in_the_loop(step, barriers):
    without = frozenset({"unroll"})
    case = advanced(step)
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a", without)
    for seed in range(4):
        case.interpret(func, arguments, seed=seed)
    assert bool(in_loop(func)) == bool(barriers)


@blocknb.kernel
def two_tiles(x, DISTANCE: bl.constexpr):
    lanes = bl.arange(0, 256)
    bl.store(x + lanes, bl.load(x + lanes) + 1)
    other = x + DISTANCE + lanes
    bl.store(other, bl.load(other) * 2)


@pytest.mark.parametrize(("distance", "barriers"), [(256, 0), (1000, 0), (255, 1), (32, 1)])
def test_tiles_at_a_known_distance_need_a_barrier_only_if_they_overlap(distance, barriers):
    def expected(a):
        x = wide(a["x"]).copy()
        x[:256] += 1
        x[distance : distance + 256] *= 2
        return {"x": x}

    case = Case("two_tiles", two_tiles, lambda rng: {"x": normal(rng, 2048), "DISTANCE": distance}, expected, (1,))
    assert placed(case)[1] == barriers


@blocknb.kernel
def forth_and_back(x, BLOCK: bl.constexpr):
    """Adds to tiles in one loop, and reads them back by other threads in another, several times."""
    lanes = bl.arange(0, BLOCK)
    for _ in range(3):
        for i in range(4):
            place = x + i * BLOCK + lanes
            bl.store(place, bl.load(place) + 1)
        for i in range(3):
            mirrored = x + i * BLOCK + (BLOCK - 1 - lanes)
            bl.store(mirrored, bl.load(mirrored) * 2)


def test_loops_that_read_each_others_tiles_keep_their_barriers():
    def expected(a):
        x = wide(a["x"]).copy()
        for _ in range(3):
            x[:1024] += 1
            x[:768] *= 2
        return {"x": x}

    case = Case("forth_and_back", forth_and_back, lambda rng: {"x": normal(rng, 1024), "BLOCK": 256}, expected, (1,))
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a", frozenset({"unroll"}))
    for seed in range(4):
        case.interpret(func, arguments, seed=seed)
    assert in_loop(func) >= 2
