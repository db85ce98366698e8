"""Elementwise ops on one value: the GPU's instruction for each row of the op table.

The GPU adds and multiplies fp16 natively. Other ops on fp16, and all on bf16, compute in fp32 and round once, as the op table says.
Division and the transcendental functions of fp32 use the hardware's approximations if their error is within two units in the last place.
Source: CUDA C++ Programming Guide, mathematical functions. The others, and fp64, are the polynomials of `codegen.scalar_math.elementary`,
which the CPU uses, too.
"""

from __future__ import annotations

from blocknb.codegen.gpu import trig
from blocknb.codegen.gpu.casts import bitcast, cast, compare, widened_half
from blocknb.codegen.gpu.context import KernelContext, KernelPart
from blocknb.codegen.gpu.element_types import ElementType, constant, llvm_type
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.scalar_math import elementary, exact, lanes
from blocknb.ir.core import Op
from blocknb.language import types as t
from blocknb.language.semantics import FARTHEST

FLOAT = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract"}

INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}

FAST = {
    "div": "llvm.nvvm.div.approx.f",
    "sqrt": "llvm.nvvm.sqrt.approx.f",
    "log2": "llvm.nvvm.lg2.approx.f",
    "sin": "llvm.nvvm.sin.approx.f",
    "cos": "llvm.nvvm.cos.approx.f",
}

#: Floating-point ops that are an intrinsic of LLVM.
INTRINSICS = {"fma": "fma", "abs": "fabs", "floor": "floor", "ceil": "ceil", "sqrt": "sqrt"}
LOG2_E = 1.4426950408889634
Values = tuple[str, ...]  # one name for each operand of a reduction or scan


class ElementwiseMath(KernelPart):
    """Writes elementwise ops on single values. For operands that it has seen, it returns the name of the earlier result, except for
    `streamed` values."""

    def __init__(self, context: KernelContext):
        super().__init__(context)
        self.streamed, self.fast_math = context.registers.streamed, bool(context.func.attrs.get("fast_math"))

    def combined(self, op: Op, a: Values, b: Values) -> Values:
        """The combine block of the reduction or scan `op` on two sets of values."""
        block = op.blocks[0]
        names = dict(zip(block.args, (*a, *b), strict=True))
        for inner in block.ops[:-1]:
            if inner.name == "const":
                names[inner.result] = constant(inner.attrs["value"], inner.result.type.dtype)
            else:
                operands = tuple(names[x] if x in names else self.registers.reg(x) for x in inner.args)
                names[inner.result] = self.apply(inner, operands)
        return tuple(names[x] for x in block.terminator.args)

    def apply(self, op: Op, names: tuple[str, ...]) -> str:
        """The result of an op on values of these names."""
        if op.results[0] in self.streamed:
            return self.emit(op, names)
        key = (op.id, names)
        memo = self.text.memo
        if key not in memo:
            memo[key] = self.emit(op, names)
        return memo[key]

    def emit(self, op: Op, names: tuple[str, ...]) -> str:
        """LLVM text for an elementwise op on single values; returns the name of the result."""
        dtype = op.args[0].type.dtype
        result = op.results[0].type.dtype
        match op.name:
            case "cast":
                if (half := self.text.halves.get(names[0])) and dtype == t.bfloat16 and result == t.float32:
                    return widened_half(self.text, *half)  # `floating` keeps the form that LLVM turns into ops on bf16
                return cast(self.text, names[0], dtype, result)
            case "bitcast":
                return bitcast(self.text, names[0], dtype, result)
            case "ptradd":
                if op.attrs.get("saturate"):
                    names = (names[0], _saturated(self.text, names[1], FARTHEST // result.element.bytes))
                return pointer_add(self.text, names, result.element, op.args[1].type.dtype)
            case "select":
                kind = llvm_type(result)
                return self.text.emit(f"select i1 {names[0]}, {kind} {names[1]}, {kind} {names[2]}")
            case "cmp":
                return compare(self.text, op.attrs["pred"], dtype, names)
        if dtype.is_float:
            return self.floating(op, dtype, names)
        return integer(self.text, op, dtype, names)

    def floating(self, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
        """An op on floats, in fp32 where the hardware has no 16-bit form of it."""
        if op.name == "neg":
            return self.text.emit(f"fneg {llvm_type(dtype)} {names[0]}")
        if op.name == "abs" and dtype.bits == 16:
            kind = llvm_type(dtype)
            return self.text.call(kind, f"llvm.fabs.{'bf16' if dtype == t.bfloat16 else 'f16'}", (kind, names[0]))
        if dtype.bits == 16 and not (dtype == t.float16 and op.name in FLOAT):
            wide = tuple(cast(self.text, x, dtype, t.float32) for x in names)
            return cast(self.text, self.single(op, t.float32, wide), t.float32, dtype)
        return self.single(op, dtype, names)

    def single(self, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
        """An op in fp16 (add, sub, mul), fp32 or fp64."""
        text, kind, fp32 = self.text, llvm_type(dtype), dtype == t.float32
        if fp32 and self.fast_math and (approximate := FAST.get(op.name)):
            return text.call("float", approximate, *(("float", name) for name in names))
        if op.name in FLOAT:
            return text.emit(f"{FLOAT[op.name]} {kind} {names[0]}, {names[1]}")
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
        if op.name in INTRINSICS:
            return text.call(kind, f"llvm.{INTRINSICS[op.name]}.{suffix}", *((kind, x) for x in names))
        match op.name:
            case "div":
                return self.quotient(op, dtype, names)
            case "rem":
                return exact.remainder(trig.inline_code(text), names[0], names[1], kind, 1)
            case "min" | "max":
                return self.extremum(op, dtype, names)
            case "exp" | "exp2" if fp32:
                power = names[0]
                if op.name == "exp":
                    power = text.emit(f"fmul float {power}, {constant(LOG2_E, t.float32)}")
                ftz = "ftz." if op.attrs.get("flush_denormals") else ""
                return text.call("float", f"llvm.nvvm.ex2.approx.{ftz}f", ("float", power))
            case "rsqrt" if fp32:
                return text.call("float", "llvm.nvvm.rsqrt.approx.f", ("float", names[0]))
            case "rsqrt":
                root = text.call(kind, f"llvm.sqrt.{suffix}", (kind, names[0]))
                return text.emit(f"fdiv {kind} {constant(1.0, dtype)}, {root}")
        return polynomial(text, op.name, dtype, names)

    def extremum(self, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
        """The smaller or the larger one of two floats. min(max(x, 0), 1) in fp32 is a modifier of the instruction that computes x."""
        text, kind, fp32 = self.text, llvm_type(dtype), dtype == t.float32
        suffix = {"half": "f16", "float": "f32", "double": "f64"}[kind]
        operands = (kind, names[0]), (kind, names[1])
        if op.attrs.get("nan"):
            if fp32 and self.target.capability >= 80:  # one instruction there
                return text.call(kind, f"llvm.{op.name}imum.{suffix}", *operands)
            return nan_wins(text, kind, names, text.call(kind, f"llvm.{op.name}imumnum.{suffix}", *operands))
        zero, one = constant(0.0, dtype), constant(1.0, dtype)
        if fp32 and op.name == "min" and one in names:
            source = text.memo.get(("not negative", names[names[0] == one]))
            if source is not None:  # PTX ISA, cvt.sat: a NaN becomes +0, as in max
                return text.call(kind, "llvm.nvvm.saturate.f", (kind, source))
        found = text.call(kind, f"llvm.{op.name}imumnum.{suffix}", *operands)  # PTX ISA, max: +0 is above -0
        if op.name == "max" and zero in names:
            text.memo["not negative", found] = names[names[0] == zero]
        return found

    def quotient(self, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
        """A quotient of floats."""
        text = self.text
        if dtype == t.float32 and op.attrs.get("normal"):
            return text.emit(f"fmul float {names[0]}, {self.reciprocal(op, names[1])}")
        if dtype == t.float32 and not op.attrs.get("nearest"):
            # Two units in the last place over the whole range, at a third of the cost of IEEE division.
            return text.call("float", "llvm.nvvm.div.full", ("float", names[0]), ("float", names[1]))
        return text.emit(f"fdiv {llvm_type(dtype)} {names[0]}, {names[1]}")

    def reciprocal(self, op: Op, name: str) -> str:
        """1 / x to one unit in the last place, where x and 1 / x are normal numbers; once for all elements that share x."""
        key = (op.id, "reciprocal", name)
        if key in self.text.memo:
            return self.text.memo[key]
        found = self.text.call("float", "llvm.nvvm.rcp.approx.ftz.f", ("float", name))
        if op.results[0] not in self.streamed:
            self.text.memo[key] = found
        return found


def pointer_add(text: TextWriter, names: tuple[str, ...], element: ElementType, offset: ElementType) -> str:
    """A pointer to global memory moved by a number of elements."""
    pointer, index = names
    if index == "0":
        return pointer
    kind = llvm_type(offset)
    if offset.kind != "int" and offset.bits < 64:  # unsigned offsets are zero-extended, a GEP would sign-extend
        index, kind = text.emit(f"zext {kind} {index} to i64"), "i64"
    element_type = "i8" if element == t.int1 else llvm_type(element)
    return text.emit(f"getelementptr {element_type}, ptr addrspace(1) {pointer}, {kind} {index}")


def _saturated(text: TextWriter, index: str, farthest: int) -> str:
    """An index, clamped to `farthest` in both directions."""
    least = text.call("i64", "llvm.smin.i64", ("i64", index), ("i64", str(farthest)))
    return text.call("i64", "llvm.smax.i64", ("i64", least), ("i64", str(-farthest)))


def integer(text: TextWriter, op: Op, dtype: ElementType, names: tuple[str, ...]) -> str:
    """An op on integers."""
    kind, signed = llvm_type(dtype), dtype.kind == "int"
    match op.name:
        case "add" | "sub" | "mul" | "and" | "or" | "xor":
            return text.emit(f"{INTEGER[op.name]} {kind} {names[0]}, {names[1]}")
        case "shl" | "shr":
            return shift(text, op.name == "shl", names, dtype)
        case "mulhi":  # LLVM has the multiplication by its upper half for 32 and 64 bits
            wide, grow = f"i{2 * dtype.bits}", "sext" if signed else "zext"
            factors = [text.emit(f"{grow} {kind} {x} to {wide}") for x in names]
            product = text.emit(f"mul {wide} {factors[0]}, {factors[1]}")
            return text.emit(f"trunc {wide} {text.emit(f'lshr {wide} {product}, {dtype.bits}')} to {kind}")
        case "div" | "rem":
            return divided(text, op.name, names, dtype)
        case "min" | "max":
            return text.call(kind, f"llvm.{'s' if signed else 'u'}{op.name}.{kind}", (kind, names[0]), (kind, names[1]))
        case "neg":
            return text.emit(f"sub {kind} 0, {names[0]}")
        case "not":
            return text.emit(f"xor {kind} {names[0]}, {'true' if dtype == t.int1 else -1}")
        case "abs":
            return text.call(kind, f"llvm.abs.{kind}", (kind, names[0]), ("i1", "false")) if signed else names[0]
    raise NotImplementedError(op.name)


def shift(text: TextWriter, left: bool, names: tuple[str, ...], dtype: ElementType) -> str:
    """A shift. A count of at least the width shifts every bit out. PTX defines this for unsigned 32-bit counts; in LLVM it is undefined."""
    kind, signed, (x, count) = llvm_type(dtype), dtype.kind == "int", names
    plain = "shl" if left else "ashr" if signed else "lshr"
    if count.lstrip("-").isdigit():
        known = int(count)
        if 0 <= known < dtype.bits:
            return text.emit(f"{plain} {kind} {x}, {known}")
        return "0" if left or not signed else text.emit(f"ashr {kind} {x}, {dtype.bits - 1}")
    wide, register = ("i64", "l") if dtype.bits == 64 else ("i32", "r")
    if dtype.bits == 64:
        least = text.call("i64", "llvm.umin.i64", ("i64", count), ("i64", "64"))
        count = text.emit(f"trunc i64 {least} to i32")
    elif dtype.bits < 32:
        x = text.emit(f"{'sext' if signed else 'zext'} {kind} {x} to i32")
        count = text.emit(f"zext {kind} {count} to i32")
    name = f"shl.b{wide[1:]}" if left else f"shr.{'s' if signed else 'u'}{wide[1:]}"
    moved = text.emit(f'call {wide} asm "{name} $0, $1, $2;", "={register},{register},r"({wide} {x}, i32 {count})')
    return moved if wide == kind else text.emit(f"trunc {wide} {moved} to {kind}")


def divided(text: TextWriter, name: str, names: tuple[str, ...], dtype: ElementType) -> str:
    """The truncated quotient or the remainder. Both are 0 for a divisor of zero, and the least number divided by -1 is itself. LLVM defines
    neither, so the code divides by 1 instead and selects the result: if b is 0 or -1, a / b is -(a & b)."""
    kind, signed, (a, b) = llvm_type(dtype), dtype.kind == "int", names
    instruction = f"{'s' if signed else 'u'}{name} {kind}"
    if b.lstrip("-").isdigit() and int(b) not in ((0, -1) if signed else (0,)):
        return text.emit(f"{instruction} {a}, {b}")
    if signed:
        special = text.emit(f"icmp ult {kind} {text.emit(f'add {kind} {b}, 1')}, 2")
    else:
        special = text.emit(f"icmp eq {kind} {b}, 0")
    found = text.emit(f"{instruction} {a}, {text.emit(f'select i1 {special}, {kind} 1, {kind} {b}')}")
    if name == "rem":
        return found
    instead = text.emit(f"sub {kind} 0, {text.emit(f'and {kind} {a}, {b}')}") if signed else "0"
    return text.emit(f"select i1 {special}, {kind} {instead}, {kind} {found}")


def nan_wins(text: TextWriter, kind: str, names: tuple[str, ...], plain: str) -> str:
    """`plain`, or a NaN if an operand is a NaN."""
    unordered = text.emit(f"fcmp uno {kind} {names[0]}, {names[1]}")
    poisoned = text.emit(f"fadd {kind} {names[0]}, {names[1]}")
    return text.emit(f"select i1 {unordered}, {kind} {poisoned}, {kind} {plain}")


# (tanh(x) - x) / x^3 in powers of x^2, on |x| <= 1
TANH = (-0.3333329542974752, 0.1333234453496155, -0.05387980039274828, 0.02148665094962159, -0.007946096766196824, 0.00230135760800984,
        -0.00035845001775758)  # fmt: skip


def hyperbolic_tangent(text: TextWriter, name: str) -> str:
    """tanh in fp32 to two units in the last place. The approximate exp2 and reciprocal serve where |x| > 1: below, their errors count."""
    f = lanes.LaneFunction(trig.inline_code(text), "float", 1)
    x = lanes.Lanes(f, "float", name)
    size, square = f.absolute(x), x * x
    small = f.fma(square * size, f.polynomial(square, TANH), size)
    power = text.call("float", "llvm.nvvm.ex2.approx.ftz.f", ("float", (size * (2 * LOG2_E)).text))
    inverse = text.call("float", "llvm.nvvm.rcp.approx.ftz.f", ("float", (lanes.Lanes(f, "float", power) + 1.0).text))
    large = f.fma(lanes.Lanes(f, "float", inverse), -2.0, 1.0)
    return f.copy_sign(f.select(size > 1.0, large, small), x).text


# log2(erfc(x)) in powers of x, on [1, 4], with errors weighted by erfc; beyond, erf is 1 to the last bit
ERFC_LOG2 = (-0.0005103093571960926, -1.6259750127792358, -0.9207650423049927, -0.14865149557590485, 0.031458426266908646,
             -0.004240957088768482, 0.000267726689344272)  # fmt: skip
ERFC_END = 4.0


def error_function(text: TextWriter, name: str) -> str:
    """erf in fp32 to two units in the last place, without a branch. The approximate exp2 serves where |x| > 1, and erfc is small."""
    f = lanes.LaneFunction(trig.inline_code(text), "float", 1)
    x = lanes.Lanes(f, "float", name)
    size = f.absolute(x)
    small = f.fma(f.polynomial(x * x, elementary.ERF[32]), size, size)
    near = text.call("float", "llvm.minimumnum.f32", ("float", size.text), ("float", constant(ERFC_END, t.float32)))
    power = f.polynomial(lanes.Lanes(f, "float", near), ERFC_LOG2)
    complement = text.call("float", "llvm.nvvm.ex2.approx.ftz.f", ("float", power.text))
    large = f.like(x, 1.0) - lanes.Lanes(f, "float", complement)
    return f.copy_sign(f.select(size > 1.0, large, small), x).text


def polynomial(text: TextWriter, name: str, dtype: ElementType, names: tuple[str, ...]) -> str:
    """log, log2, sin, cos, tanh, erf in fp32, and the transcendental functions of fp64."""
    if name == "tanh" and dtype == t.float32:
        return hyperbolic_tangent(text, names[0])
    if name == "erf" and dtype == t.float32:
        return error_function(text, names[0])
    if name in trig.QUARTER:
        function = f"blocknb.{name}.{dtype.short}"
        if function not in text.helpers:
            text.helpers[function] = trig.define(function, name, llvm_type(dtype), text.helpers)
        return text.emit(f"call {llvm_type(dtype)} @{function}({llvm_type(dtype)} {names[0]})")
    f = lanes.LaneFunction(trig.inline_code(text), llvm_type(dtype), 1)
    return elementary.FUNCTIONS[name](f, lanes.Lanes(f, "float", names[0])).text
