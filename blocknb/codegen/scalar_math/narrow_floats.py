"""fp16 and bf16 on machines that compute in fp32: rounding, and conversion from and to their 16 bits."""

from __future__ import annotations

import math
from functools import partial

from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.lanes import LaneFunction, Lanes, define
from blocknb.codegen.scalar_math.register_types import constant
from blocknb.codegen.text import vector_type
from blocknb.language import types as t
from blocknb.language.types import DType


def to_narrow(code: InstructionBuilder, x: str, dtype: DType, width: int) -> str:
    """The 16 bits, as i16, of an fp32 that is already rounded to fp16 or bf16."""
    bits = code.convert("bitcast", x, "float", "i32", width)
    if dtype.name == "bf16":
        high = code.binary("lshr", bits, constant(16, t.int32, width), "i32", width)
        return code.convert("trunc", high, "i32", "i16", width)
    if code.machine.f16c:
        half = code.convert("fptrunc", x, "float", "half", width)
        return code.convert("bitcast", half, "half", "i16", width)
    wide = code.helper("half_bits", partial(define, code, half_bits, result="i32"), "float", width, x, "i32")
    return code.w.value(f"trunc {vector_type('i32', width)} {wide} to {vector_type('i16', width)}")


def from_narrow(code: InstructionBuilder, bits: str, dtype: DType, width: int) -> str:
    """The fp32 of the 16 bits of an fp16 or bf16."""
    if dtype.name == "fp16" and code.machine.f16c:
        half = code.convert("bitcast", bits, "i16", "half", width)
        return code.convert("fpext", half, "half", "float", width)
    wide = code.convert("zext", bits, "i16", "i32", width)
    if dtype.name == "bf16":
        high = code.binary("shl", wide, constant(16, t.int32, width), "i32", width)
        return code.convert("bitcast", high, "i32", "float", width)
    return code.helper("half_value", partial(define, code, half_value, result="float"), "i32", width, wide, "float")


def rounded(code: InstructionBuilder, x: str, dtype: DType, width: int) -> str:
    """An fp32 rounded to the precision of a narrow dtype; other dtypes are left alone."""
    if dtype.name == "fp16":
        return from_narrow(code, to_narrow(code, x, dtype, width), dtype, width)
    if dtype.name != "bf16":
        return x
    i32 = lambda v: constant(v, t.int32, width)  # noqa: E731
    bits = code.convert("bitcast", x, "float", "i32", width)
    odd = code.binary("and", code.binary("lshr", bits, i32(16), "i32", width), i32(1), "i32", width)
    up = code.binary("add", code.binary("add", bits, i32(0x7FFF), "i32", width), odd, "i32", width)
    nan = code.w.value(f"fcmp uno {vector_type('float', width)} {x}, {x}")
    chosen = code.select(nan, code.binary("or", bits, i32(0x400000), "i32", width), up, "i32", width)
    return code.convert("bitcast", code.binary("and", chosen, i32(-0x10000), "i32", width), "i32", "float", width)


def double_to_odd_single(code: InstructionBuilder, x: str, width: int) -> str:
    """fp64 to fp32 rounded to odd, so that rounding once more to 16 bits rounds as if it were once."""
    i32 = lambda v: constant(v, t.int32, width)  # noqa: E731
    double = vector_type("double", width)
    single = code.convert("fptrunc", x, "double", "float", width)
    back = code.convert("fpext", single, "float", "double", width)
    size, size_back = (code.intrinsic("fabs", "double", width, v) for v in (x, back))
    finite = code.w.value(f"fcmp one {double} {size_back}, {constant(math.inf, t.float64, width)}")
    differs = code.w.value(f"fcmp one {double} {back}, {x}")
    inexact = code.binary("and", finite, differs, "i1", width)
    above = code.w.value(f"fcmp ogt {double} {size_back}, {size}")
    bits = code.convert("bitcast", single, "float", "i32", width)
    lower = code.select(above, code.binary("sub", bits, i32(1), "i32", width), bits, "i32", width)
    odd = code.select(inexact, code.binary("or", lower, i32(1), "i32", width), bits, "i32", width)
    return code.convert("bitcast", odd, "i32", "float", width)


def half_bits(f: LaneFunction, x: Lanes) -> Lanes:
    """The bits of the fp16 nearest to an fp32, in the low half."""
    bits = x.bits()
    size = bits & 0x7FFFFFFF
    sign = bits.logical_right(16) & 0x8000
    normal = (size - (112 << 23) + 0xFFF + (size.logical_right(13) & 1)).logical_right(13)
    # Adding 1/2 leaves the bits of a subnormal fp16, rounded, at the low end.
    tiny = (f.absolute(x) + 0.5).bits() - 0x3F000000
    result = f.select(size < 0x38800000, tiny, normal)
    result = f.select(size > 0x477FFFFF, f.like(result, 0x7C00), result)
    return f.select(size > 0x7F800000, f.like(result, 0x7E00), result) | sign


def half_value(f: LaneFunction, bits: Lanes) -> Lanes:
    """The fp32 of the fp16 in the low half of an i32."""
    size = bits & 0x7FFF
    sign = (bits & 0x8000) << 16
    # The exponent moves up by 112 through a product, which also makes subnormal numbers right; infinities need as much again.
    scaled = (size << 13).floating() * 2.0**112
    special = ((size << 13) | 0x7F800000).floating()
    return (f.select(size > 0x7BFF, special, scaled).bits() | sign).floating()
