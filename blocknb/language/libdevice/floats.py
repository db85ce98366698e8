"""libdevice's functions that take floats apart: rounding to whole numbers, signs, classes, exponents, neighbours."""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice.parts import (
    INF,
    LEAST_NORMAL,
    LIFT,
    MANTISSA,
    NAN,
    away,
    device,
    exponent_of,
    from_bits,
    helper,
    inward,
    narrow,
    narrow2,
    negative,
    power_of_two,
    to_bits,
    toward_zero,
    whole,
    wide,
    wide2,
    with_sign,
)
from blocknb.language.types import float32, int32, int64

# -- whole numbers ---------------------------------------------------------------------------------------------------------


@device
def trunc(x):
    """Rounds toward zero to an integer, which stays a float.

    Example:
        libdevice.trunc(2.5)  # 2.0
    """
    return narrow(toward_zero(wide(x)), x)


@device
def rint(x):
    """Rounds to the nearest integer, ties to even. The result is a float.

    Example:
        libdevice.rint(2.5)  # 2.0
    """
    return narrow(whole(wide(x)), x)


@device
def nearbyint(x):
    """Rounds to the nearest integer, ties to even. The result is a float.

    Example:
        libdevice.nearbyint(2.5)  # 2.0
    """
    return rint(x)


@device
def round(x):
    """Rounds to the nearest integer, ties away from zero. The result is a float.

    Example:
        libdevice.round(2.5)  # 3.0
    """
    v = wide(x)
    t = toward_zero(v)
    up = tl.abs(v - t) >= 0.5
    return narrow(with_sign(tl.where(up, tl.abs(t) + 1.0, tl.abs(t)), v), x)


@device
def llrint(x):
    """Rounds to the nearest integer, ties to even. The result is int64.

    Example:
        libdevice.llrint(2.5)  # 2
    """
    return whole(wide(x)).to(int64)


@device
def llround(x):
    """Rounds to the nearest integer, ties away from zero. The result is int64.

    Example:
        libdevice.llround(2.5)  # 3
    """
    return round(wide(x)).to(int64)


# -- signs and classes -------------------------------------------------------------------------------------------------------


@device
def isnan(x):
    """Returns whether x is a NaN.

    Example:
        libdevice.isnan(0.5)  # False
    """
    return wide(x) != wide(x)


@device
def isinf(x):
    """Returns whether x is infinite.

    Example:
        libdevice.isinf(0.5)  # False
    """
    return tl.abs(wide(x)) == INF


@device
def finitef(x):
    """Returns whether x is finite.

    Example:
        libdevice.finitef(0.5)  # True
    """
    return tl.abs(wide(x)) < INF


@device
def isfinited(x):
    """Returns whether x is finite.

    Example:
        libdevice.isfinited(tl.full((), 1.0, tl.float64))  # True
    """
    return tl.abs(wide(x)) < INF


@device
def signbit(x):
    """Returns the sign bit as int32. It is 1 for negative numbers, -0.0 and NaNs with a sign.

    Example:
        libdevice.signbit(-2.5)  # 1
    """
    return negative(wide(x)).to(int32)


@device
def copysign(x, y):
    """Returns |x| with the sign of y.

    Example:
        libdevice.copysign(2.0, -0.0)  # -2.0
    """
    a, b = wide2(x, y)
    return narrow2(with_sign(a, b), x, y)


@device
def saturatef(x):
    """Limits x to the range from 0 to 1. A NaN becomes 0.

    Example:
        libdevice.saturatef(1.5)  # 1.0
    """
    v = wide(x)
    return narrow(tl.where(v > 0, tl.where(v < 1, v, 1.0), 0.0), x)


@device
def fdim(x, y):
    """Returns x - y if it is positive, and zero otherwise. A NaN as an operand gives NaN.

    Example:
        libdevice.fdim(5.0, 3.0)  # 2.0
    """
    a, b = wide2(x, y)
    return narrow2(tl.where(a <= b, 0.0, a - b), x, y)


@device
def nextafter(x, y):
    """Returns the next float after x toward y.

    Example:
        libdevice.nextafter(1.0, 2.0)  # 1.00000012
    """
    a, b = wide2(x, y)
    least = with_sign(from_bits(to_bits(a) * 0 + 1, a), b)
    moved = tl.where(a == 0, least, tl.where((a < b) == (a > 0), away(a), inward(a)))
    return narrow2(tl.where(a == b, b, tl.where((a == a) & (b == b), moved, a + b)), x, y)


# -- exponents -------------------------------------------------------------------------------------------------------------


@helper
def binary_exponent(v):
    """The exponent of a finite positive number, as an integer of its width."""
    tiny = v < LEAST_NORMAL[v.dtype.primitive_bitwidth]
    lifted = exponent_of(tl.where(tiny, v * LIFT[v.dtype.primitive_bitwidth], v))
    return lifted - tl.where(tiny, MANTISSA[v.dtype.primitive_bitwidth] + 1, 0)


@device
def ldexp(x, n):
    """Computes x * 2^n, rounded once.

    Example:
        libdevice.ldexp(1.5, 3)  # 12.0
    """
    v = wide(x)
    limit: constexpr = 280 if v.dtype == float32 else 2200
    n = tl.minimum(tl.maximum(tl.cast(n, int32), -limit), limit).to(to_bits(v).dtype)
    # Three multiplications, the largest powers first: only the one that leaves the range of normal numbers rounds.
    bound: constexpr = 126 if v.dtype == float32 else 1022
    low: constexpr = -102 if v.dtype == float32 else -969
    first = tl.minimum(tl.maximum(n, low), bound)
    second = tl.minimum(tl.maximum(n - first, low), bound)
    third = tl.minimum(tl.maximum(n - first - second, -bound), bound)
    return narrow(v * power_of_two(first, v) * power_of_two(second, v) * power_of_two(third, v), x)


@device
def scalbn(x, n):
    """Computes x * 2^n, rounded once.

    Example:
        libdevice.scalbn(1.5, 3)  # 12.0
    """
    return ldexp(x, n)


@device
def ilogb(x):
    """Returns the exponent of x as int32. 0 and NaN give the smallest int32, infinity gives the largest.

    Example:
        libdevice.ilogb(5.0)  # 2
    """
    v = tl.abs(wide(x))
    finite = (v > 0) & (v < INF)
    e = binary_exponent(tl.where(finite, v, 1.0)).to(int32)
    return tl.where(finite, e, tl.where(v == INF, 2147483647, -2147483648))


@device
def logb(x):
    """Returns the exponent of x as a float. 0 gives -infinity.

    Example:
        libdevice.logb(5.0)  # 2.0
    """
    v = tl.abs(wide(x))
    finite = (v > 0) & (v < INF)
    e = binary_exponent(tl.where(finite, v, 1.0)).to(v.dtype)
    return narrow(tl.where(finite, e, tl.where(v == 0, -INF, v)), x)


# -- remainders --------------------------------------------------------------------------------------------------------------


@device
def fmod(x, y):
    """Computes the exact remainder of x / y, with the quotient rounded toward zero. It has the sign of x.

    Example:
        libdevice.fmod(7.5, 2.0)  # 1.5
    """
    a, b = wide2(x, y)
    return narrow2(a % b, x, y)


@device
def remainder(x, y):
    """Computes the exact remainder of x / y, with the quotient rounded to nearest, ties to even. It is at most |y| / 2.

    Example:
        libdevice.remainder(7.5, 2.0)  # -0.5
    """
    a, b = wide2(x, y)
    size = tl.abs(b)
    # Less than twice |y|, where that is a float: the quotient's last bit is then known.
    doubled = size + size
    r = tl.abs(a)
    r = tl.where(doubled < INF, r % tl.where(doubled < INF, doubled, 1.0), r)
    over = tl.where(size < LEAST_NORMAL[size.dtype.primitive_bitwidth] * 2, r + r > size, r > 0.5 * size)
    first = tl.where(over, r - size, r)
    again = tl.where(size < LEAST_NORMAL[size.dtype.primitive_bitwidth] * 2, first + first >= size, first >= 0.5 * size)
    result = tl.where(over & again, first - size, first)
    result = tl.where(negative(a), -result, result)
    return narrow2(tl.where((b == 0) | (tl.abs(a) == INF) | (b != b) | (a != a), NAN, result), x, y)
