"""GPU code that means the same in fewer instructions."""

from __future__ import annotations

import re

import numpy as np
import pytest
import seeds
from fuzz import reports
from kernels.base import Case
from kernels.functions import negated_extremes

import blocknb
import blocknb.language as bl
from blocknb.kernels.elementwise import dropout_kernel
from blocknb.kernels.norms import norm_kernel
from blocknb.kernels.softmax import softmax_kernel, softmax_rows_kernel

NORM = {
    **dict.fromkeys(("x", "weight", "bias", "y"), "*fp16:16"),
    **dict.fromkeys(("mean", "rstd"), "*fp32:16"),
    **dict.fromkeys(("x_row", "y_row", "m", "n"), "i32:16"),
    "eps": "fp32",
    "CENTRED": True,
}


def instructions(trace, pattern: str) -> int:
    return len(re.findall(pattern, trace.ptx))


def test_rows_reduced_within_a_warp_need_no_shared_memory():
    arrays = ["*fp16:16"] * 2
    trace = softmax_rows_kernel.trace(*arrays, *["i32:16"] * 4, ROWS=8, BLOCK=1024, num_warps=8)
    assert instructions(trace, r"\bbar(?:rier)?\.") == 0 and trace.resources.shared_bytes == 0
    assert instructions(trace, r"shfl\.") == 10  # a maximum and a sum over 32 lanes


def test_rows_with_common_weights_are_distributed_over_all_warps():
    trace = norm_kernel.trace(**NORM, ROWS=8, BLOCK=1024, num_warps=8)
    assert (
        instructions(trace, r"ld\.global\S*\.v4") == 4 + 2
    )  # a vector of each row pair, one of weights, one of biases


def test_joined_values_are_computed_in_the_layout_of_their_store():
    kinds = {"x": "*fp16:16", "out": "*fp16:16", "n": "i32:16", "p": "fp32", "seed": "i32"}
    trace = dropout_kernel.trace(**kinds, BLOCK=1024, num_warps=4)
    assert instructions(trace, r"\bbar(?:rier)?\.") == 0 and trace.resources.shared_bytes == 0


def test_a_mask_is_computed_once_per_group_of_equal_elements():
    trace = norm_kernel.trace(**NORM, ROWS=1, BLOCK=4096, num_warps=8)
    assert instructions(trace, "setp") == 4  # the first row, the row, two vectors of columns


def test_long_row_with_weights_leaves_registers_for_a_second_program():
    kinds = {**NORM, **dict.fromkeys(("x", "weight", "bias", "y"), "*fp32:16"), "mean": None, "rstd": None}
    trace = norm_kernel.trace(**kinds, ROWS=1, BLOCK=16384, num_warps=16)
    assert trace.resources.registers <= 64 and trace.resources.spill_bytes == 0
    assert instructions(trace, "setp") == 1 + 8  # the row, eight vectors of columns: none for the weights alone
    assert instructions(trace, "ld.shared.v4") == 2 and instructions(trace, r"shfl\.") == 2 * (5 + 2)
    assert (instructions(trace, r"rcp\."), instructions(trace, r"div\.")) == (1, 0)
    stores, loads = (trace.ptx.rindex(what) for what in ("ld.global", "st.global"))
    assert stores < loads and len(re.findall(r"fma\.rn\.f32", trace.ptx[trace.ptx.index("rsqrt") :])) == 32


@blocknb.kernel
def leftovers(x, weight, out, least, m, n, B: bl.constexpr):
    row, at = bl.program_id(0), bl.arange(0, B)
    inside = (at < n) & (row < m)
    values = bl.load(x + row * n + at, mask=inside, other=0.0)
    total = bl.sum(values, axis=0)
    factor = bl.load(weight + at, mask=at < n, other=7.0)
    bl.store(least + row * B + at, factor * 2.0)  # elements beyond the row are read here,
    again = bl.load(weight + at, mask=at < n, other=9.0)
    bl.store(out + row * n + at, values * total * (again + row), mask=inside)  # but not here


@pytest.mark.parametrize("warps", [1, 16, 32])
def test_load_takes_the_mask_of_its_only_store(warps):
    m, n, B = 2, 700, 1024
    rng = seeds.rng()
    x, weight = rng.integers(-3, 4, (m, n)).astype(np.float32), rng.integers(1, 5, n).astype(np.float32)
    out, least = np.full((m + 1, n), 5.0, np.float32), np.zeros((m + 1, B), np.float32)
    arguments = {"x": x, "weight": weight, "out": out, "least": least, "m": m, "n": n, "B": B}
    case = Case("leftovers", leftovers, lambda rng: arguments, None, (m + 1, 1, 1))
    func, _ = case.lower(arguments, "sm_90a", num_warps=warps)
    reports.run(func, arguments, case.grid)
    expected = x * x.sum(axis=1, keepdims=True) * (weight + np.arange(m)[:, None])
    np.testing.assert_array_equal(out, [*expected, np.full(n, 5.0)])
    np.testing.assert_array_equal(least, np.tile([*(weight * 2), *[14.0] * (B - n)], (m + 1, 1)))


@blocknb.kernel
def across_many_warps(x, sums, places, R: bl.constexpr, B: bl.constexpr):
    rows, at = bl.arange(0, R), bl.arange(0, B)
    values = bl.load(x + rows[:, None] * B + at[None, :])
    bl.store(sums + rows, bl.sum(values, axis=1))
    bl.store(places + rows, bl.argmax(values, axis=1))


@pytest.mark.parametrize(("warps", "rows"), [(16, 1), (16, 4), (32, 1), (32, 2), (8, 4)])
def test_partial_results_of_many_warps_are_combined_by_lanes(warps, rows):
    x = seeds.rng().integers(-9, 10, (rows, 4096)).astype(np.float32)
    sums, places = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    arguments = {"x": x, "sums": sums, "places": places, "R": rows, "B": 4096}
    case = Case("across_many_warps", across_many_warps, lambda rng: arguments, None, (1, 1, 1))
    func, _ = case.lower(arguments, "sm_90a", num_warps=warps)
    reports.run(func, arguments, case.grid)
    np.testing.assert_array_equal(sums, x.sum(axis=1))
    np.testing.assert_array_equal(places, x.argmax(axis=1))


def test_softmax_of_fp16_needs_no_range_scaling_and_one_division_per_row():
    def traced(dtype, **options):
        arrays = [f"*{dtype}:16"] * 2
        return softmax_kernel.trace(*arrays, *["i32:16"] * 3, BLOCK=4096, num_warps=8, **options)

    trace, plain = traced("fp16"), traced("fp16", without={"range_based_float_simplification"})
    assert (instructions(trace, r"ex2\.approx\.ftz\.f32"), instructions(plain, r"ex2\.approx\.ftz\.f32")) == (16, 0)
    assert (instructions(trace, r"rcp\."), instructions(trace, r"div\.")) == (1, 0)
    assert instructions(plain, r"div\.full") == 16
    assert (instructions(trace, r"max\.f16x2"), instructions(trace, r"max\.f16\s")) == (7, 1)
    wide = traced("fp32")
    assert instructions(wide, r"ex2\.approx\.f32") == 16  # fp32 has subnormal results, and they are stored
    notes = [
        note.text for stage in trace.stages for note in stage.notes if stage.name == "range_based_float_simplification"
    ]
    assert any("between 1 and 4096" in text for text in notes) and any("may become zero" in text for text in notes)


@blocknb.kernel
def squares(x, out, B: bl.constexpr):
    values = bl.load(x + bl.arange(0, B))
    bl.store(out, bl.sum(values * values, axis=0))


def test_a_sum_of_squares_is_mostly_multiply_adds():
    trace = squares.trace("*fp32:16", "*fp32:16", B=1024, num_warps=1)
    assert (instructions(trace, r"mul\.\w*\.?f32|mul\.f32"), instructions(trace, "fma")) == (4, 28)


EXTREMES = [np.inf, -np.inf, np.nan, 0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0]


@blocknb.kernel
def widened(x, low, high, B: bl.constexpr):
    values = bl.load(x + bl.program_id(0) * B + bl.arange(0, B)).to(bl.float32)
    bl.store(high + bl.program_id(0), bl.max(values, axis=0))
    bl.store(low + bl.program_id(0), bl.min(values, axis=0))


def test_packed_16_bit_extrema_equal_those_of_fp32():
    rng = seeds.rng()
    x = rng.standard_normal((6, 256)).astype(np.float16)
    for row in x[:5]:
        row[rng.choice(256, 40)] = rng.choice(np.array(EXTREMES, np.float16), 40)
    x[4, rng.random(256) < 0.9] = np.nan
    x[5] = np.nan
    low, high = np.full(6, 7.0, np.float32), np.full(6, 7.0, np.float32)
    arguments = {"x": x, "low": low, "high": high, "B": 256}
    case = Case("widened", widened, lambda rng: arguments, None, (6, 1, 1))
    func, _ = case.lower(arguments, "sm_90a", num_warps=1)
    reports.run(func, arguments, case.grid)
    np.testing.assert_array_equal(high, np.fmax.reduce(x.astype(np.float32), axis=1))
    np.testing.assert_array_equal(low, np.fmin.reduce(x.astype(np.float32), axis=1))


@pytest.mark.parametrize("dtype", ["i32", "i16"])
def test_negations_before_extrema_are_explicit_for_ptxas_versions_that_drop_them(dtype):
    arrays = dict.fromkeys(("x", "most", "least"), f"*{dtype}:16")
    trace = negated_extremes.trace(**arrays, ROWS=64, BLOCK=256, num_warps=1)
    bits = dtype[1:]
    assert instructions(trace, r"\b(max|min)\.s32 ") >= 64
    assert (instructions(trace, r"\bneg\.s"), instructions(trace, rf"\bnot\.b{bits} ")) == (0, 64 * 256 // 32)


@blocknb.kernel
def quantized(x, out, scale, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    wide = bl.load(x + at).to(bl.float32) * scale
    bl.store(out + at, bl.clamp(wide, -448.0, 448.0).to(bl.float8e4nv))


def test_a_row_quantized_to_8_bit_floats_takes_few_instructions_per_pair():
    trace = quantized.trace(x="*bf16:16", out="*fp8e4nv:16", scale="fp32", BLOCK=1024, num_warps=2)
    assert instructions(trace, r"cvt\.rn\.satfinite\.e4m3x2\.f32") == 8  # 16 elements per thread
    assert instructions(trace, r"\bmax\S*\.f32") == 16 and instructions(trace, r"\bmin\S*\.f32") == 0
    assert (
        instructions(trace, r"cvt\.f32\.bf16") == 0
    )  # the halves of a loaded word are widened by one instruction each
    assert instructions(trace, r"\bbfi|\bprmt|\bshr\.u16") == 0  # the pairs are joined as words of 16 bits


@blocknb.kernel
def summed(x, y, out, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(out + at, bl.load(x + at) + bl.load(y + at))


def test_a_sum_of_bf16_is_computed_in_bf16():
    trace = summed.trace(**dict.fromkeys(("x", "y", "out"), "*bf16:16"), BLOCK=1024, num_warps=4)
    assert instructions(trace, r"add\S*\.bf16") == 8
    assert instructions(trace, r"add\S*\.f32|cvt\.f32\.bf16|shl\.b32\s+%r\d+, %r\d+, 16") == 0
