"""Register prefetch: operations that a load may not pass, the register budget, and the default number of stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from register_prefetch_helpers import (
    floats,
    kernel,
    loads,
    loops,
    only,
    parsed,
    pipelined,
    refused,
    rows,
    shared_rows,
    texts,
)

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.passes.pipelining import stages
from blocknb.passes.tile import register_prefetch
from blocknb.target import Target
from blocknb.trace import Stage

# -- operations that a load may not pass -------------------------------------------------------------------------------------


@kernel
def in_place(x, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        bl.store(x + (i + 1) * B + at, bl.load(x + i * B + at) + 1)


def test_a_loop_that_stores_to_the_same_array_keeps_its_order():
    refused(in_place, {"x": floats(5, 64), "n": 4, "B": 64}, "also writes x")


@kernel
def by_table(table, x, n, B: bl.constexpr):
    at = bl.arange(0, B)
    out = bl.load(table).to(bl.pointer_type(bl.float32))
    for i in range(n):
        bl.store(out + i * B + at, bl.load(x + i * B + at))


def test_a_store_through_a_pointer_of_unknown_origin_may_be_to_any_array():
    x, out = floats(4, 64), floats(4, 64)
    arguments = {"table": np.array([out.ctypes.data], np.int64), "x": x, "n": 4, "B": 64}
    stage = only(by_table, arguments, num_stages=2)
    assert stage.after is stage.before
    assert "may access the same array" in texts(stage, "missed")[0]


@kernel
def counting(x, count, out, n, SEM: bl.constexpr, USED: bl.constexpr, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        values = bl.load(x + i * B + at)
        before = bl.atomic_add(count, 1, sem=SEM)
        if USED:
            values += before
        bl.store(out + i * B + at, values)


@pytest.mark.parametrize(("sem", "used", "why"), [
    ("acquire", True, "keeps later accesses after it"), ("acq_rel", True, "keeps later accesses after it"),
    ("relaxed", True, ""), ("release", True, ""), ("acq_rel", False, ""),
])  # fmt: skip
def test_loads_do_not_move_before_an_acquiring_atomic(sem, used, why):
    arguments = {
        "x": floats(3, 64),
        "count": np.zeros(1, np.int32),
        "out": floats(3, 64),
        "n": 3,
        "SEM": sem,
        "USED": used,
    }
    if why:
        refused(counting, {**arguments, "B": 64}, why)
    else:
        assert len(texts(pipelined(counting, {**arguments, "B": 64}, num_stages=2), "info")) == 1


@kernel
def counting_here(x, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        bl.atomic_add(x + (i + 1) * B + at, bl.load(x + i * B + at), sem="relaxed")


def test_an_atomic_on_the_same_array_counts_as_a_store():
    refused(counting_here, {"x": floats(4, 64), "n": 3, "B": 64}, "also writes x")


@kernel
def watching(x, flag, out, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        seen = bl.load(flag, volatile=True)
        bl.store(out + i * B + at, bl.load(x + i * B + at) + seen)


def test_accesses_do_not_move_before_a_volatile_load():
    arguments = {"x": floats(3, 64), "flag": np.ones(1, np.int32), "out": floats(3, 64), "n": 3, "B": 64}
    refused(watching, arguments, "keeps later accesses after it")


@kernel
def asking_anew(x, out, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        bl.store(out + i * B + at, bl.load(x + i * B + at, cache_modifier=".cv"))


def test_a_load_that_bypasses_the_cache_is_not_prefetched():
    refused(asking_anew, {"x": floats(3, 64), "out": floats(3, 64), "n": 3, "B": 64}, "keeps later accesses after it")


@kernel
def waiting(x, flags, out, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        while bl.load(flags + i) == 0:
            pass
        bl.store(out + i * B + at, bl.load(x + i * B + at))


def test_a_loop_that_polls_memory_is_unchanged():
    arguments = {"x": floats(3, 64), "flags": np.ones(3, np.int32), "out": floats(3, 64), "n": 3, "B": 64}
    refused(waiting, arguments, "`while`")


# -- how much, and when ------------------------------------------------------------------------------------------------


@kernel
def many(x, out, n, B: bl.constexpr, ARRAYS: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        total = bl.load(x + i * B + at)
        for k in bl.static_range(1, ARRAYS):
            total += bl.load(x + (k * n + i) * B + at)
        bl.store(out + i * B + at, total)


def wide(block: int, arrays: int, **options: Any) -> Stage:
    arguments = {"x": floats(2 * arrays, block), "out": floats(2, block), "n": 2, "B": block, "ARRAYS": arrays}
    return only(many, arguments, **options)


def test_prefetched_loads_stay_within_the_register_budget():
    stage = wide(1024, 6, num_warps=2, num_stages=2)  # 16 registers each
    assert texts(stage, "info")[0].startswith("pipelined: loaded 1 iteration ahead, in 16 registers per thread")
    assert len(texts(stage, "info")) == 4
    assert texts(stage, "missed") == ["not pipelined: it takes 16 registers per thread, and 0 are left for that"] * 2


def test_the_prefetch_distance_shrinks_to_fit_the_registers():
    assert texts(wide(1024, 2, num_warps=2, num_stages=4), "info")[0].startswith(
        "pipelined: loaded 2 iterations ahead, in 32 registers per thread (not 3, for lack of registers)"
    )


def test_a_loop_with_high_register_pressure_prefetches_nothing():
    """16 warps have 128 registers per thread, and the accumulators take 64, so too few are left."""
    stage = wide(1 << 15, 2, num_warps=16, num_stages=2)
    assert texts(stage, "info") == []


def test_without_num_stages_nothing_is_prefetched():
    arguments = {"x": floats(2, 50), "out": floats(2, 50), "m": 2, "n": 50, "B": 64}
    sm = Target.parse("sm_90a")
    for options in ({}, {"num_stages": 1}, {"num_stages": 0}):
        assert not register_prefetch.applies(parsed(shared_rows, arguments, **options), sm)
        assert "register_prefetch" not in [s.name for s in passes.run(parsed(shared_rows, arguments, **options), sm)[1]]
    assert register_prefetch.applies(parsed(shared_rows, arguments, num_stages=2), sm)
    configured = blocknb.Config({"B": 64}).launched(shared_rows.arg_names)
    assert "num_stages" not in configured
    assert blocknb.Config({"B": 64}, num_stages=3).launched(shared_rows.arg_names)["num_stages"] == 3


def test_num_stages_of_a_range_overrides_that_of_the_launch():
    arguments = {"x": floats(2, 64), "out": floats(2, 64), "first": 0, "last": 2, "step": 1, "B": 64}
    assert not register_prefetch.applies(parsed(rows, {**arguments, "STAGES": 1}, num_stages=4), Target.parse("sm_90a"))
    (message,) = texts(only(rows, {**arguments, "STAGES": 2}, num_stages=4), "info")
    assert message.startswith("pipelined: loaded 1 iteration ahead")


def test_the_default_number_of_stages_applies_to_all_loops(monkeypatch):
    monkeypatch.setattr(stages, "STAGES", 2)
    stage = only(shared_rows, {"x": floats(2, 50), "out": floats(2, 50), "m": 2, "n": 50, "B": 64})
    assert len(texts(stage, "info")) == 1


def test_a_disabled_pass_changes_nothing():
    func = parsed(shared_rows, {"x": floats(2, 50), "out": floats(2, 50), "m": 2, "n": 50, "B": 64}, num_stages=2)
    without, made = passes.run(func, Target.parse("sm_90a"), without={"register_prefetch"})
    assert next(s for s in made if s.name == "register_prefetch").skipped
    assert loads(loops(without)[0]) == 1 and sum(op.name == "load" for op in without.ops()) == 1
    assert sum(op.name == "load" for op in passes.run(func, Target.parse("sm_90a"))[0].ops()) == 2


def test_a_cpu_does_not_prefetch_into_registers():
    func = parsed(shared_rows, {"x": floats(2, 50), "out": floats(2, 50), "m": 2, "n": 50, "B": 64}, num_stages=2)
    assert "register_prefetch" not in [stage.name for stage in passes.run(func, Target.parse("cpu"))[1]]


# -- a few registers for the scales of a product


@blocknb.kernel
def scaled_products(x, y, scales, out, n, ROWS: bl.constexpr, K: bl.constexpr):
    row, k = bl.arange(0, ROWS), bl.arange(0, K)
    total = bl.zeros((ROWS, ROWS), bl.float32)
    for start in range(0, n, K):
        a = bl.load(x + row[:, None] * n + start + k[None, :])
        b = bl.load(y + (start + k)[:, None] * ROWS + row[None, :])
        total = total * bl.load(scales + start // K * ROWS + row)[:, None] + bl.dot(a, b)
    bl.store(out + row[:, None] * ROWS + row[None, :], total)


def test_scales_are_loaded_early_although_the_product_takes_all_registers():
    arrays = {**dict.fromkeys("xy", "*fp16:16"), **dict.fromkeys(("scales", "out"), "*fp32:16")}
    trace = scaled_products.trace(**arrays, n="i32:16", ROWS=128, K=64, num_warps=2, num_stages=3)
    stage = next(stage for stage in trace.stages if stage.name == "register_prefetch")
    assert any("loaded 1 iteration ahead, in 2 registers per thread" in text for text in texts(stage, "info"))
