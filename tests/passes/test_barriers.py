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
