"""Early loads: the loads of an iteration stand before its arithmetic, and the last one has a scheduling barrier."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from kernels.base import Case, parameters
from register_prefetch_helpers import floats
from short_kernels import report
from support import check_pipeline

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.ir.build import rebuild, revised
from blocknb.ir.core import Func
from blocknb.passes.tile.early_loads import early_loads
from blocknb.target import Target
from blocknb.trace import Notes, Stage


@blocknb.kernel(do_not_specialize=["m"])
def two_sums(x, y, out, m, B: tl.constexpr):
    at = tl.arange(0, B)
    first = tl.zeros((B,), tl.float32)
    second = tl.zeros((B,), tl.float32)
    for row in range(m):
        first += tl.load(x + row * B + at)
        second += tl.load(y + row * B + at)
    tl.store(out + at, first)
    tl.store(out + B + at, second)


@blocknb.kernel(do_not_specialize=["m"])
def gathered_sums(index, x, out, m, B: tl.constexpr):
    """Whose addresses are loaded in the iteration."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for row in range(m):
        total += tl.load(x + tl.load(index + row * B + at))
    tl.store(out + at, total)


def stages_of(kernel, arguments, without=(), **options) -> dict[str, Stage]:
    func = Case(kernel.__name__, kernel, dict, dict).parse(arguments, **({"num_warps": 4} | options))
    return {stage.name: stage for stage in passes.run(func, Target.parse("sm_90a"), without)[1]}


def loop_of(func: Func) -> list[str]:
    (loop,) = (op for op in func.ops() if op.name == "for")
    return [op.name for op in loop.blocks[0].ops]


def before_the_last_load(names: list[str]) -> int:
    """The additions that stand before the last load."""
    last = len(names) - 1 - names[::-1].index("load")
    return names[:last].count("add") - names[: names.index("load")].count("add")


@pytest.mark.parametrize("m", [0, 1, 3])
def test_the_loads_of_an_iteration_stand_together_and_results_stay(m):
    arguments = {"x": floats(max(m, 1), 2048), "y": floats(max(m, 1), 2048), "out": floats(2, 2048), "m": m, "B": 2048}
    func = Case("two_sums", two_sums, dict, dict).parse(arguments, num_warps=4)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


def test_without_the_pass_a_sum_stands_between_the_loads(golden):
    arguments = {"x": floats(3, 2048), "y": floats(3, 2048), "out": floats(2, 2048), "m": 3, "B": 2048}
    stage = stages_of(two_sums, arguments)["early_loads"]
    golden("early_loads/two_sums.ir", report(stage.before, stage.after, "early_loads", list(stage.notes)))
    assert before_the_last_load(loop_of(stage.after)) == 0
    off = stages_of(two_sums, arguments, {"early_loads"})["early_loads"]
    assert off.skipped and before_the_last_load(loop_of(off.after)) == 1


def test_a_load_whose_elements_have_loaded_indices_of_their_own_stays():
    index = seeds.rng().integers(0, 2048, (3, 2048)).astype(np.int32)
    arguments = {"index": index, "x": floats(2048), "out": floats(2048), "m": 3, "B": 2048}
    stage = stages_of(gathered_sums, arguments)["early_loads"]
    (note,) = stage.notes
    assert note.text == "all loads of an iteration are in flight at once, in 16 registers per thread"
    (loop,) = (op for op in stage.after.ops() if op.name == "for")
    index, values = (op for op in loop.blocks[0].ops if op.name == "load")
    assert index.attrs["scheduling_barrier"] and "scheduling_barrier" not in values.attrs


@blocknb.kernel(do_not_specialize=["m"])
def sums_of_chosen_rows(index, x, y, out, m, B: tl.constexpr, KEEPS: tl.constexpr):
    """Whose rows are chosen by an index that the iteration loads; `KEEPS` stores to the index, or to x."""
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(m):
        if KEEPS == "index":
            tl.store(index + i, i)
        row = tl.load(index + i)
        total = tl.abs(total) + tl.load(y + row * B + at)
        if KEEPS == "x":
            tl.store(x + row * B + at, total)
        total = total * 2 + tl.load(x + row * B + at)
    tl.store(out + at, total)


def chosen(m: int, keeps: str = "", block: int = 1024) -> dict:
    random = np.random.default_rng(0)
    x, y = random.integers(-3, 4, (2, 8, block)).astype(np.float32)
    index = random.integers(0, 8, max(m, 1)).astype(np.int32)
    return {"index": index, "x": x, "y": y, "out": floats(block), "m": m, "B": block, "KEEPS": keeps}


def test_rows_that_a_loaded_index_chooses_are_loaded_together_after_it():
    stage = stages_of(sums_of_chosen_rows, chosen(3))["early_loads"]
    (note,) = stage.notes
    assert note.text == "all loads of an iteration are in flight at once, in 16 registers per thread"
    loads = [
        (bool(op.result.type.shape), op.attrs.get("scheduling_barrier"))
        for op in stage.after.ops()
        if op.name == "load"
    ]
    assert loads == [(False, None), (True, None), (True, True)]
    assert before_the_last_load(loop_of(stage.before)) == 1 and before_the_last_load(loop_of(stage.after)) == 0


@pytest.mark.parametrize("keeps", ["index", "x"])
def test_rows_stay_behind_a_store_to_their_array_or_to_their_index(keeps):
    stage = stages_of(sums_of_chosen_rows, chosen(3, keeps))["early_loads"]
    assert before_the_last_load(loop_of(stage.after)) == 1


@pytest.mark.parametrize("m", [0, 3])
@pytest.mark.parametrize("keeps", ["", "index", "x"])
def test_chosen_rows_keep_their_sums(keeps, m):
    arguments = chosen(m, keeps)
    func = Case("sums_of_chosen_rows", sums_of_chosen_rows, dict, dict).parse(arguments, num_warps=4)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


@pytest.mark.parametrize(("block", "why"), [(256, "few registers"), (16384, "too many")])
def test_loads_that_need_few_or_too_many_registers_stay(block, why):
    arguments = {"x": floats(3, block), "y": floats(3, block), "out": floats(2, block), "m": 3, "B": block}
    stage = stages_of(two_sums, arguments)["early_loads"]
    assert stage.after is stage.before, why


@blocknb.kernel(do_not_specialize=["m", "n"])
def products_in_branches(x, g, out, m, n, R: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, R)[:, None] * B + tl.arange(0, B)[None, :]
    total = tl.zeros((R, R), tl.float32)
    for step in range(m):
        if step < n:
            left = tl.load(x + step * R * B + at) + 1
            right = tl.load(g + step * R * B + at) * 2
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
            if step + 1 < n:
                other = tl.load(g + (step + 1) * R * B + at) - 1
                more = tl.load(x + (step + 1) * R * B + at) * 3
                total = tl.dot(other, tl.trans(more), total, input_precision="ieee")
    tl.store(out + tl.arange(0, R)[:, None] * R + tl.arange(0, R)[None, :], total)


def branching(m: int, n: int, block: int, rows: int = 16) -> dict:
    return {
        "x": floats(max(m, 1) * rows, block),
        "g": floats(max(m, 1) * rows, block),
        "out": floats(rows, rows),
        "m": m,
        "n": n,
        "R": rows,
        "B": block,
    }


@pytest.mark.parametrize(("m", "n"), [(0, 1), (2, 0), (3, 2)])
def test_loads_in_branches_of_a_loop_with_products_keep_their_results(m, n):
    func = Case("products_in_branches", products_in_branches, dict, dict).parse(branching(m, n, 32), num_warps=1)
    check_pipeline(func, parameters(func, branching(m, n, 32)), 1, "sm_90a")


def test_each_branch_of_a_loop_with_products_issues_its_loads_together():
    stage = stages_of(products_in_branches, branching(3, 2, 32), num_warps=1)["early_loads"]
    why = "all loads of a branch are in flight at once, in 32 registers per thread"
    assert [note.text for note in stage.notes] == [why] * 2
    loads = [op.attrs.get("scheduling_barrier") for op in stage.after.ops() if op.name == "load"]
    assert loads == [None, "clock", None, "clock"]


def test_branches_with_too_many_loads_stay():
    stage = stages_of(products_in_branches, branching(3, 2, 128), num_warps=1)["early_loads"]
    assert stage.after is stage.before


@pytest.mark.parametrize(("rows", "warps", "moved"), [(64, 1, 2), (128, 2, 0)])
def test_a_branch_gets_the_registers_that_the_accumulators_leave(rows, warps, moved):
    """The loads take 64 registers per thread in both cases, the accumulators 128 or 256."""
    stage = stages_of(products_in_branches, branching(3, 2, 16, rows), num_warps=warps)["early_loads"]
    assert sum("in 64 registers per thread" in note.text for note in stage.notes) == moved


def test_a_branch_with_a_scheduling_barrier_gets_no_second_one():
    before = stages_of(products_in_branches, branching(3, 2, 32), num_warps=1)["early_loads"].before
    outer = next(op for op in before.ops() if op.name == "if")
    first = next(op for op in outer.blocks[0].ops if op.name == "load")

    def visit(op, rebuild):
        return (
            rebuild.keep(revised(op, attrs={**op.attrs, "scheduling_barrier": True})).results
            if op is first
            else NotImplemented
        )

    after = early_loads(rebuild(before, visit), Target.parse("sm_90a"), Notes("early_loads"))
    loads = [op.attrs.get("scheduling_barrier") for op in after.ops() if op.name == "load"]
    assert loads == [True, None, None, "clock"]


# -- a budget of registers


@blocknb.kernel(do_not_specialize=["m"])
def running_variance(x, mean, variance, m, B: tl.constexpr):
    """Welford's update, whose divisions stand between the two vectors of an iteration if registers are saved."""
    at = tl.arange(0, B)
    average = tl.zeros((B,), tl.float32)
    squares = tl.zeros((B,), tl.float32)
    weight = tl.zeros((B,), tl.float32)
    for row in range(m):
        value = tl.load(x + row * B + at)
        delta = value - average
        weight += 1.0
        average += delta / weight
        squares += delta * (value - average)
    tl.store(mean + at, average)
    tl.store(variance + at, squares / weight)


def varying(m: int, block: int) -> dict:
    return {"x": floats(m, block), "mean": floats(block), "variance": floats(block), "m": m, "B": block}


def test_two_vectors_of_a_tile_get_a_budget_of_registers():
    stage = stages_of(running_variance, varying(3, 1024))["early_loads"]
    assert "min_ctas" not in stage.before.attrs
    assert 1 <= stage.after.attrs["min_ctas"] * 128 <= 1024
    (note,) = stage.notes
    assert note.text.startswith("machine code may take ")
    check_pipeline(stage.before, parameters(stage.before, varying(3, 1024)), 1, "sm_90a")


@pytest.mark.parametrize("block", [512, 2048])
def test_one_vector_gets_no_budget_and_four_get_a_barrier(block):
    stage = stages_of(running_variance, varying(3, block))["early_loads"]
    assert "min_ctas" not in stage.after.attrs
    (load,) = (op for op in stage.after.ops() if op.name == "load")
    assert load.attrs.get("scheduling_barrier", False) is (block == 2048)


def test_two_tiles_of_one_vector_get_no_budget():
    """They are used together, so they are in flight together without one."""
    arguments = {"x": floats(3, 512), "y": floats(3, 512), "out": floats(2, 512), "m": 3, "B": 512}
    stage = stages_of(two_sums, arguments)["early_loads"]
    assert stage.after is stage.before


@blocknb.kernel
def sums_of_rows(x, out, ROWS: tl.constexpr, B: tl.constexpr):
    rows = tl.arange(0, ROWS)
    value = tl.load(x + rows[:, None] * B + tl.arange(0, B)[None, :])
    tl.store(out + rows, tl.sum(tl.abs(value), axis=1))


@pytest.mark.parametrize(("warps", "budget"), [(1, False), (4, True), (16, False)])
def test_a_large_tile_that_is_only_reduced_gets_a_budget_of_registers(warps, budget):
    """One warp has the registers without it, and 16 warps take fewer than eight vectors each."""
    rows = 16 * warps if warps < 16 else 64
    arguments = {"x": floats(rows, 128), "out": floats(rows), "ROWS": rows, "B": 128}
    stage = stages_of(sums_of_rows, arguments, num_warps=warps)["early_loads"]
    assert ("min_ctas" in stage.after.attrs) is budget


@blocknb.kernel(do_not_specialize=["m"])
def divergences(x, y, out, m, B: tl.constexpr, STORES: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for row in range(m):
        a, b = tl.load(x + row * B + at), tl.load(y + row * B + at)
        value = tl.exp(a) * b - tl.exp(b) * a
        if STORES:
            tl.store(out + row * B + at, value)
        else:
            total += value
    if not STORES:
        tl.store(out + at, total)


@pytest.mark.parametrize("stores", [False, True])
def test_exponentials_that_a_loop_stores_get_no_budget(stores):
    """Their results take registers, too. With a budget, fewer warps would compute the exponentials."""
    arguments = {
        "x": floats(2, 4096),
        "y": floats(2, 4096),
        "out": floats(2, 4096),
        "m": 2,
        "B": 4096,
        "STORES": stores,
    }
    stage = stages_of(divergences, arguments)["early_loads"]
    assert ("min_ctas" in stage.after.attrs) is not stores
    assert (stage.after is stage.before) is stores


@blocknb.kernel
def scaled_row(x, w, out, ROWS: tl.constexpr, B: tl.constexpr, EARLY: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * B + tl.arange(0, B)[None, :]
    row = tl.load(x + at)
    if EARLY:
        factor = tl.load(w + tl.arange(0, B))
    scale = 1.0 / tl.sum(row * row, axis=1)
    if not EARLY:
        factor = tl.load(w + tl.arange(0, B))
    tl.store(out + at, row * scale[:, None] * factor[None, :])


@pytest.mark.parametrize(
    ("options", "barriers"),
    [
        ({}, 1),
        ({"EARLY": False}, 0),  # no load stands before the reduction for later
        ({"B": 4096}, 0),  # 32 registers per thread for later are too many
        ({"ROWS": 4, "B": 256}, 0),  # a reduction to several numbers may stay in a warp
    ],
    ids=str,
)
def test_loads_before_the_barrier_of_a_reduction_stay_before_it(options, barriers):
    size = {"ROWS": 1, "B": 1024, "EARLY": True} | options
    arguments = {"x": floats(size["ROWS"], size["B"]), "w": floats(size["B"]), "out": floats(size["ROWS"], size["B"])}
    stage = stages_of(scaled_row, arguments | size)["early_loads"]
    found = [op for op in stage.after.ops() if op.attrs.get("scheduling_barrier")]
    assert len(found) == barriers
    assert all(op.name == "load" for op in found)
    func = Case(scaled_row.__name__, scaled_row, dict, dict).parse(arguments | size, num_warps=4)
    check_pipeline(func, parameters(func, arguments | size), (1,))
