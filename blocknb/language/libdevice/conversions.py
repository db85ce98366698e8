"""libdevice's conversions between numbers, with a direction of rounding: `double2float_rz`, `float2int_rn`, `ll2double_ru`...

To an integer the number is rounded first and then clamped into the integer's range, as the GPU's conversions do; NaN becomes 0.
An unsigned result has the bits of the unsigned integer and a signed dtype, because that is how libdevice declares it. From an
integer the exact value is a sum of two fp64, which `rounding.settle` rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice.parts import fast_two_sum, helper, named, toward_zero, whole
from blocknb.language.libdevice.rounding import DIRECTIONS, settle, step
from blocknb.language.types import DType, float32, float64, int32, int64, uint32, uint64


@helper
def rounded(x, mode: constexpr):
    """x as a whole number, still a float."""
    if mode == "rn":
        return whole(x)
    if mode == "rz":
        return toward_zero(x)
    return tl.floor(x) if mode == "rd" else tl.ceil(x)


@helper
def to_integer(x, source: constexpr, target: constexpr, mode: constexpr):
    x = rounded(tl.cast(x, source), mode)
    bits: constexpr = target.primitive_bitwidth
    low: constexpr = -(2.0 ** (bits - 1)) if target.is_int_signed() else 0.0
    high: constexpr = 2.0 ** (bits - 1) if target.is_int_signed() else 2.0**bits
    least: constexpr = -(2 ** (bits - 1)) if target.is_int_signed() else 0
    most: constexpr = 2 ** (bits - 1) - 1 if target.is_int_signed() else 2**bits - 1
    inside = (x >= low) & (x < high)
    number = tl.where(inside, x, 0.0).to(target)
    number = tl.where(x >= high, tl.full((), most, target), tl.where(x < low, tl.full((), least, target), number))
    return number.to(int64 if bits == 64 else int32)


@helper
def to_float(x, source: constexpr, target: constexpr, mode: constexpr):
    """An integer as a float: of up to 32 bits exactly in fp64, of 64 as the sum of its halves."""
    x = tl.cast(x, source)
    if mode == "rn":
        return x.to(target)
    if source.primitive_bitwidth == 32:
        exact = x.to(float64)
        return settle(exact, exact * 0.0, mode)
    total, error = fast_two_sum((x >> 32).to(float64) * 4294967296.0, (x & 0xFFFFFFFF).to(float64))
    return settle(total, error, mode) if target == float32 else step(total, error, mode)


@helper
def to_single(x, mode: constexpr):
    x = tl.cast(x, float64)
    return x.to(float32) if mode == "rn" else settle(x, x * 0.0, mode)


def _integer(source: DType, target: DType, mode: str) -> Callable:
    def convert(x):
        return to_integer(x, source, target, mode)

    return convert


def _float(source: DType, target: DType, mode: str) -> Callable:
    def convert(x):
        return to_float(x, source, target, mode)

    return convert


def _single(mode: str) -> Callable:
    def convert(x):
        return to_single(x, mode)

    return convert


FLOATS = {"float": float32, "double": float64}
INTEGERS = {"int": int32, "uint": uint32, "ll": int64, "ull": uint64}

for _mode, _words in DIRECTIONS.items():
    named(f"double2float_{_mode}", f"fp64 to fp32, rounded {_words}.", _single(_mode))
    for _i, _whole in INTEGERS.items():
        for _f, _real in FLOATS.items():
            _bits = " (its bits as a signed integer)" if _i.startswith("u") else ""
            named(
                f"{_f}2{_i}_{_mode}",
                f"{_real} to {_whole}{_bits}, rounded {_words} and clamped.",
                _integer(_real, _whole, _mode),
            )
            if _mode == "rn" or (_i, _f) not in (("int", "double"), ("uint", "double")):
                named(f"{_i}2{_f}_{_mode}", f"{_whole} to {_real}, rounded {_words}.", _float(_whole, _real, _mode))
