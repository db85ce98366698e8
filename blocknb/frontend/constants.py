"""Converts Python numbers to constants of a dtype, and defines the error for numbers that do not fit."""

from __future__ import annotations

import math

from blocknb.errors import TypeMismatch
from blocknb.language import semantics
from blocknb.language import types as t
from blocknb.language.float8 import FORMATS
from blocknb.language.types import DType


class Mismatch(TypeMismatch):
    """A TypeMismatch that may name the faulty argument of a call. The carets then point at that argument."""

    title = TypeMismatch.title

    def __init__(self, message: str, hint: str | None = None, argument: str | None = None):
        super().__init__(message, hint=hint)
        self.argument = argument


def own_dtype(x: bool | int | float) -> DType:
    try:
        return t.literal_dtype(x)
    except OverflowError as error:
        raise Mismatch(str(error)) from None


def convert_number(value: bool | int | float, dtype: DType) -> bool | int | float:
    """The Python number that a constant of the dtype holds after conversion. Raises Mismatch if it does not fit."""
    if dtype.is_float and dtype.bits == 8:
        return FORMATS[dtype.name].decode(FORMATS[dtype.name].encode(float(value)))
    if dtype.is_float:  # an integer that is no fp64 is rounded once, not to fp64 first
        return float(value) if isinstance(value, float) or value == float(value) else held(value, dtype)
    if dtype.kind == "bool":
        return bool(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Mismatch(
                f"{value} cannot become {dtype}",
                "integers have no infinity or NaN; use the smallest or largest integer instead",
            )
        return saturated(value, dtype)
    value = int(value) & ((1 << dtype.bits) - 1)
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def saturated(value: float, dtype: DType) -> int:
    """The integer that a cast makes of a float: truncated and clamped to the range of the dtype, 0 for NaN."""
    if math.isnan(value):
        return 0
    low, high = (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
    return int(min(max(value, low), high))


def held(value: bool | int | float, dtype: DType) -> bool | int | float:
    """The number rounded to the dtype: 0.1 in fp32 differs from 0.1 in fp64."""
    if not dtype.is_float or dtype.is_fp8() or (dtype == t.float64 and isinstance(value, float)):
        return value  # fp8 is rounded by convert_number
    return float(semantics.constant(value, dtype))
