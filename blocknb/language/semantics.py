"""Arithmetic in NumPy, by which the rows of elementwise ops and the interpreter compute.

An elementwise op is a function `(attrs, result dtype, *arrays)` of arrays of one shape. Floats follow IEEE 754 and integers wrap, without
warnings. Transcendental functions are computed in float64 and rounded once, so that tests can compare with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.language.float8 import FORMATS
from blocknb.language.types import Pointer

FARTHEST = 1 << 62  # largest pointer offset in bytes
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


def quiet(f: Callable) -> Callable:
    """IEEE arithmetic has no warnings: overflow, invalid operations and division by zero give inf and NaN."""

    def run(attrs, dtype, *arrays):
        with np.errstate(all="ignore"):
            return np.asarray(f(attrs, dtype, *arrays)).astype(dtype.numpy, copy=False)

    return run


def plain(f: Callable) -> Callable:
    return quiet(lambda attrs, dtype, *arrays: f(*arrays))


def wide(f: Callable) -> Callable:
    """A function computed in float64 and rounded once: the meaning of the transcendental functions."""
    return quiet(lambda attrs, dtype, *arrays: f(*(a.astype(np.float64) for a in arrays)))


def flushing(f: Callable) -> Callable:
    """As `wide`. With `flush_denormals`, subnormal fp32 numbers become zero."""

    def run(attrs, dtype, x):
        found = f(x.astype(np.float64))
        return np.where(np.abs(found) < 2.0**-126, 0.0, found) if attrs.get("flush_denormals") else found

    return quiet(run)


def extremum(largest, attrs, dtype, a, b):
    """IEEE 754-2019 maximumNumber and minimumNumber: a NaN loses against a number; with `nan` maximum and minimum: a NaN wins.

    Either way -0 is below +0.
    """
    plain, propagating = (np.fmax, np.maximum) if largest else (np.fmin, np.minimum)
    if not dtype.is_float:
        return propagating(a, b)
    found = (propagating if attrs.get("nan") else plain)(a, b)
    first = np.signbit(b) if largest else np.signbit(a)  # of two zeros
    return np.where(a == b, np.where(first, a, b), found)


def fma(attrs, dtype, a, b, c):
    """a * b + c rounded once: the sum of exact parts in fp64, rounded to odd before the last addition (Boldo and Melquiond, 2008)."""
    shape = np.shape(a)
    a, b, c = (np.atleast_1d(x).astype(np.float64) for x in (a, b, c))
    plain = a * b + c
    if dtype.bits == 16:
        return plain.reshape(shape)
    high, low = _exact_product(a, b)
    t, t_low = _exact_sum(c, low)
    v, v_low = _exact_sum(high, t)
    z = _to_odd(*_exact_sum(t_low, v_low))
    exact = v + z if dtype.bits == 64 else _to_odd(*_exact_sum(v, z))
    size = np.abs(a * b)
    simple = (
        (size > 2.0**-960) & (size < 2.0**1000) & (np.maximum(np.abs(a), np.abs(b)) < 2.0**990) & np.isfinite(exact)
    )
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    result = np.where(simple & finite, exact, plain)
    for i in zip(*np.nonzero(finite & ~simple & (a != 0) & (b != 0)), strict=True):
        result[i] = _fraction_fma(a[i], b[i], c[i])
    return result.reshape(shape)


def _fraction_fma(a, b, c):
    """Where parts of the product are out of range: in fractions, which Python rounds once."""
    from fractions import Fraction

    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return np.copysign(np.inf, float(a) * float(b))


def _exact_sum(x, y):
    s = x + y
    back = s - x
    return s, (x - (s - back)) + (y - back)


def _exact_product(x, y):
    def halves(value):
        big = value * 134217729.0
        high = big - (big - value)
        return high, value - high

    p = x * y
    (x1, x2), (y1, y2) = halves(x), halves(y)
    return p, ((x1 * y1 - p) + x1 * y2 + x2 * y1) + x2 * y2


def _to_odd(s, error):
    """The sum s + error rounded to the neighbour whose last bit is one, when it is no float."""
    bits = np.ascontiguousarray(s).view(np.int64).reshape(s.shape)
    even = (bits & 1) == 0
    toward = np.where((error > 0) == (s > 0), bits + 1, bits - 1)
    moved = np.where(even & (error != 0) & np.isfinite(s) & (s != 0), toward, bits)
    return np.ascontiguousarray(moved).view(np.float64).reshape(s.shape)


def cast(attrs, dtype, x):
    """Float to bool tests against zero, float to integer saturates, the rest is NumPy's astype.

    Numbers beyond the largest number of an fp8 format, and infinities, become that number. A NaN becomes one fixed pattern.
    """
    if dtype.kind == "bool":
        return x != 0
    if dtype.is_integer and x.dtype.kind not in "iub":
        return saturated(x, dtype.numpy)
    if dtype.is_float and dtype.bits == 8:
        kind = FORMATS[dtype.name]
        limited = np.clip(x.astype(np.float64), -kind.maximum, kind.maximum)
        bits = _to_odd_single(limited).astype(dtype.numpy).view(np.uint8)
        return np.where(np.isnan(limited), np.uint8(kind.nan or 0), bits).astype(np.uint8).view(dtype.numpy)
    if dtype.name == "bf16" and x.dtype != np.float32:
        return _to_odd_single(x).astype(dtype.numpy)
    return x.astype(dtype.numpy)


def constant(value: Any, dtype: Any) -> np.ndarray:
    """A Python number as an array without axes, rounded once; an address for a pointer."""
    array = np.asarray(value)
    if isinstance(dtype, Pointer):
        return array.astype(np.int64)
    if dtype.name == "bf16":
        return quiet(cast)({}, dtype, array)
    with np.errstate(over="ignore"):  # 1e300 is an infinite fp32
        return array.astype(dtype.numpy)


def saturated(x, integer):
    """Floats truncated to a NumPy integer dtype: the nearest of its numbers where they are out of range, 0 where they are NaN.

    The rule of LLVM's `llvm.fptosi.sat` and `llvm.fptoui.sat`.
    """
    limits, wide = np.iinfo(integer), np.trunc(x.astype(np.float64))
    least, beyond = float(limits.min), float(int(limits.max) + 1)
    inside = np.where((wide >= least) & (wide < beyond), wide, 0.0).astype(integer)
    below = np.where(wide < least, np.asarray(limits.min, integer), inside)
    return np.where(wide >= beyond, np.asarray(limits.max, integer), below)


def _to_odd_single(x):
    """fp32 rounded to odd, from which rounding to a narrower float is as if from x at once (fp64 and wide integers)."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:  # a sticky bit represents the bits that fp64 cannot hold
        low = np.asarray(0x7FF, x.dtype)
        odd = (x & ~low) | np.where(x & low, np.asarray(0x800, x.dtype), np.asarray(0, x.dtype))
        x = np.where(np.abs(x.astype(np.float64)) > 2.0**53, odd, x)
    wide = x.astype(np.float64)
    narrow = wide.astype(np.float32)
    back = narrow.astype(np.float64)
    bits = narrow.view(np.uint32) if narrow.ndim else narrow.reshape(1).view(np.uint32).reshape(())
    inexact = (back != wide) & np.isfinite(back)
    lower = np.where(inexact & (np.abs(back) > np.abs(wide)), bits - np.uint32(1), bits).astype(np.uint32)
    return np.where(inexact, lower | np.uint32(1), lower).astype(np.uint32).view(np.float32)


def update(kind, old, new):
    """The new contents of memory after an atomic on `old`, for scalars or arrays. Integers wrap without a warning."""
    with np.errstate(all="ignore"):
        match kind:
            case "add":
                return (old + new).astype(old.dtype)
            case "max" | "min" if old.dtype.kind == "f":
                a, b = bit_order(old), bit_order(new)
                return np.where((a >= b) if kind == "max" else (a <= b), old, new)
            case "max" | "min":
                return np.maximum(old, new) if kind == "max" else np.minimum(old, new)
            case "xchg":
                return new
    return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind](old, new)


def bit_order(x):
    """Integers that order floats by their bits: -0 below 0, a NaN beyond the infinity of its sign."""
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").reshape(x.shape)
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
