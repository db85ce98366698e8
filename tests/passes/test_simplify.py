"""The pass `simplify`: constant folding, common subexpressions, loop-invariant code motion, and what must stay unchanged."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from frontend_helpers import ir, kernel
from short_kernels import counts, passed, report, same, texts

import blocknb.language as bl
from blocknb.ir import interp
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Value
from blocknb.ir.reader import parse_func
from blocknb.ir.text import print_func
from blocknb.language import types as t
from blocknb.language.types import Tile
from blocknb.passes import run
from blocknb.target import Target


@kernel
def masked_row(x, y, n, B: bl.constexpr, W: bl.constexpr):
    """An unrolled-by-hand sum of rows whose first mask is always true."""
    row = bl.program_id(0)
    at = bl.arange(0, B)
    total = bl.zeros((B,), bl.float32)
    for i in range(n):
        total += bl.load(x + (row * n + i) * B + at, mask=at < W, other=0.0) * (2.0 * 0.5)
        total += bl.load(x + (row * n + i) * B + at, mask=at * 2 < B, other=0.0) / 4.0
    bl.store(y + row * B + at, total, mask=at < B)


def test_mask_that_is_always_true_is_removed_with_a_note_at_its_line(golden):
    before, after, notes = same(masked_row, "simplify", x="*f32", y="*f32", n="i32", B=64, W=64, scalars=(5,))
    found = [n for n in notes if n.text == "the mask is always true: removed"]
    assert len(found) == 2 and all(n.loc is not None for n in found)
    masks = [len(op.args) for op in after.ops() if op.name in ("load", "store")]
    assert masks == [1, 2, 2]  # the second load keeps its mask (and loses `other`, which zero is anyway)
    golden("simplify/masked_row.ir", report(before, after, "simplify", notes))


def test_loop_invariant_values_are_computed_before_the_loop():
    _, after, notes = same(masked_row, "simplify", x="*f32", y="*f32", n="i32", B=64, W=64, scalars=(5,))
    (loop,) = (op for op in after.ops() if op.name == "for")
    inside = counts(Func("body", (), loop.blocks[0]))
    assert inside["cmp"] == inside["const"] == inside["arange"] == 0
    assert any(text.startswith("moved out of the loop") for text in texts(notes))


@kernel
def grid_of_products(x, y, n, B: bl.constexpr):
    rows, columns = bl.program_id(0) * B + bl.arange(0, B), bl.arange(0, B)
    a = bl.load(x + rows[:, None] * n + columns[None, :], mask=(rows[:, None] < n) & (columns[None, :] < n))
    bl.store(y + rows[:, None] * n + columns[None, :], a * 3, mask=(rows[:, None] < n) & (columns[None, :] < n))


def test_repeated_addresses_and_masks_are_computed_once(golden):
    before, after, notes = same(grid_of_products, "simplify", x="*i32", y="*i32", n="i32", B=16, scalars=(20,))
    assert (counts(before)["cmp"], counts(after)["cmp"]) == (4, 2)
    assert (counts(before)["mul"], counts(after)["mul"]) == (4, 3)
    assert all(len(op.result.type.shape) == 1 for op in after.ops() if op.name == "cmp")
    golden("simplify/grid_of_products.ir", report(before, after, "simplify", notes))


@kernel
def branches(x, y, n, FIRST: bl.constexpr):
    at = bl.arange(0, 16)
    v = bl.load(x + at)
    if bl.program_id(0) < 0:
        v = v * 0
    for i in range(0):
        v = v + i
    if n > 3:
        if n > 3:
            v = v + 1
    bl.store(y + at, v)


def test_branches_and_loops_with_constant_conditions_are_removed():
    _, after, notes = same(branches, "simplify", x="*i32", y="*i32", n="i32", FIRST=1, scalars=(4,))
    assert (counts(after)["if"], counts(after)["for"]) == (2, 0)
    assert {"the condition is always false: one arm stays", "the loop never runs: removed"} <= set(texts(notes))


@kernel
def product_then_sum(a, b, c):
    i = bl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    total = bl.load(c + at)
    for k in range(3):
        total += bl.dot(bl.load(a + at), bl.load(b + at), input_precision="ieee")
    bl.store(c + at, total)


def test_addition_to_a_product_moves_into_its_accumulator():
    before, after, notes = same(product_then_sum, "simplify", a="*f32", b="*f32", c="*f32", grid=1)
    assert (counts(before)["add"] - counts(after)["add"]) >= 1
    (dot,) = (op for op in after.ops() if op.name == "dot")
    assert dot.args[2] is next(op for op in after.ops() if op.name == "for").blocks[0].args[1]
    assert any("accumulator" in text for text in texts(notes))


@kernel
def carries_the_same(x, y, n):
    at, zero = bl.arange(0, 32), bl.zeros((32,), bl.float32)
    base, unused, total = x, zero, zero
    for i in range(n):
        total = total + bl.load(base + at + i)
        unused = unused + total
        base = base
    bl.store(y + at, total)


def test_unchanged_and_unused_loop_carried_values_are_removed():
    _, after, _ = same(carries_the_same, "simplify", x="*f32", y="*f32", n="i32", scalars=(7,))
    (loop,) = (op for op in after.ops() if op.name == "for")
    assert len(loop.results) == 1


@kernel
def fibonacci(y, n):
    a, b, c = 0, 1, 5
    for _ in range(n):
        a, b, c = b, a + b, c + a
    bl.store(y + bl.program_id(0), a)


def test_loop_carried_value_used_by_another_one_stays():
    _, after, _ = same(fibonacci, "simplify", y="*i32", n="i32", scalars=(12,))
    (loop,) = (op for op in after.ops() if op.name == "for")
    assert len(loop.results) == 2


def arithmetic(dtype, emit, result=None):
    """A Func that stores emit(builder, x), of the dtype `result`, of a parameter x."""
    b, x, p = Builder("test"), Value(Tile(dtype), "x"), Value(Tile(t.Pointer(result or dtype)), "p")
    b.op("store", p, emit(b, x))
    return Func("f", (x, p), Block((), b.finish()))


def stored(dtype, emit):
    """The name of the op whose result is stored after simplify, or "x" for the parameter."""
    func = passed(arithmetic(dtype, emit), "simplify")[0]
    (store,) = (op for op in func.ops() if op.name == "store")
    makers = {r: op for op in func.ops() for r in op.results}
    return "x" if store.args[1] is func.params[0] else makers[store.args[1]].name


@pytest.mark.parametrize(
    ("name", "constant", "float_result", "integer_result"),
    [
        ("add", 0, "add", "x"),  # -0.0 + 0.0 is 0.0
        ("sub", 0, "x", "x"),
        ("mul", 1, "x", "x"),
        ("mul", 0, "mul", "const"),  # NaN, infinities and signs
        ("div", 1, "x", "x"),
        ("div", 4, "mul", "div"),
        ("div", 3, "div", "div"),
        ("rem", 1, "rem", "const"),
    ],
)
def test_algebraic_identities_are_exact(name, constant, float_result, integer_result):
    assert stored(t.float32, lambda b, x: b.value(name, x, b.const(float(constant), x.type))) == float_result
    assert stored(t.int32, lambda b, x: b.value(name, x, b.const(constant, x.type))) == integer_result


def test_minus_zero_is_the_neutral_element_of_float_addition():
    assert stored(t.float32, lambda b, x: b.value("add", x, b.const(-0.0, x.type))) == "x"
    assert stored(t.float32, lambda b, x: b.value("sub", x, b.const(-0.0, x.type))) == "sub"


@pytest.mark.parametrize(
    ("near", "far", "goes"),
    [
        (t.int32, t.int64, True),
        (t.int32, t.uint32, True),
        (t.int32, t.int8, False),
        (t.float16, t.float32, True),
        (t.float32, t.float16, False),
        (t.float32, t.int64, False),
        (t.int32, t.float32, False),
        (t.float16, t.bfloat16, False),
    ],
)
def test_lossless_round_trip_of_casts_is_removed(near, far, goes):
    there_and_back = stored(near, lambda b, x: b.value("cast", b.value("cast", x, dtype=far), dtype=near))
    assert there_and_back == ("x" if goes else "cast")


def bounds(b, x, limits, dtype, nan=()):
    """A cast of x to an fp8 dtype, after bounds: ("min", number) and ("max", number); those in `nan` pass NaNs on."""
    for name, limit in limits:
        x = b.value(name, x, b.const(limit, x.type), **({"nan": True} if name in nan else {}))
    return b.value("cast", x, dtype=dtype)


@pytest.mark.parametrize(
    ("limits", "nan", "stay"),
    [
        ([("max", -448.0), ("min", 448.0)], (), ["max"]),
        ([("min", 448.0), ("max", -448.0)], (), ["min"]),
        ([("max", -448.0), ("min", 448.0)], ("min", "max"), []),
        ([("max", -500.0), ("min", math.inf)], (), ["max"]),
        ([("max", -2.0), ("min", 448.0)], (), ["max"]),
        ([("max", -448.0), ("min", 447.0)], (), ["max", "min"]),
        ([("min", 448.0)], (), ["min"]),  # of a NaN it makes 448
        ([("max", math.nan), ("min", 448.0)], (), ["max", "min"]),
        ([("max", -448.0), ("min", 448.0)], ("max",), ["max", "min"]),
        ([("max", -448.0), ("min", 448.0)], ("min",), ["max"]),
    ],
)
def test_half_of_a_clamp_goes_where_a_cast_saturates(limits, nan, stay):
    before = arithmetic(t.float32, lambda b, x: bounds(b, x, limits, t.float8e4nv, nan), t.float8e4nv)
    after = passed(before, "simplify")[0]
    assert [op.name for op in after.ops() if op.name in ("min", "max")] == stay
    for number in (math.nan, math.inf, -math.inf, 448.0, 463.9, 464.0, 1e9, -448.0, -464.0, -1e9, -0.0, 447.9, 3.0):
        assert byte(before, number) == byte(after, number), number


def byte(func, number):
    """The fp8 that a Func of `arithmetic` stores for a number."""
    found = np.zeros(1, ml_dtypes.float8_e4m3fn)
    interp.run(func, [number, found], (1,))
    return found.view(np.uint8)[0]


def test_zeros_of_either_sign_and_booleans_that_equal_numbers_are_not_merged():
    func = parse_func("""
        func @f(%p: ptr<f32>) tile {
          %a = const 0.0 : f32
          %b = const -0.0 : f32
          store %p, %a
          store %p, %b
        }
    """)
    after, _ = passed(func, "simplify")
    assert counts(after)["const"] == 2


def test_loads_are_not_merged_across_a_store_and_volatile_loads_stay():
    func = parse_func("""
        func @f(%p: ptr<f32>) tile {
          %a = load %p : f32
          store %p, %a
          %b = load %p : f32
          store %p, %b
          %c = load %p {volatile=True} : f32
          %d = load %p : f32
        }
    """)
    after, _ = passed(func, "simplify")
    assert counts(after)["load"] == 3


def test_simplifying_twice_changes_nothing():
    _, after, _ = same(grid_of_products, "simplify", x="*i32", y="*i32", n="i32", B=16, scalars=(20,))
    assert passed(after, "simplify")[0] is after


def test_without_simplify_masks_are_computed_twice_per_element():
    """The pass changes this number: comparisons per program."""

    def comparisons(without=()):
        func, _ = run(ir(grid_of_products, x="*i32", y="*i32", n="i32", B=64), Target.parse("cpu:x86-64"), without)
        return sum(op.result.type.size for op in func.ops() if op.name == "cmp")

    assert comparisons() == 128
    assert comparisons(without={"simplify"}) == 256


def test_an_endless_loop_is_not_removed():
    @kernel
    def spin(p):
        while bl.load(p) == 0:
            pass

    after, _ = passed(ir(spin, p="*i32"), "simplify")
    assert counts(after)["while"] == 1
    assert "load" in print_func(after)


def test_folding_wraps_as_the_hardware_does():
    wrapped = arithmetic(t.int8, lambda b, x: b.value("add", b.const(100, Tile(t.int8)), b.const(100, Tile(t.int8))))
    after, _ = passed(wrapped, "simplify")
    assert next(op for op in after.ops() if op.name == "const").attrs["value"] == np.int8(-56)
