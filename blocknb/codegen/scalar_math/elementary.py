"""exp, log, tanh and other elementary functions as polynomials on vectors, in fp32 and fp64, without a call into any library.

Each function is written once, for both precisions and any vector width (see `lanes`). The scheme is the textbook one: reduce the
argument, evaluate a polynomial, restore the exponent (Cody & Waite, "Software Manual for the Elementary Functions"; Muller, "Elementary
Functions"). The coefficients are Chebyshev fits, computed with mpmath at 40 digits. The errors are below 2 ulp in fp32 and 3 ulp in
fp64. Infinities, NaNs, subnormal numbers and overflow follow IEEE arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from blocknb.codegen.scalar_math import exact
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.lanes import LaneFunction, Lanes, define

# ---- exponentials -------------------------------------------------------------------------------------------------------

LN2_HIGH = {32: 0.693145751953125, 64: 0.6931471803691238}  # few enough bits that n * LN2_HIGH is exact
LN2_LOW = {32: 1.428606765330187e-06, 64: 1.9082149292705877e-10}
LN2 = 0.6931471805599453
LOG2_E = 1.4426950408889634
# (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2]
EXP = {
    32: (0.5, 0.166665769219854, 0.041666554532615786, 0.008363190325615149, 0.001392619766942992),
    64: (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326124, 0.0013888888888883742, 0.00019841269874858612,
         2.4801587325574868e-05, 2.7557255352032673e-06, 2.7557273608709007e-07, 2.51052370507603e-08, 2.0914701283103285e-09),
}  # fmt: skip
# (2^r - 1) / r on [-1/2, 1/2]
EXP2 = {
    32: (0.6931471880352003, 0.24022650760645808, 0.05550357071152507, 0.009618082519990467, 0.0013390886332106697, 0.0001545318282995974),
    64: (0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.00961812910762848, 0.0013333558146406436,
         0.00015403530393370715, 1.5252733841601815e-05, 1.3215486808727859e-06, 1.0178057064573359e-07, 7.054897292691627e-09,
         4.455822025014915e-10, 2.5729344553786755e-11),
}  # fmt: skip
# Beyond these the result is zero or infinite.
EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
EXP2_RANGE = {32: (-151.0, 129.0), 64: (-1076.0, 1025.0)}


def exp(f: LaneFunction, x: Lanes) -> Lanes:
    """e^x."""
    bits = f.format.bits
    x = f.clamp(x, *EXP_RANGE[bits])
    n_float, n = f.nearest(x * LOG2_E)
    r = f.fma(n_float, -LN2_HIGH[bits], x)
    r = f.fma(n_float, -LN2_LOW[bits], r)
    power = f.fma(r * r, f.polynomial(r, EXP[bits]), r) + 1.0
    return f.scale(power, n, n_float)


def exp2(f: LaneFunction, x: Lanes) -> Lanes:
    """2^x."""
    bits = f.format.bits
    x = f.clamp(x, *EXP2_RANGE[bits])
    n_float, n = f.nearest(x)
    r = x - n_float
    return f.scale(f.fma(f.polynomial(r, EXP2[bits]), r, 1.0), n, n_float)


# ---- logarithms ---------------------------------------------------------------------------------------------------------

# (log(1 + m) - m + m^2/2) / m^3 on [sqrt(1/2) - 1, sqrt(2) - 1]
LOG_SINGLE = (0.33333331179972575, -0.24999996957625975, 0.2000071576352166, -0.16667802367579132, 0.14249057141902147, -0.1242568569282142,
              0.11685423571105265, -0.11479748625389889, 0.06971620541003427)  # fmt: skip
# log2(1 + m) / m on the same range
LOG2_SINGLE = (1.4426950399991902, -0.7213473544743526, 0.4808985203160789, -0.36069654228581866, 0.28855256247352223, -0.23960811004132498,
               0.20485761624803125, -0.19138844898865454, 0.1847605933327275, -0.1074980471255849)  # fmt: skip
# (log(1 + m) / s - 2) / s^2 in powers of s^2, with s = m / (2 + m)
LOG_DOUBLE = (0.6666666666666666, 0.4000000000000088, 0.28571428570800655, 0.222222223923837, 0.18181795568589937, 0.15386243592665208,
              0.13268669005111386, 0.1308771474739754)  # fmt: skip


def _logarithm(f: LaneFunction, x: Lanes, finish: Callable[[Lanes, Lanes], Lanes]) -> Lanes:
    """`finish(e, m)` for x = 2^e (1 + m), 1 + m between sqrt(1/2) and sqrt(2); and the special values."""
    mantissa, least, magic = f.format.mantissa, f.format.least_normal, f.format.magic
    lift = 2.0 ** (mantissa + 1)
    subnormal = x < least
    bits = f.select(subnormal, x * lift, x).bits()
    power = (bits - f.like(x, math.sqrt(0.5)).bits()) & (-1 << mantissa)
    m = (bits - power).floating() - 1.0
    exponent = (power >> mantissa) + f.like(x, magic).bits()
    e = exponent.floating() - f.select(subnormal, f.like(x, magic + mantissa + 1), magic)
    # Unsigned bits below those of infinity: finite, and no sign. x * inf + inf is right for all others but zeros.
    finite = x.bits().compare("ult", f.like(x, math.inf).bits())
    result = f.select(finite, finish(e, m), f.fma(x, math.inf, math.inf))
    return f.select(x.compare("oeq", 0.0), f.like(x, -math.inf), result)


def _log_double(f: LaneFunction, m: Lanes) -> Lanes:
    """log(1 + m) - m, to more than a double where m is small."""
    s = m / (m + 2.0)
    z = s * s
    half_square = m * m * 0.5
    return s * f.fma(f.polynomial(z, LOG_DOUBLE), z, half_square) - half_square


def log(f: LaneFunction, x: Lanes) -> Lanes:
    """The natural logarithm."""
    bits = f.format.bits

    def finish(e: Lanes, m: Lanes) -> Lanes:
        if f.single:
            return f.fma(e, LN2, f.fma(m * m, f.polynomial(m, (-0.5, *LOG_SINGLE)), m))
        tail = _log_double(f, m)
        return f.fma(e, LN2_HIGH[bits], f.fma(e, LN2_LOW[bits], tail) + m)

    return _logarithm(f, x, finish)


def log2(f: LaneFunction, x: Lanes) -> Lanes:
    """The logarithm to base 2."""

    def finish(e: Lanes, m: Lanes) -> Lanes:
        if f.single:
            return f.fma(f.polynomial(m, LOG2_SINGLE), m, e)
        return f.fma(m + _log_double(f, m), LOG2_E, e)

    return _logarithm(f, x, finish)


# ---- tanh, erf ----------------------------------------------------------------------------------------------------------

# (tanh(x) - x) / x^3 in powers of x^2, on |x| <= 0.625
TANH = {
    32: (-0.3333333317214036, 0.1333330355691574, -0.053959259577204544, 0.02176891865102821, -0.008343945515839153, 0.002292744816178142),
    64: (-0.3333333333333333, 0.13333333333333042, -0.05396825396789699, 0.021869488519008305, -0.008863235103240878,
         0.0035921217511549622, -0.0014557754120478055, 0.0005896606577757043, -0.0002375906496055562, 9.257116129556769e-05,
         -3.12011014257974e-05, 6.485163482793113e-06),
}  # fmt: skip
# erf(x) / x - 1 in powers of x^2, on |x| <= 1
ERF = {
    32: (0.1283791670615435, -0.3761263846802871, 0.11283782495236845, -0.026865430727670243, 0.005221031807858023,
         -0.0008484080405535107, 0.00011265959025606609, -9.667044571486996e-06),
    64: (0.12837916709551257, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
         -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
         1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
}  # fmt: skip
# erfc(x) exp(x^2) in powers of (x - 2) / (x + 2), on [1, 4.1] and [1, 6.1]
ERFC = {
    32: (0.25539567623426224, -0.4271858478750108, 0.24165821478092542, -0.0789784972765468, 0.0037320341748268075, 0.006994266083471934,
         -0.0008358428865430571, -0.0009405458631950548),
    64: (0.2553956763105057, -0.4271858474139586, 0.2416581942424901, -0.07897858101568098, 0.0037328924013653036, 0.006997461737119002,
         -0.0008471431094072872, -0.0009819770558673945, 4.3552337898568215e-05, 0.0001743641142015647, 2.7564289065003395e-05,
         -2.7638034176921362e-05, -1.4191354642116557e-05, 1.8665379110784541e-06, 4.20982425198767e-06, -2.8327674392080737e-07),
}  # fmt: skip
ERF_LIMIT = {32: 4.0, 64: 6.0}  # erf is 1 to the last bit beyond


def tanh(f: LaneFunction, x: Lanes) -> Lanes:
    """The hyperbolic tangent."""
    size = f.absolute(x)
    square = x * x
    small = f.fma(square * size, f.polynomial(square, TANH[f.format.bits]), size)
    large = f.like(x, 1.0) - f.like(x, 2.0) / (exp(f, size + size) + 1.0)
    return f.copy_sign(f.select(size > 0.625, large, small), x)


def erf(f: LaneFunction, x: Lanes) -> Lanes:
    """The error function."""
    bits = f.format.bits
    size = f.absolute(x)
    square = x * x
    small = f.fma(f.polynomial(square, ERF[bits]), size, size)
    near = f.clamp(size, 0.0, ERF_LIMIT[bits])
    ratio = (near - 2.0) / (near + 2.0)
    complement = exp(f, -(near * near)) * f.polynomial(ratio, ERFC[bits])
    return f.copy_sign(f.select(size > 1.0, f.like(x, 1.0) - complement, small), x)


# ---- roundings that machines before SSE4.1 lack ------------------------------------------------------------------------


def floor(f: LaneFunction, x: Lanes) -> Lanes:
    """The largest integer that is not above x."""
    return _rounded(f, x, lambda n: n - f.select(n > x, f.like(x, 1.0), 0.0))


def ceil(f: LaneFunction, x: Lanes) -> Lanes:
    """The smallest integer that is not below x."""
    return _rounded(f, x, lambda n: n + f.select(n < x, f.like(x, 1.0), 0.0))


def _rounded(f: LaneFunction, x: Lanes, adjust: Callable[[Lanes], Lanes]) -> Lanes:
    """Rounds by `adjust`, which gets the nearest integer. Numbers of 2^mantissa and more are integers already."""
    limit = 2.0**f.format.mantissa
    size = f.absolute(x)
    nearest = f.copy_sign((size + limit) - limit, x)
    return f.copy_sign(f.select(size < limit, adjust(nearest), x), x)


FUNCTIONS: dict[str, Callable[[LaneFunction, Lanes], Lanes]] = {
    "exp": exp, "exp2": exp2, "log": log, "log2": log2, "tanh": tanh, "erf": erf, "floor": floor, "ceil": ceil,
    "sin": exact.sin, "cos": exact.cos,
}  # fmt: skip


def call(code: InstructionBuilder, name: str, args: Sequence[str], element: str, width: int) -> str:
    """The value of one of FUNCTIONS."""
    return code.helper(name, partial(define, code, FUNCTIONS[name]), element, width, args[0])
