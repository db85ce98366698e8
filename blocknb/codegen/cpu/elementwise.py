"""Elementwise operations as LLVM instructions, on scalars and on vectors: `elementwise(code, op, operands, width)`.

Scalar code, vector loops and the combine blocks of reductions (`combine`) use the same function. Division is guarded against the
operands that trap, and shifts against counts that LLVM leaves undefined. The op table defines what each operation means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.scalar_math import casts, elementary, exact, narrow_floats
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import NARROW, SIZES, constant, register_type
from blocknb.codegen.text import float_literal, vector_type
from blocknb.errors import Unsupported
from blocknb.ir.core import Block, Op, Value
from blocknb.language import types as t
from blocknb.language.ops import PRESERVING
from blocknb.language.semantics import FARTHEST
from blocknb.language.types import Pointer

_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_ARITHMETIC = {"add": ("add", "fadd"), "sub": ("sub", "fsub"), "mul": ("mul", "fmul"), "div": ("", "fdiv")}
#: The intrinsics of that instruction, for AVX-512. LLVM makes four instructions of a comparison and two selects, and two of these.
_MAXIMA = {
    ("float", 16): "avx512.{}.ps.512",
    ("float", 8): "avx.{}.ps.256",
    ("float", 4): "sse.{}.ps",
    ("double", 8): "avx512.{}.pd.512",
    ("double", 4): "avx.{}.pd.256",
    ("double", 2): "sse2.{}.pd",
}
#: The bits of the classes that VFPCLASS (AVX-512) looks for.
_NAN, _POSITIVE_ZERO, _NEGATIVE_ZERO = 0x81, 0x02, 0x04


def elementwise(code: KernelBuilder, op: Op, args: Sequence[str], width: int, dtypes: Sequence | None = None) -> str:
    """The result of an elementwise op on operands in registers. `dtypes` are the operands' dtypes (default: those of the op)."""
    source = (dtypes or [a.type.dtype for a in op.args])[0]
    target = op.results[0].type.dtype
    match op.name:
        case "cmp":
            return compare(code, op.attrs["pred"], args[0], args[1], source, width)
        case "select":
            return code.select(args[0], args[1], args[2], register_type(target), width)
        case "cast":
            return casts.cast(code, args[0], source, op.attrs["dtype"], width)
        case "bitcast":
            return casts.bitcast(code, args[0], source, op.attrs["dtype"], width)
        case "inside":
            return code.inside(args[0], op.attrs["argument"], op.args[0].type.dtype.element.bytes, width)
        case "ptradd":
            offset = casts.cast(code, args[1], op.args[1].type.dtype, t.int64, width)
            return move_pointer(code, args[0], offset, source, width, bool(op.attrs.get("saturate")))
    if target.is_float:
        return _float(code, op, args, target, width)
    return _integer(code, op, args, target, width)


def move_pointer(
    code: InstructionBuilder, pointer: str, offset: str, type: Pointer, width: int, saturate: bool = False
) -> str:
    """pointer + offset * size of an element; the offset is an i64. The op table defines `saturate`."""
    size = type.element.bytes
    if saturate:
        farthest = FARTHEST // size
        offset = code.intrinsic("smin", "i64", width, offset, constant(farthest, t.int64, width))
        offset = code.intrinsic("smax", "i64", width, offset, constant(-farthest, t.int64, width))
    if size > 1:
        offset = code.binary("mul", offset, constant(size, t.int64, width), "i64", width)
    return code.binary("add", pointer, offset, "i64", width)


def compare(code: InstructionBuilder, predicate: str, a: str, b: str, dtype: Any, width: int) -> str:
    """A comparison as an i1 for each lane; a NaN compares as IEEE defines it."""
    ty = vector_type(register_type(dtype), width)
    if not isinstance(dtype, Pointer) and dtype.is_float:
        return code.w.value(f"fcmp {_FLOAT_PREDICATES[predicate]} {ty} {a}, {b}")
    if predicate not in ("eq", "ne"):
        predicate = ("s" if dtype.is_signed else "u") + predicate
    return code.w.value(f"icmp {predicate} {ty} {a}, {b}")


def extremum(code: InstructionBuilder, name: str, a: str, b: str, dtype: Any, nan: bool, width: int) -> str:
    """The larger (`max`) or smaller operand; a NaN wins if `nan`, else it loses; -0 is below +0."""
    element = register_type(dtype)
    ty = vector_type(element, width)
    if not dtype.is_float:
        return code.intrinsic(("s" if dtype.is_signed else "u") + name, element, width, a, b)
    if code.machine.neon:  # FMAX and FMAXNM order zeros and NaNs as wanted
        return code.intrinsic(f"{name}imum{'' if nan else 'num'}", element, width, a, b)
    fixed = [x for x in (a, b) if not x.startswith("%")]
    if len(fixed) == 1:
        other = b if a == fixed[0] else a
        return nearly_extremum(code, name, *_in_order(other, fixed[0], name, element, nan), dtype, nan, width)
    if not nan and code.machine.avx512 and (element, width) in _MAXIMA:
        return _by_class(code, name, a, b, element, width)
    chosen = nearly_extremum(code, name, a, b, dtype, nan, width)
    # Equal numbers have the same bits, except zeros: the result is -0 if both are (max) or either is (min).
    bits = "i64" if element == "double" else "i32"
    equal = code.w.value(f"fcmp oeq {ty} {a}, {b}")
    x, y = (code.convert("bitcast", v, element, bits, width) for v in (a, b))
    merged = code.binary("and" if name == "max" else "or", x, y, bits, width)
    return code.select(equal, code.convert("bitcast", merged, bits, element, width), chosen, element, width)


def _by_class(code: InstructionBuilder, name: str, a: str, b: str, element: str, width: int) -> str:
    """The extremum by VFPCLASS, which finds each `b` that `a` wins against: NaNs, and the zero that loses.

    The machine's instruction returns its second operand for zeros and NaNs. So `a` goes second in those lanes, unless it is a NaN.
    """
    ty = vector_type(element, width)
    kinds = _NAN | (_NEGATIVE_ZERO if name == "max" else _POSITIVE_ZERO)
    classify = f"avx512.fpclass.{'ps' if element == 'float' else 'pd'}.{8 * SIZES[element] * width}"
    losing = code.w.value(f"call <{width} x i1> @llvm.x86.{classify}({ty} {b}, i32 {kinds})")
    number = code.w.value(f"fcmp ord {ty} {a}, {a}")
    plain, other = (machine_extremum(code, name, x, y, element, width) for x, y in ((a, b), (b, a)))
    return code.select(code.binary("and", number, losing, "i1", width), other, plain, element, width)


def _in_order(x: str, fixed: str, name: str, element: str, nan: bool) -> tuple[str, str]:
    """The operands in the order in which `nearly_extremum` is exact: if both are zeros, the second has the right sign."""
    positive, negative = (float_literal(zero, element) in fixed for zero in (0.0, -0.0))
    last = positive if name == "max" else negative
    if last or not (positive or negative or nan):
        return x, fixed
    return fixed, x


def nearly_extremum(code: InstructionBuilder, name: str, a: str, b: str, dtype: Any, nan: bool, width: int) -> str:
    """The minimum or maximum of floats as by `extremum`, except that two zeros give the second one."""
    element = register_type(dtype)
    ty = vector_type(element, width)
    chosen = machine_extremum(code, name, a, b, element, width)
    if not nan and code.machine.avx512 and (element, width) in _MAXIMA:
        return code.select(code.w.value(f"fcmp ord {ty} {b}, {b}"), chosen, a, element, width)
    kept = a if nan else b
    special = code.w.value(f"fcmp uno {ty} {kept}, {kept}")
    return code.select(special, a, chosen, element, width)


def machine_extremum(code: InstructionBuilder, name: str, a: str, b: str, element: str, width: int) -> str:
    """One machine instruction, such as MAXPS. It returns the second operand if either is a NaN, and of two zeros."""
    ty = vector_type(element, width)
    if code.machine.avx512 and (call := _MAXIMA.get((element, width))):
        rounding = ", i32 4" if "512" in call else ""
        return code.w.value(f"call {ty} @llvm.x86.{call.format(name)}({ty} {a}, {ty} {b}{rounding})")
    better = code.w.value(f"fcmp {'ogt' if name == 'max' else 'olt'} {ty} {a}, {b}")
    return code.select(better, a, b, element, width)


def _float(code: InstructionBuilder, op: Op, args: Sequence[str], dtype: Any, width: int) -> str:
    element = register_type(dtype)
    ty = vector_type(element, width)
    match op.name:
        case "add" | "sub" | "mul" | "div":
            result = code.binary(_ARITHMETIC[op.name][1], args[0], args[1], element, width)
        case "min" | "max":
            return extremum(code, op.name, args[0], args[1], dtype, bool(op.attrs.get("nan")), width)
        case "neg":
            return code.w.value(f"fneg {ty} {args[0]}")
        case "abs" | "floor" | "ceil":
            if op.name != "abs" and not code.machine.sse41:
                return elementary.call(code, op.name, args, element, width)
            return code.intrinsic("fabs" if op.name == "abs" else op.name, element, width, args[0])
        case "fma":
            return _fma(code, args, dtype, width)
        case "sqrt":
            result = code.intrinsic("sqrt", element, width, args[0])
        case "rsqrt":
            root = code.intrinsic("sqrt", element, width, args[0])
            result = code.binary("fdiv", constant(1.0, dtype, width), root, element, width)
        case "rem":
            result = exact.remainder(code, args[0], args[1], element, width)
        case name if name in elementary.FUNCTIONS:
            result = elementary.call(code, name, args, element, width)
        case _:
            raise Unsupported(f"the CPU backend has no {op.name} of {dtype}", op.loc)
    return narrow_floats.rounded(code, result, dtype, width) if dtype.name in NARROW else result


def _fma(code: InstructionBuilder, args: Sequence[str], dtype: Any, width: int) -> str:
    """A fused multiply-add. Machines without it compute fp32 in fp64, where the product is exact."""
    element = register_type(dtype)
    if element == "double":
        if code.machine.fma:
            return code.intrinsic("fma", element, width, *args)
        return exact.fma_double(code, list(args), width)
    if code.machine.fma and dtype.name not in NARROW:
        return code.intrinsic("fma", element, width, *args)
    a, b, c = (code.convert("fpext", x, "float", "double", width) for x in args)
    total = code.binary("fadd", code.binary("fmul", a, b, "double", width), c, "double", width)
    return casts.cast(code, total, t.float64, dtype, width)


def _integer(code: InstructionBuilder, op: Op, args: Sequence[str], dtype: Any, width: int) -> str:
    element = register_type(dtype)
    a, b = args[0], args[-1]
    match op.name:
        case "add" | "sub" | "mul" | "and" | "or" | "xor":
            return code.binary(op.name, a, b, element, width)
        case "mulhi":
            wide, grow = f"i{2 * dtype.bits}", "sext" if dtype.is_signed else "zext"
            x, y = (code.convert(grow, factor, element, wide, width) for factor in (a, b))
            product = code.binary("mul", x, y, wide, width)
            high = code.binary("lshr", product, code.splat(str(dtype.bits), wide, width), wide, width)
            return code.convert("trunc", high, wide, element, width)
        case "shl" | "shr":
            right = "ashr" if dtype.is_signed else "lshr"
            return _shift(code, "shl" if op.name == "shl" else right, a, b, dtype, width)
        case "min" | "max":
            return extremum(code, op.name, a, b, dtype, False, width)
        case "neg":
            return code.binary("sub", constant(0, dtype, width), a, element, width)
        case "not":
            return code.binary("xor", a, constant(-1 if dtype.bits > 1 else True, dtype, width), element, width)
        case "abs":
            return code.integer_abs(a, element, width) if dtype.is_signed else a
        case "div":
            return divide(code, a, b, dtype, width)[0]
        case "rem":
            return divide(code, a, b, dtype, width)[1]
    raise Unsupported(f"the CPU backend has no {op.name} of {dtype}", op.loc)


def _shift(code: InstructionBuilder, instruction: str, a: str, b: str, dtype: Any, width: int) -> str:
    """A shift that moves out every bit for counts of the width or more. LLVM drops the select on AVX2 and for constant counts."""
    element = register_type(dtype)
    if instruction == "ashr":
        count = code.intrinsic("umin", element, width, b, constant(dtype.bits - 1, dtype, width))
        return code.binary(instruction, a, count, element, width)
    inside = code.w.value(f"icmp ult {vector_type(element, width)} {b}, {code.splat(str(dtype.bits), element, width)}")
    moved = code.binary(instruction, a, b, element, width)
    return code.select(inside, moved, constant(0, dtype, width), element, width)


def divide(code: InstructionBuilder, a: str, b: str, dtype: Any, width: int) -> tuple[str, str]:
    """Quotient and remainder as in C. Division by zero gives zero for both, and nothing traps."""
    element = register_type(dtype)
    ty = vector_type(element, width)
    one, zero = constant(1, dtype, width), constant(0, dtype, width)
    digits = b.removeprefix("splat (").removesuffix(")").split()[-1].removeprefix("-")
    if digits.isdigit() and digits not in ("0", "1"):
        signs = ("sdiv", "srem") if dtype.is_signed else ("udiv", "urem")
        return tuple(code.binary(s, a, b, element, width) for s in signs)  # type: ignore[return-value]
    is_zero = code.w.value(f"icmp eq {ty} {b}, {zero}")
    special, is_minus = is_zero, ""
    if dtype.is_signed:
        is_minus = code.w.value(f"icmp eq {ty} {b}, {constant(-1, dtype, width)}")
        special = code.binary("or", is_zero, is_minus, "i1", width)
    safe = code.select(special, one, b, element, width)
    quotient = _quotient(code, a, safe, dtype, width)
    if dtype.is_signed:
        quotient = code.select(is_minus, code.binary("sub", zero, a, element, width), quotient, element, width)
    quotient = code.select(is_zero, zero, quotient, element, width)
    product = code.binary("mul", quotient, b, element, width)
    rest = code.binary("sub", a, product, element, width)
    return quotient, code.select(is_zero, zero, rest, element, width)


def _quotient(code: InstructionBuilder, a: str, b: str, dtype: Any, width: int) -> str:
    """The quotient. Vectors of up to 32 bits divide in fp64, which is exact for them and has vector instructions."""
    element = register_type(dtype)
    if width == 1 or dtype.bits > 32:
        return code.binary("sdiv" if dtype.is_signed else "udiv", a, b, element, width)
    up, down = ("sitofp", "fptosi") if dtype.is_signed else ("uitofp", "fptoui")
    x, y = (code.convert(up, v, element, "double", width) for v in (a, b))
    return code.convert(down, code.binary("fdiv", x, y, "double", width), "double", element, width)


def combine(code: KernelBuilder, block: Block, args: Sequence[str], width: int) -> list[str]:
    """Runs the combine block of a reduction on vectors: block arguments and results are lists of registers."""
    values: dict[Value, str] = dict(zip(block.args, args, strict=True))
    for op in block.ops:
        if op.name == "yield":
            return [values[v] for v in op.args]
        if op.name == "const":
            values[op.result] = constant(op.attrs["value"], op.result.type.dtype, width)
        elif op.name in PRESERVING:
            values[op.result] = values[op.args[0]]
        else:
            values[op.result] = elementwise(code, op, [values[a] for a in op.args], width)
    raise Unsupported("a combine function must yield", block.ops[0].loc if block.ops else None)
