"""Building blocks of libdevice: bits of floats, exact sums and products, polynomials, powers of two.

The functions are written in the language and serve fp32 and fp64: `primitive_bitwidth`, a constant, indexes the tables. Two techniques
are used in most of them. An `fma` with -0.0 computes a product that the compiler must not fuse into a later sum. An unevaluated sum of
two floats (`two_sum`, `two_product`: Knuth, Dekker) holds twice the digits of one float.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.types import float32, float64, int32, int64

FUNCTIONS: dict[str, Callable] = {}  # the names of libdevice, filled by `device`

MANTISSA = {32: 23, 64: 52}
BIAS = {32: 127, 64: 1023}
SIGN = {32: -(2**31), 64: -(2**63)}
MAGNITUDE = {32: 2**31 - 1, 64: 2**63 - 1}
MAGIC = {32: 1.5 * 2.0**23, 64: 1.5 * 2.0**52}
LEAST_NORMAL = {32: 2.0**-126, 64: 2.0**-1022}
LIFT = {32: 2.0**24, 64: 2.0**53}
NAN: constexpr = constexpr(float("nan"))
INF: constexpr = constexpr(float("inf"))


def helper(function: Callable) -> Callable:
    """Marks a function that the functions of libdevice call; the front end inlines it."""
    function.inline = True  # type: ignore[attr-defined]
    return function


def device(function: Callable) -> Callable:
    """Adds a function to libdevice under its own name."""
    FUNCTIONS[function.__name__] = function
    return helper(function)


def named(name: str, doc: str, example: str, function: Callable) -> None:
    """Adds a closure to libdevice, under a name and with a docstring. The example begins at the arguments of the call."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\nExample:\n    libdevice.{name}{example}"
    device(function)


# -- precision -----------------------------------------------------------------------------------------------------------


@helper
def wide(x):
    """x in the dtype of the computation: fp64 for fp64, and fp32 for all others."""
    x = tl.to_tensor(x)
    return x if x.dtype == float64 else x.to(float32)


@helper
def wide2(x, y):
    """Both operands in the wider of their precisions."""
    x = wide(x)
    y = wide(y)
    common = x + y
    return x.to(common.dtype), y.to(common.dtype)


@helper
def narrow(result, x):
    """The result in the dtype of x, if that is a float."""
    return result.to(x.dtype) if x.dtype.is_floating() else result


@helper
def narrow2(result, x, y):
    common = tl.to_tensor(x) + y
    return narrow(result, common)


@helper
def number(value, like):
    """A constant in the precision of `like`."""
    return tl.full((), value, like.dtype)


# -- bits ----------------------------------------------------------------------------------------------------------------


@helper
def to_bits(x):
    return x.to(int64 if x.dtype == float64 else int32, bitcast=True)


@helper
def from_bits(bits, like):
    return bits.to(like.dtype, bitcast=True)


@helper
def with_sign(magnitude, sign):
    """|magnitude| with the sign of `sign`, also that of a zero or a NaN."""
    w: constexpr = sign.dtype.primitive_bitwidth
    return from_bits((to_bits(magnitude) & MAGNITUDE[w]) | (to_bits(sign) & SIGN[w]), sign)


@helper
def negative(x):
    """Whether the sign bit is set."""
    return to_bits(x) < 0


@helper
def power_of_two(n, like):
    """2^n for integers n of the width of `like`, where that is a normal number."""
    w: constexpr = like.dtype.primitive_bitwidth
    return from_bits((n + BIAS[w]) << MANTISSA[w], like)


@helper
def scale(x, n):
    """x * 2^n for |n| up to twice the range of exponents, rounded once."""
    half = n >> 1
    return x * power_of_two(half, x) * power_of_two(n - half, x)


@helper
def exponent_of(x):
    """The exponent field of a positive number, less the bias."""
    w: constexpr = x.dtype.primitive_bitwidth
    return (to_bits(x) >> MANTISSA[w]) - BIAS[w]


@helper
def away(x):
    """The next float of larger magnitude."""
    return from_bits(to_bits(x) + 1, x)


@helper
def inward(x):
    """The next float of smaller magnitude."""
    return from_bits(to_bits(x) - 1, x)


# -- whole numbers -------------------------------------------------------------------------------------------------------


@helper
def nearest(x):
    """The nearest integer of a small number, as a float and as an integer: adding MAGIC leaves it in the low bits."""
    magic = number(MAGIC[x.dtype.primitive_bitwidth], x)
    shifted = x + magic
    return shifted - magic, to_bits(shifted) - to_bits(magic)


@helper
def whole(x):
    """The nearest integer of any number, halves to even, with the sign of x."""
    limit: constexpr = LIFT[x.dtype.primitive_bitwidth] / 2
    size = tl.abs(x)
    return tl.where(size < limit, with_sign((size + limit) - limit, x), x)


@helper
def toward_zero(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


# -- exact sums and products -----------------------------------------------------------------------------------------------


@helper
def product(x, y):
    """x * y, rounded once and never fused with a sum."""
    return tl.fma(x, y, number(-0.0, x))


@helper
def two_product(x, y):
    """x * y as a float and its error."""
    p = product(x, y)
    return p, tl.fma(x, y, -p)


@helper
def two_sum(x, y):
    """x + y as a float and its error."""
    s = x + y
    back = s - x
    return s, (x - (s - back)) + (y - back)


@helper
def fast_two_sum(x, y):
    """x + y as a float and its error, for |x| >= |y| or x = 0."""
    s = x + y
    return s, y - (s - x)


@helper
def scaled_pair(h, l, constant):
    """(h + l) times a constant in two parts, in two parts."""
    p, rest = two_product(h, number(constant[0], h))
    return p, rest + (h * constant[1] + l * constant[0])


# -- polynomials -----------------------------------------------------------------------------------------------------------


@helper
def horner(x, coefficients):
    """The polynomial with these coefficients, highest power first."""
    total = number(coefficients[0], x)
    for c in coefficients[1:]:
        total = tl.fma(total, x, number(c, x))
    return total
