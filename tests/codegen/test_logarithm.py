"""The logarithm: its error and its special values on a CPU, whose formula a GPU shares. Also the GPU instructions for it and for powers."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as tl
from blocknb.codegen import gpu
from blocknb.language import libdevice
from blocknb.target import Target

COUNT = 1 << 16


@blocknb.kernel
def logarithm(x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.log(tl.load(x + i)))


@blocknb.kernel
def power(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, libdevice.pow(tl.load(x + i), tl.load(y + i)))


def logarithms(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    logarithm[(len(x) // 1024,)](x, out, B=1024)
    return out


def units(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest error, in units in the last place of the exact result."""
    last = np.spacing(np.abs(exact.astype(found.dtype)))
    return float(np.max(np.abs(found.astype(np.longdouble) - exact) / last))


@pytest.mark.parametrize("exponent", [-149, -126, -3, -1, 0, 1, 127])
def test_the_error_in_fp32_is_below_one_unit(exponent):
    mantissas = np.random.default_rng(0).integers(1, 1 << 23, COUNT, dtype=np.uint32)
    x = (mantissas | np.uint32(max(exponent + 127, 0) << 23)).view(np.float32)
    assert units(logarithms(x), np.log(x.astype(np.longdouble))) < 1


def test_the_error_in_fp64_is_below_two_units():
    x = np.exp(np.random.default_rng(0).uniform(-700, 700, COUNT))
    assert units(logarithms(x), np.log(x.astype(np.longdouble))) < 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(dtype):
    least = np.finfo(dtype).smallest_subnormal
    given = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -least, 1.0], dtype)
    found = logarithms(np.resize(given, 1024))[: len(given)]
    expected = np.array([-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, np.nan, 0.0], dtype)
    np.testing.assert_array_equal(found, expected)


def llvm_text(kernel, arguments: dict) -> str:
    func, _ = Case(kernel.__name__, kernel, dict, dict).lower(arguments, "sm_90a", num_warps=4)
    return gpu.generate(func, Target.parse("sm_90a")).text


def test_a_gpu_selects_four_times_per_logarithm():
    """The number that a subnormal one is multiplied by, its exponent, the values of numbers that are not finite, and that of zero."""
    numbers = np.ones(128, np.float32)
    assert llvm_text(logarithm, {"x": numbers, "out": numbers, "B": 128}).count(" = select ") == 4


def test_a_power_takes_no_exact_division():
    numbers = np.ones(128, np.float32)
    text = llvm_text(power, {"x": numbers, "y": numbers, "out": numbers, "B": 128})
    assert "llvm.nvvm.div.full" in text
    assert " = fdiv " not in text
