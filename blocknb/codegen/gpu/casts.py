"""Conversions between element types, and comparisons, on one value.

If the hardware has no instruction for a conversion, the code converts through fp32. It rounds to bf16 once in total, although fp32 lies
in between.
From sm_89 on the hardware converts 8-bit floats, two numbers at a time (PTX ISA: cvt, .e4m3x2 and .e5m2x2). The pass
`dtype_legalization` has replaced the conversions that the target lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu.element_types import ElementType, constant, llvm_type
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.trig import inline_code
from blocknb.codegen.scalar_math import casts as scalar_casts
from blocknb.language import types as t
from blocknb.language.types import Pointer

#: 8-bit floats in the names of instructions.
PAIRS = {t.float8e4nv: "e4m3x2", t.float8e5: "e5m2x2"}
ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}

OPERANDS = {t.float16: ("f16", "h"), t.float32: ("f32", "f"), t.float64: ("f64", "d")}

RESULTS = {8: ("r", "i32"), 16: ("h", "i16"), 32: ("r", "i32"), 64: ("l", "i64")}


def compare(text: TextWriter, pred: str, dtype: ElementType, names: tuple[str, ...]) -> str:
    """A comparison. With a NaN, `ne` is true and every other comparison is false."""
    kind = llvm_type(dtype)
    if dtype.is_float:
        return text.emit(f"fcmp {ORDERED[pred]} {kind} {names[0]}, {names[1]}")
    sign = "" if pred in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
    return text.emit(f"icmp {sign}{pred} {kind} {names[0]}, {names[1]}")


def as_tf32(text: TextWriter, name: str) -> str:
    """fp32 rounded to the nearest tf32, ties away from zero (PTX ISA, cvt.rna.tf32.f32)."""
    call = f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"(float {name})'
    return text.in_block(("tf32", name), lambda: text.emit(call))


def cast(text: TextWriter, name: str, source: ElementType, result: ElementType) -> str:
    """A value of one element type as another one. An integer wraps to a narrower one."""
    if source == result:
        return name
    if source.is_fp8() or result.is_fp8():
        return convert_pair(text, source, result, (name, name))[0]
    if result == t.int1:
        return compare(text, "ne", source, (name, constant(0, source)))
    if source.is_float:
        return resize_float(text, name, source, result) if result.is_float else to_integer(text, name, source, result)
    if result.is_float:
        return to_float(text, name, source, result)
    if result.bits == source.bits:
        return name
    grow = "trunc" if result.bits < source.bits else "sext" if source.kind == "int" else "zext"
    return text.emit(f"{grow} {llvm_type(source)} {name} to {llvm_type(result)}")


def resize_float(text: TextWriter, name: str, source: ElementType, result: ElementType) -> str:
    """A float as one of another type."""
    if 16 in (source.bits, result.bits) and source.bits <= 16 and result.bits <= 16:  # fp16 <-> bf16
        return cast(text, cast(text, name, source, t.float32), t.float32, result)
    if result.bits == source.bits:
        return name
    resize = "fpext" if result.bits > source.bits else "fptrunc"
    return text.emit(f"{resize} {llvm_type(source)} {name} to {llvm_type(result)}")


def widened_half(text: TextWriter, word: str, place: int) -> str:
    """Half of a word, a bf16, as fp32: one instruction on the word. A conversion of the extracted upper half takes two."""
    bits = text.emit(f"and i32 {word}, {-1 << 16}" if place else f"shl i32 {word}, 16")
    return text.emit(f"bitcast i32 {bits} to float")


def to_float(text: TextWriter, name: str, source: ElementType, result: ElementType) -> str:
    """An integer as a float, rounded once."""
    kind = llvm_type(result)
    if result == t.bfloat16 and source.bits >= 32:
        name = scalar_casts.rounded_to_odd(inline_code(text), name, source, 8 if source.bits == 32 else 11, 1)
        if source.bits == 64:
            return text.emit(f"fptrunc double {cast(text, name, source, t.float64)} to {kind}")
    if result.bits == 16:  # through fp32, which holds all that is no infinity in fp16
        return text.emit(f"fptrunc float {cast(text, name, source, t.float32)} to {kind}")
    if source.bits in (8, 16) and result == t.float32:
        return narrow_to_float(text, name, source)
    return text.emit(f"{'si' if source.kind == 'int' else 'ui'}tofp {llvm_type(source)} {name} to {kind}")


def to_integer(text: TextWriter, name: str, source: ElementType, result: ElementType) -> str:
    """A float as an integer. PTX's `cvt` truncates and saturates; LLVM's conversions are undefined out of range.

    PTX ISA, cvt: a NaN gives 0, except that it gives 2^(bits - 1) if the source is fp64 or the result has 64 bits. In these cases the code
    selects 0.
    """
    if source == t.bfloat16:
        name, source = cast(text, name, source, t.float32), t.float32
    kind, integer, bits = llvm_type(source), f"i{result.bits}", result.bits
    if source.bits >= 32 and bits >= 32:  # LLVM folds its intrinsics
        unsigned = "" if result.is_signed else "u"
        intrinsic = f"llvm.nvvm.{'d' if source.bits == 64 else 'f'}2{unsigned}{'ll' if bits == 64 else 'i'}.rz"
        made = text.call(integer, intrinsic, (kind, name))
    else:
        (element, operand), (register, wide) = OPERANDS[source], RESULTS[bits]
        cvt = f"cvt.rzi.{'s' if result.is_signed else 'u'}{bits}.{element} $0, $1;"
        made = text.emit(f'call {wide} asm "{cvt}", "={register},{operand}"({kind} {name})')
        made = text.emit(f"trunc {wide} {made} to {integer}") if wide != integer else made
    if source.bits < 64 and bits < 64:
        return made
    return text.emit(f"select i1 {text.emit(f'fcmp uno {kind} {name}, {name}')}, {integer} 0, {integer} {made}")


def narrow_to_float(text: TextWriter, name: str, source: ElementType) -> str:
    """An integer of 8 or 16 bits as fp32: the last bits of 2^23, which is then subtracted without an error. An H200 does that faster than
    its conversions: MMAs with 8-bit weights took up to a fifth longer with those."""
    sign = 1 << source.bits - 1 if source.kind == "int" else 0
    wide = text.emit(f"zext {llvm_type(source)} {name} to i32")
    number = text.emit(f"xor i32 {wide}, {0x4B000000 | sign}")
    return text.emit(f"fadd float {text.emit(f'bitcast i32 {number} to float')}, {-float(2**23 + sign)}")


def bitcast(text: TextWriter, name: str, source: ElementType, result: ElementType) -> str:
    """The bits of a value as another element type of the same width."""
    a, b = llvm_type(source), llvm_type(result)
    if a == b:
        return name
    if isinstance(source, Pointer):
        return text.emit(f"ptrtoint {a} {name} to {b}")
    if isinstance(result, Pointer):
        return text.emit(f"inttoptr {a} {name} to {b}")
    return text.emit(f"bitcast {a} {name} to {b}")


def convert_pair(text: TextWriter, source: t.DType, result: t.DType, names: tuple[str, str]) -> tuple[str, str]:
    """Two numbers, converted to another type."""
    if result == t.float16:
        word = joined(text, "i8", names, "i16")
        halves = text.call("<2 x half>", f"llvm.nvvm.{PAIRS[source]}.to.f16x2.rn", ("i16", word))
        low, high = (text.emit(f"extractelement <2 x half> {halves}, i32 {i}") for i in (0, 1))
        return low, high
    name = PAIRS[result]
    if source == t.float32:  # the first operand goes to the upper half
        word = text.call("i16", f"llvm.nvvm.ff.to.{name}.rn", ("float", names[1]), ("float", names[0]))
    else:
        half = text.emit(f"insertelement <2 x half> poison, half {names[0]}, i32 0")
        halves = text.emit(f"insertelement <2 x half> {half}, half {names[1]}, i32 1")
        word = text.call("i16", f"llvm.nvvm.f16x2.to.{name}.rn", ("<2 x half>", halves))
    pair = text.emit(f"trunc i16 {word} to i8"), text.emit(f"trunc i16 {text.emit(f'lshr i16 {word}, 8')} to i8")
    text.byte_pairs[pair] = word
    return pair


def whole_pairs(text: TextWriter, names: Sequence[str]) -> list[str] | None:
    """The i16 words that hold these i8 values two by two, if `convert_pair` made each two together; None otherwise.

    ptxas writes a conversion into either half of a register, but only if the program joins the results as words of 16 bits."""
    words = [text.byte_pairs.get(pair) for pair in zip(names[::2], names[1::2], strict=False)]
    found = [word for word in words if word is not None]
    return found if len(names) == 2 * len(found) else None


def joined(text: TextWriter, kind: str, names: tuple[str, str], wide: str) -> str:
    """Two integers side by side, the first one lowest."""
    low, high = (text.emit(f"zext {kind} {name} to {wide}") for name in names)
    return text.emit(f"or {wide} {low}, {text.emit(f'shl {wide} {high}, {kind[1:]}')}")
