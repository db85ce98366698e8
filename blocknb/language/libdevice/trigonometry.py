"""libdevice's tangents, inverse circular functions, sine and cosine of multiples of pi, and the `fast_` variants.

The inverse tangent reduces its argument y / x to at most tan(pi/8) by one of three divisions. Beyond 1/2, arcsine and arccosine use
the half-angle formula with a square root. The `fast_` functions are instructions of the GPU, whose error grows with the argument.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice import coefficients as c
from blocknb.language.libdevice.parts import (
    INF,
    NAN,
    device,
    helper,
    horner,
    narrow,
    narrow2,
    nearest,
    negative,
    number,
    whole,
    wide,
    wide2,
    with_sign,
)

HUGE = {32: 2.0**125, 64: 2.0**1021}


@device
def tan(x):
    """Computes the tangent of radians.

    Example:
        libdevice.tan(0.5)  # 0.546302497
    """
    v = wide(x)
    return narrow(tl.div_rn(tl.sin(v), tl.cos(v)), x)


@helper
def turns(v):
    """v less the nearest multiple of 1/2, exactly, and that multiple's number modulo 4."""
    r = v - 2.0 * whole(v * 0.5)
    n_float, n = nearest(r * 2.0)
    return r - n_float * 0.5, n


@helper
def quarter_sine(f):
    w: constexpr = f.dtype.primitive_bitwidth
    z = f * f
    low = tl.fma(z * f, horner(z, c.SINPI[w]), f * c.PI[w][1])
    return tl.fma(f, number(c.PI[w][0], f), low)


@helper
def quarter_cosine(f):
    z = f * f
    return tl.fma(z, horner(z, c.COSPI[f.dtype.primitive_bitwidth]), number(1.0, f))


@device
def sinpi(x):
    """Computes the sine of pi x.

    Example:
        libdevice.sinpi(0.5)  # 1.0
    """
    v = wide(x)
    f, n = turns(v)
    result = tl.where((n & 1) != 0, quarter_cosine(f), quarter_sine(f))
    result = tl.where((n & 2) != 0, -result, result)
    return narrow(tl.where(tl.floor(v) == v, with_sign(v * 0.0, v), result), x)


@device
def cospi(x):
    """Computes the cosine of pi x.

    Example:
        libdevice.cospi(0.5)  # 0.0
    """
    v = wide(x)
    f, n = turns(v)
    result = tl.where((n & 1) != 0, quarter_sine(f), quarter_cosine(f))
    result = tl.where(((n + 1) & 2) != 0, -result, result)
    return narrow(tl.where(result == 0, 0.0, result), x)


# -- inverse functions -------------------------------------------------------------------------------------------------------


@helper
def angle(a, b):
    """The angle, between 0 and pi/2, whose tangent is a / b, for a and b not negative."""
    w: constexpr = a.dtype.primitive_bitwidth
    low = a <= b * 0.4142135623730951
    high = a > b * 2.414213562373095
    top = tl.where(low, a, tl.where(high, -b, a - b))
    bottom = tl.where(low, b, tl.where(high, a, a + b))
    t = tl.where(bottom == 0, 0.0, tl.div_rn(top, bottom))
    z = t * t
    series = z * t * horner(z, c.ATAN[w])
    quarters = tl.where(low, 0.0, tl.where(high, 2.0, number(1.0, a)))
    base = quarters * (c.HALF_PI[w][0] / 2)
    rest = quarters * (c.HALF_PI[w][1] / 2)
    return base + (t + (series + rest))


@device
def atan(x):
    """Computes the inverse tangent, between -pi/2 and pi/2.

    Example:
        libdevice.atan(0.5)  # 0.463647604
    """
    v = wide(x)
    a = tl.abs(v)
    infinite = a == INF
    result = angle(tl.where(infinite, 1.0, a), tl.where(infinite, 0.0, a * 0.0 + 1.0))
    return narrow(with_sign(result, v), x)


@device
def atan2(y, x):
    """Computes the angle of the point (x, y), between -pi and pi.

    Example:
        libdevice.atan2(3.0, 4.0)  # 0.643501103
    """
    b, a = wide2(y, x)
    w: constexpr = a.dtype.primitive_bitwidth
    size_y = tl.abs(b)
    size_x = tl.abs(a)
    # Finite numbers with the same angle replace infinities. Large numbers are scaled down, so that sums do not overflow.
    infinite = (size_y == INF) | (size_x == INF)
    huge = (size_y > HUGE[w]) | (size_x > HUGE[w])
    up = tl.where(infinite, tl.where(size_y == INF, 1.0, 0.0), tl.where(huge, size_y * 0.25, size_y))
    right = tl.where(infinite, tl.where(size_x == INF, 1.0, 0.0), tl.where(huge, size_x * 0.25, size_x))
    result = angle(up, right)
    result = tl.where(negative(a), c.PI[w][0] - (result - c.PI[w][1]), result)
    return narrow2(tl.where((a != a) | (b != b), NAN, with_sign(result, b)), y, x)


@helper
def small_arcsine(a):
    """The arcsine of numbers up to 1/2 less the number itself."""
    z = a * a
    return z * a * horner(z, c.ASIN[a.dtype.primitive_bitwidth])


@helper
def half_angle(a):
    """sqrt((1 - a) / 2) as a float and its error."""
    z = (1.0 - a) * 0.5
    s = tl.sqrt_rn(z)
    return s, tl.where(s > 0, tl.div_rn(tl.fma(-s, s, z), 2.0 * s), 0.0)


@device
def asin(x):
    """Computes the inverse sine of numbers between -1 and 1.

    Example:
        libdevice.asin(0.25)  # 0.252680242
    """
    v = wide(x)
    w: constexpr = v.dtype.primitive_bitwidth
    a = tl.abs(v)
    s, rest = half_angle(a)
    large = c.HALF_PI[w][0] - (2.0 * s - (c.HALF_PI[w][1] - 2.0 * (rest + small_arcsine(s))))
    result = tl.where(a <= 0.5, a + small_arcsine(a), large)
    return narrow(tl.where(a <= 1, with_sign(result, v), NAN), x)


@device
def acos(x):
    """Computes the inverse cosine of numbers between -1 and 1.

    Example:
        libdevice.acos(0.25)  # 1.31811607
    """
    v = wide(x)
    w: constexpr = v.dtype.primitive_bitwidth
    a = tl.abs(v)
    middle = c.HALF_PI[w][0] - (v - (c.HALF_PI[w][1] - small_arcsine(v)))
    s, rest = half_angle(a)
    large = 2.0 * (s + (rest + small_arcsine(s)))
    large = tl.where(v > 0, large, c.PI[w][0] - (large - c.PI[w][1]))
    return narrow(tl.where(a <= 0.5, middle, tl.where(a <= 1, large, NAN)), x)


# -- hardware instructions -----------------------------------------------------------------------------------------------------


@device
def fast_sinf(x):
    """Computes the sine in fp32.

    Example:
        libdevice.fast_sinf(0.5)  # 0.47942555
    """
    return tl.sin(x)


@device
def fast_cosf(x):
    """Computes the cosine in fp32.

    Example:
        libdevice.fast_cosf(0.5)  # 0.87758255
    """
    return tl.cos(x)


@device
def fast_tanf(x):
    """Computes the tangent in fp32.

    Example:
        libdevice.fast_tanf(0.5)  # 0.546302497
    """
    return narrow(tl.sin(wide(x)) / tl.cos(wide(x)), x)


@device
def fast_tanhf(x):
    """Computes the hyperbolic tangent in fp32.

    Example:
        libdevice.fast_tanhf(0.5)  # 0.462117165
    """
    return tl.tanh(x)


@device
def fast_expf(x):
    """Computes e to the x in fp32.

    Example:
        libdevice.fast_expf(0.5)  # 1.64872122
    """
    return tl.exp(x)


@device
def fast_exp10f(x):
    """Computes 10 to the x in fp32.

    Example:
        libdevice.fast_exp10f(0.5)  # 3.1622777
    """
    return narrow(tl.exp2(wide(x) * 3.321928094887362), x)


@device
def fast_logf(x):
    """Computes the natural logarithm in fp32.

    Example:
        libdevice.fast_logf(5.0)  # 1.60943794
    """
    return tl.log(x)


@device
def fast_log2f(x):
    """Computes the logarithm to base 2 in fp32.

    Example:
        libdevice.fast_log2f(5.0)  # 2.32192802
    """
    return tl.log2(x)


@device
def fast_log10f(x):
    """Computes the logarithm to base 10 in fp32.

    Example:
        libdevice.fast_log10f(5.0)  # 0.69897002
    """
    return narrow(tl.log2(wide(x)) * 0.3010299956639812, x)


@device
def fast_powf(x, y):
    """Computes x to the y in fp32, for positive x.

    Example:
        libdevice.fast_powf(2.0, 0.5)  # 1.41421354
    """
    a, b = wide2(x, y)
    return narrow2(tl.exp2(b * tl.log2(a)), x, y)


@device
def fast_dividef(x, y):
    """Computes x / y in fp32.

    Example:
        libdevice.fast_dividef(1.0, 4.0)  # 0.25
    """
    return tl.fdiv(x, y)
