"""GPU code that means the same in fewer instructions."""

from __future__ import annotations

import re

import numpy as np
from fuzz import reports
from kernels.base import Case

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


def test_rows_that_warps_reduce_by_themselves_need_no_shared_memory():
    arrays = ["*fp16:16"] * 2
    trace = softmax_rows_kernel.trace(*arrays, *["i32:16"] * 4, ROWS=8, BLOCK=1024, num_warps=8)
    assert instructions(trace, r"\bbar(?:rier)?\.") == 0 and trace.resources.shared_bytes == 0
    assert instructions(trace, r"shfl\.") == 10  # a maximum and a sum over 32 lanes


def test_rows_that_all_take_the_same_weights_are_spread_over_all_warps():
    trace = norm_kernel.trace(**NORM, ROWS=8, BLOCK=1024, num_warps=8)
    assert (
        instructions(trace, r"ld\.global\S*\.v4") == 4 + 2
    )  # a vector of each row pair, one of weights, one of biases


def test_what_is_joined_is_computed_where_it_will_be_stored():
    kinds = {"x": "*fp16:16", "out": "*fp16:16", "n": "i32:16", "p": "fp32", "seed": "i32"}
    trace = dropout_kernel.trace(**kinds, BLOCK=1024, num_warps=4)
    assert instructions(trace, r"\bbar(?:rier)?\.") == 0 and trace.resources.shared_bytes == 0


def test_a_mask_is_computed_once_for_all_elements_that_share_it():
    trace = norm_kernel.trace(**NORM, ROWS=1, BLOCK=4096, num_warps=8)
    assert instructions(trace, "setp") == 4  # the first row, the row, two vectors of columns


def test_softmax_of_fp16_scales_no_exponential_and_divides_once_a_row():
    def traced(dtype, **options):
        arrays = [f"*{dtype}:16"] * 2
        return softmax_kernel.trace(*arrays, *["i32:16"] * 3, BLOCK=4096, num_warps=8, **options)

    trace, plain = traced("fp16"), traced("fp16", without={"floats"})
    assert (instructions(trace, r"ex2\.approx\.ftz\.f32"), instructions(plain, r"ex2\.approx\.ftz\.f32")) == (16, 0)
    assert (instructions(trace, r"rcp\."), instructions(trace, r"div\.")) == (1, 0)
    assert instructions(plain, r"div\.full") == 16
    assert (instructions(trace, r"max\.f16x2"), instructions(trace, r"max\.f16\s")) == (7, 1)
    wide = traced("fp32")
    assert instructions(wide, r"ex2\.approx\.f32") == 16  # fp32 has subnormal results, and they are stored
    notes = [note.text for stage in trace.stages for note in stage.notes if stage.name == "floats"]
    assert any("between 1 and 4096" in text for text in notes) and any("no scaling" in text for text in notes)


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


def test_pairs_of_16_bits_have_the_extremes_that_fp32_has():
    rng = np.random.default_rng()
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
