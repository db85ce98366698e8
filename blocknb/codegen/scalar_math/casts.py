"""Casts, bitcasts and conversions between arrays and registers, in vectors and without a branch.

A conversion from float to integer truncates and saturates, and makes NaN 0. LLVM's `llvm.fptosi.sat` means the same, but its x86 back end
scalarizes vectors (61 instructions for eight fp32 with AVX2), so only scalars use it. x86's vector conversions have one result for
everything out of range (Intel SDM, CVTTPS2DQ): the least signed integer, or the largest unsigned one. Two selects correct signed results,
and a maximum with zero corrects unsigned ones. Where the machine lacks the conversion, the vector is clamped first. `maxps` and `minps`
return their second operand where the first is NaN, so NaN becomes the lower bound, which is 0 for unsigned integers. If no float equals the
largest integer, the clamp ends at the float below it. A select then puts the largest integer where the value lies beyond. LLVM's
conversions never see a value out of range, which would be poison. Arm's conversions (FCVTZS, FCVTZU) do all of this themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from blocknb.codegen.scalar_math import narrow_floats
from blocknb.codegen.scalar_math.instructions import InstructionBuilder, suffix
from blocknb.codegen.scalar_math.register_types import NARROW, constant, memory_type, register_type
from blocknb.codegen.text import float_literal, vector_type
from blocknb.language.types import DType, Pointer

MANTISSA = {"float": 24, "double": 53}
#: CVTTPS2DQ by the lanes of a register, with the operands that follow the vector.
SINGLE = {
    4: ("llvm.x86.sse2.cvttps2dq", ""),
    8: ("llvm.x86.avx.cvtt.ps2dq.256", ""),
    16: ("llvm.x86.avx512.mask.cvttps2dq.512", ", <16 x i32> zeroinitializer, i16 -1, i32 4"),
}
#: The other conversions of AVX-512, by element, bits and sign.
WIDE = {
    ("float", 32, False): "ps2udq",
    ("float", 64, True): "ps2qq",
    ("float", 64, False): "ps2uqq",
    ("double", 32, True): "pd2dq",
    ("double", 32, False): "pd2udq",
    ("double", 64, True): "pd2qq",
    ("double", 64, False): "pd2uqq",
}


@dataclass(frozen=True)
class VectorConversion:
    """An instruction that converts a number of lanes: the call, and what follows the vector among its operands."""

    lanes: int
    name: str
    rest: str

    @staticmethod
    def of(code: InstructionBuilder, element: str, target: DType, width: int) -> VectorConversion | None:
        """The instruction for vectors of this width, if the machine has one."""
        if not code.machine.x86:
            return None
        register = min(code.machine.vector_bytes, code.machine.register_bytes)
        if element == "float" and target.bits == 32 and target.is_signed:
            lanes = max(4, min(width, register // 4))
            return VectorConversion(lanes, *SINGLE[lanes])
        lanes = 16 if element == "float" and target.bits == 32 else 8
        name = WIDE.get((element, target.bits, target.is_signed))
        if name is None or register < 64 or width < lanes:
            return None
        rest = f", <{lanes} x i{target.bits}> zeroinitializer, i{lanes} -1, i32 4"
        return VectorConversion(lanes, f"llvm.x86.avx512.mask.cvtt{name}.512", rest)


def to_integer(code: InstructionBuilder, x: str, element: str, target: DType, width: int) -> str:
    """`x`, lanes of `element` (float or double), as integers of the target dtype, a truth value excepted."""
    integer = f"i{target.bits}"
    if width == 1 or code.machine.neon:
        name = f"llvm.fpto{'s' if target.is_signed else 'u'}i.sat.{suffix(integer, width)}.{suffix(element, width)}"
        return code.w.value(f"call {vector_type(integer, width)} @{name}({vector_type(element, width)} {x})")
    if machine := VectorConversion.of(code, element, target, width):
        return _converted(code, machine, x, element, target, width)
    return _clamped(code, x, element, target, width)


def _splat(value: float, element: str) -> str:
    return f"splat ({element} {float_literal(value, element)})"


def _clamped(code: InstructionBuilder, x: str, element: str, target: DType, width: int) -> str:
    """Clamps between bounds that are floats, converts, and corrects the lanes beyond an upper bound that is not one."""
    ty, integer = vector_type(element, width), f"i{target.bits}"
    low = -(2.0 ** (target.bits - 1)) if target.is_signed else 0.0
    digits = target.bits - target.is_signed
    beyond = 2.0**digits
    exact = digits <= MANTISSA[element]
    high = beyond - 1.0 if exact else beyond - 2.0 ** (digits - MANTISSA[element])
    clamped = x
    for predicate, bound in (("ogt", low), ("olt", high)):
        limit = _splat(bound, element)
        better = code.w.value(f"fcmp {predicate} {ty} {clamped}, {limit}")
        clamped = code.select(better, clamped, limit, element, width)
    if target.is_signed:
        clamped = code.select(_is_number(code, x, ty), clamped, _splat(0.0, element), element, width)
    middle = integer if target.bits >= 32 else "i32"  # machines convert to these
    signed = target.is_signed or middle != integer
    made = code.convert("fptosi" if signed else "fptoui", clamped, element, middle, width)
    if middle != integer:
        return code.convert("trunc", made, middle, integer, width)
    if exact:
        return made
    most = f"splat ({integer} {(1 << digits) - 1 if target.is_signed else -1})"
    over = code.w.value(f"fcmp oge {ty} {x}, {_splat(beyond, element)}")
    return code.select(over, most, made, integer, width)


def _is_number(code: InstructionBuilder, x: str, ty: str) -> str:
    return code.w.value(f"fcmp ord {ty} {x}, zeroinitializer")


def _converted(
    code: InstructionBuilder, machine: VectorConversion, x: str, element: str, target: DType, width: int
) -> str:
    """Converts by the machine's instruction, and corrects the lanes for which it has no result."""
    ty, integer = vector_type(element, width), f"i{target.bits}"
    if not target.is_signed:
        positive = code.w.value(f"fcmp ogt {ty} {x}, zeroinitializer")
        x = code.select(positive, x, "zeroinitializer", element, width)
        return _by_registers(code, machine, x, element, integer, width)
    made = _by_registers(code, machine, x, element, integer, width)
    over = code.w.value(f"fcmp oge {ty} {x}, {_splat(2.0 ** (target.bits - 1), element)}")
    made = code.select(over, f"splat ({integer} {(1 << target.bits - 1) - 1})", made, integer, width)
    return code.select(_is_number(code, x, ty), made, "zeroinitializer", integer, width)


def _by_registers(
    code: InstructionBuilder, machine: VectorConversion, x: str, element: str, integer: str, width: int
) -> str:
    """A vector of any power of two lanes, as many at a time as the instruction takes."""
    lanes, parts = machine.lanes, []
    for first in range(0, width, lanes):
        part = x
        if lanes != width:
            chosen = ", ".join(f"i32 {min(first + i, width)}" for i in range(lanes))  # beyond the last: a zero
            ty = vector_type(element, width)
            part = code.w.value(f"shufflevector {ty} {x}, {ty} zeroinitializer, <{lanes} x i32> <{chosen}>")
        operands = f"<{lanes} x {element}> {part}{machine.rest}"
        parts.append(code.w.value(f"call <{lanes} x {integer}> @{machine.name}({operands})"))
    while len(parts) > 1:
        ty, lanes = vector_type(integer, lanes), lanes * 2
        both = ", ".join(f"i32 {i}" for i in range(lanes))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [code.w.value(f"shufflevector {ty} {a}, {ty} {b}, <{lanes} x i32> <{both}>") for a, b in pairs]
    if lanes == width:
        return parts[0]
    kept, ty = ", ".join(f"i32 {i}" for i in range(width)), vector_type(integer, lanes)
    return code.w.value(f"shufflevector {ty} {parts[0]}, {ty} poison, <{width} x i32> <{kept}>")


def rounded_to_odd(code: InstructionBuilder, x: str, source: DType, low: int, width: int) -> str:
    """An integer rounded to odd, which becomes a float with `low` digits fewer, and then bf16.

    If the integer does not fit the float, the bit above the lowest `low` bits is set if any of these was set (sticky bit). So the two
    roundings give the same as one.
    """
    element = f"i{source.bits}"
    ty = vector_type(element, width)
    number = partial(constant, dtype=source, width=width)
    size = code.integer_abs(x, element, width) if source.is_signed else x
    large = code.w.value(f"icmp ugt {ty} {size}, {number(1 << source.bits - low)}")
    rest = code.binary("and", x, number((1 << low) - 1), element, width)
    some = code.w.value(f"icmp ne {ty} {rest}, {number(0)}")
    sticky = code.w.value(f"select {vector_type('i1', width)} {some}, {ty} {number(1 << low)}, {ty} {number(0)}")
    odd = code.binary("or", code.binary("and", x, number(-(1 << low)), element, width), sticky, element, width)
    return code.select(large, odd, x, element, width)


# ---- casts of the op table ----------------------------------------------------------------------------------------------


def cast(code: InstructionBuilder, x: str, source: DType, target: DType, width: int) -> str:
    """The `cast` of the op table."""
    if source == target:
        return x
    have, want = register_type(source), register_type(target)
    if target.kind == "bool":
        if source.is_float:
            zero = constant(0.0, source, width)
            return code.w.value(f"fcmp une {vector_type(have, width)} {x}, {zero}")
        return truth(code, x, have, width)
    if source.is_float and target.is_float:
        return _cast_float(code, x, source, target, width)
    if source.is_float:
        return to_integer(code, x, have, target, width)
    if target.is_float:
        exact = target.bits >= 32 or source.bits <= 16
        middle = want if exact else "double"
        if source.bits == 64 and target.name == "bf16":
            x = rounded_to_odd(code, x, source, 11, width)
        number = code.convert("sitofp" if source.is_signed else "uitofp", x, have, middle, width)
        if not exact:
            number = narrow_floats.double_to_odd_single(code, number, width)
        return narrow_floats.rounded(code, number, target, width)
    if source.bits == target.bits:
        return x
    grow = "sext" if source.is_signed else "zext"
    return code.convert(grow if source.bits < target.bits else "trunc", x, have, want, width)


def _cast_float(code: InstructionBuilder, x: str, source: DType, target: DType, width: int) -> str:
    if source.bits == 64:
        if target.name in NARROW:
            return narrow_floats.rounded(code, narrow_floats.double_to_odd_single(code, x, width), target, width)
        return code.convert("fptrunc", x, "double", "float", width)
    if target.bits == 64:
        return code.convert("fpext", x, "float", "double", width)
    return narrow_floats.rounded(code, x, target, width)


def bitcast(code: InstructionBuilder, x: str, source: DType | Pointer, target: DType | Pointer, width: int) -> str:
    """The `bitcast` of the op table."""
    if not isinstance(source, Pointer) and source.name in NARROW:
        x = narrow_floats.to_narrow(code, x, source, width)
    if not isinstance(target, Pointer) and target.name in NARROW:
        return narrow_floats.from_narrow(code, _same_bits(code, x, memory_type(source), "i16", width), target, width)
    have = memory_type(source) if source.bits > 1 else "i1"
    return _same_bits(code, x, have, register_type(target), width)


def _same_bits(code: InstructionBuilder, x: str, have: str, want: str, width: int) -> str:
    return x if have == want else code.convert("bitcast", x, have, want, width)


# ---- between memory and registers ---------------------------------------------------------------------------------------


def from_memory(code: InstructionBuilder, x: str, dtype: DType | Pointer, width: int) -> str:
    """A register value of a loaded element of `memory_type`."""
    if isinstance(dtype, Pointer):
        return x
    if dtype.name in NARROW:
        return narrow_floats.from_narrow(code, x, dtype, width)
    return truth(code, x, "i8", width) if dtype.bits == 1 else x


def to_memory(code: InstructionBuilder, x: str, dtype: DType | Pointer, width: int) -> str:
    """Converts a register value to `memory_type`, the type in an array."""
    if isinstance(dtype, Pointer):
        return x
    if dtype.name in NARROW:
        return narrow_floats.to_narrow(code, x, dtype, width)
    return code.convert("zext", x, "i1", "i8", width) if dtype.bits == 1 else x


def from_scratch(code: InstructionBuilder, x: str, dtype: DType | Pointer, width: int) -> str:
    """A register value of a loaded element of `scratch_type`."""
    return truth(code, x, "i8", width) if dtype.bits == 1 else x


def to_scratch(code: InstructionBuilder, x: str, dtype: DType | Pointer, width: int) -> str:
    """Converts a register value to `scratch_type`, the type in scratch memory."""
    return code.convert("zext", x, "i1", "i8", width) if dtype.bits == 1 else x


def truth(code: InstructionBuilder, x: str, element: str, width: int) -> str:
    """Whether an integer is not zero, as an i1."""
    zero = "0" if width == 1 else "zeroinitializer"
    return code.w.value(f"icmp ne {vector_type(element, width)} {x}, {zero}")
