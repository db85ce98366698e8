"""Expands operations on 8-bit floats into bit arithmetic: sign changes, minimum and maximum, and conversions of fp8e4b15.

No hardware supports fp8e4b15, so the front end converts it by arithmetic on bits. The format is fp16 without seven mantissa bits and
without the top exponent bit, with the same bias. Its bits are therefore a bit field of an fp16. Numbers beyond 1.75 saturate to 1.75
with their sign. A NaN becomes +1.75, as in Triton, because the sign of a NaN after a conversion depends on the hardware.
"""

from __future__ import annotations

from typing import Any, Protocol

from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.float8 import FORMATS

LARGEST = 0x3F00  # 1.75 in fp16


class ValueEmitter(Protocol):
    """The methods of the emitter that the conversions need."""

    def value(self, name: str, *args: Value, **attrs: Any) -> Value:
        """The result of an op."""
        ...

    def cast(self, x: Value, dtype: Any) -> Value:
        """x as another dtype."""
        ...

    def widened(self, x: Value) -> Value:
        """x in a dtype that hardware can compute with."""
        ...

    def number(self, value: Any, dtype: Any, shape: tuple[int, ...]) -> Value:
        """A tile of one number."""
        ...


def convert(emit: ValueEmitter, x: Value, dtype: Any) -> Value:
    """Converts x from or to fp8e4b15."""
    if x.type.dtype != t.float8e4b15:
        return _narrow(emit, x)
    if dtype.is_fp8() or not dtype.is_float:
        return emit.cast(emit.cast(x, t.float32), dtype)
    return emit.cast(_widen(emit, x), dtype)


def signed(emit: ValueEmitter, x: Value, op: str, bits: int) -> Value:
    """Changes the sign of x by the bitwise `op` with `bits`."""
    dtype = x.type.dtype
    old = emit.value("bitcast", x, dtype=t.uint8)
    new = emit.value(op, old, _constant(emit, old, bits))
    if FORMATS[dtype.name].unsigned_zero:  # 0x80 is the NaN, and there is one zero
        special = emit.value(
            "cmp", emit.value("and", old, _constant(emit, old, 0x7F)), _constant(emit, old, 0), pred="eq"
        )
        new = emit.value("select", special, old, new)
    return emit.value("bitcast", new, dtype=dtype)


def extremum(emit: ValueEmitter, op: str, a: Value, b: Value, nan: bool) -> Value:
    """The larger (`max`) or smaller of two. A NaN wins if `nan` is true and loses otherwise; -0 is below +0."""
    x, y = emit.widened(a), emit.widened(b)
    chosen = emit.value("select", emit.value("cmp", x, y, pred="gt" if op == "max" else "lt"), a, b)
    patterns = (emit.value("bitcast", v, dtype=t.uint8) for v in (a, b))
    zero = emit.value("bitcast", emit.value("and" if op == "max" else "or", *patterns), dtype=a.type.dtype)
    # Equal numbers have equal bits, except zeros of different sign.
    chosen = emit.value("select", emit.value("cmp", x, y, pred="eq"), zero, chosen)
    kept = x if nan else y
    return emit.value("select", emit.value("cmp", kept, kept, pred="ne"), a, chosen)


def _constant(emit: ValueEmitter, like: Value, number: int) -> Value:
    return emit.number(number, like.type.dtype, like.type.shape)


def _widen(emit: ValueEmitter, x: Value) -> Value:
    """fp8e4b15 to fp16: shifts the seven magnitude bits up by seven, and the sign to the top bit."""
    bits = emit.value("cast", emit.value("bitcast", x, dtype=t.uint8), dtype=t.uint16)
    size = emit.value("shl", emit.value("and", bits, _constant(emit, bits, 0x7F)), _constant(emit, bits, 7))
    sign = emit.value("shl", emit.value("and", bits, _constant(emit, bits, 0x80)), _constant(emit, bits, 8))
    return emit.value("bitcast", emit.value("or", size, sign), dtype=t.float16)


def _narrow(emit: ValueEmitter, x: Value) -> Value:
    """Rounds to the nearest fp8e4b15, ties away from zero. Truncates to fp16 first, so that double rounding creates no false ties."""

    dtype = x.type.dtype
    half = emit.cast(x if dtype.is_float else emit.cast(x, t.float32), t.float16)
    if dtype.is_float and (dtype.bits > 16 or dtype == t.bfloat16):
        wide = x if dtype.bits > 16 else emit.cast(x, t.float32)
        half = toward_zero(emit, wide, half)
    bits = emit.value("bitcast", half, dtype=t.uint16)
    size = emit.value("and", bits, _constant(emit, bits, 0x7FFF))
    limited = emit.value("min", size, _constant(emit, bits, LARGEST))
    rounded = emit.value("add", limited, _constant(emit, bits, 0x40))
    moved = emit.value("shr", rounded, _constant(emit, bits, 7))
    sign = emit.value("shr", emit.value("and", bits, _constant(emit, bits, 0x8000)), _constant(emit, bits, 8))
    nan = emit.value("cmp", size, _constant(emit, bits, 0x7C00), pred="gt")
    sign = emit.value("select", nan, _constant(emit, bits, 0), sign)
    return emit.value("bitcast", emit.cast(emit.value("or", moved, sign), t.uint8), dtype=t.float8e4b15)


def toward_zero(emit: ValueEmitter, x: Value, nearest: Value) -> Value:
    """x rounded toward zero. Starts from x rounded to nearest, and steps back one float where that is larger in magnitude."""
    dtype = nearest.type.dtype
    integer = {8: t.int8, 16: t.int16, 32: t.int32}[dtype.bits]
    back = emit.cast(nearest, x.type.dtype)
    up = emit.value("cmp", emit.value("abs", back), emit.value("abs", x), pred="gt")
    bits = emit.value("bitcast", nearest, dtype=integer)
    before = emit.value("sub", bits, emit.number(1, integer, bits.type.shape))
    if dtype in (t.float8e4b8, t.float8e5b16):
        # Below the least negative number comes 0, because its pattern, 0x80, is the NaN.
        least = emit.value("cmp", bits, emit.number(-127, integer, bits.type.shape), pred="eq")
        before = emit.value("select", least, emit.number(0, integer, bits.type.shape), before)
    return emit.value("select", up, emit.value("bitcast", before, dtype=dtype), nearest)
