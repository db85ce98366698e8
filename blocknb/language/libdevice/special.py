"""libdevice's error functions, their inverses, the normal distribution, and gamma functions.

`erfc(x) e^(x^2)` is one polynomial in `(x - 4) / (x + 4)` for all positive x. Source: Shepherd and Laframboise, "Chebyshev approximation of
(1 + 2x) exp(x^2) erfc x", 1981. The exponential takes its argument as a sum of two floats. The inverses start from a rational approximation
(Abramowitz and Stegun 26.2.23) and refine it by Halley's method. Inverses and gamma functions compute fp32 in fp64.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice import coefficients as c
from blocknb.language.libdevice.elementary import exp_sum, log_parts
from blocknb.language.libdevice.parts import (
    INF,
    NAN,
    device,
    fast_two_sum,
    helper,
    horner,
    narrow,
    number,
    product,
    scaled_pair,
    two_product,
    wide,
)
from blocknb.language.libdevice.trigonometry import sinpi
from blocknb.language.types import float64

ERFC_END = {32: 11.0, 64: 28.0}  # erfc is zero beyond
TWO_BY_ROOT_PI = 1.1283791670955126


# -- error functions -----------------------------------------------------------------------------------------------------------


@helper
def scaled_complement(a):
    """e^(a^2) erfc(a) for a not negative."""
    t = tl.where(a == INF, 1.0, tl.div_rn(a - 4.0, a + 4.0))
    return tl.div_rn(0.5 * horner(t, c.ERFCX[a.dtype.primitive_bitwidth]), a + 0.5)


@device
def erfc(x):
    """Computes the complementary error function, 1 - erf(x), precisely where it is small.

    Example:
        libdevice.erfc(0.5)  # 0.479500115
    """
    v = wide(x)
    a = tl.minimum(tl.abs(v), ERFC_END[v.dtype.primitive_bitwidth])
    h, l = two_product(a, a)
    tail = exp_sum(-h, -l) * scaled_complement(a)
    result = tl.where(v < 0, 2.0 - tail, tail)
    result = tl.where(tl.abs(v) < 0.5, 1.0 - tl.erf(v), result)
    return narrow(tl.where(v == v, result, v), x)


@device
def erfcx(x):
    """Computes e^(x^2) erfc(x).

    Example:
        libdevice.erfcx(0.5)  # 0.615690351
    """
    v = wide(x)
    a = tl.abs(v)
    right = scaled_complement(a)
    b = tl.minimum(a, ERFC_END[v.dtype.primitive_bitwidth])
    h, l = two_product(b, b)
    return narrow(tl.where(v < 0, 2.0 * exp_sum(h, l) - right, right), x)


@device
def normcdf(x):
    """Computes the probability that a standard normal number is at most x.

    Example:
        libdevice.normcdf(0.5)  # 0.691462517
    """
    v = wide(x)
    w: constexpr = v.dtype.primitive_bitwidth
    a = tl.minimum(tl.abs(v), 40.0)
    h, l = two_product(a, a)
    tail = 0.5 * exp_sum(-0.5 * h, -0.5 * l) * scaled_complement(a * c.SQRT_HALF[w][0])
    return narrow(tl.where(v == v, tl.where(v < 0, tail, 1.0 - tail), v), x)


# -- inverses ------------------------------------------------------------------------------------------------------------------


@helper
def erf_root(x, q):
    """y >= 0 with erf(y) = x and erfc(y) = q, for x + q = 1 and both between 0 and 1 (fp64)."""
    near = x < 0.5
    # The first approximations have three correct digits: a series about zero, a rational function for the tail.
    z = x * x
    series = x * (0.886226925452758 + z * (0.23201366653465452 + z * 0.12755617529655884))
    t = tl.sqrt(-2.0 * tl.log(0.5 * tl.where(near, 0.5, q)))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    bottom = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    y = tl.where(near, series, (t - top / bottom) * 0.7071067811865476)
    for _ in tl.static_range(2):
        # Halley: the error over the derivative, corrected by the second one, which is -2 y times the first.
        h, l = two_product(y, y)
        error = tl.where(near, tl.erf(y) - x, q - erfc(y))
        ratio = error / (TWO_BY_ROOT_PI * exp_sum(-h, -l))
        y = y - ratio / (1.0 + y * ratio)
    return y


@helper
def erf_inverse(x, q):
    """The root for x of either sign, with the values at the ends and outside."""
    size = tl.abs(x)
    inside = (q > 0) & (q < 2)
    tail = tl.where(x < 0, 2.0 - q, q)
    y = erf_root(tl.where(inside, size, 0.0), tl.where(inside, tail, 1.0))
    y = tl.where(inside, y, tl.where((q == 0) | (q == 2), INF, NAN))
    return tl.where(x < 0, -y, y)


@device
def erfinv(x):
    """Computes the inverse of erf for numbers between -1 and 1.

    Example:
        libdevice.erfinv(0.25)  # 0.225312054
    """
    v = tl.cast(x, float64)
    result = tl.where(v == 0, v, erf_inverse(v, 1.0 - v))
    return narrow(result.to(wide(x).dtype), x)


@device
def erfcinv(x):
    """Computes the inverse of erfc for numbers between 0 and 2.

    Example:
        libdevice.erfcinv(0.25)  # 0.813419819
    """
    v = tl.cast(x, float64)
    return narrow(erf_inverse(1.0 - v, v).to(wide(x).dtype), x)


@device
def normcdfinv(x):
    """Computes the inverse of normcdf for probabilities between 0 and 1.

    Example:
        libdevice.normcdfinv(0.25)  # -0.674489737
    """
    v = tl.cast(x, float64)
    result = erf_inverse(1.0 - 2.0 * v, 2.0 * v) * -1.4142135623730951
    return narrow(result.to(wide(x).dtype), x)


# -- gamma ---------------------------------------------------------------------------------------------------------------------


@helper
def gamma_positive(a):
    """The gamma function of positive numbers, in fp64: by 1 / gamma on [1, 2], or by Stirling's series from 12."""
    small = a < 12.0
    b = tl.where(small, a, 1.0)
    rising = number(1.0, a)
    below = b < 1.0
    divisor = tl.where(below, b, 1.0)
    b = tl.where(below, b + 1.0, b)
    for _ in tl.static_range(10):
        b, rising = lowered(b, rising)
    near = rising / (horner(b - 1.0, c.GAMMA[64]) * divisor)
    h, l = stirling(tl.where(small, 12.0, tl.minimum(a, 180.0)))
    # Halved and squared, because x^(x - 1/2) overflows before the result does.
    half = exp_sum(0.5 * h, 0.5 * l)
    return tl.where(small, near, half * half)


@helper
def lowered(b, rising):
    above = b > 2.0
    b = tl.where(above, b - 1.0, b)
    return b, tl.where(above, rising * b, rising)


@helper
def stirling(a):
    """log(gamma(a)) for a from 12 as a sum of two floats: (a - 1/2) log(a) - a + log(2 pi) / 2 + series."""
    h, l, e = log_parts(a)
    p, p_low = scaled_pair(e, number(0.0, a), c.LN_2[64])
    log_high, log_low = fast_two_sum(p, h)
    log_low = log_low + (p_low + l)
    # The logarithm less one first: then the terms do not cancel.
    log_high, rest = fast_two_sum(log_high, number(-1.0, a))
    log_low = log_low + rest
    q, q_low = two_product(a - 0.5, log_high)
    q_low = q_low + (a - 0.5) * log_low
    inverse = 1.0 / a
    series = inverse * horner(inverse * inverse, c.STIRLING[64])
    return fast_two_sum(q, q_low + (series + 0.4189385332046727))


@device
def tgamma(x):
    """Computes the gamma function.

    Example:
        libdevice.tgamma(5.0)  # 24.0
    """
    v = tl.cast(x, float64)
    a = tl.abs(v)
    size = gamma_positive(tl.where(a == 0, 1.0, a))
    reflected = -3.141592653589793 / (a * sinpi(a) * size)
    result = tl.where(v > 0, size, reflected)
    result = tl.where((v < 0) & (tl.floor(v) == v), NAN, result)
    result = tl.where(a < 1e-17, 1.0 / v, result)
    # Where the gamma function of -v overflows, that of v is zero.
    result = tl.where((v < -185.0) & (tl.floor(v) != v), 0.0, result)
    result = tl.where(v == INF, v, tl.where(v == v, result, v))
    return narrow(result.to(wide(x).dtype), x)


@helper
def log_gamma_positive(a):
    """log(gamma(a)) for positive numbers, in fp64."""
    small = a < 12.0
    b = tl.where(small, a, 1.5)
    low = b < 0.5
    divisor = tl.where(low, b, 1.0)
    b = tl.where(low, b + 1.0, b)
    rising = number(1.0, a)
    for _ in tl.static_range(9):
        above = b > 3.0
        b = tl.where(above, b - 1.0, b)
        rising = tl.where(above, rising * b, rising)
    base = product(b - 1.0, b - 2.0) * horner(b - 1.75, c.LGAMMA[64])
    log = tl.log(tl.where(low, divisor, rising))
    near = base + tl.where(low, -log, log)
    large = a > 1e300
    h, l = stirling(tl.where(small, 12.0, tl.where(large, 1e300, a)))
    far = tl.where(large, a * (tl.log(tl.where(large, a, 1e300)) - 1.0), h + l)
    return tl.where(small, near, far)


@device
def lgamma(x):
    """Computes the logarithm of the absolute value of the gamma function. Near its zeros on the negative axis the error is absolute.

    Example:
        libdevice.lgamma(5.0)  # 3.17805386
    """
    v = tl.cast(x, float64)
    a = tl.abs(v)
    positive = log_gamma_positive(tl.where((a > 0) & (a < INF), a, 1.0))
    sine = tl.abs(sinpi(a))
    pole = sine == 0
    reflected = tl.log(3.141592653589793 / (a * tl.where(pole, 1.0, sine))) - positive
    # Near zero the product a * sin(pi a) would vanish first.
    reflected = tl.where(a < 1e-20, -tl.log(tl.where(a > 0, a, 1.0)), reflected)
    result = tl.where(v > 0, positive, tl.where(pole, INF, reflected))
    result = tl.where(a == INF, INF, tl.where(v == v, result, v))
    return narrow(result.to(wide(x).dtype), x)
