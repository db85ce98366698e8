"""The option `experimental`: GPU code that means the same in fewer instructions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fuzz import reports
from fuzz.test_gpu_code import BEYOND
from kernels import CASES
from kernels.base import Case, array_of, copied, host_address

import blocknb
import blocknb.language as bl
from blocknb.errors import LaunchError
from blocknb.ir.verify import verify
from blocknb.kernels.elementwise import dropout_kernel
from blocknb.kernels.norms import norm_kernel
from blocknb.kernels.softmax import softmax_kernel

SAMPLE = [
    name
    for name in CASES
    if name not in BEYOND and re.match("softmax|layer_norm|online|reductions|attention|masked|blocks_attention", name)
]


@pytest.mark.parametrize(
    "name",
    [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.full) for n in CASES if n not in BEYOND],
)
def test_experimental_code_computes_what_the_reference_says(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng())
    func, stages = case.lower(arguments, "sm_90a", experimental=True)
    for stage in stages:
        if stage.name in ("floats", "assign", "barriers"):
            verify(stage.after)
            case.interpret(stage.after, arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    arrays = [array for value in got.values() if isinstance(array := array_of(value), np.ndarray)]
    reports.run(func, got, case.grid, reachable=arrays)
    case.check(arguments, got)


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
    def traced(**options):
        return norm_kernel.trace(**NORM, ROWS=8, BLOCK=1024, num_warps=8, **options)

    plain, trace = traced(), traced(experimental=True)
    assert instructions(plain, r"\bbar(?:rier)?\.") > 0 and instructions(trace, r"\bbar(?:rier)?\.") == 0
    assert instructions(trace, r"shfl\.") * 3 < instructions(plain, r"shfl\.")
    assert trace.resources.shared_bytes == 0


def test_what_is_joined_is_computed_where_it_will_be_stored():
    def traced(**options):
        kinds = {"x": "*fp16:16", "out": "*fp16:16", "n": "i32:16", "p": "fp32", "seed": "i32"}
        return dropout_kernel.trace(**kinds, BLOCK=1024, num_warps=4, **options)

    plain, trace = traced(), traced(experimental=True)
    assert instructions(plain, r"\bbar(?:rier)?\.") > 4 and instructions(trace, r"\bbar(?:rier)?\.") == 0
    assert instructions(trace, r"mul\.hi") <= instructions(plain, r"mul\.hi")
    assert trace.resources.shared_bytes == 0


def test_a_mask_is_computed_once_for_all_elements_that_share_it():
    def traced(**options):
        return norm_kernel.trace(**NORM, ROWS=1, BLOCK=4096, num_warps=8, **options)

    assert instructions(traced(experimental=True), "setp") * 3 < instructions(traced(), "setp")


def test_softmax_of_fp16_scales_no_exponential_and_divides_once_a_row():
    def traced(dtype, **options):
        arrays = [f"*{dtype}:16"] * 2
        return softmax_kernel.trace(*arrays, *["i32:16"] * 3, BLOCK=4096, num_warps=8, **options)

    trace, plain = traced("fp16", experimental=True), traced("fp16")
    assert (instructions(trace, r"ex2\.approx\.ftz\.f32"), instructions(plain, r"ex2\.approx\.ftz\.f32")) == (16, 0)
    assert (instructions(trace, r"rcp\."), instructions(trace, r"div\.")) == (1, 0)
    assert instructions(plain, r"div\.full") == 16
    assert (instructions(trace, r"max\.f16x2"), instructions(trace, r"max\.f16\s")) == (7, 1)
    wide = traced("fp32", experimental=True)
    assert instructions(wide, r"ex2\.approx\.f32") == 16  # fp32 has subnormal results, and they are stored
    notes = [note.text for stage in trace.stages for note in stage.notes if stage.name == "floats"]
    assert any("between 1 and 4096" in text for text in notes) and any("no scaling" in text for text in notes)
    assert "floats" not in [stage.name for stage in plain.stages]


@blocknb.kernel
def squares(x, out, B: bl.constexpr):
    values = bl.load(x + bl.arange(0, B))
    bl.store(out, bl.sum(values * values, axis=0))


def test_a_sum_of_squares_is_mostly_multiply_adds():
    for options, products in (({}, 16), ({"experimental": True}, 4)):
        trace = squares.trace("*fp32:16", "*fp32:16", B=1024, num_warps=1, **options)
        assert (instructions(trace, r"mul\.\w*\.?f32|mul\.f32"), instructions(trace, "fma")) == (
            products,
            32 - products,
        )


def test_experimental_is_true_or_false():
    with pytest.raises(LaunchError, match="experimental is 'yes'"):
        squares.trace("*fp32:16", "*fp32:16", B=64, experimental="yes")


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
    func, _ = case.lower(arguments, "sm_90a", num_warps=1, experimental=True)
    reports.run(func, arguments, case.grid)
    np.testing.assert_array_equal(high, np.fmax.reduce(x.astype(np.float32), axis=1))
    np.testing.assert_array_equal(low, np.fmin.reduce(x.astype(np.float32), axis=1))
