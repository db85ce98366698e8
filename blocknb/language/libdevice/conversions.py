"""libdevice's conversions between numbers, with a direction of rounding: `double2float_rz`, `float2int_rn`, `ll2double_ru`...

A conversion to an integer rounds first and then clamps to the range of the integer, as the instructions of a GPU do. NaN becomes 0.
libdevice declares a signed dtype for unsigned results, so such a result has the bits of the unsigned integer. A conversion from an
integer represents the exact value as a sum of two fp64 numbers, which `rounding.settle` rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice.parts import fast_two_sum, helper, named, toward_zero, whole
from blocknb.language.libdevice.rounding import DIRECTIONS, settle, step
from blocknb.language.types import float32, float64, int32, int64, uint32, uint64


@helper
def rounded(x, mode: constexpr):
    """x rounded to an integer, as a float."""
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
    """An integer as a float. fp64 holds 32 bits exactly; an integer of 64 bits is the sum of its halves."""
    x = tl.cast(x, source)
    if mode == "rn":
        return x.to(target)
    if source.primitive_bitwidth == 32:
        exact = x.to(float64)
        return settle(exact, exact * 0.0, mode)
    total, error = fast_two_sum((x >> 32).to(float64) * 4294967296.0, (x & 0xFFFFFFFF).to(float64))
    return settle(total, error, mode) if target == float32 else step(total, error, mode)


@helper
def to_single(x, source: constexpr, target: constexpr, mode: constexpr):
    x = tl.cast(x, source)
    return x.to(target) if mode == "rn" else settle(x, x * 0.0, mode)


INTEGERS = {"int": int32, "uint": uint32, "ll": int64, "ull": uint64}
DTYPES = {"float": float32, "double": float64, **INTEGERS}  # by the part of a name


def _declare(compute: Callable, source: str, target: str, mode: str, how: str, number: float, result: float) -> None:
    """Adds a conversion to libdevice. `number` and its `result` are the example."""
    kind, to_kind = DTYPES[source], DTYPES[target]

    def convert(x):
        return compute(x, kind, to_kind, mode)

    dtype = "float64" if source == "double" else kind.name
    argument = number if source in ("float", "int") else f"tl.full((), {number}, tl.{dtype})"
    named(f"{source}2{target}_{mode}", f"Converts {kind} to {to_kind}{how}.", f"({argument})  # {result}", convert)


for _mode, _words in DIRECTIONS.items():
    _up, _down = _mode == "ru", _mode in ("rz", "rd")
    _tenth = 0.10000000149011612 if _mode == "rn" else 0.100000001 if _up else 0.099999994
    _declare(to_single, "double", "float", _mode, f", rounded {_words}", 0.1, _tenth)
    for _i in INTEGERS:
        _bits = " (its bits as a signed integer)" if _i.startswith("u") else ""
        for _f, _exact in (("float", 2**24), ("double", 2**53)):  # all integers up to this one are floats of the dtype
            _declare(to_integer, _f, _i, _mode, f"{_bits}, rounded {_words} and clamped", 2.75, 2 if _down else 3)
            if _f == "float" or _i.endswith("ll"):
                _result = float(_exact + 2 if _up else _exact)
                _declare(to_float, _i, _f, _mode, f", rounded {_words}", _exact + 1, _result)
            elif _mode == "rn":
                _declare(to_float, _i, _f, _mode, f", rounded {_words}", 7, 7.0)
