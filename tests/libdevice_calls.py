"""Helpers for tests of libdevice: calls of one function on arrays, numbers of every magnitude, and exact references."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from cpu.native import compile_native, launch_native
from frontend_helpers import argument, kernel

import blocknb.language as tl
from blocknb.frontend.parse import parse
from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.verify import verify
from blocknb.language import libdevice
from blocknb.runtime.host import HostKernel

#: Every function that CUDA's libdevice has in Triton 3.6.
NAMES = """
abs acos acosh add_rd add_rn add_ru add_rz asin asinh atan atan2 atanh brev byte_perm cbrt ceil clz copysign cos cosh
cospi cyl_bessel_i0 cyl_bessel_i1 div_rd div_rn div_ru div_rz double2float_rd double2float_rn double2float_ru
double2float_rz double2hiint double2int_rd double2int_rn double2int_ru double2int_rz double2ll_rd double2ll_rn
double2ll_ru double2ll_rz double2loint double2uint_rd double2uint_rn double2uint_ru double2uint_rz double2ull_rd
double2ull_rn double2ull_ru double2ull_rz double_as_longlong erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1
fast_cosf fast_dividef fast_exp10f fast_expf fast_log10f fast_log2f fast_logf fast_powf fast_sinf fast_tanf fdim ffs
finitef float2int_rd float2int_rn float2int_ru float2int_rz float2ll_rd float2ll_rn float2ll_ru float2ll_rz
float2uint_rd float2uint_rn float2uint_ru float2uint_rz float2ull_rd float2ull_rn float2ull_ru float2ull_rz
float_as_int float_as_uint floor fma fma_rd fma_rn fma_ru fma_rz fmod hadd hiloint2double hypot ilogb int2double_rn
int2float_rd int2float_rn int2float_ru int2float_rz int_as_float isfinited isinf isnan j0 j1 jn ldexp lgamma
ll2double_rd ll2double_rn ll2double_ru ll2double_rz ll2float_rd ll2float_rn ll2float_ru ll2float_rz llrint llround log
log10 log1p log2 logb longlong_as_double mul24 mul_rd mul_rn mul_ru mul_rz mulhi nearbyint nextafter norm3d norm4d
normcdf normcdfinv popc pow rcbrt rcp64h rcp_rd rcp_rn rcp_ru rcp_rz remainder rhadd rhypot rint rnorm3d rnorm4d round
rsqrt rsqrt_rn sad saturatef scalbn signbit sin sinh sinpi sqrt sqrt_rd sqrt_rn sqrt_ru sqrt_rz sub_rd sub_rn sub_ru
sub_rz tan tanh tgamma trunc uint2double_rn uint2float_rd uint2float_rn uint2float_ru uint2float_rz uint_as_float
ull2double_rd ull2double_rn ull2double_ru ull2double_rz ull2float_rd ull2float_rn ull2float_ru ull2float_rz y0 y1 yn
""".split()


@cache
def kernels(name: str) -> tuple[Any, ...]:
    """Kernels that call one function: on a scalar and an array, and on one, two and three arrays."""
    function = getattr(libdevice, name)

    @kernel
    def one(out, x, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, function(tl.load(x + i, mask=i < n, other=1)), mask=i < n)

    @kernel
    def two(out, x, y, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        v = tl.load(y + i, mask=i < n, other=1)
        tl.store(out + i, function(tl.load(x + i, mask=i < n, other=1), v), mask=i < n)

    @kernel
    def ordered(out, x, y, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, function(x, tl.load(y + i, mask=i < n, other=1)), mask=i < n)

    @kernel
    def three(out, x, y, z, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        v = tl.load(y + i, mask=i < n, other=1)
        w = tl.load(z + i, mask=i < n, other=1)
        tl.store(out + i, function(tl.load(x + i, mask=i < n, other=1), v, w), mask=i < n)

    return ordered, one, two, three


@cache
def parsed(chosen: Any, kinds: tuple[tuple[str, Any], ...]) -> Func:
    func = parse(chosen.source, dict(kinds), {})
    verify(func)
    return func


@cache
def machine_code(chosen: Any, kinds: tuple[tuple[str, Any], ...], room: str) -> HostKernel:
    return compile_native(parsed(chosen, kinds), room)


def call(name: str, operands: Sequence[Any], room: str, result: Any = None) -> np.ndarray:
    """One function of libdevice on arrays (or scalars first) of one length, by the interpreter or as machine code for a target."""
    n = len(operands[-1])
    block = 1 << (n - 1).bit_length()
    ordered, *of_arrays = kernels(name)
    chosen = ordered if np.ndim(operands[0]) == 0 else of_arrays[len(operands) - 1]
    out = np.zeros(n, result or operands[-1 if chosen is ordered else 0].dtype)
    arguments = {"out": out, **dict(zip("xyz", operands, strict=False)), "n": n, "BLOCK": block}
    kinds = tuple((key, argument(chosen, key, value)) for key, value in arguments.items())
    given = [arguments[hint.name] for hint in parsed(chosen, kinds).hints]
    if room == "interpreter":
        run(parsed(chosen, kinds), given, 1)
    else:
        launch_native(machine_code(chosen, kinds, room), given, 1)
    return out


def numbers(dtype: Any, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of every magnitude, many of them where the functions have features, and special values."""
    rng, info, part = np.random.default_rng(seed), np.finfo(dtype), count // 8
    sign = rng.choice([-1, 1], (2, part))
    x = np.concatenate([
        rng.uniform(-1, 1, part), rng.uniform(-10, 10, part), rng.uniform(-100, 100, part), rng.uniform(-750, 750, part),
        1 + rng.uniform(-0.5, 0.5, part), np.exp2(rng.uniform(-30, 4, part)) * sign[0],
        np.exp2(rng.uniform(info.minexp - 20, info.maxexp - 1, part)) * sign[1], rng.uniform(-3, 3, part),
    ]).astype(dtype)  # fmt: skip
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, info.max, -info.max, info.tiny, -info.tiny / 8]
    x[: len(special)] = special
    return x


def units(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest error in units of the last place of the expected value; infinite where special values differ."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(actual.dtype)
        same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
        step = np.spacing(np.abs(rounded)).astype(np.longdouble)
        error = np.where(same, 0, np.abs(actual.astype(np.longdouble) - expected) / step)
    return float(
        np.max(np.where(same, np.where(np.isfinite(error), error, 0), np.where(np.isfinite(rounded), error, np.inf)))
    )


def directed(exact: Fraction, dtype: Any, mode: str) -> float:
    """An exact number as a float of the dtype, rounded to nearest (rn), toward zero (rz), down (rd) or up (ru)."""
    if exact == 0:
        return 0.0
    precision, least = (24, -149) if dtype == np.float32 else (53, -1074)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    unit = Fraction(2) ** max(exponent - (size < Fraction(2) ** exponent) - precision + 1, least)
    low = size // unit
    rest = size / unit - low
    toward = {
        "rz": False,
        "rd": exact < 0,
        "ru": exact > 0,
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
    }
    rounded = (low + (rest > 0 and toward[mode])) * unit
    largest = Fraction(float(np.finfo(dtype).max))
    value = float(rounded) if rounded <= largest else np.inf if mode == "rn" or toward[mode] else float(largest)
    return -value if exact < 0 else value
