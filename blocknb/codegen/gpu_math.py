"""Elementwise ops on one value: the GPU's instruction for each row of the op table.

Half precision adds and multiplies natively; bf16 and everything else in 16 bits goes through fp32 and is rounded once, as the op
table has it. Division and the transcendental functions of fp32 use the hardware's approximations where their error is within two
units in the last place (CUDA C++ Programming Guide, mathematical functions); the others, and fp64, are the polynomials of
`codegen.scalar_math.elementary` that the CPU uses, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocknb.codegen import gpu_float8, gpu_trig
from blocknb.codegen.scalar_math import casts, elementary, exact, lanes
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.text import Writer, literal, scalar_type
from blocknb.ir.core import Op
from blocknb.language import types as t
from blocknb.language.meaning import FARTHEST
from blocknb.language.types import Pointer

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

ElementType = Any  # a DType or a Pointer; its kind decides which instructions apply

FLOAT = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract"}
INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
#: With `fast_math`: the hardware's fp32 approximations with a bounded absolute (not relative) error, or without denormals.
FAST = {
    "div": "llvm.nvvm.div.approx.f",
    "sqrt": "llvm.nvvm.sqrt.approx.f",
    "log2": "llvm.nvvm.lg2.approx.f",
    "sin": "llvm.nvvm.sin.approx.f",
    "cos": "llvm.nvvm.cos.approx.f",
}
LOG2_E = 1.4426950408889634


def llvm_type(dtype: ElementType) -> str:
    """LLVM's type of an element in a register; pointers are global."""
    return "ptr addrspace(1)" if isinstance(dtype, Pointer) else scalar_type(dtype)


def as_tf32(g: Generator, name: str) -> str:
    """fp32 rounded to the nearest tf32, ties away from zero (PTX ISA, cvt.rna.tf32.f32)."""
    key = ("tf32", name)
    if key not in g.memo:
        return g.remember(g.memo, key, g.emit(f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"(float {name})'))
    return g.memo[key]


def constant(value: Any, dtype: ElementType) -> str:
    """A constant operand."""
    return "null" if isinstance(dtype, Pointer) else literal(value, dtype)


def emit(g: Generator, op: Op, names: tuple[str, ...]) -> str:
    """LLVM text for an elementwise op on single values; returns the name of the result."""
    dtype = op.args[0].type.dtype
    result = op.results[0].type.dtype
    match op.name:
        case "cast":
            return cast(g, names[0], dtype, result)
        case "bitcast":
            return bitcast(g, names[0], dtype, result)
        case "ptradd":
            if op.attrs.get("saturate"):
                names = (names[0], _saturated(g, names[1], FARTHEST // result.element.bytes))
            return pointer_add(g, names, result.element, op.args[1].type.dtype)
        case "select":
            kind = llvm_type(result)
            return g.emit(f"select i1 {names[0]}, {kind} {names[1]}, {kind} {names[2]}")
        case "cmp":
            return compare(g, op.attrs["pred"], dtype, names)
    if dtype.is_float:
        return floating(g, op, dtype, names)
    return integer(g, op, dtype, names)


def compare(g: Generator, pred: str, dtype: ElementType, names: tuple[str, ...]) -> str:
    kind = llvm_type(dtype)
    if dtype.is_float:
        return g.emit(f"fcmp {ORDERED[pred]} {kind} {names[0]}, {names[1]}")
    sign = "" if pred in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
    return g.emit(f"icmp {sign}{pred} {kind} {names[0]}, {names[1]}")


def pointer_add(g: Generator, names: tuple[str, ...], element: ElementType, offset: ElementType) -> str:
    pointer, index = names
    if index == "0":
        return pointer
    kind = llvm_type(offset)
    if offset.kind != "int" and offset.bits < 64:  # unsigned offsets are zero-extended, a GEP would sign-extend
        index, kind = g.emit(f"zext {kind} {index} to i64"), "i64"
    element_type = "i8" if element == t.int1 else llvm_type(element)
    return g.emit(f"getelementptr {element_type}, ptr addrspace(1) {pointer}, {kind} {index}")


def _saturated(g: Generator, index: str, farthest: int) -> str:
    least = g.call("i64", "llvm.smin.i64", ("i64", index), ("i64", str(farthest)))
    return g.call("i64", "llvm.smax.i64", ("i64", least), ("i64", str(-farthest)))


# -- integers


def integer(g: Generator, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
    kind, signed = llvm_type(dtype), dtype.kind == "int"
    match op.name:
        case "add" | "sub" | "mul" | "and" | "or" | "xor":
            return g.emit(f"{INTEGER[op.name]} {kind} {names[0]}, {names[1]}")
        case "shl" | "shr":
            return shift(g, op.name == "shl", names, dtype)
        case "mulhi":  # LLVM has the multiplication by its upper half for 32 and 64 bits
            wide, grow = f"i{2 * dtype.bits}", "sext" if signed else "zext"
            factors = [g.emit(f"{grow} {kind} {x} to {wide}") for x in names]
            product = g.emit(f"mul {wide} {factors[0]}, {factors[1]}")
            return g.emit(f"trunc {wide} {g.emit(f'lshr {wide} {product}, {dtype.bits}')} to {kind}")
        case "div" | "rem":
            return divided(g, op.name, names, dtype)
        case "min" | "max":
            return g.call(kind, f"llvm.{'s' if signed else 'u'}{op.name}.{kind}", (kind, names[0]), (kind, names[1]))
        case "neg":
            return g.emit(f"sub {kind} 0, {names[0]}")
        case "not":
            return g.emit(f"xor {kind} {names[0]}, {'true' if dtype == t.int1 else -1}")
        case "abs":
            return g.call(kind, f"llvm.abs.{kind}", (kind, names[0]), ("i1", "false")) if signed else names[0]
    raise NotImplementedError(op.name)


def shift(g: Generator, left: bool, names: tuple[str, ...], dtype: ElementType) -> str:
    """By the width or more every bit is moved out: so does PTX, which takes counts of 32 bits without a sign, but not LLVM."""
    kind, signed, (x, count) = llvm_type(dtype), dtype.kind == "int", names
    plain = "shl" if left else "ashr" if signed else "lshr"
    if count.lstrip("-").isdigit():
        known = int(count)
        if 0 <= known < dtype.bits:
            return g.emit(f"{plain} {kind} {x}, {known}")
        return "0" if left or not signed else g.emit(f"ashr {kind} {x}, {dtype.bits - 1}")
    wide, register = ("i64", "l") if dtype.bits == 64 else ("i32", "r")
    if dtype.bits == 64:
        least = g.call("i64", "llvm.umin.i64", ("i64", count), ("i64", "64"))
        count = g.emit(f"trunc i64 {least} to i32")
    elif dtype.bits < 32:
        x = g.emit(f"{'sext' if signed else 'zext'} {kind} {x} to i32")
        count = g.emit(f"zext {kind} {count} to i32")
    name = f"shl.b{wide[1:]}" if left else f"shr.{'s' if signed else 'u'}{wide[1:]}"
    moved = g.emit(f'call {wide} asm "{name} $0, $1, $2;", "={register},{register},r"({wide} {x}, i32 {count})')
    return moved if wide == kind else g.emit(f"trunc {wide} {moved} to {kind}")


def divided(g: Generator, name: str, names: tuple[str, ...], dtype: ElementType) -> str:
    """Quotient or remainder, truncated; both are 0 by zero, and the least number by -1 is itself. LLVM defines neither, so 1 takes
    the divisor's place; a divided by b, if that is 0 or -1, is -(a & b)."""
    kind, signed, (a, b) = llvm_type(dtype), dtype.kind == "int", names
    instruction = f"{'s' if signed else 'u'}{name} {kind}"
    if b.lstrip("-").isdigit() and int(b) not in ((0, -1) if signed else (0,)):
        return g.emit(f"{instruction} {a}, {b}")
    if signed:
        special = g.emit(f"icmp ult {kind} {g.emit(f'add {kind} {b}, 1')}, 2")
    else:
        special = g.emit(f"icmp eq {kind} {b}, 0")
    found = g.emit(f"{instruction} {a}, {g.emit(f'select i1 {special}, {kind} 1, {kind} {b}')}")
    if name == "rem":
        return found
    instead = g.emit(f"sub {kind} 0, {g.emit(f'and {kind} {a}, {b}')}") if signed else "0"
    return g.emit(f"select i1 {special}, {kind} {instead}, {kind} {found}")


# -- floats


def floating(g: Generator, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
    if op.name == "neg":
        return g.emit(f"fneg {llvm_type(dtype)} {names[0]}")
    if dtype.bits == 16 and not (dtype == t.float16 and op.name in FLOAT):
        wide = tuple(cast(g, x, dtype, t.float32) for x in names)
        return cast(g, single(g, op, t.float32, wide), t.float32, dtype)
    return single(g, op, dtype, names)


def single(g: Generator, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
    """An op in fp16 (add, sub, mul), fp32 or fp64."""
    kind, fp32 = llvm_type(dtype), dtype == t.float32
    if fp32 and g.func.attrs.get("fast_math") and (approximate := FAST.get(op.name)):
        return g.call("float", approximate, *(("float", name) for name in names))
    suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
    match op.name:
        case "add" | "sub" | "mul":
            return g.emit(f"{FLOAT[op.name]} {kind} {names[0]}, {names[1]}")
        case "div":
            if fp32 and op.attrs.get("normal"):
                return g.emit(f"fmul float {names[0]}, {reciprocal(g, op, names[1])}")
            if fp32 and not op.attrs.get("nearest"):
                # Two units in the last place over the whole range, at a third of the cost of IEEE division.
                return g.call("float", "llvm.nvvm.div.full", ("float", names[0]), ("float", names[1]))
            return g.emit(f"fdiv {kind} {names[0]}, {names[1]}")
        case "rem":
            return exact.remainder(
                InstructionBuilder(Inline(g), gpu_trig.MACHINE, g.helpers), names[0], names[1], kind, 1
            )
        case "min" | "max":
            operands = (kind, names[0]), (kind, names[1])
            if op.attrs.get("nan") and fp32 and g.target.capability >= 80:  # one instruction there
                return g.call(kind, f"llvm.{op.name}imum.{suffix}", *operands)
            plain = g.call(kind, f"llvm.{op.name}imumnum.{suffix}", *operands)  # PTX ISA, max: +0 is above -0
            return nan_wins(g, kind, names, plain) if op.attrs.get("nan") else plain
        case "fma":
            return g.call(kind, f"llvm.fma.{suffix}", *((kind, x) for x in names))
        case "abs":
            return g.call(kind, f"llvm.fabs.{suffix}", (kind, names[0]))
        case "floor" | "ceil" | "sqrt":
            return g.call(kind, f"llvm.{op.name}.{suffix}", (kind, names[0]))
        case "exp" | "exp2" if fp32:
            power = names[0] if op.name == "exp2" else g.emit(f"fmul float {names[0]}, {constant(LOG2_E, t.float32)}")
            function = f"llvm.nvvm.ex2.approx.{'ftz.' if op.attrs.get('flush') else ''}f"
            return g.call("float", function, ("float", power))
        case "rsqrt" if fp32:
            return g.call("float", "llvm.nvvm.rsqrt.approx.f", ("float", names[0]))
        case "rsqrt":
            root = g.call(kind, f"llvm.sqrt.{suffix}", (kind, names[0]))
            return g.emit(f"fdiv {kind} {constant(1.0, dtype)}, {root}")
    return polynomial(g, op.name, dtype, names)


def reciprocal(g: Generator, op: Op, name: str) -> str:
    """1 / x of a normal number whose reciprocal is normal, to one unit in the last place; once for all elements that share x."""
    key = (op.id, "reciprocal", name)
    if key in g.memo:
        return g.memo[key]
    found = g.call("float", "llvm.nvvm.rcp.approx.ftz.f", ("float", name))
    if op.results[0] not in g.streamed:
        g.memo[key] = found
    return found


def nan_wins(g: Generator, kind: str, names: tuple[str, ...], plain: str) -> str:
    unordered = g.emit(f"fcmp uno {kind} {names[0]}, {names[1]}")
    poisoned = g.emit(f"fadd {kind} {names[0]}, {names[1]}")
    return g.emit(f"select i1 {unordered}, {kind} {poisoned}, {kind} {plain}")


class Inline(Writer):
    """A Writer whose instructions go to the generator's text: the polynomials are written where they are used."""

    def __init__(self, g: Generator):
        super().__init__()
        self.g = g

    def value(self, text: str, hint: str = "") -> str:
        return self.g.emit(text)


def polynomial(g: Generator, name: str, dtype: ElementType, names: tuple[str, ...]) -> str:
    """log, log2, sin, cos, tanh, erf in fp32, and the transcendental functions of fp64."""
    if name in gpu_trig.QUARTER:
        function = f"blocknb.{name}.{dtype.short}"
        if function not in g.helpers:
            g.helpers[function] = gpu_trig.define(function, name, llvm_type(dtype), g.helpers)
        return g.emit(f"call {llvm_type(dtype)} @{function}({llvm_type(dtype)} {names[0]})")
    f = lanes.LaneFunction(InstructionBuilder(Inline(g), gpu_trig.MACHINE, g.helpers), llvm_type(dtype), 1)
    return elementary.FUNCTIONS[name](f, lanes.Lanes(f, "float", names[0])).text


# -- conversions


def cast(g: Generator, name: str, source: ElementType, result: ElementType) -> str:
    if source == result:
        return name
    if source.is_fp8() or result.is_fp8():
        return gpu_float8.pair(g, source, result, (name, name))[0]
    a, b = llvm_type(source), llvm_type(result)
    if result == t.int1:
        return compare(g, "ne", source, (name, constant(0, source)))
    if source.is_float and result.is_float:
        if 16 in (source.bits, result.bits) and source.bits <= 16 and result.bits <= 16:  # fp16 <-> bf16
            return cast(g, cast(g, name, source, t.float32), t.float32, result)
        if result.bits == source.bits:
            return name
        return g.emit(f"{'fpext' if result.bits > source.bits else 'fptrunc'} {a} {name} to {b}")
    if source.is_float:
        if source == t.bfloat16:
            name, source = cast(g, name, source, t.float32), t.float32
        return to_integer(g, name, source, result)
    if result.is_float:
        if result == t.bfloat16 and source.bits >= 32:  # rounded once, though there is another float on the way
            code = InstructionBuilder(Inline(g), gpu_trig.MACHINE, g.helpers)
            name = casts.rounded_to_odd(code, name, source, 8 if source.bits == 32 else 11, 1)
            if source.bits == 64:
                return g.emit(f"fptrunc double {cast(g, name, source, t.float64)} to {b}")
        if result.bits == 16:  # through fp32, which holds all that is no infinity in fp16
            return g.emit(f"fptrunc float {cast(g, name, source, t.float32)} to {b}")
        if source.bits in (8, 16) and result == t.float32:
            return narrow_to_float(g, name, source)
        return g.emit(f"{'si' if source.kind == 'int' else 'ui'}tofp {a} {name} to {b}")
    if result.bits < source.bits:
        return g.emit(f"trunc {a} {name} to {b}")
    if result.bits == source.bits:
        return name
    return g.emit(f"{'sext' if source.kind == 'int' else 'zext'} {a} {name} to {b}")


#: The name in PTX and the constraint of an operand of inline assembly.
OPERANDS = {t.float16: ("f16", "h"), t.float32: ("f32", "f"), t.float64: ("f64", "d")}
RESULTS = {8: ("r", "i32"), 16: ("h", "i16"), 32: ("r", "i32"), 64: ("l", "i64")}


def to_integer(g: Generator, name: str, source: ElementType, result: ElementType) -> str:
    """A float as an integer: PTX's `cvt` truncates and saturates, to 8 and 16 bits, too; LLVM's conversions have no value out of range.

    PTX ISA, cvt: a NaN gives 0, but 2^(bits - 1) where the source is fp64 or the result has 64 bits; so 0 is selected there.
    """
    kind, integer, bits = llvm_type(source), f"i{result.bits}", result.bits
    if source.bits >= 32 and bits >= 32:  # LLVM folds its intrinsics
        unsigned = "" if result.is_signed else "u"
        intrinsic = f"llvm.nvvm.{'d' if source.bits == 64 else 'f'}2{unsigned}{'ll' if bits == 64 else 'i'}.rz"
        made = g.call(integer, intrinsic, (kind, name))
    else:
        (element, operand), (register, wide) = OPERANDS[source], RESULTS[bits]
        text = f"cvt.rzi.{'s' if result.is_signed else 'u'}{bits}.{element} $0, $1;"
        made = g.emit(f'call {wide} asm "{text}", "={register},{operand}"({kind} {name})')
        made = g.emit(f"trunc {wide} {made} to {integer}") if wide != integer else made
    if source.bits < 64 and bits < 64:
        return made
    return g.emit(f"select i1 {g.emit(f'fcmp uno {kind} {name}, {name}')}, {integer} 0, {integer} {made}")


def narrow_to_float(g: Generator, name: str, source: ElementType) -> str:
    """An integer of 8 or 16 bits as fp32: as the last bits of 2^23, which is then taken off, exactly. To an H200 that is less work than its
    conversions: products with weights of 8 bits took up to a fifth longer with those."""
    sign = 1 << source.bits - 1 if source.kind == "int" else 0
    wide = g.emit(f"zext {llvm_type(source)} {name} to i32")
    number = g.emit(f"xor i32 {wide}, {0x4B000000 | sign}")
    return g.emit(f"fadd float {g.emit(f'bitcast i32 {number} to float')}, {-float(2**23 + sign)}")


def bitcast(g: Generator, name: str, source: ElementType, result: ElementType) -> str:
    a, b = llvm_type(source), llvm_type(result)
    if a == b:
        return name
    if isinstance(source, Pointer):
        return g.emit(f"ptrtoint {a} {name} to {b}")
    if isinstance(result, Pointer):
        return g.emit(f"inttoptr {a} {name} to {b}")
    return g.emit(f"bitcast {a} {name} to {b}")
