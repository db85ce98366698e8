"""Early loads in `while` loops, and in loops that wait for other programs: the loads between two waits stand together."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, parameters
from support import check_pipeline

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir.core import Block, Func
from blocknb.target import Target
from blocknb.trace import Stage


@blocknb.kernel(do_not_specialize=["n"])
def sums_after_waits(x, y, flags, out, n, B: tl.constexpr, WAITS: tl.constexpr, KEEPS: tl.constexpr):
    """Adds rows of y and x. Between two loads of x it waits for a flag; `KEEPS` stores to x before the last load."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    left = n
    while left > 0:
        left -= 1
        total += tl.load(x + left * B + at)
        if WAITS:
            while tl.atomic_cas(flags + left, 1, 1, sem="acquire") != 1:
                pass
            tl.debug_barrier()
        total = tl.abs(total) + tl.load(y + left * B + at)
        if KEEPS:
            tl.store(x + left * B + at, total)
        total = total * 2 + tl.load(x + left * B + at)
    tl.store(out + at, total)


@blocknb.kernel(do_not_specialize=["n"])
def sums_in_a_for_loop(x, y, flags, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for row in range(n):
        while tl.atomic_cas(flags + row, 1, 1, sem="acquire") != 1:
            pass
        total = tl.abs(total) + tl.load(y + row * B + at)
        total = total * 2 + tl.load(x + row * B + at)
    tl.store(out + at, total)


@blocknb.kernel(do_not_specialize=["n"])
def exponentials(x, y, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    left = n
    while left > 0:
        left -= 1
        total = tl.exp(total + tl.load(y + left * B + at))
        total = total * 2 + tl.load(x + left * B + at)
    tl.store(out + at, total)


def given(n: int, block: int, **more: bool) -> dict:
    """Integers, whose sums fp32 holds exactly."""
    x, y = np.random.default_rng(0).integers(-3, 4, (2, max(n, 1), block)).astype(np.float32)
    flags, out = np.ones(max(n, 1), np.int32), np.zeros(block, np.float32)
    return {"x": x, "y": y, "flags": flags, "out": out, "n": n, "B": block, **more}


def waiting(n: int, block: int, waits: bool = True, keeps: bool = False) -> dict:
    return given(n, block, WAITS=waits, KEEPS=keeps)


def without_flags(n: int, block: int) -> dict:
    return {name: value for name, value in given(n, block).items() if name != "flags"}


def parsed(kernel, arguments: dict) -> Func:
    return Case(kernel.__name__, kernel, dict, dict).parse(arguments, num_warps=4)


def early(kernel, arguments: dict) -> Stage:
    stages = passes.run(parsed(kernel, arguments), Target.parse("sm_90a"))[1]
    return next(stage for stage in stages if stage.name == "early_loads")


def order(func: Func) -> str:
    """The loads, stores, sums, waits and barriers of the first loop's body, in order."""
    loop = next(op for op in func.ops() if op.name in ("for", "while"))
    names = {"load": "load", "store": "store", "add": "sum", "while": "wait", "barrier": "barrier"}
    body: Block = loop.blocks[-1]
    return " ".join(
        names[op.name] for op in body.ops if op.name in names and (op.name != "add" or op.result.type.shape)
    )


def test_the_loads_between_two_waits_of_a_while_loop_stand_together():
    stage = early(sums_after_waits, waiting(3, 1024))
    assert order(stage.before) == "load sum wait barrier load sum load sum"
    assert order(stage.after) == "load sum wait barrier load load sum sum"
    assert [note.text for note in stage.notes] == [
        "machine code may take 64 registers per thread, so that more loads are in flight"
    ]
    assert stage.after.attrs["min_ctas"] == 8


def test_all_loads_of_a_while_loop_without_waits_stand_together():
    stage = early(sums_after_waits, waiting(3, 1024, waits=False))
    assert order(stage.before) == "load sum load sum load sum"
    assert order(stage.after) == "load load load sum sum sum"


def test_a_load_in_a_while_loop_stays_behind_a_store_to_its_array():
    stage = early(sums_after_waits, waiting(3, 2048, keeps=True))
    assert order(stage.after) == "load sum wait barrier load sum store load sum"


def test_the_loads_after_the_wait_of_a_for_loop_stand_together():
    stage = early(sums_in_a_for_loop, given(3, 1024))
    assert order(stage.before) == "wait load sum load sum"
    assert order(stage.after) == "wait load load sum sum"


@pytest.mark.parametrize(("block", "moves"), [(512, False), (1024, True), (4096, True), (8192, False)])
def test_few_and_too_many_loads_of_a_while_loop_stay(block, moves):
    """The loads between waits take 8, 16, 64 or 128 registers per thread."""
    after = order(early(sums_after_waits, waiting(3, block)).after)
    assert after == "load sum wait barrier " + ("load load sum sum" if moves else "load sum load sum")


def test_a_while_loop_that_computes_exponentials_stays():
    stage = early(exponentials, without_flags(3, 1024))
    assert stage.after is stage.before


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("keeps", [False, True])
def test_each_pass_keeps_the_results_of_a_while_loop(n, keeps):
    """With n = 0 the condition is false at once, and no load runs."""
    arguments = waiting(n, 1024, keeps=keeps)
    func = parsed(sums_after_waits, arguments)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


@pytest.mark.parametrize("n", [0, 3])
def test_each_pass_keeps_the_results_of_a_for_loop_with_waits(n):
    arguments = given(n, 1024)
    func = parsed(sums_in_a_for_loop, arguments)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


def test_no_load_of_a_while_loop_runs_before_its_condition():
    """The arrays are empty where the condition is false at once: the simulator refuses each access outside of them."""
    arguments = waiting(0, 1024) | {"x": np.zeros(0, np.float32), "y": np.zeros(0, np.float32)}
    func, _ = Case("sums_after_waits", sums_after_waits, dict, dict).lower(arguments, "sm_90a", num_warps=4)
    assert func.attrs["min_ctas"]
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, arguments), [1])
    assert (arguments["out"] == 0).all()


@pytest.mark.parametrize("keeps", [False, True])
def test_the_gpu_code_of_a_while_loop_is_right(keeps):
    arguments = waiting(3, 1024, keeps=keeps)
    x, y = arguments["x"].copy(), arguments["y"].copy()
    func, _ = Case("sums_after_waits", sums_after_waits, dict, dict).lower(arguments, "sm_90a", num_warps=4)
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, arguments), [1])
    total = np.zeros(1024, np.float32)
    for row in (2, 1, 0):
        total = np.abs(total + x[row]) + y[row]
        total = total * 2 + (total if keeps else x[row])
    assert (arguments["out"] == total).all()
