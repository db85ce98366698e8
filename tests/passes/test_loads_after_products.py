"""Early loads in code without loops: the loads after a product stand together, and the last one has a scheduling barrier."""

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
from blocknb.ir.core import Func
from blocknb.passes.tile import early_loads
from blocknb.target import Target
from blocknb.trace import Stage


@blocknb.kernel
def scaled_product(x, y, z, held, out, kept, R: tl.constexpr, K: tl.constexpr, W: tl.constexpr, SAME: tl.constexpr):
    """Loads y and z after a product, with a store between them: to z itself, or to another array. `held` is live throughout."""
    rows = tl.arange(0, R)
    square = rows[:, None] * R + rows[None, :]
    wide = rows[:, None] * W + tl.arange(0, W)[None, :]
    a = tl.load(x + rows[:, None] * K + tl.arange(0, K)[None, :])
    if W > 1:
        before = tl.load(held + wide)
    scaled = tl.dot(a, tl.trans(a), input_precision="ieee") * tl.load(y + square)
    tl.store((z if SAME else kept) + square, scaled)
    tl.store(out + square, scaled + tl.load(z + square))
    if W > 1:
        tl.store(held + wide, before + 1)


@blocknb.kernel(do_not_specialize=["n"])
def product_in_a_branch(x, y, z, out, n, R: tl.constexpr):
    rows = tl.arange(0, R)
    square = rows[:, None] * R + rows[None, :]
    a = tl.load(x + square)
    total = tl.dot(a, tl.trans(a), input_precision="ieee")
    if n > 0:
        total = total * 2 + tl.dot(total, total, input_precision="ieee")
        total = tl.abs(total * tl.load(y + square)) + tl.load(z + square)
    tl.store(out + square, total)


@blocknb.kernel
def copies_after_a_product(x, y, held, kept, out, WIDTHS: tl.constexpr, HELD: tl.constexpr):
    """Copies lines after a product; a thread of one warp loads WIDTHS registers of each. Before, HELD registers are live at once."""
    rows = tl.arange(0, 16)
    square = rows[:, None] * 16 + rows[None, :]
    if HELD > 0:
        more, most = tl.arange(0, 32 * (HELD - 128)), tl.arange(0, 32 * 128)
        first = tl.load(y + more)
        tl.store(held + most, tl.load(held + most) + 1)
        tl.store(held + more, first)
    a = tl.load(x + square)
    total = tl.dot(a, tl.trans(a), input_precision="ieee")
    for i in tl.static_range(len(WIDTHS)):
        at = tl.arange(0, 32 * WIDTHS[i])
        tl.store(kept + i * 2048 + at, tl.abs(tl.load(y + i * 2048 + at)))
    tl.store(out + square, total)


def numbers(*shape: int) -> np.ndarray:
    """Integers, whose products and sums fp32 holds exactly."""
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)


def given(rows: int, k: int = 16, width: int = 1, same: bool = False) -> dict:
    x, held = numbers(rows, k), numbers(rows, width)
    y, z, out, kept = (numbers(rows, rows) + i for i in range(4))
    return {"x": x, "y": y, "z": z, "held": held, "out": out, "kept": kept, "R": rows, "K": k, "W": width, "SAME": same}


def branching(rows: int, n: int) -> dict:
    return {**{name: numbers(rows, rows) + i for i, name in enumerate(("x", "y", "z", "out"))}, "n": n, "R": rows}


def copying(widths: tuple[int, ...], held: int = 0) -> dict:
    x, y, kept = numbers(16, 16), numbers(len(widths), 2048), numbers(len(widths), 2048)
    return {"x": x, "y": y, "held": numbers(4096), "kept": kept, "out": numbers(16, 16), "WIDTHS": widths, "HELD": held}


def moves_all(widths: tuple[int, ...], held: int = 0) -> bool:
    """Whether the loads after the product move; all of them, in one note."""
    stage = early(copies_after_a_product, copying(widths, held), 1)
    text = f"all loads after a product are in flight at once, in {sum(widths)} registers per thread"
    assert [note.text for note in stage.notes] in ([], [text])
    return bool(stage.notes)


def parsed(kernel, arguments: dict, warps: int) -> Func:
    return Case(kernel.__name__, kernel, dict, dict).parse(arguments, num_warps=warps)


def early(kernel, arguments: dict, warps: int) -> Stage:
    stages = passes.run(parsed(kernel, arguments, warps), Target.parse("sm_90a"))[1]
    return next(stage for stage in stages if stage.name == "early_loads")


def order(func: Func) -> list[str]:
    """The accesses and products in order: each with the name of its array, and `!` for a scheduling barrier."""
    roots = {param: param.name for param in func.params}
    found = []
    for op in func.ops():
        if op.name in ("splat", "ptradd", "broadcast", "expand_dims") and op.args[0] in roots:
            roots[op.result] = roots[op.args[0]]
        if op.name in ("load", "store"):
            found.append(("=" if op.name == "store" else "") + roots[op.args[0]])
            found[-1] += "!" if op.attrs.get("scheduling_barrier") == "straight" else ""
        if op.name == "dot":
            found.append("dot")
    return found


@pytest.mark.parametrize(
    ("rows", "warps", "expected"),
    [
        (32, 1, "x dot y z! =kept =out"),  # 64 registers
        (32, 2, "x dot y z! =kept =out"),  # 32 registers
        (32, 4, "x y z! dot =kept =out"),  # 16 registers: they are in flight during the product
        (16, 2, "x y z! dot =kept =out"),  # 8 registers: two vectors
        (16, 4, "x dot y =kept z =out"),  # 4 registers: too few
        (128, 4, "x dot y =kept z =out"),  # 256 registers: too many
    ],
)
def test_loads_after_a_product_are_issued_together(rows, warps, expected):
    stage = early(scaled_product, given(rows), warps)
    assert order(stage.before) == "x dot y =kept z =out".split()
    assert order(stage.after) == expected.split()
    assert len(stage.notes) == ("!" in expected)
    assert (stage.after is stage.before) is ("!" not in expected)


@pytest.mark.parametrize(
    ("rows", "warps", "expected"),
    [(32, 1, "x dot y! =z z =out"), (32, 2, "x y! dot =z z =out"), (16, 2, "x dot y =z z =out")],
)
def test_a_load_stays_behind_a_store_to_its_array(rows, warps, expected):
    assert order(early(scaled_product, given(rows, same=True), warps).after) == expected.split()


@pytest.mark.parametrize(("width", "moves"), [(1, True), (32, True), (64, False), (128, False)])
def test_loads_stay_where_live_tiles_leave_no_room(width, moves):
    """The product and both loads take 96 registers per thread, the tile that is live throughout `width`: at most 128 are shared."""
    stage = early(scaled_product, given(32, width=width), 1)
    assert (order(stage.after) != order(stage.before)) is moves
    assert len(stage.notes) == moves
    assert moves or stage.after is stage.before


def test_at_most_96_registers_are_loaded_at_once_after_a_product(monkeypatch):
    """The product takes 8 registers more, so 112 of the 128 that CTAs share would be live: only this limit decides."""
    assert moves_all((32, 32, 32)) and not moves_all((32, 32, 32, 8))
    monkeypatch.setattr(early_loads, "MOST_BETWEEN", 104)
    assert moves_all((32, 32, 32, 8))


@pytest.mark.parametrize(("held", "fit", "most"), [(136, (32, 32, 32), ()), (144, (32, 32, 16, 8), (32, 32, 32))])
def test_the_loads_after_a_product_take_the_registers_that_live_tiles_leave(held, fit, most, monkeypatch):
    """256 less 24 for addresses, less the most that is live at once; it is live elsewhere, so the loads add nothing to it."""
    assert moves_all(fit, held)
    if most:
        assert not moves_all(most, held)
        monkeypatch.setattr(early_loads, "ROOM", 16)
        assert moves_all(most, held)


@pytest.mark.parametrize("held", [0, 144])
def test_each_pass_keeps_the_results_of_copies_after_a_product(held):
    arguments = copying((32, 32, 16, 8), held)
    func = parsed(copies_after_a_product, arguments, 1)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


@pytest.mark.parametrize(("rows", "warps", "moves"), [(32, 2, True), (16, 1, True), (16, 2, True), (16, 4, False)])
def test_loads_in_a_branch_move_within_it_and_a_function_without_them_is_unchanged(rows, warps, moves):
    stage = early(product_in_a_branch, branching(rows, 1), warps)
    assert any(op.name == "if" for op in stage.before.ops())
    assert (stage.after is not stage.before) is moves
    (branch,) = (op for op in stage.after.ops() if op.name == "if")
    inside = [op for op in branch.blocks[0].ops if op.name == "load"]
    assert [op.attrs.get("scheduling_barrier") for op in inside] == [None, "straight" if moves else None]


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("warps", [1, 4])
def test_each_pass_keeps_the_results(same, warps):
    arguments = given(32, same=same)
    func = parsed(scaled_product, arguments, warps)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


@pytest.mark.parametrize("n", [0, 1])
def test_each_pass_keeps_the_results_of_a_branch(n):
    arguments = branching(16, n)
    func = parsed(product_in_a_branch, arguments, 1)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")


@pytest.mark.parametrize("same", [False, True])
def test_the_gpu_code_is_right(same):
    arguments = given(32, same=same)
    x, y, z = (arguments[name].copy() for name in ("x", "y", "z"))
    func, _ = Case("scaled_product", scaled_product, dict, dict).lower(arguments, "sm_90a", num_warps=2)
    assert any(op.attrs.get("scheduling_barrier") == "straight" for op in func.ops())
    module = gpu.generate(func, Target.parse("sm_90a"))
    simt.run(module, parameters(func, arguments), [1])
    scaled = x @ x.T * y
    assert (arguments["z" if same else "kept"] == scaled).all()
    assert (arguments["out"] == scaled + (scaled if same else z)).all()
