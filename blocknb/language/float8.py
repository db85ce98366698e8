"""The 8-bit float formats as data, and the encoding and decoding of one number.

A format has a sign, an exponent, a mantissa, and a meaning of the largest bit patterns. Numbers that are too large, and infinities,
become the largest number. A NaN becomes one fixed pattern. All targets follow these rules, which are those of the GPU (PTX ISA: cvt
with .satfinite). Rounding is to nearest, ties to even. Only e4b15 rounds ties away from zero, as in Triton.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A number is (-1)^sign * 1.mantissa * 2^(exponent - bias), with `mantissa` bits; exponent 0 has no leading one.

    `largest` is the bit pattern of the largest finite number. `nan` is the pattern that conversions give for a NaN; with None, the format
    has no NaN, and a NaN becomes the largest number. `infinity` is the pattern of infinity, if there is one. With `unsigned_zero`, the
    format has no -0, and the pattern of -0 is the NaN. `numpy` names the dtype of ml_dtypes.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    nan: int | None
    infinity: int | None = None
    unsigned_zero: bool = False
    numpy: str = ""
    ties_away: bool = False

    @property
    def bits(self) -> int:
        """The width, with the sign bit."""
        return 1 + self.exponent + self.mantissa

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def least_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def maximum(self) -> float:
        """The largest finite number."""
        return self.decode(self.largest)

    def decode(self, bits: int) -> float:
        """The number that a bit pattern encodes."""
        size, sign = bits & (self.sign_bit - 1), -1.0 if bits & self.sign_bit else 1.0
        if self.unsigned_zero and bits == self.nan:
            return math.nan
        if self.infinity is not None and size >= self.infinity:
            return sign * math.inf if size == self.infinity else math.nan
        if not self.unsigned_zero and size == self.nan:
            return math.nan
        exponent, fraction = size >> self.mantissa, size & ((1 << self.mantissa) - 1)
        leading = 1 << self.mantissa if exponent else 0
        return sign * math.ldexp(leading + fraction, max(exponent, 1) - self.bias - self.mantissa)

    def pattern(self, value: float) -> int:
        """The pattern of a number that the format holds, infinity among them."""
        if self.infinity is not None and math.isinf(value):
            return self.infinity | (self.sign_bit if value < 0 else 0)
        return self.encode(value)

    def encode(self, value: float) -> int:
        """The bit pattern of the nearest number of the format."""
        if math.isnan(value):
            return self.largest if self.nan is None else self.nan
        sign = self.sign_bit if math.copysign(1.0, value) < 0 else 0
        value = min(abs(value), self.maximum)
        exponent = max(math.frexp(value)[1] - 1, 1 - self.bias) if value else 1 - self.bias
        steps = math.ldexp(value, self.mantissa - exponent)  # exact
        count = math.floor(steps) + (steps % 1 >= 0.5) if self.ties_away else round(steps)
        size = count + ((exponent + self.bias - 1) << self.mantissa)
        size = min(size, self.largest)
        return 0 if self.unsigned_zero and not size else sign | size


#: The formats by the names of their dtypes.
FORMATS = {
    "fp8e4nv": Format(4, 3, 7, 0x7E, 0x7F, numpy="float8_e4m3fn"),
    "fp8e5": Format(5, 2, 15, 0x7B, 0x7F, infinity=0x7C, numpy="float8_e5m2"),
    "fp8e4b15": Format(4, 3, 15, 0x7E, None, ties_away=True),
    "fp8e4b8": Format(4, 3, 8, 0x7F, 0x80, unsigned_zero=True, numpy="float8_e4m3fnuz"),
    "fp8e5b16": Format(5, 2, 16, 0x7F, 0x80, unsigned_zero=True, numpy="float8_e5m2fnuz"),
}
