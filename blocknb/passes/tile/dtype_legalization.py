"""Type legalization: arithmetic in data types that the target lacks becomes arithmetic in types that it has.

GPUs before sm_89 and all CPUs convert no 8-bit floats, no target computes in them, and two of the formats exist on no target here. A
conversion becomes a few integer operations and one addition in fp32. To fp32, shifts move the bits into place and an addition corrects
the exponent's bias. A subnormal number gets a leading one, which a subtraction removes. From fp32, the code adds half a unit in the last
place to the bits, with ties to even. Below the least normal number, it adds a power of two whose last place is the format's smallest
step, which rounds the number.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from blocknb.ir.build import Builder, Rebuild, rebuild
from blocknb.ir.core import Func, Op, Users, Value, uses
from blocknb.language import types as t
from blocknb.language.float8 import FORMATS, Format
from blocknb.language.types import DType, Tile
from blocknb.passes.registry import tile_pass
from blocknb.passes.tile.select_mma import choose
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

NATIVE = (t.float8e4nv, t.float8e5)  # cvt.rn.satfinite.e4m3x2 and .e5m2x2, and back to f16x2 (PTX ISA, from sm_89 on)


@tile_pass()
def dtype_legalization(func: Func, target: Target, notes: Notes) -> Func:
    """Rewrites conversions and products in data types that the target lacks

    When: a kernel converts or multiplies 8-bit floats, accumulates a product in fp16, or asks for tf32x3.

    What: a conversion that the machine has stays one (fp8e4nv and fp8e5 from sm_89 on); others become integer arithmetic with the same
    result to the bit. A dot of 8-bit floats multiplies in fp16 on a GPU, in fp32 on a CPU. A sum in fp16 becomes one in fp32 that is
    rounded, and tf32x3 becomes three products in tf32.

    Why: no target computes in 8-bit floats, and tensor cores add up in fp32.

    Limits: on sm_90a `select_wgmma` undoes the conversion where wgmma multiplies 8-bit floats itself.

    Before:

        %c = dot %a, %b, %zero : tile<32x16xf32>   // %a: f8e4nv, %b: f8e5

    After:

        %x = cast %a : tile<32x64xf16>
        %bits = bitcast %b : tile<64x16xu8>
        %wide = cast %bits : tile<64x16xu16>
        %high = shl %wide, %eight : tile<64x16xu16>
        %y = bitcast %high : tile<64x16xf16>
        %c = dot %x, %y, %zero : tile<32x16xf32>
    """
    if not any(map(concerns, func.ops())):
        return func
    native = target.is_gpu and target.capability >= 89
    users = uses(func)

    def visit(op: Op, rebuild: Rebuild) -> Any:
        b = rebuild.builder
        if op.name == "for" and target.is_gpu:
            return longer_sums(op, rebuild, users)
        if op.name == "dot" and target.is_gpu and is_short_sum(op):
            return [longer_sum(op, b, target, notes, native)]
        if op.name == "dot" and op.attrs.get("precision") == "tf32x3":
            return three_products(op, b, target, notes)
        if op.name == "dot" and op.args[0].type.dtype in t.FLOAT8:
            return [dot(op, b, target, notes, native)]
        if op.name != "cast" or not {op.args[0].type.dtype, op.attrs["dtype"]} & set(t.FLOAT8):
            return NotImplemented
        source, result = op.args[0].type.dtype, op.attrs["dtype"]
        if has(native, source, result):
            return NotImplemented
        how = "two conversions" if native and both(source, result) else "integer arithmetic"
        notes(op, f"{source} to {result}: {how}, because {target} has no instruction for it")
        return [cast(b, op.args[0], result, native)]

    return tidy(rebuild(func, visit))


def concerns(op: Op) -> bool:
    """Whether the pass may have to rewrite an op."""
    short = any(value.type.dtype in t.FLOAT8 for value in (*op.args, *op.results))
    return short or is_short_sum(op) or op.attrs.get("precision") == "tf32x3"


def three_products(op: Op, b: Builder, target: Target, notes: Notes) -> Any:
    """A product of fp32 as three products of tf32 (3xTF32): of the rounded operands, and of each rounded operand with the other's rest.

    Ordinary additions add the small products to the sum. Tensor cores truncate where additions round, and would lose the gained digits in
    a long sum. The small products are dropped where they are NaN, as with infinities.
    """
    attrs = {**op.attrs, "precision": "tf32"}
    if not target.is_gpu or choose(op.replace(attrs=attrs), target)[0] is None:
        return NotImplemented
    notes(op, "dot: 3xTF32, three products in tf32 that keep the digits which one would round off")
    (x, rest_x), (y, rest_y) = (halves(b, value) for value in op.args[:2])
    nothing = b.const(0.0, op.result.type)
    small = b.value("dot", x, rest_y, b.value("dot", rest_x, y, nothing, **attrs), **attrs)
    small = b.value("select", b.value("cmp", small, small, pred="eq"), small, nothing)
    return [b.value("add", op.args[2], b.value("dot", x, y, small, **attrs))]


def halves(b: Builder, x: Value) -> tuple[Value, Value]:
    """An fp32 rounded to tf32, and the rest."""
    do = Bits(b, x.type.shape)
    upper = do.as_float(do("and", do.as_bits(x), -1 << 13))
    return upper, b.value("sub", x, upper)


def is_short_sum(op: Op) -> bool:
    """Whether an op is a product with an fp16 accumulator."""
    return op.name == "dot" and op.result.type.dtype == t.float16


def longer_sum(op: Op, b: Builder, target: Target, notes: Notes, native: bool) -> Value:
    """The product with an fp32 accumulator, rounded to fp16. A value that a loop carries in fp32 is not rounded (`longer_sums`)."""
    notes(op, "dot: accumulates in fp32 and rounds the result to fp16")
    carried = op.args[2].type.dtype == t.float32
    wide = op.args[2] if carried else b.value("cast", op.args[2], dtype=t.float32)
    if op.args[0].type.dtype in t.FLOAT8:
        made = dot(op.replace(args=(*op.args[:2], wide)), b, target, notes, native)
    else:
        made = b.value("dot", *op.args[:2], wide, **op.attrs)
    return made if carried else b.value("cast", made, dtype=t.float16)


def longer_sums(op: Op, rebuild: Rebuild, users: Users) -> Any:
    """A loop that carries the accumulators of its products in fp32."""
    b, body = rebuild.builder, op.blocks[0]
    wide = set()
    for i, (carried, end) in enumerate(zip(body.args[1:], body.terminator.args, strict=True)):
        adds = [user for user, place in users.get(carried, ()) if place == 2 and is_short_sum(user)]
        if len(users.get(carried, ())) == 1 and adds and adds[0].result is end and len(users[end]) == 1:
            wide.add(i)
    if not wide:
        return NotImplemented
    starts = [b.value("cast", x, dtype=t.float32) if i in wide else x for i, x in enumerate(op.args[3:])]
    args = [Value(x.type, old.name) for x, old in zip(starts, body.args[1:], strict=True)]
    made = b.op("for", *op.args[:3], *starts, blocks=(rebuild.block(body, (body.args[0], *args)),), **op.attrs)
    return [b.value("cast", x, dtype=t.float16) if i in wide else x for i, x in enumerate(made.results)]


def dot(op: Op, b: Builder, target: Target, notes: Notes, native: bool) -> Value:
    """The product of the operands in a wider dtype."""
    wide = t.float16 if target.is_gpu else t.float32
    left, right, accumulator = op.args
    names = " and ".join(dict.fromkeys(str(x.type.dtype) for x in (left, right)))
    notes(op, f"dot: multiplies {names} in {wide}, which holds both exactly")
    attrs = dict(op.attrs) if wide == t.float16 else {**op.attrs, "precision": "ieee"}
    factors = [cast(b, x, wide, native) for x in (left, right)]
    return b.value("dot", *factors, accumulator, **attrs)


def has(native: bool, source: DType, result: DType) -> bool:
    """Whether the machine converts in one instruction."""
    if not native:
        return False
    return (source in NATIVE and result == t.float16) or (source in (t.float16, t.float32) and result in NATIVE)


def both(source: DType, result: DType) -> bool:
    return (source if source in t.FLOAT8 else result) in NATIVE


def cast(b: Builder, x: Value, result: DType, native: bool) -> Value:
    """x converted to `result`; one of the two types is an 8-bit float."""
    source = x.type.dtype
    if source in t.FLOAT8:
        if source == result:
            return x
        middle = t.float16 if has(native, source, t.float16) or source == t.float8e5 else t.float32
        if native and source in NATIVE:
            wide = b.value("cast", x, dtype=middle)
        else:
            wide = widen(b, x)
        if result == middle:
            return wide
        return cast(b, wide, result, native) if result in t.FLOAT8 else b.value("cast", wide, dtype=result)
    if has(native, source, result):
        return b.value("cast", x, dtype=result)
    single = x if source == t.float32 else to_odd(b, x) if source == t.float64 else b.value("cast", x, dtype=t.float32)
    return b.value("cast", single, dtype=result) if has(native, t.float32, result) else narrowed(b, single, result)


class Bits:
    """Operations on 32-bit integers of a tile's shape, with ints as constants."""

    def __init__(self, b: Builder, shape: tuple[int, ...]):
        self.b, self.shape = b, shape

    def number(self, value: Any, dtype: DType = t.int32) -> Value:
        return self.b.const(value, Tile(dtype, self.shape))

    def __call__(self, name: str, x: Value, y: Value | float) -> Value:
        return self.b.value(name, x, y if isinstance(y, Value) else self.number(y, x.type.dtype))

    def compare(self, pred: str, x: Value, y: int) -> Value:
        return self.b.value("cmp", x, self.number(y), pred=pred)

    def select(self, condition: Value, x: Value | int, y: Value | int) -> Value:
        return self.b.value("select", condition, *(v if isinstance(v, Value) else self.number(v) for v in (x, y)))

    def as_float(self, x: Value) -> Value:
        return self.b.value("bitcast", x, dtype=t.float32)

    def as_bits(self, x: Value) -> Value:
        return self.b.value("bitcast", x, dtype=t.int32)


def single_bits(value: float) -> int:
    """The bits of an fp32 number."""
    return struct.unpack("<i", struct.pack("<f", value))[0]


def widen(b: Builder, x: Value) -> Value:
    """An 8-bit float as fp32. An e5m2 becomes an fp16, of which it is the upper half."""
    kind, bits = FORMATS[x.type.dtype.name], b.value("bitcast", x, dtype=t.uint8)
    if x.type.dtype == t.float8e5:
        upper = b.value("cast", bits, dtype=t.uint16)
        eight = b.const(8, upper.type)
        return b.value("bitcast", b.value("shl", upper, eight), dtype=t.float16)
    do = Bits(b, x.type.shape)
    word = b.value("cast", bits, dtype=t.int32)
    size = do("and", word, 0x7F)
    moved = do("shl", size, 23 - kind.mantissa)
    normal = do("add", moved, (127 - kind.bias) << 23)
    leading = do.as_float(do("add", moved, (128 - kind.bias) << 23))
    small = do.as_bits(do("sub", leading, kind.least_normal))
    found = do.select(do.compare("lt", size, 1 << kind.mantissa), small, normal)
    if not kind.unsigned_zero:
        found = do.select(do.compare("eq", size, 0x7F), single_bits(math.nan), found)
    signed = do("or", found, do("shl", do("and", word, 0x80), 24))
    if kind.unsigned_zero:
        signed = do.select(do.compare("eq", word, 0x80), single_bits(math.nan), signed)
    return do.as_float(signed)


def narrowed(b: Builder, x: Value, result: DType) -> Value:
    """An fp32 as an 8-bit float: to nearest, ties to even; saturating."""
    kind: Format = FORMATS[result.name]
    do, cut = Bits(b, x.type.shape), 23 - kind.mantissa
    word = do.as_bits(x)
    size = do("and", word, 0x7FFFFFFF)
    limited = do("min", size, single_bits(kind.maximum))
    odd = do("and", do("shr", limited, cut), 1)
    rounded = do("shr", do("add", do("add", limited, odd), (1 << (cut - 1)) - 1), cut)
    normal = do("sub", rounded, (127 - kind.bias) << kind.mantissa)
    step = 2.0 ** (24 - kind.bias - kind.mantissa)  # its last place is the format's least number
    small = do("sub", do.as_bits(do("add", do.as_float(limited), step)), single_bits(step))
    found = do.select(do.compare("lt", limited, single_bits(kind.least_normal)), small, normal)
    signed = do("or", found, do("and", do("shr", word, 24), 0x80))
    if kind.unsigned_zero:
        signed = do.select(do.compare("eq", found, 0), 0, signed)
    assert kind.nan is not None
    signed = do.select(do.compare("gt", size, single_bits(math.inf)), kind.nan, signed)
    return b.value("bitcast", b.value("cast", signed, dtype=t.uint8), dtype=result)


def to_odd(b: Builder, x: Value) -> Value:
    """fp64 as fp32, rounded to odd: the last bit is set if the result is inexact. A second rounding then gives the correct result."""
    do = Bits(b, x.type.shape)
    single = b.value("cast", x, dtype=t.float32)
    size, back = b.value("abs", x), b.value("abs", b.value("cast", single, dtype=t.float64))
    bits = do.as_bits(single)
    lower = do.select(b.value("cmp", back, size, pred="gt"), do("sub", bits, 1), bits)
    differs = b.value("cmp", back, size, pred="ne")
    return do.as_float(do.select(differs, do("or", lower, 1), bits))
