"""Float ranges: proved bounds of floats, and which of them no result depends on."""

from __future__ import annotations

import math

import pytest
from frontend_helpers import ir, kernel

import blocknb.language as bl
from blocknb.analysis import affine
from blocknb.analysis.float_ranges import FloatRanges
from blocknb.ir.core import uses
from blocknb.passes.tile.range_based_float_simplification import range_based_float_simplification
from blocknb.target import Target
from blocknb.trace import Notes


def changed(k, **arguments) -> dict[str, int]:
    """How many divisions and exponentials of a kernel the pass `range_based_float_simplification` makes cheaper."""
    func = ir(k, **arguments)
    after = range_based_float_simplification(func, Target.parse("sm_90a"), Notes("range_based_float_simplification"))
    ops = list(after.ops())
    assert len(ops) == len(list(func.ops()))
    return {name: sum(bool(op.attrs.get(name)) for op in ops) for name in ("normal", "flush_denormals")}


def bounds(k, name: str, **arguments) -> tuple[float, float]:
    func = ir(k, **arguments)
    (value,) = (r for op in func.ops() for r in op.results if r.name == name)
    return FloatRanges(affine.analyze(func), uses(func)).bounds(value)


@kernel
def softmax(x, y, n, B: bl.constexpr):
    at = bl.arange(0, B)
    row = bl.load(x + at, mask=at < n, other=-float("inf")).to(bl.float32)
    powers = bl.exp(row - bl.max(row, axis=0))
    total = bl.sum(powers, axis=0)
    bl.store(y + at, powers / total, mask=at < n)


@kernel
def softmax_of_rows(x, y, n, R: bl.constexpr, B: bl.constexpr):
    at = bl.arange(0, R)[:, None] * n + bl.arange(0, B)[None, :]
    rows = bl.load(x + at)
    powers = bl.exp2((rows - bl.max(rows, axis=1)[:, None]) * 1.5)
    total = bl.sum(powers, axis=1)
    bl.store(y + at, powers / total[:, None])


def test_softmax_denominator_lies_between_one_and_the_row_length():
    assert bounds(softmax, "total", x="*f16", y="*f16", n="i32", B=256) == (1.0, 256.0)
    assert bounds(softmax, "powers", x="*f16", y="*f16", n="i32", B=256) == (0.0, 1.0)
    assert bounds(softmax_of_rows, "total", x="*f32", y="*f32", n="i32", R=4, B=64) == (1.0, 64.0)


def test_ops_with_several_results_have_unknown_ranges():
    @kernel
    def most_likely(x, y, best, B: bl.constexpr):
        at = bl.arange(0, B)
        row = bl.load(x + at)
        powers = bl.exp(row - bl.max(row, axis=0))
        value, place = bl.max(powers / bl.sum(powers, axis=0), axis=0, return_indices=True)
        bl.store(y, value)
        bl.store(best, place)

    assert changed(most_likely, x="*f32", y="*f16", best="*i32", B=64) == {"normal": 1, "flush_denormals": 0}


@pytest.mark.parametrize(("out", "flush"), [("*f16", 1), ("*bf16", 0), ("*f32", 0)])
def test_subnormal_exponentials_are_kept_if_the_stored_dtype_represents_them(out, flush):
    assert changed(softmax, x="*f16", y=out, n="i32", B=256) == {"normal": 1, "flush_denormals": flush}
    assert changed(softmax_of_rows, x="*f32", y=out, n="i32", R=4, B=64) == {
        "normal": 1,
        "flush_denormals": 1,
    }  # exp2 has none


@kernel
def masked_later(x, y, n, B: bl.constexpr):
    at = bl.arange(0, B)
    row = bl.load(x + at)
    powers = bl.where(at < n, bl.exp(row - bl.max(row, axis=0)), 0.0)
    bl.store(y + at, powers / bl.sum(powers, axis=0))


@kernel
def other_axis(x, y, R: bl.constexpr, B: bl.constexpr):
    at = bl.arange(0, R)[:, None] * B + bl.arange(0, B)[None, :]
    rows = bl.load(x + at)
    powers = bl.exp(rows - bl.max(rows, axis=0)[None, :])
    bl.store(y + at, powers / bl.sum(powers, axis=1)[:, None])


@kernel
def square(x, y, B: bl.constexpr):
    """The maxima of the rows are subtracted from the columns."""
    at = bl.arange(0, B)[:, None] * B + bl.arange(0, B)[None, :]
    rows = bl.load(x + at)
    powers = bl.exp(rows - bl.max(rows, axis=1)[None, :])
    bl.store(y + at, powers / bl.sum(powers, axis=1)[:, None])


@kernel
def smallest(x, y, B: bl.constexpr):
    row = bl.load(x + bl.arange(0, B))
    powers = bl.exp(row - bl.min(row, axis=0))
    bl.store(y + bl.arange(0, B), powers / bl.sum(powers, axis=0))


@kernel
def another(x, y, B: bl.constexpr):
    row, other = bl.load(x + bl.arange(0, B)), bl.load(x + B + bl.arange(0, B))
    powers = bl.exp(row - bl.max(other, axis=0))
    bl.store(y + bl.arange(0, B), powers / bl.sum(powers, axis=0))


@pytest.mark.parametrize(
    ("k", "sizes"),
    [(masked_later, {"n": "i32"}), (other_axis, {"R": 8}), (square, {}), (smallest, {}), (another, {})],
)
def test_softmax_without_its_largest_element_has_unknown_ranges(k, sizes):
    assert changed(k, x="*f32", y="*f16", **sizes, B=16) == {"normal": 0, "flush_denormals": 0}


@kernel
def gated(x, y, out, B: bl.constexpr):
    at = bl.arange(0, B)
    a, b = bl.load(x + at), bl.load(y + at)
    bl.store(out + at, a / (1.0 + bl.exp(-a)) * b)


def test_exponential_added_to_one_may_flush_but_the_divisor_may_be_infinite():
    assert changed(gated, x="*f32", y="*f32", out="*f32", B=64) == {"normal": 0, "flush_denormals": 1}


@kernel
def scaled(x, factor, out, B: bl.constexpr, F: bl.constexpr):
    at = bl.arange(0, B)
    wide = bl.exp(bl.load(x + at)) * F
    bl.store(out + at, (wide * bl.load(factor + at).to(bl.float32)).to(bl.float16))


@pytest.mark.parametrize("factor", ["*f32", "*f16"])
def test_possibly_infinite_factor_prevents_flushing_of_subnormals(factor):
    assert changed(scaled, x="*f32", factor=factor, out="*f16", B=64, F=2.0)["flush_denormals"] == 0
    assert changed(scaled, x="*f32", factor="*i8", out="*f16", B=64, F=2.0)["flush_denormals"] == 1
    assert changed(scaled, x="*f32", factor="*i8", out="*f16", B=64, F=2.0**120)["flush_denormals"] == 0


@kernel
def divisors(x, y, B: bl.constexpr):
    at = bl.arange(0, B)
    a = bl.load(x + at)
    bl.store(y + at, a / (at + 3).to(bl.float32))  # small numbers
    bl.store(y + at, a / bl.load(x + B + at))  # any
    bl.store(y + at, a / (bl.abs(a) + 1e-3))  # may be infinite
    bl.store(y + at, a / -(bl.minimum(bl.abs(a), 5.0) + 2.0))  # negative; but a NaN among minima gives 5
    bl.store(y + at, a / (at - 3).to(bl.float16))  # whole: zero among them, as good as any
    bl.store(y + at, a / ((at - 3).to(bl.float32) + 0.5))  # around zero
    bl.store(y + at, bl.div_rn(a, (at + 3).to(bl.float32)))  # as IEEE rounds


def test_divisor_with_finite_bounds_is_normal():
    assert changed(divisors, x="*f32", y="*f32", B=64) == {"normal": 3, "flush_denormals": 0}


@kernel
def in_a_loop(x, y, n, B: bl.constexpr):
    """The ranges of loop-carried values are unknown."""
    at = bl.arange(0, B)
    total = bl.zeros((B,), bl.float32) + 1.0
    for i in range(n):
        total += bl.exp(bl.load(x + i * B + at))
    bl.store(y + at, (1.0 / total).to(bl.float16))


def test_loop_carried_values_have_unknown_ranges():
    assert changed(in_a_loop, x="*f32", y="*f16", n="i32", B=64) == {"normal": 0, "flush_denormals": 0}


@kernel
def chain(x, y, B: bl.constexpr, N: bl.constexpr):
    at = bl.arange(0, B)
    a = bl.exp(bl.load(x + at))
    for _ in bl.static_range(N):
        a = a * (1.0 + at)
    bl.store(y + at, a.to(bl.float16) / bl.sum(bl.abs(a), axis=0).to(bl.float16))


def test_long_chains_are_analyzed():
    assert changed(chain, x="*f32", y="*f16", B=16, N=1500)["flush_denormals"] == 0


def test_ranges_of_arithmetic_results():
    @kernel
    def k(x, y, B: bl.constexpr):
        at = bl.arange(0, B)
        a = at.to(bl.float32)
        root = bl.sqrt(a + 4.0)
        product = (a - 5.0) * (2.0 - a)
        size = bl.abs(a - 5.0)
        chosen = bl.where(at > 3, root, -root)
        raised = bl.exp(bl.load(x + at) * 0.0 + 1.0)
        bl.store(y + at, root + product + size + chosen + raised)

    at = {"x": "*f32", "y": "*f32", "B": 16}
    assert bounds(k, "root", **at) == (2.0, math.sqrt(19.0))
    assert bounds(k, "product", **at) == (-130.0, 65.0)  # corners: each factor alone has (-5, 10) and (-13, 2)
    assert bounds(k, "size", **at) == (0.0, 10.0)
    assert bounds(k, "chosen", **at) == (-math.sqrt(19.0), math.sqrt(19.0))
    assert bounds(k, "raised", **at)[0] >= 0.0


def test_only_operands_without_nan_bound_a_minimum():
    @kernel
    def k(x, y, B: bl.constexpr):
        at = bl.arange(0, B)
        a = bl.load(x + at)
        below = bl.minimum(bl.abs(a), 5.0)
        unknown = bl.minimum(bl.abs(a), bl.exp(a * 0.0))
        above = bl.maximum(a, 0.25)
        heeding = bl.maximum(a, bl.abs(a), propagate_nan=bl.PropagateNan.ALL)
        bl.store(y + at, below + above + unknown + heeding)

    at = {"x": "*f32", "y": "*f32", "B": 16}
    assert bounds(k, "below", **at) == (0.0, 5.0)
    assert bounds(k, "unknown", **at)[1] == math.inf
    assert bounds(k, "above", **at) == (0.25, math.inf)
    assert bounds(k, "heeding", **at) == (0.0, math.inf)


def test_value_that_may_exceed_its_dtype_may_be_infinite():
    @kernel
    def k(x, y, n, B: bl.constexpr):
        at = bl.arange(0, B)
        counts = (at * 65536).to(bl.float16)
        power = (at.to(bl.float32) + 1.0) * 1e30
        square = power * power
        bl.store(y + at, (bl.exp(bl.load(x + at)) * counts.to(bl.float32)).to(bl.float16) + square.to(bl.float16))

    sizes = {"x": "*f32", "y": "*f16", "n": "i32", "B": 16}
    assert bounds(k, "counts", **sizes) == (0.0, math.inf)
    assert bounds(k, "power", **sizes) == (1e30, 16e30)
    assert bounds(k, "square", **sizes)[1] == math.inf
    assert changed(k, **sizes)["flush_denormals"] == 0  # zero times infinity is no number
