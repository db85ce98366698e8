"""Early loads in `while` loops, and in loops that wait for other programs: the loads between two waits stand together."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.test_register_prefetch_code import loops
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
def sums_around_a_branch(x, y, flags, out, n, B: tl.constexpr):
    """Between the loads, every second iteration acquires a flag in a branch."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    left = n
    while left > 0:
        left -= 1
        total = tl.abs(total) + tl.load(y + left * B + at)
        if left % 2 == 0:
            tl.store(out, tl.atomic_add(flags + left, 1, sem="acquire").to(tl.float32))
        total = total * 2 + tl.load(x + left * B + at)
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


@blocknb.kernel(do_not_specialize=["n"])
def sums_beside_a_tile(x, y, held, out, n, B: tl.constexpr, H: tl.constexpr):
    """As `sums_after_waits` without waits. A tile of H elements is live throughout the loop."""
    at, wide = tl.arange(0, B), tl.arange(0, H)
    kept = tl.load(held + wide)
    total = tl.zeros((B,), tl.float32)
    left = n
    while left > 0:
        left -= 1
        total = tl.abs(total) + tl.load(y + left * B + at)
        total = total * 2 + tl.load(x + left * B + at)
    tl.store(out + at, total)
    tl.store(held + wide, kept + 1)


@blocknb.kernel(do_not_specialize=["n"])
def products_in_a_while_loop(x, y, out, n, R: tl.constexpr):
    rows = tl.arange(0, R)
    square = rows[:, None] * R + rows[None, :]
    total = tl.zeros((R, R), tl.float32)
    left = n
    while left > 0:
        left -= 1
        total = tl.dot(tl.load(x + left * R * R + square), total, input_precision="ieee")
        total = tl.abs(total + tl.load(y + left * R * R + square)) + tl.load(x + left * R * R + square)
    tl.store(out + square, total)


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


def test_no_load_of_a_while_loop_passes_a_branch_that_acquires():
    stage = early(sums_around_a_branch, given(3, 4096))
    assert order(stage.before) == order(stage.after) == "load sum load sum"
    assert len(stage.notes) == 2  # the vectors of each load


def test_the_loads_after_the_wait_of_a_for_loop_stand_together():
    stage = early(sums_in_a_for_loop, given(3, 1024))
    assert order(stage.before) == "wait load sum load sum"
    assert order(stage.after) == "wait load load sum sum"


@pytest.mark.parametrize(("block", "moves"), [(512, False), (1024, True), (4096, True), (8192, False)])
def test_few_and_too_many_loads_of_a_while_loop_stay(block, moves):
    """The loads between waits take 8, 16, 64 or 128 registers per thread."""
    after = order(early(sums_after_waits, waiting(3, block)).after)
    assert after == "load sum wait barrier " + ("load load sum sum" if moves else "load sum load sum")


@pytest.mark.parametrize(("held", "moves"), [(8192, True), (16384, False)])
def test_the_loads_of_a_while_loop_take_the_registers_that_live_tiles_leave(held, moves):
    """The loads take 64 registers per thread; the sum, a load and the tile take 128 or 192, and addresses 24."""
    arguments = without_flags(3, 4096) | {"held": np.zeros(held, np.float32), "H": held}
    assert order(early(sums_beside_a_tile, arguments).after) == ("load load sum sum" if moves else "load sum load sum")


def test_a_while_loop_with_products_stays():
    x, y, out = (np.ones(shape, np.float32) for shape in ((3, 32, 32), (3, 32, 32), (32, 32)))
    stage = early(products_in_a_while_loop, {"x": x, "y": y, "out": out, "n": 3, "R": 32})
    assert stage.after is stage.before


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
    module = gpu.generate(func, Target.parse("sm_90a"))
    simt.run(module, parameters(func, arguments), [1])
    assert (arguments["out"] == 0).all()
    with pytest.raises(ValueError, match="outside the arrays"):  # with one iteration the loads run
        simt.run(module, parameters(func, arguments | {"n": 1}), [1])


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


def arithmetic_between_loads(without: tuple[str, ...]) -> int:
    """The additions and multiplications of machine code between the loads that follow the last barrier of the loop."""
    arguments = {"x": "*fp32:16", "y": "*fp32:16", "flags": "*i32:16", "out": "*fp32:16", "n": "i32"}
    given = {"B": 4096, "WAITS": True, "KEEPS": False, "num_warps": 4, "target": "sm_90a", "without": without}
    trace = sums_after_waits.trace(**arguments, **given)
    assert trace.resources.spill_bytes == 0
    codes = max(loops(trace), key=len)
    codes = codes[len(codes) - codes[::-1].index("BAR") :]
    loads = [i for i, code in enumerate(codes) if code == "LDG"]
    assert len(loads) == 16
    return sum(code in ("FADD", "FFMA", "FMUL") for code in codes[loads[0] : loads[-1]])


def test_machine_code_issues_the_loads_after_a_wait_before_their_sums():
    assert arithmetic_between_loads(()) == 0
    assert arithmetic_between_loads(("early_loads",)) > 8
