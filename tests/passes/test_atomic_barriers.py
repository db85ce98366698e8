"""Atomics among the threads of a program: which threads perform them, which get the old value, and the barriers around them."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import CASES
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.errors import CompilerBug
from blocknb.ir.build import rebuild
from blocknb.ir.core import Func
from blocknb.ir.verify import verify
from blocknb.target import Target

ARGUMENTS = {"x": np.arange(256, dtype=np.int32), "y": np.zeros(256, np.int32), "BLOCK": 128}


def lowered(kernel) -> Func:
    func, _ = Case("atomic", kernel, dict, dict).lower(ARGUMENTS, "sm_90a")
    return func


def names(func: Func) -> list[str]:
    kept = ("load", "store", "atomic", "atomic_cas", "barrier", "local_load")
    return [op.name for op in func.ops() if op.name in kept]


@blocknb.kernel
def histogram(x, y, BLOCK: bl.constexpr):
    for k in range(2):
        v = bl.load(x + k * BLOCK + bl.arange(0, BLOCK))
        bl.atomic_add(y + v % 16, 1, sem="relaxed")


def test_relaxed_atomic_additions_need_no_barrier():
    assert "barrier" not in names(lowered(histogram))


@blocknb.kernel
def released(x, y, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.store(x + i, i)
    bl.atomic_xchg(y, 1, sem="release")
    bl.store(x + 128 + i, i)


def test_release_waits_for_stores_of_all_threads():
    assert names(lowered(released)) == ["store", "barrier", "atomic", "store"]


@blocknb.kernel
def acquired(x, y, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    old = bl.atomic_add(y + 128 + i, 1, sem="acquire")
    bl.store(y + i, bl.load(x + i) + old)


def test_accesses_after_a_used_acquire_wait_for_all_threads():
    assert names(lowered(acquired)) == ["atomic", "barrier", "load", "store"]


@blocknb.kernel
def acquired_in_vain(x, y, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.atomic_add(y + 128 + i, 1, sem="acquire")
    bl.store(y + i, bl.load(x + i))


def test_acquire_with_unused_result_needs_no_barrier():
    assert "barrier" not in names(lowered(acquired_in_vain))[:2]


@blocknb.kernel
def scalar(x, y, BLOCK: bl.constexpr):
    old = bl.atomic_add(y, 5, sem="relaxed")
    bl.store(x + bl.arange(0, BLOCK), bl.arange(0, BLOCK) + old)


def test_old_value_reaches_all_threads_after_one_barrier():
    assert names(lowered(scalar)) == ["atomic", "barrier", "local_load", "store"]


@blocknb.kernel
def different_kinds(x, y, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.atomic_add(y + i % 4, 1, sem="relaxed")
    bl.atomic_max(y + i % 8, 7, sem="relaxed")
    bl.store(x + i, bl.load(y + i))


def test_noncommutative_atomics_and_plain_reads_need_barriers():
    assert names(lowered(different_kinds)) == ["atomic", "barrier", "atomic", "barrier", "load", "store"]


@pytest.mark.parametrize("name", ["tickets", "old_values_int32", "chained"])
def test_missing_barriers_around_atomics_are_detected_as_races(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(3))
    func, _ = case.lower(arguments, "sm_90a")
    bare = rebuild(func, lambda op, _: () if op.name == "barrier" else NotImplemented, "test")
    with pytest.raises((CompilerBug, AssertionError)):
        for seed in range(4):
            case.interpret(bare, arguments, seed=seed)


@pytest.mark.parametrize("kernel", [scalar, histogram], ids=["used", "unused"])
def test_result_may_be_used_only_by_threads_that_hold_it(kernel):
    func = Case("atomic", kernel, dict, dict).parse(ARGUMENTS)
    target = Target.parse("sm_90a")
    for step in passes.pipeline(target):
        if step.applies(func, target):
            func = step.run(func, target, passes.Notes(step.name))
        if step.name == "layout_assignment":
            break
    verify(func)
    if kernel is scalar:
        with pytest.raises(CompilerBug, match="threads that do not own it"):
            verify(func.replace(level="memory"))
