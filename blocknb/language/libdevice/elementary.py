"""libdevice's exponentials, logarithms, powers and hyperbolic functions.

The functions reduce the argument, evaluate a polynomial, and put the exponent back (Muller, "Elementary Functions"). A sum of two
floats holds intermediate results that need more digits, such as logarithms that are multiplied afterwards. Errors are at most two
units in the last place. Special values are those of C99.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice import coefficients as c
from blocknb.language.libdevice.parts import (
    INF,
    LEAST_NORMAL,
    LIFT,
    MAGIC,
    MANTISSA,
    NAN,
    device,
    fast_two_sum,
    from_bits,
    helper,
    horner,
    narrow,
    narrow2,
    nearest,
    negative,
    number,
    power_of_two,
    scale,
    scaled_pair,
    to_bits,
    two_product,
    two_sum,
    wide,
    wide2,
    with_sign,
)
from blocknb.language.target_info import is_cuda
from blocknb.language.types import float32, float64, int32

LN2_HIGH = {32: 0.693145751953125, 64: 0.6931471803691238}  # few enough bits that n * LN2_HIGH is exact
LN2_LOW = {32: 1.428606765330187e-06, 64: 1.9082149292705877e-10}
EXP_RANGE = {32: (-105.0, 90.0), 64: (-747.0, 711.0)}  # beyond these the result is zero or infinite
EXP2_RANGE = {32: (-152.0, 130.0), 64: (-1078.0, 1026.0)}
SHARES = 252.0  # exponents of normal numbers from -126 to 126
SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


# -- exponentials ------------------------------------------------------------------------------------------------------------


@helper
def clipped(x, bounds):
    """x limited to the bounds. A NaN stays."""
    x = tl.where(x < bounds[0], bounds[0], x)
    return tl.where(x > bounds[1], bounds[1], x)


@helper
def exp_reduced(h, l):
    """m and an integer n with e^(h + l) = 2^n (1 + m), for h within EXP_RANGE and a small l."""
    w: constexpr = h.dtype.primitive_bitwidth
    n_float, n = nearest(h * c.LOG2_E[w][0])
    r = tl.fma(n_float, number(-LN2_HIGH[w], h), h)
    r = tl.fma(n_float, number(-LN2_LOW[w], h), r) + l
    return tl.fma(r * r, horner(r, c.EXP[w]), r), n


@helper
def exp_sum(h, l):
    """e^(h + l) for a small l."""
    m, n = exp_reduced(clipped(h, EXP_RANGE[h.dtype.primitive_bitwidth]), l)
    return scale(m + 1.0, n)


@helper
def exp2_sum(h, l):
    """2^(h + l) for a small l."""
    w: constexpr = h.dtype.primitive_bitwidth
    h = clipped(h, EXP2_RANGE[w])
    n_float, n = nearest(h)
    r = (h - n_float) + l
    return scale(tl.fma(r, horner(r, c.EXP2[w]), number(1.0, h)), n)


@helper
def exp_of_floats(v):
    """e^v in fp32, where a GPU's exp2 of a number around zero is precise. The power of two that it is multiplied by is a normal number,
    so e^v is rounded once if it is subnormal."""
    # 0 for an exponent of -126, and 1 for one of 126
    share = tl.clamp(tl.fma(v, c.LOG2_E[32][0] / SHARES, number(0.5, v)), 0.0, 1.0)
    shifted = tl.fma(share, number(SHARES, v), number(MAGIC[32] + 1, v))  # the low bits are the biased exponent
    n = shifted - (MAGIC[32] + 127)
    rest = tl.fma(v, c.LOG2_E[32][1], tl.fma(v, c.LOG2_E[32][0], -n))
    return tl.exp2(rest) * from_bits(to_bits(shifted) << MANTISSA[32], v)


@device
def exp(x):
    """Computes e to the x.

    Example:
        libdevice.exp(0.5)  # 1.64872122
    """
    v = wide(x)
    if v.dtype == float64:
        return narrow(exp_sum(v, number(0.0, v)), x)
    if is_cuda():
        return narrow(exp_of_floats(v), x)
    return narrow(tl.exp(v), x)


@device
def exp10(x):
    """Computes 10 to the x.

    Example:
        libdevice.exp10(0.5)  # 3.1622777
    """
    v = wide(x)
    w: constexpr = v.dtype.primitive_bitwidth
    inside = clipped(v, (-330.0, 310.0) if w == 64 else (-46.0, 39.0))
    h, l = scaled_pair(inside, number(0.0, v), c.LOG2_10[w])
    return narrow(exp2_sum(h, l), x)


@helper
def expm1_wide(v):
    w: constexpr = v.dtype.primitive_bitwidth
    m, n = exp_reduced(clipped(v, (-40.0, EXP_RANGE[w][1])), number(0.0, v))
    # 2^n (1 + m) - 1 = 2^n (m + (1 - 2^-n))
    ones = 1.0 - power_of_two(tl.maximum(-n, -100), v)
    return tl.where(v == 0, v, scale(m + ones, n))


@device
def expm1(x):
    """Computes e to the x minus 1, precisely for small x.

    Example:
        libdevice.expm1(0.5)  # 0.648721278
    """
    return narrow(expm1_wide(wide(x)), x)


@helper
def half_exp(v):
    """e^v / 2, which is finite for slightly larger v than e^v."""
    m, n = exp_reduced(clipped(v, EXP_RANGE[v.dtype.primitive_bitwidth]), number(0.0, v))
    return scale(m + 1.0, n - 1)


@device
def sinh(x):
    """Computes the hyperbolic sine.

    Example:
        libdevice.sinh(0.5)  # 0.521095335
    """
    v = wide(x)
    a = tl.abs(v)
    e = expm1_wide(tl.where(a < 1, a, 0.0))
    small = 0.5 * (e + tl.div_rn(e, e + 1.0))
    h = half_exp(a)
    return narrow(with_sign(tl.where(a < 1, small, h - tl.div_rn(number(0.25, v), h)), v), x)


@device
def cosh(x):
    """Computes the hyperbolic cosine.

    Example:
        libdevice.cosh(0.5)  # 1.12762594
    """
    v = wide(x)
    h = half_exp(tl.abs(v))
    return narrow(h + tl.div_rn(number(0.25, v), h), x)


# -- logarithms --------------------------------------------------------------------------------------------------------------


@helper
def log_parts(x):
    """The logarithm of m as a sum of two floats, and e as a float, for x = 2^e m positive and finite, m around 1."""
    w: constexpr = x.dtype.primitive_bitwidth
    tiny = x < LEAST_NORMAL[w]
    bits = to_bits(tl.where(tiny, x * LIFT[w], x))
    e = (bits - SQRT_HALF_BITS[w]) >> MANTISSA[w]
    m = from_bits(bits - (e << MANTISSA[w]), x)
    e_float = e.to(x.dtype) - tl.where(tiny, MANTISSA[w] + 1.0, 0.0)
    # log(m) = 2 s + 2/3 s^3 + ..., s = (m - 1) / (m + 1): the first two terms in two parts, the others in one.
    f = m - 1.0
    d = m + 1.0
    s = f / d  # of which s_low is the error, so an approximate division will do
    s_low = (tl.fma(-s, d, f) - s * (m - (d - 1.0))) / d
    z, z_low = two_product(s, s)
    z_low = z_low + 2.0 * s * s_low
    cube, cube_low = two_product(s, z)
    cube_low = cube_low + (s * z_low + s_low * z)
    third, third_low = scaled_pair(cube, cube_low, c.TWO_THIRDS[w])
    h, l = fast_two_sum(2.0 * s, third)
    tail = cube * z * horner(z, c.LOG_TAIL[w])
    return h, l + (2.0 * s_low + third_low + tail), e_float


@helper
def log2_parts(x):
    """The logarithm to base 2 of a positive finite number, as a sum of two floats."""
    h, l, e = log_parts(x)
    p, rest = scaled_pair(h, l, c.LOG2_E[x.dtype.primitive_bitwidth])
    total, error = fast_two_sum(e, p)
    return total, error + rest


@helper
def log_limits(result, v):
    """The logarithm with its values at 0 and infinity, and NaN for negative numbers."""
    result = tl.where(v == INF, v, tl.where(v == 0, -INF, result))
    return tl.where(v >= 0, result, NAN)


@device
def log10(x):
    """Computes the logarithm to base 10.

    Example:
        libdevice.log10(5.0)  # 0.69897002
    """
    v = wide(x)
    w: constexpr = v.dtype.primitive_bitwidth
    h, l, e = log_parts(tl.where((v > 0) & (v < INF), v, 1.0))
    p, p_low = scaled_pair(h, l, c.LOG10_E[w])
    q, q_low = scaled_pair(e, number(0.0, v), c.LOG10_2[w])
    total, error = two_sum(q, p)
    return narrow(log_limits(total + (error + (p_low + q_low)), v), x)


@helper
def log1p_wide(v):
    u = 1.0 + v
    correction = (
        v - (u - 1.0)
    ) / u  # log(1 + v) = log(u) + the rounding error of u, small enough for an approximate division
    inside = (u > 0) & (u < INF) & (v != 0)
    result = tl.log(tl.where(inside, u, 1.0)) + tl.where(inside, correction, 0.0)
    result = tl.where(inside, result, tl.where(u == 0, -INF, v))
    return tl.where(v >= -1, result, NAN)


@device
def log1p(x):
    """Computes the logarithm of 1 + x, precisely for small x.

    Example:
        libdevice.log1p(0.5)  # 0.405465096
    """
    return narrow(log1p_wide(wide(x)), x)


@device
def asinh(x):
    """Computes the inverse hyperbolic sine.

    Example:
        libdevice.asinh(0.5)  # 0.481211841
    """
    v = wide(x)
    a = tl.abs(v)
    large = a > LIFT[v.dtype.primitive_bitwidth]
    b = tl.where(large, 1.0, a)
    square = b * b
    small = log1p_wide(b + tl.div_rn(square, 1.0 + tl.sqrt_rn(square + 1.0)))
    return narrow(with_sign(tl.where(large, tl.log(a) + c.LN_2[v.dtype.primitive_bitwidth][0], small), v), x)


@device
def acosh(x):
    """Computes the inverse hyperbolic cosine of numbers from 1.

    Example:
        libdevice.acosh(2.0)  # 1.31695795
    """
    v = wide(x)
    large = v > LIFT[v.dtype.primitive_bitwidth]
    t = tl.where(large, 1.0, v) - 1.0
    small = log1p_wide(t + tl.sqrt_rn(2.0 * t + t * t))
    result = tl.where(large, tl.log(v) + c.LN_2[v.dtype.primitive_bitwidth][0], small)
    return narrow(tl.where(v >= 1, result, NAN), x)


@device
def atanh(x):
    """Computes the inverse hyperbolic tangent of numbers between -1 and 1.

    Example:
        libdevice.atanh(0.25)  # 0.255412817
    """
    v = wide(x)
    a = tl.abs(v)
    return narrow(with_sign(0.5 * log1p_wide(tl.div_rn(2.0 * a, 1.0 - a)) + tl.where(a <= 1, 0.0, NAN), v), x)


# -- powers ------------------------------------------------------------------------------------------------------------------


@helper
def power(a, y):
    """a^y for positive finite a."""
    h, l = log2_parts(a)
    p, rest = two_product(y, h)
    rest = rest + y * l
    bound: constexpr = 4000.0
    large = ~(tl.abs(p) < bound)
    return exp2_sum(tl.where(large, with_sign(number(bound, p), p), p), tl.where(large, 0.0, rest))


@device
def pow(x, y):
    """Computes x to the y. y may be an integer.

    Example:
        libdevice.pow(2.0, 0.5)  # 1.41421354
    """
    if not tl.to_tensor(y).dtype.is_floating():
        # Every int32 is an fp64, so that odd powers keep their sign.
        exact = real_power(tl.cast(x, float64), tl.cast(y, float64))
        return narrow(exact.to(float64 if wide(x).dtype == float64 else float32), tl.to_tensor(x))
    a, b = wide2(x, y)
    return narrow2(real_power(a, b), x, y)


@device
def powi(x, n):
    """Computes x to an integer power.

    Example:
        libdevice.powi(1.5, 3)  # 3.375
    """
    return pow(x, tl.cast(n, int32))


@helper
def real_power(x, y):
    a = tl.abs(x)
    ordinary = (a > 0) & (a < INF)
    size = power(tl.where(ordinary, a, 1.0), tl.where(tl.abs(y) < INF, y, 0.0))
    grows = (a > 1) == (y > 0)
    limit = tl.where(a == 1, 1.0, tl.where(grows, INF, 0.0))
    size = tl.where(ordinary & (tl.abs(y) < INF), size, limit)
    is_whole = tl.floor(y) == y
    half = y * 0.5
    odd = is_whole & (tl.floor(half) != half) & (tl.abs(y) < INF)
    size = tl.where(odd & negative(x), -size, size)
    size = tl.where((x < 0) & (a < INF) & ~is_whole & (tl.abs(y) < INF), NAN, size)
    size = tl.where((x != x) | (y != y), NAN, size)
    return tl.where((x == 1) | (y == 0), 1.0, size)
