"""libdevice's Bessel functions: J, Y of integer order and the modified I0 and I1, computed in fp64.

Up to 8, the functions are polynomials in the square of the argument. Beyond 8, they use the amplitudes of Hankel's expansion
(Abramowitz and Stegun 9.2.5) as polynomials in the inverse of the argument. Errors are relative to the amplitude sqrt(2 / (pi x)),
also near the zeros. Higher orders come from the recurrence. It runs upward for Y, and for J where the order is below the argument.
For larger orders of J it runs downward (Miller's algorithm). The order of `jn` and `yn` is a compile-time constant or a scalar.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.libdevice import coefficients as c
from blocknb.language.libdevice.elementary import exp_sum
from blocknb.language.libdevice.parts import INF, NAN, device, helper, horner, narrow, number, wide
from blocknb.language.types import float64, int32


@helper
def amplitudes(a, p_table, q_table):
    """P and Q of Hankel's expansion, over sqrt(pi a), for a from 8."""
    inverse = 8.0 / a
    t = 2.0 * inverse * inverse - 1.0
    root = tl.sqrt(3.141592653589793 * a)
    return horner(t, p_table) / root, horner(t, q_table) / (a * root)


@helper
def first_kind(x, order):
    """J0 or J1 of an fp64."""
    a = tl.abs(x)
    near = a <= 8.0
    s = tl.where(near, a, 0.0)
    t = s * s * 0.03125 - 1.0
    b = tl.where(near | (a == INF), 8.0, a)
    sine = tl.sin(b)
    cosine = tl.cos(b)
    # cos(x - pi/4) and sin(x - pi/4) are sums of sine and cosine; for order one both turn by another pi/2.
    if order == 0:
        p, q = amplitudes(b, c.BESSEL_P0[64], c.BESSEL_Q0[64])
        far = p * (cosine + sine) - q * (sine - cosine)
        return tl.where(near, horner(t, c.BESSEL_J0[64]), tl.where(a == INF, 0.0, tl.where(a == a, far, x)))
    p, q = amplitudes(b, c.BESSEL_P1[64], c.BESSEL_Q1[64])
    far = p * (sine - cosine) + q * (sine + cosine)
    size = tl.where(near, s * horner(t, c.BESSEL_J1[64]), tl.where(a == INF, 0.0, tl.where(a == a, far, x)))
    return tl.where(x < 0, -size, size)


@helper
def second_kind(x, order):
    """Y0 or Y1 of an fp64: -infinity at zero, NaN below."""
    near = x <= 8.0
    s = tl.where(near & (x > 0), x, 1.0)
    t = s * s * 0.03125 - 1.0
    b = tl.where(near | (x == INF) | (x != x), 8.0, x)
    sine = tl.sin(b)
    cosine = tl.cos(b)
    log = 0.6366197723675814 * tl.log(s)
    if order == 0:
        p, q = amplitudes(b, c.BESSEL_P0[64], c.BESSEL_Q0[64])
        far = p * (sine - cosine) + q * (cosine + sine)
        small = log * first_kind(s, 0) + horner(t, c.BESSEL_Y0[64])
    else:
        p, q = amplitudes(b, c.BESSEL_P1[64], c.BESSEL_Q1[64])
        far = q * (sine - cosine) - p * (sine + cosine)
        small = log * first_kind(s, 1) + (s * horner(t, c.BESSEL_Y1[64]) - 0.6366197723675814 / s)
    result = tl.where(near, small, tl.where(x == INF, 0.0, far))
    return tl.where(x > 0, result, tl.where(x == 0, -INF, NAN))


@device
def j0(x):
    """Computes the Bessel function of the first kind of order 0.

    Example:
        libdevice.j0(0.5)  # 0.938469827
    """
    return narrow(first_kind(tl.cast(x, float64), 0).to(wide(x).dtype), x)


@device
def j1(x):
    """Computes the Bessel function of the first kind of order 1.

    Example:
        libdevice.j1(0.5)  # 0.242268458
    """
    return narrow(first_kind(tl.cast(x, float64), 1).to(wide(x).dtype), x)


@device
def y0(x):
    """Computes the Bessel function of the second kind of order 0, for positive numbers.

    Example:
        libdevice.y0(5.0)  # -0.308517635
    """
    return narrow(second_kind(tl.cast(x, float64), 0).to(wide(x).dtype), x)


@device
def y1(x):
    """Computes the Bessel function of the second kind of order 1, for positive numbers.

    Example:
        libdevice.y1(5.0)  # 0.14786315
    """
    return narrow(second_kind(tl.cast(x, float64), 1).to(wide(x).dtype), x)


@device
def yn(n, x):
    """Computes the Bessel function of the second kind of integer order n, for positive numbers; n is a scalar.

    Example:
        libdevice.yn(2, 1.5)  # -0.932193756
    """
    n = tl.cast(n, int32)
    v = tl.cast(x, float64)
    order = tl.abs(n)
    inside = (v > 0) & (v < INF)
    s = tl.where(inside, v, 1.0)
    before = second_kind(s, 0)
    current = second_kind(s, 1)
    for k in range(1, order):
        after = 2.0 * k / s * current - before
        # An infinite value stays infinite, because the difference of two infinities would be NaN.
        after = tl.where(after != after, -INF, after)
        before = current
        current = after
    result = tl.where(order == 0, second_kind(s, 0), current)
    result = tl.where(inside, result, tl.where(v == 0, -INF, tl.where(v == INF, 0.0, NAN)))
    result = tl.where((n < 0) & (order % 2 == 1), -result, result)
    return narrow(result.to(wide(x).dtype), x)


@device
def jn(n, x):
    """Computes the Bessel function of the first kind of integer order n; n is a scalar.

    Example:
        libdevice.jn(2, 1.5)  # 0.232087672
    """
    n = tl.cast(n, int32)
    v = tl.cast(x, float64)
    order = tl.abs(n)
    a = tl.abs(v)
    inside = (a > 0) & (a < INF)
    s = tl.where(inside, a, 1.0)
    result = tl.where(s > order, rising_order(order, s), falling_order(order, s))
    result = tl.where(order == 0, first_kind(s, 0), tl.where(order == 1, first_kind(s, 1), result))
    result = tl.where(inside, result, tl.where(a == 0, tl.where(order == 0, 1.0, 0.0), tl.where(a == INF, 0.0, v)))
    result = tl.where(((v < 0) != (n < 0)) & (order % 2 == 1), -result, result)
    return narrow(result.to(wide(x).dtype), x)


@helper
def rising_order(order, s):
    before = first_kind(s, 0)
    current = first_kind(s, 1)
    for k in range(1, order):
        after = 2.0 * k / s * current - before
        before = current
        current = after
    return current


@helper
def falling_order(order, s):
    """Miller: from far above the order downward, normalised by 1 = J0 + 2 J2 + 2 J4 + ..."""
    start = (order + 40 + tl.sqrt(order.to(float64) * 60.0).to(int32)) // 2 * 2
    above = s * 0.0
    current = above + 1e-300
    wanted = above
    total = above
    step = 2.0 / tl.where(s > order, 1.0 * order, s)
    for k in range(start, 0, -1):
        below = k * step * current - above
        above = current
        current = below
        large = tl.abs(current) > 1e200
        shrink = tl.where(large, 1e-200, 1.0)
        above = above * shrink
        current = current * shrink
        wanted = wanted * shrink
        total = total * shrink
        wanted = tl.where(k - 1 == order, current, wanted)
        total = total + tl.where((k % 2 == 1) & (k > 1), 2.0 * current, 0.0)
    return wanted / (total + current)


@device
def cyl_bessel_i0(x):
    """Computes the modified Bessel function of the first kind of order 0.

    Example:
        libdevice.cyl_bessel_i0(0.5)  # 1.06348336
    """
    v = tl.cast(x, float64)
    a = tl.abs(v)
    near = a <= 8.0
    s = tl.where(near, a, 0.0)
    z = 0.25 * s * s
    result = tl.where(near, 1.0 + z * horner(z, c.BESSEL_I0[64]), growing(a, c.BESSEL_I0_LARGE[64]))
    return narrow(result.to(wide(x).dtype), x)


@device
def cyl_bessel_i1(x):
    """Computes the modified Bessel function of the first kind of order 1.

    Example:
        libdevice.cyl_bessel_i1(0.5)  # 0.257894307
    """
    v = tl.cast(x, float64)
    a = tl.abs(v)
    near = a <= 8.0
    s = tl.where(near, a, 0.0)
    size = tl.where(near, s * horner(0.25 * s * s, c.BESSEL_I1[64]), growing(a, c.BESSEL_I1_LARGE[64]))
    return narrow(tl.where(v < 0, -size, size).to(wide(x).dtype), x)


@helper
def growing(a, table):
    """e^a / sqrt(a) times a polynomial in 8 / a, for a from 8."""
    b = tl.where(a > 8.0, tl.minimum(a, 720.0), 8.0)
    half = exp_sum(0.5 * b, number(0.0, b))
    result = half * (horner(8.0 / b - 0.5, table) / tl.sqrt(b)) * half
    return tl.where(a == a, tl.where(a > 720.0, INF, result), a)
