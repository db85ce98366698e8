"""Reference functions with fifty digits, free of float rounding.

Each takes a float and returns a Decimal. It adds up a series that converges everywhere, or Stirling's series, whose error is below its
first omitted term. `extended` makes a function of arrays from one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

DIGITS = Context(prec=90)  # 40 of them are lost where the terms of a series are large and its sum is small
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")


def bernoulli(count: int) -> list[Fraction]:
    """B_2, B_4, ..."""
    found = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        found.append(-sum(math.comb(n + 1, k) * b for k, b in enumerate(found)) / (n + 1))
    return found[2::2]


STIRLING = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(bernoulli(30), 1)]


def extended(function: Callable[[Decimal], Decimal]) -> Callable[[np.ndarray], np.ndarray]:
    """Makes a function of arrays in NumPy's longdouble. The function itself handles NaN and infinities."""

    def of_array(x: np.ndarray) -> np.ndarray:
        with localcontext(DIGITS):
            found = [np.longdouble(str(function(Decimal(float(v))))) for v in x.ravel()]
        return np.array(found, np.longdouble).reshape(x.shape)

    return of_array


def erf(x: Decimal) -> Decimal:
    """2/sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!, all of whose terms have one sign; 1 beyond 12, to 60 digits."""
    if not x.is_finite() or abs(x) > 12:
        return x if x.is_nan() else Decimal(1).copy_sign(x)
    term = total = x
    n, square = 1, 2 * x * x
    while abs(term) > abs(total) * Decimal("1e-85"):
        n += 2
        term = term * square / n
        total += term
    return 2 / PI.sqrt() * (-x * x).exp() * total


def erfc(x: Decimal) -> Decimal:
    """For numbers up to 6, beyond which too few digits of erf are left."""
    assert x <= 6
    return 1 - erf(x)


def erfcx(x: Decimal) -> Decimal:
    return (x * x).exp() * erfc(x)


def normcdf(x: Decimal) -> Decimal:
    return erfc(-x / Decimal(2).sqrt()) / 2


def lgamma(x: Decimal) -> Decimal:
    """The logarithm of gamma of positive numbers: Stirling's series 60 further up, where its terms fall to 1e-70."""
    product = Decimal(1)
    while x < 60:
        product *= x
        x += 1
    series = sum(Decimal(c.numerator) / c.denominator / x ** (2 * k + 1) for k, c in enumerate(STIRLING))
    return (x - Decimal("0.5")) * x.ln() - x + (2 * PI).ln() / 2 + series - product.ln()


def gamma(x: Decimal) -> Decimal:
    return lgamma(x).exp()
