"""Memory order: loops that wait get acquire semantics, and an atomic that cannot observe anything does not."""

from __future__ import annotations

import locks
import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as tl
from blocknb.ir.core import Func

LOCK = {"data": np.zeros(128, np.float32), "lock": np.zeros(1, np.int32)}


def settled(kernel, arguments, target="sm_90a") -> tuple[Func, list[str]]:
    """The function after the pass, and the notes of the pass."""
    _, stages = Case("order", kernel, dict, dict).lower(arguments, target)
    stage = next(stage for stage in stages if stage.name == "memory_order")
    return stage.after, [note.text for note in stage.notes]


def orders(func: Func) -> list[str]:
    return [op.attrs["sem"] for op in func.ops() if op.attrs.get("sem")]


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize(
    ("sem", "wanted"),
    [(None, "acq_rel"), ("acquire", "acquire"), ("release", "acq_rel"), ("acq_rel", "acq_rel"), ("relaxed", "acquire")],
)
def test_atomic_polled_by_a_loop_gets_acquire(sem, wanted, target):
    func, notes = settled(locks.triton_lock, LOCK | {"SEM": sem}, target)
    assert orders(func) == [wanted, "release"]
    assert any("a loop waits for it" in note for note in notes) == (sem in ("release", "relaxed"))
    assert any("its result is unused" in note for note in notes)  # of the exchange that releases the lock


def test_volatile_load_polled_by_a_loop_gets_acquire():
    arguments = {"data": np.zeros(64, np.int32), "flags": np.zeros(2, np.int32), "errors": np.zeros(1, np.int32)}
    func, notes = settled(locks.message, arguments | {"epoch": 3, "SIZE": 32, "POLL": "volatile"})
    loads = [op for op in func.ops() if op.name == "load" and op.attrs.get("volatile")]
    assert [op.attrs.get("sem") for op in loads] == ["acquire"]
    assert any(note.startswith("the volatile load is now an acquire") for note in notes)


@blocknb.kernel
def polled_once(x, y):
    tl.store(y, tl.load(x, volatile=True))


def test_volatile_load_outside_of_a_loop_is_unchanged():
    func, notes = settled(polled_once, {"x": np.zeros(1, np.int32), "y": np.zeros(1, np.int32)})
    assert orders(func) == [] and notes == []


@blocknb.kernel
def accumulated(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for k in range(n):
        tl.atomic_add(out + i, tl.load(x + k * BLOCK + i))


@blocknb.kernel
def accumulated_then_counted(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for k in range(n):
        tl.atomic_add(out + i, tl.load(x + k * BLOCK + i))
        tl.store(x + k, tl.atomic_add(out + BLOCK, 1.0, sem="relaxed"))
    tl.atomic_xchg(out, 1.0)


@blocknb.kernel
def read_in_one_branch(x, out, n, BLOCK: tl.constexpr):
    if n > 3:
        tl.atomic_add(out, 1.0)
    else:
        tl.store(x, tl.load(out, volatile=True))
    tl.atomic_add(out, 2.0)


ARRAYS = {"x": np.zeros(256, np.float32), "out": np.zeros(128, np.float32), "n": 2, "BLOCK": 64}


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        (accumulated, ["release"]),
        (
            accumulated_then_counted,
            ["acq_rel", "relaxed", "release"],
        ),  # the counter of a later iteration observes other programs
        (read_in_one_branch, ["release", "release"]),
    ],
)
def test_unused_result_acquires_only_if_later_reads_observe_other_programs(kernel, wanted):
    func, _ = settled(kernel, ARRAYS)
    assert orders(func) == wanted


@blocknb.kernel
def arrives_before_it_polls(data, count, BLOCK: tl.constexpr):
    tl.atomic_add(count + tl.arange(0, BLOCK), 1, sem="acquire")
    tl.atomic_add(count, 1)
    while tl.load(count, volatile=True, cache_modifier=".cg") < 7:
        pass
    tl.store(data, tl.load(data) + 1)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_120"])
def test_acquires_of_unused_results_and_of_volatile_loads_assemble(target):
    case = Case("order", arrives_before_it_polls, dict, dict)
    arguments = {"data": np.zeros(4, np.int32), "count": np.zeros(64, np.int32), "BLOCK": 64}
    func, _ = case.lower(arguments, target)
    assert orders(func) == ["acquire", "acq_rel", "acquire"]
    trace = arrives_before_it_polls.trace(*arguments.values(), target=target)
    assert "atom.acq_rel.gpu.global.add" in trace.ptx
    assert "ld.acquire.sys.global.b32" in trace.ptx and "ld.volatile" not in trace.ptx
    assert trace.artifacts["cubin"]


@pytest.mark.parametrize("sem", locks.SEMANTICS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_no_pass_moves_a_plain_access_across_the_lock(sem, target):
    """After every pass, load and store stay between the loop and the release, in this order."""
    _, stages = Case("order", locks.triton_lock, dict, dict).lower(LOCK | {"SEM": sem}, target)
    for stage in stages:
        kept = ("while", "load", "store", "atomic")
        names = [op.name for op in stage.after.body.ops if op.name in kept]
        assert names == ["while", "load", "store", "atomic"], stage.name
