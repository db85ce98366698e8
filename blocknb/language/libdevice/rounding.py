"""libdevice's arithmetic with a direction of rounding (`_rn`, `_rz`, `_rd`, `_ru`).

The IR has no rounding modes. A result that is rounded in some direction is at most one float away from the nearest result. The sign of the
nearest result's exact error says on which side. So a function first computes the nearest result. Then it computes its error by an exact sum
or product, and moves the result by at most one float. Source: Muller et al., "Handbook of Floating-Point Arithmetic", chapter 4. fp32
errors are computed in fp64. Operands in fp64 are scaled first where the error would underflow. The results are correctly rounded for all
numbers.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice.parts import (
    INF,
    away,
    device,
    fast_two_sum,
    helper,
    inward,
    named,
    negative,
    number,
    product,
    two_product,
    two_sum,
    wide,
    wide2,
)
from blocknb.language.types import float32, float64

DIRECTIONS = {"rn": "to nearest", "rz": "toward zero", "rd": "down", "ru": "up"}
SMALLEST = {32: 2.0**-149, 64: 2.0**-1074}


@helper
def step(r, error, mode: constexpr):
    """The nearest result r, moved by one float if the mode requires it. `error` has the sign of (exact result - r)."""
    least: constexpr = SMALLEST[r.dtype.primitive_bitwidth]
    if mode == "rz":
        return tl.where(((error < 0) & (r > 0)) | ((error > 0) & (r < 0)), inward(r), r)
    if mode == "rd":
        return tl.where(error < 0, tl.where(r > 0, inward(r), tl.where(r == 0, -least, away(r))), r)
    return tl.where(error > 0, tl.where(r < 0, inward(r), tl.where(r == 0, least, away(r))), r)


@helper
def overflowed(r, error, finite):
    """The error, with the sign of an overflow: if finite operands give an infinite r, the exact result is nearer to zero."""
    infinite = (tl.abs(r) == INF) & finite
    return tl.where(infinite, -r, tl.where(tl.abs(r) == INF, error * 0, error))


@helper
def settle(s, error, mode: constexpr):
    """The exact number s + error (fp64, |error| at most half a unit of s) as fp32, rounded by the mode."""
    r = s.to(float32)
    rest = s - r.to(float64)
    rest = tl.where(rest == 0, error, rest)
    return step(r, tl.where(tl.abs(s) == INF, 0.0, rest), mode)


@helper
def zero_sum(r, x, y, mode: constexpr):
    """The sum r of x and y: rounded down, a sum that cancels is -0.0."""
    if mode == "rd":
        return tl.where((r == 0) & (negative(x) | negative(y)), -0.0, r)
    return r


@helper
def finite2(x, y):
    return (tl.abs(x) < INF) & (tl.abs(y) < INF)


@helper
def add(x, y, mode: constexpr):
    x, y = wide2(x, y)
    if x.dtype == float32:
        s, e = two_sum(x.to(float64), y.to(float64))
        return zero_sum(settle(s, e, mode), x, y, mode)
    s, e = two_sum(x, y)
    return zero_sum(step(s, overflowed(s, e, finite2(x, y)), mode), x, y, mode)


@helper
def multiply(x, y, mode: constexpr):
    x, y = wide2(x, y)
    if x.dtype == float32:
        exact = product(x.to(float64), y.to(float64))
        return settle(exact, exact * 0.0, mode)
    p, e = two_product(x, y)
    # Where the error would underflow, it is computed from operands multiplied by 2^600.
    small = tl.abs(p) < 2.0**-900
    lifted = tl.fma(x * 2.0**600, y * 2.0**600, -(p * 2.0**600 * 2.0**600))
    return step(p, overflowed(p, tl.where(small, lifted, e), finite2(x, y)), mode)


@helper
def divide(x, y, mode: constexpr):
    x, y = wide2(x, y)
    if x.dtype == float32:
        a = x.to(float64)
        b = y.to(float64)
        q = tl.div_rn(a, b)
        e = tl.fma(-q, b, a) * tl.where(b < 0, -1.0, 1.0)
        return settle(q, tl.where((tl.abs(q) < INF) & finite2(x, y), e, 0.0), mode)
    q = tl.div_rn(x, y)
    small = (tl.abs(x) < 2.0**-900) & (tl.abs(y) < 2.0**900)
    a = tl.where(small, x * 2.0**120, x)
    b = tl.where(small, y * 2.0**120, y)
    e = tl.fma(-q, b, a) * tl.where(b < 0, -1.0, 1.0)
    e = tl.where(finite2(x, y), e, 0.0)
    return step(q, overflowed(q, e, finite2(x, y) & (y != 0)), mode)


@helper
def root(x, mode: constexpr):
    x = wide(x)
    if x.dtype == float32:
        a = x.to(float64)
        s = tl.sqrt(a)
        return settle(s, tl.where(s < INF, tl.fma(-s, s, a), 0.0), mode)
    s = tl.sqrt_rn(x)
    small = x < 2.0**-900
    a = tl.where(small, x * 2.0**200, x)
    b = tl.where(small, s * 2.0**100, s)
    return step(s, tl.where(s < INF, tl.fma(-b, b, a), 0.0), mode)


@helper
def fused(x, y, z, mode: constexpr):
    x, y = wide2(x, y)
    x, z = wide2(x, z)
    y = y.to(x.dtype)
    if x.dtype == float32:
        p = product(x.to(float64), y.to(float64))
        s, e = two_sum(p, z.to(float64))
        return zero_sum(settle(s, tl.where(tl.abs(s) < INF, e, 0.0), mode), p, z, mode)
    # The error of a fused multiply-add is a sum of two floats: Boldo and Muller, "Exact and approximated error of the FMA", 2011.
    # A product that is too small for it is multiplied by 2^1200. If z is much larger, the product itself is the error.
    r = tl.fma(x, y, z)
    small = tl.abs(x * y) < 2.0**-900
    alone = small & (tl.abs(z) > 2.0**-800)
    lift = tl.where(small & ~alone, 2.0**600, tl.full((), 1.0, float64))
    u, low = two_product(x * lift, y * lift)
    a, rest = two_sum(z * lift * lift, low)
    b, c = two_sum(u, a)
    error, _ = fast_two_sum((b - r * lift * lift) + c, rest)
    signs = tl.where(x == 0, 0.0, tl.where(negative(x) != negative(y), -1.0, 1.0))
    error = tl.where(alone, tl.where(y == 0, 0.0, signs), tl.where(tl.abs(u) < INF, error, 0.0))
    return zero_sum(step(r, overflowed(r, error, finite2(x, y) & (tl.abs(z) < INF)), mode), product(x, y), z, mode)


# -- the functions -----------------------------------------------------------------------------------------------------------


@device
def add_rn(x, y):
    """Computes x + y, rounded to nearest and never fused with a product.

    Example:
        libdevice.add_rn(1.0, 1e-09)  # 1.0
    """
    x, y = wide2(x, y)
    return tl.fma(x, number(1.0, x), y)


@device
def sub_rn(x, y):
    """Computes x - y, rounded to nearest and never fused with a product.

    Example:
        libdevice.sub_rn(1.0, 1e-09)  # 1.0
    """
    x, y = wide2(x, y)
    return tl.fma(x, number(1.0, x), -y)


@device
def mul_rn(x, y):
    """Computes x * y, rounded to nearest and never fused with a sum.

    Example:
        libdevice.mul_rn(0.1, 3.0)  # 0.300000012
    """
    x, y = wide2(x, y)
    return product(x, y)


@device
def rcp_rn(x):
    """Computes 1 / x, rounded to nearest.

    Example:
        libdevice.rcp_rn(3.0)  # 0.333333343
    """
    return tl.div_rn(number(1.0, wide(x)), wide(x))


@device
def rsqrt_rn(x):
    """Computes 1 / sqrt(x) in fp64, and rounds to the nearest fp32 number.

    Example:
        libdevice.rsqrt_rn(5.0)  # 0.44721359
    """
    return tl.div_rn(number(1.0, tl.cast(x, float64)), tl.sqrt(tl.cast(x, float64))).to(float32)


@device
def fma_rn(x, y, z):
    """Computes x * y + z, rounded once, to nearest.

    Example:
        libdevice.fma_rn(2.0, 3.0, 1.0)  # 7.0
    """
    return tl.fma(x, y, z)


def directed(mode: str) -> None:
    """Defines the functions that round in the direction `mode`."""

    def addition(x, y):
        return add(x, y, mode)

    def subtraction(x, y):
        return add(x, -y, mode)

    def multiplication(x, y):
        return multiply(x, y, mode)

    def division(x, y):
        return divide(x, y, mode)

    def reciprocal(x):
        return divide(1.0, x, mode)

    def square_root(x):
        return root(x, mode)

    def fused_multiply_add(x, y, z):
        return fused(x, y, z, mode)

    functions = {  # description, arguments of the example, its results rounded down and up
        "add": (addition, "x + y", "(1.0, 1e-09)", 1.0, 1.00000012),
        "sub": (subtraction, "x - y", "(1.0, 1e-09)", 0.99999994, 1.0),
        "mul": (multiplication, "x * y", "(0.1, 3.0)", 0.299999982, 0.300000012),
        "div": (division, "x / y", "(1.0, 3.0)", 0.333333313, 0.333333343),
        "rcp": (reciprocal, "1 / x", "(3.0)", 0.333333313, 0.333333343),
        "sqrt": (square_root, "sqrt(x)", "(5.0)", 2.23606777, 2.23606801),
        "fma": (fused_multiply_add, "x * y + z as one operation", "(2.0, 3.0, 1.0)", 7.0, 7.0),
    }
    for name, (function, what, arguments, down, up) in functions.items():
        example = f"{arguments}  # {up if mode == 'ru' else down}"
        named(f"{name}_{mode}", f"Computes {what}, rounded {DIRECTIONS[mode]}.", example, function)


for _mode in ("rz", "rd", "ru"):
    directed(_mode)
