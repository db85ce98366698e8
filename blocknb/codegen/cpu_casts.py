"""Float to integer on a CPU: truncated, saturated, and 0 for NaN, as the op table says, in vectors and without a branch.

LLVM's own `llvm.fptosi.sat` means the same, but its x86 back end takes vectors apart (61 instructions for eight fp32 with AVX2), so
only scalars use it. A vector is clamped first: `maxps` and `minps` return their second operand where the first is NaN, which makes
NaN the lower bound, and that is already 0 for unsigned integers. Where the largest integer is no float of that type, the clamp ends
at the float below it, and what was beyond is chosen afterwards. x86's own conversion of fp32 to int32 gives the least integer for
everything out of range (Intel SDM, CVTTPS2DQ), so there two masks suffice. No conversion here sees a number that is out of range,
which LLVM would take for poison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen.text import float_literal, vector_type
from blocknb.language.types import DType

if TYPE_CHECKING:
    from blocknb.codegen.cpu_ops import Code

MANTISSA = {"float": 24, "double": 53}
#: CVTTPS2DQ by the lanes of a register, with the operands that follow the vector.
CONVERSIONS = {
    4: ("llvm.x86.sse2.cvttps2dq", ""),
    8: ("llvm.x86.avx.cvtt.ps2dq.256", ""),
    16: ("llvm.x86.avx512.mask.cvttps2dq.512", ", <16 x i32> zeroinitializer, i16 -1, i32 4"),
}


def to_integer(code: Code, x: str, element: str, target: DType, width: int) -> str:
    """`x`, lanes of `element` (float or double), as integers of the target dtype, a truth value excepted."""
    integer = f"i{target.bits}"
    if width == 1:
        name = f"llvm.fpto{'s' if target.is_signed else 'u'}i.sat.{integer}.{'f64' if element == 'double' else 'f32'}"
        return code.w.value(f"call {integer} @{name}({element} {x})")
    if element == "float" and integer == "i32" and target.is_signed:
        return _single_to_int32(code, x, width)
    return _clamped(code, x, element, target, width)


def _splat(value: float, element: str, width: int) -> str:
    return f"splat ({element} {float_literal(value, element)})"


def _clamped(code: Code, x: str, element: str, target: DType, width: int) -> str:
    """Clamped between the bounds that are floats, converted, and mended where the upper one was not."""
    ty, integer = vector_type(element, width), f"i{target.bits}"
    low = -(2.0 ** (target.bits - 1)) if target.is_signed else 0.0
    digits = target.bits - target.is_signed
    beyond = 2.0**digits
    exact = digits <= MANTISSA[element]
    high = beyond - 1.0 if exact else beyond - 2.0 ** (digits - MANTISSA[element])
    clamped = x
    for predicate, bound in (("ogt", low), ("olt", high)):
        limit = _splat(bound, element, width)
        better = code.w.value(f"fcmp {predicate} {ty} {clamped}, {limit}")
        clamped = code.select(better, clamped, limit, element, width)
    if target.is_signed:
        clamped = code.select(_is_number(code, x, ty), clamped, _splat(0.0, element, width), element, width)
    middle = integer if target.bits >= 32 else "i32"  # x86 converts to these
    signed = target.is_signed or middle != integer
    made = code.convert("fptosi" if signed else "fptoui", clamped, element, middle, width)
    if middle != integer:
        return code.convert("trunc", made, middle, integer, width)
    if exact:
        return made
    most = f"splat ({integer} {(1 << digits) - 1 if target.is_signed else -1})"
    over = code.w.value(f"fcmp oge {ty} {x}, {_splat(beyond, element, width)}")
    return code.select(over, most, made, integer, width)


def _is_number(code: Code, x: str, ty: str) -> str:
    return code.w.value(f"fcmp ord {ty} {x}, zeroinitializer")


def _single_to_int32(code: Code, x: str, width: int) -> str:
    """The machine's conversion; from 2^31 on its result is inverted, for NaN it is set to 0."""
    ty, lanes = vector_type("float", width), vector_type("i32", width)
    made = _by_registers(code, x, width)
    over = code.w.value(f"fcmp oge {ty} {x}, {_splat(2.0**31, 'float', width)}")
    flipped = code.w.value(f"sext <{width} x i1> {over} to {lanes}")
    made = code.binary("xor", made, flipped, "i32", width)
    return code.select(_is_number(code, x, ty), made, "zeroinitializer", "i32", width)


def _by_registers(code: Code, x: str, width: int) -> str:
    """CVTTPS2DQ of a vector of any power of two lanes, as many at a time as a register has."""
    lanes = max(4, min(width, code.machine.vector_bytes // 4))
    parts = []
    for first in range(0, width, lanes):
        part = x
        if lanes != width:
            chosen = ", ".join(f"i32 {min(first + i, width)}" for i in range(lanes))  # beyond the last: a zero
            ty = vector_type("float", width)
            part = code.w.value(f"shufflevector {ty} {x}, {ty} zeroinitializer, <{lanes} x i32> <{chosen}>")
        name, rest = CONVERSIONS[lanes]
        parts.append(code.w.value(f"call <{lanes} x i32> @{name}(<{lanes} x float> {part}{rest})"))
    while len(parts) > 1:
        size = lanes * 2
        both = ", ".join(f"i32 {i}" for i in range(size))
        parts = [
            code.w.value(f"shufflevector <{lanes} x i32> {a}, <{lanes} x i32> {b}, <{size} x i32> <{both}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        lanes = size
    if lanes == width:
        return parts[0]
    kept = ", ".join(f"i32 {i}" for i in range(width))
    return code.w.value(f"shufflevector <{lanes} x i32> {parts[0]}, <{lanes} x i32> poison, <{width} x i32> <{kept}>")


def rounded_to_odd(code: Code, x: str, source: DType, low: int, width: int) -> str:
    """An integer that becomes a float with `low` digits fewer, and then bf16: where it does not fit, what the lowest `low` bits hold is
    told by the bit above them, so that the second rounding is as if it were the only one."""
    element = f"i{source.bits}"
    ty = vector_type(element, width)

    def number(value: int) -> str:
        return str(value) if width == 1 else f"splat ({element} {value})"

    size = code.w.value(f"call {ty} @llvm.abs.{_suffix(element, width)}({ty} {x}, i1 false)") if source.is_signed else x
    large = code.w.value(f"icmp ugt {ty} {size}, {number(1 << source.bits - low)}")
    rest = code.binary("and", x, number((1 << low) - 1), element, width)
    some = code.w.value(f"icmp ne {ty} {rest}, {number(0)}")
    told = code.w.value(f"select {vector_type('i1', width)} {some}, {ty} {number(1 << low)}, {ty} {number(0)}")
    odd = code.binary("or", code.binary("and", x, number(-(1 << low)), element, width), told, element, width)
    return code.select(large, odd, x, element, width)


def _suffix(element: str, width: int) -> str:
    return element if width == 1 else f"v{width}{element}"
