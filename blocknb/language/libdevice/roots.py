"""libdevice's cube roots and norms. A second float holds the rounding error of squares and sums, so errors are below one ulp."""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice import coefficients as c
from blocknb.language.libdevice.floats import binary_exponent
from blocknb.language.libdevice.parts import (
    INF,
    device,
    exponent_of,
    from_bits,
    helper,
    horner,
    narrow,
    narrow2,
    number,
    power_of_two,
    scale,
    to_bits,
    two_product,
    two_sum,
    wide,
    wide2,
    with_sign,
)
from blocknb.language.types import float32

# -- roots and norms ---------------------------------------------------------------------------------------------------------


@helper
def cube_root(m):
    """The cube root of a number between 1 and 8, as a sum of two floats. It takes two steps of Halley's method, and a third step with the
    exact error."""
    t = horner(m, c.CBRT[m.dtype.primitive_bitwidth])
    for _ in tl.static_range(2):
        cube = t * t * t
        t = t * tl.div_rn(cube + 2.0 * m, 2.0 * cube + m)
    square, low = two_product(t, t)
    return t, tl.div_rn(tl.fma(-square, t, m) - low * t, 3.0 * square)


@helper
def cube_parts(v):
    """m between 1 and 8 and k with |v| = 8^k m, for finite v that is not zero."""
    e = binary_exponent(v)
    k = (e + 3000) // 3 - 1000
    # In two steps: 2^(3 k) may not be a normal number.
    n = -3 * k
    return scale(v, n), k


@device
def cbrt(x):
    """Computes the cube root.

    Example:
        libdevice.cbrt(0.5)  # 0.793700516
    """
    v = wide(x)
    a = tl.abs(v)
    ordinary = (a > 0) & (a < INF)
    m, k = cube_parts(tl.where(ordinary, a, 1.0))
    t, rest = cube_root(m)
    return narrow(tl.where(ordinary, with_sign((t + rest) * power_of_two(k, v), v), v), x)


@device
def rcbrt(x):
    """Computes 1 / cbrt(x).

    Example:
        libdevice.rcbrt(0.5)  # 1.25992107
    """
    v = wide(x)
    a = tl.abs(v)
    ordinary = (a > 0) & (a < INF)
    m, k = cube_parts(tl.where(ordinary, a, 1.0))
    t, rest = cube_root(m)
    r = tl.div_rn(number(1.0, v), t)
    r = r + r * (tl.fma(-r, t, number(1.0, v)) - r * rest)
    return narrow(tl.where(ordinary, with_sign(r * power_of_two(-k, v), v), tl.div_rn(number(1.0, v), v)), x)


@helper
def norm(x, y, z, w):
    """The length of a vector, scaled so that nothing overflows, and the power of two that undoes the scaling."""
    largest = tl.maximum(tl.maximum(tl.abs(x), tl.abs(y)), tl.maximum(tl.abs(z), tl.abs(w)))
    limit: constexpr = 126 if largest.dtype == float32 else 1022
    e = tl.minimum(tl.maximum(exponent_of(largest), -limit), limit)
    down = power_of_two(-e, largest)
    x = x * down
    y = y * down
    z = z * down
    w = w * down
    # The sum of squares in two parts: the rounding errors of the squares and the sums are added at the end.
    a, a_low = two_product(x, x)
    b, b_low = two_product(y, y)
    d, d_low = two_product(z, z)
    f, f_low = two_product(w, w)
    s, s_low = two_sum(a, b)
    t, t_low = two_sum(d, f)
    u, u_low = two_sum(s, t)
    return tl.sqrt_rn(u + (u_low + s_low + t_low + (a_low + b_low) + (d_low + f_low))), power_of_two(e, largest)


@helper
def length(x, y, z, w):
    r, up = norm(x, y, z, w)
    infinite = (tl.abs(x) == INF) | (tl.abs(y) == INF) | (tl.abs(z) == INF) | (tl.abs(w) == INF)
    return tl.where(infinite, INF, r * up)


@helper
def inverse_length(x, y, z, w):
    r, up = norm(x, y, z, w)
    infinite = (tl.abs(x) == INF) | (tl.abs(y) == INF) | (tl.abs(z) == INF) | (tl.abs(w) == INF)
    down = from_bits(to_bits(number(1.0, r)) * 2 - to_bits(up), r)
    return tl.where(infinite, 0.0, tl.div_rn(number(1.0, r), r) * down)


@device
def hypot(x, y):
    """Computes sqrt(x^2 + y^2). No intermediate result overflows.

    Example:
        libdevice.hypot(3.0, 4.0)  # 5.0
    """
    a, b = wide2(x, y)
    return narrow2(length(a, b, a * 0.0, a * 0.0), x, y)


@device
def rhypot(x, y):
    """Computes 1 / sqrt(x^2 + y^2). No intermediate result overflows.

    Example:
        libdevice.rhypot(3.0, 4.0)  # 0.200000003
    """
    a, b = wide2(x, y)
    return narrow2(inverse_length(a, b, a * 0.0, a * 0.0), x, y)


@device
def norm3d(x, y, z):
    """Computes sqrt(x^2 + y^2 + z^2). No intermediate result overflows.

    Example:
        libdevice.norm3d(2.0, 3.0, 6.0)  # 7.0
    """
    a, b = wide2(x, y)
    a, d = wide2(a, z)
    return narrow2(length(a, b.to(a.dtype), d, a * 0.0), x, y)


@device
def rnorm3d(x, y, z):
    """Computes 1 / sqrt(x^2 + y^2 + z^2). No intermediate result overflows.

    Example:
        libdevice.rnorm3d(2.0, 3.0, 6.0)  # 0.142857149
    """
    a, b = wide2(x, y)
    a, d = wide2(a, z)
    return narrow2(inverse_length(a, b.to(a.dtype), d, a * 0.0), x, y)


@device
def norm4d(x, y, z, w):
    """Computes sqrt(x^2 + y^2 + z^2 + w^2). No intermediate result overflows.

    Example:
        libdevice.norm4d(1.0, 1.0, 3.0, 5.0)  # 6.0
    """
    a, b = wide2(x, y)
    d, f = wide2(z, w)
    a, d = wide2(a, d)
    return narrow2(length(a, b.to(a.dtype), d, f.to(a.dtype)), x, y)


@device
def rnorm4d(x, y, z, w):
    """Computes 1 / sqrt(x^2 + y^2 + z^2 + w^2). No intermediate result overflows.

    Example:
        libdevice.rnorm4d(1.0, 1.0, 3.0, 5.0)  # 0.166666672
    """
    a, b = wide2(x, y)
    d, f = wide2(z, w)
    a, d = wide2(a, d)
    return narrow2(inverse_length(a, b.to(a.dtype), d, f.to(a.dtype)), x, y)
