"""Elementwise operations as LLVM instructions on `<W x T>`, for any W including 1.

The registers of the CPU backend hold fp16 and bf16 as fp32 that has been rounded to the narrow type after every operation, bools
as i1, fp8 as its bits and pointers as i64. So no instruction needs a half type, and nothing is left to a run-time library that is
not there: conversions without a machine instruction are written out here (or in cpu_math; those of fp8 by the pass `dtype_legalization`),
division is guarded against the operands that trap, shifts are masked. What each operation means stands in the op table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blocknb.codegen import cpu_casts, text
from blocknb.codegen.text import Writer, float_literal, vector_type
from blocknb.language import types as t
from blocknb.language.types import DType, Pointer
from blocknb.target import Target

NARROW = ("fp16", "bf16")
Define = Callable[[str, str, int], str]  # (name, element, width) -> the definition of a helper function


@dataclass(frozen=True)
class Machine:
    """What code generation asks of a CPU: the bytes of a vector that it writes and of the CPU's widest vector register, fused
    multiply-add, conversion of fp16, rounding, mask registers."""

    vector_bytes: int
    register_bytes: int
    fma: bool
    f16c: bool
    sse41: bool
    avx512: bool

    @staticmethod
    def of(target: Target) -> Machine:
        avx512 = target.has("avx512f") and target.has("avx512vl") and target.has("avx512bw") and target.has("avx512dq")
        bits = target.vector_bits
        if bits == 512 and (not avx512 or target.has("prefer-256-bit")):
            bits = 256
        return Machine(bits // 8, bits // 8, target.has("fma"), target.has("f16c"), target.has("sse4.1"), avx512)


def register_type(dtype: DType | Pointer) -> str:
    """The LLVM type of one element in a register."""
    if isinstance(dtype, Pointer):
        return "i64"
    if dtype.is_float and dtype.bits > 8:
        return "double" if dtype.bits == 64 else "float"
    return f"i{dtype.bits}"


def register_bits(dtype: DType | Pointer) -> int:
    return 32 if dtype.bits == 16 and dtype.is_float else max(dtype.bits, 8)


def memory_type(dtype: DType | Pointer) -> str:
    """The LLVM type of one element in the user's memory."""
    if not isinstance(dtype, Pointer) and dtype.name in NARROW:
        return "i16"
    return "i8" if dtype.bits == 1 else register_type(dtype)


def scratch_type(dtype: DType | Pointer) -> str:
    """The LLVM type of one element in scratch: as in registers, but bools take a byte."""
    return "i8" if dtype.bits == 1 else register_type(dtype)


SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8, "ptr": 8}


def round_constant(value: Any, dtype: DType) -> Any:
    """A Python number as the dtype holds it."""
    if dtype.name == "fp16":
        import numpy as np

        with np.errstate(all="ignore"):
            return float(np.float64(value).astype(np.float16))
    if dtype.name == "bf16":
        bits = text.bfloat_bits(float(value))
        return float("nan") if math.isnan(value) else _from_bits(bits << 16)
    return value


def _from_bits(bits: int) -> float:
    import struct

    return struct.unpack("<f", struct.pack("<I", bits))[0]


def constant(value: Any, dtype: DType | Pointer, width: int = 1) -> str:
    """A constant as an operand (without its type), splatted to `width` lanes."""
    if isinstance(dtype, Pointer):
        literal = str(int(value))
    elif dtype.is_float and dtype.bits > 8:
        literal = float_literal(float(round_constant(value, dtype)), register_type(dtype))
    else:
        literal = text.literal(value, dtype)
    return literal if width == 1 else f"splat ({register_type(dtype)} {literal})"


class Code:
    """Writes instructions: a Writer, the machine, and the helper functions that the code calls (name -> definition)."""

    def __init__(self, writer: Writer, machine: Machine, helpers: dict[str, str]):
        self.w, self.machine, self.helpers = writer, machine, helpers
        self.bounds: dict[int, tuple[str, str, str]] = {}  # (address, lower, upper) of each pointer parameter, by index
        self.bitwise: set[str] = set()  # values that may come out of and, or, xor: see `select`

    # -- small things ----------------------------------------------------------------------------------------------------

    def splat(self, scalar: str, element: str, width: int) -> str:
        """A scalar in every lane."""
        if width == 1:
            return scalar
        if not scalar.startswith("%"):
            return f"splat ({element} {scalar})"
        ty = vector_type(element, width)
        first = self.w.value(f"insertelement {ty} poison, {element} {scalar}, i64 0")
        return self.w.value(f"shufflevector {ty} {first}, {ty} poison, <{width} x i32> zeroinitializer")

    def iota(self, element: str, width: int, step: int = 1) -> str:
        """The vector 0, step, 2 step, ... as a constant operand."""
        bits = int(element[1:])
        wrap = (1 << bits) - 1
        return "0" if width == 1 else "<" + ", ".join(f"{element} {(i * step) & wrap}" for i in range(width)) + ">"

    def inside(self, address: str, argument: int, size: int, width: int) -> str:
        """Whether an element of `size` bytes at an i64 address lies in the array of an argument."""
        _, lower, upper = self.bounds.get(argument, ("0", "0", "0"))
        room = self.binary("sub", upper, lower, "i64", 1)
        room = self.splat(self.intrinsic("usub.sat", "i64", 1, room, str(size - 1)), "i64", width)
        distance = self.binary("sub", address, self.splat(lower, "i64", width), "i64", width)
        return self.w.value(f"icmp ult {vector_type('i64', width)} {distance}, {room}")

    def any(self, mask: str, width: int) -> str:
        """Whether any lane of an <width x i1> is set, as i1."""
        if width == 1:
            return mask
        return self.w.value(f"call i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1> {mask})")

    def intrinsic(self, name: str, element: str, width: int, *operands: str, result: str = "") -> str:
        """Calls an elementwise intrinsic such as llvm.sqrt; all operands have the type of the first."""
        ty = vector_type(element, width)
        suffix = {"float": "f32", "double": "f64"}.get(element, element)
        suffix = suffix if width == 1 else f"v{width}{suffix}"
        made = self.w.value(f"call {result or ty} @llvm.{name}.{suffix}({', '.join(f'{ty} {o}' for o in operands)})")
        return self._noted(made, name in ("fabs", "copysign"))

    def fma(self, a: str, b: str, c: str, element: str, width: int) -> str:
        """a * b + c, fused where the machine can: for polynomials and dot products."""
        return self.intrinsic("fma" if self.machine.fma else "fmuladd", element, width, a, b, c)

    def binary(self, instruction: str, a: str, b: str, element: str, width: int) -> str:
        made = self.w.value(f"{instruction} {vector_type(element, width)} {a}, {b}")
        return self._noted(made, instruction in ("and", "or", "xor"))

    def select(self, condition: str, a: str, b: str, element: str, width: int) -> str:
        """Elements of `a` where the condition holds, of `b` elsewhere.

        LLVM 22 makes one masked vpternlog of bitwise operations and a select between their result and one of their operands, and
        confuses the operands where a constant is among them; a fence, which is no instruction, keeps the two apart.
        """
        if self.machine.avx512 and width > 1:
            a, b = (self._fenced(x, element, width) if x in self.bitwise else x for x in (a, b))
        ty = vector_type(element, width)
        return self.w.value(f"select {vector_type('i1', width)} {condition}, {ty} {a}, {ty} {b}")

    def _fenced(self, x: str, element: str, width: int) -> str:
        as_float = {"i32": "float", "i64": "double", "float": "float", "double": "double"}.get(element)
        if as_float is None:  # masks of vpternlog have a bit for 32 or 64 bits
            return x
        ty, suffix = vector_type(as_float, width), {"float": "f32", "double": "f64"}[as_float]
        bits = x if element == as_float else self.w.value(f"bitcast {vector_type(element, width)} {x} to {ty}")
        kept = self.w.value(f"call {ty} @llvm.arithmetic.fence.v{width}{suffix}({ty} {bits})")
        return kept if element == as_float else self.w.value(f"bitcast {ty} {kept} to {vector_type(element, width)}")

    def _noted(self, made: str, bitwise: bool) -> str:
        if bitwise:
            self.bitwise.add(made)
        return made

    def convert(self, instruction: str, x: str, source: str, target: str, width: int) -> str:
        made = self.w.value(f"{instruction} {vector_type(source, width)} {x} to {vector_type(target, width)}")
        return self._noted(made, instruction == "bitcast" and x in self.bitwise)

    def helper(self, name: str, define: Define, element: str, width: int, x: str, result: str = "") -> str:
        """Calls the helper function `name` of one operand, defining it on first use by `define(full name, element, width)`."""
        full = f"blocknb.{name}.{element}.{width}"
        if full not in self.helpers:
            self.helpers[full] = ""  # its place is before that of the functions it calls
            self.helpers[full] = define(full, element, width)
        made = self.w.value(f"call {vector_type(result or element, width)} @{full}({vector_type(element, width)} {x})")
        return self._noted(made, True)  # it is inlined

    # -- narrow floats ---------------------------------------------------------------------------------------------------

    def to_narrow(self, x: str, dtype: DType, width: int) -> str:
        """The 16 bits of an fp32 already rounded to fp16 or bf16, as i16; with `rounded` False it is rounded here."""
        w = self.w
        bits = self.convert("bitcast", x, "float", "i32", width)
        if dtype.name == "bf16":
            high = self.binary("lshr", bits, constant(16, t.int32, width), "i32", width)
            return self.convert("trunc", high, "i32", "i16", width)
        if self.machine.f16c:
            half = self.convert("fptrunc", x, "float", "half", width)
            return self.convert("bitcast", half, "half", "i16", width)
        from blocknb.codegen import cpu_math

        wide = self.helper(
            "half_bits",
            lambda n, t, k: cpu_math.define(self, cpu_math.half_bits, n, t, k, "i32"),
            "float",
            width,
            x,
            "i32",
        )
        return w.value(f"trunc {vector_type('i32', width)} {wide} to {vector_type('i16', width)}")

    def from_narrow(self, bits: str, dtype: DType, width: int) -> str:
        """The fp32 of the 16 bits of an fp16 or bf16."""
        if dtype.name == "fp16" and self.machine.f16c:
            half = self.convert("bitcast", bits, "i16", "half", width)
            return self.convert("fpext", half, "half", "float", width)
        wide = self.convert("zext", bits, "i16", "i32", width)
        if dtype.name == "bf16":
            high = self.binary("shl", wide, constant(16, t.int32, width), "i32", width)
            return self.convert("bitcast", high, "i32", "float", width)
        from blocknb.codegen import cpu_math

        return self.helper(
            "half_value",
            lambda n, t, k: cpu_math.define(self, cpu_math.half_value, n, t, k, "float"),
            "i32",
            width,
            wide,
            "float",
        )

    def round(self, x: str, dtype: DType, width: int) -> str:
        """An fp32 rounded to the precision of a narrow dtype; other dtypes are left alone."""
        if dtype.name == "fp16":
            return self.from_narrow(self.to_narrow(x, dtype, width), dtype, width)
        if dtype.name != "bf16":
            return x
        i32 = lambda v: constant(v, t.int32, width)  # noqa: E731
        bits = self.convert("bitcast", x, "float", "i32", width)
        odd = self.binary("and", self.binary("lshr", bits, i32(16), "i32", width), i32(1), "i32", width)
        up = self.binary("add", self.binary("add", bits, i32(0x7FFF), "i32", width), odd, "i32", width)
        nan = self.w.value(f"fcmp uno {vector_type('float', width)} {x}, {x}")
        chosen = self.select(nan, self.binary("or", bits, i32(0x400000), "i32", width), up, "i32", width)
        return self.convert("bitcast", self.binary("and", chosen, i32(-0x10000), "i32", width), "i32", "float", width)

    def narrow_double(self, x: str, width: int) -> str:
        """fp64 to fp32 rounded to odd, so that rounding once more to 16 bits rounds as if it were once."""
        i32 = lambda v: constant(v, t.int32, width)  # noqa: E731
        double = vector_type("double", width)
        single = self.convert("fptrunc", x, "double", "float", width)
        back = self.convert("fpext", single, "float", "double", width)
        size, size_back = (self.intrinsic("fabs", "double", width, v) for v in (x, back))
        finite = self.w.value(f"fcmp one {double} {size_back}, {constant(math.inf, t.float64, width)}")
        differs = self.w.value(f"fcmp one {double} {back}, {x}")
        inexact = self.binary("and", finite, differs, "i1", width)
        above = self.w.value(f"fcmp ogt {double} {size_back}, {size}")
        bits = self.convert("bitcast", single, "float", "i32", width)
        lower = self.select(above, self.binary("sub", bits, i32(1), "i32", width), bits, "i32", width)
        odd = self.select(inexact, self.binary("or", lower, i32(1), "i32", width), bits, "i32", width)
        return self.convert("bitcast", odd, "i32", "float", width)

    # -- between memory and registers ------------------------------------------------------------------------------------

    def from_memory(self, x: str, dtype: DType | Pointer, width: int) -> str:
        """A register value of a loaded element of `memory_type`."""
        if isinstance(dtype, Pointer):
            return x
        if dtype.name in NARROW:
            return self.from_narrow(x, dtype, width)
        return self.truth(x, "i8", width) if dtype.bits == 1 else x

    def to_memory(self, x: str, dtype: DType | Pointer, width: int) -> str:
        if isinstance(dtype, Pointer):
            return x
        if dtype.name in NARROW:
            return self.to_narrow(x, dtype, width)
        return self.convert("zext", x, "i1", "i8", width) if dtype.bits == 1 else x

    def from_scratch(self, x: str, dtype: DType | Pointer, width: int) -> str:
        return self.truth(x, "i8", width) if dtype.bits == 1 else x

    def to_scratch(self, x: str, dtype: DType | Pointer, width: int) -> str:
        return self.convert("zext", x, "i1", "i8", width) if dtype.bits == 1 else x

    def truth(self, x: str, element: str, width: int) -> str:
        zero = "0" if width == 1 else "zeroinitializer"
        return self.w.value(f"icmp ne {vector_type(element, width)} {x}, {zero}")

    # -- casts -----------------------------------------------------------------------------------------------------------

    def cast(self, x: str, source: DType, target: DType, width: int) -> str:
        """The `cast` of the op table."""
        if source == target:
            return x
        have, want = register_type(source), register_type(target)
        if target.kind == "bool":
            if source.is_float:
                zero = constant(0.0, source, width)
                return self.w.value(f"fcmp une {vector_type(have, width)} {x}, {zero}")
            return self.truth(x, have, width)
        if source.is_float and target.is_float:
            return self._cast_float(x, source, target, width)
        if source.is_float:
            return cpu_casts.to_integer(self, x, have, target, width)
        if target.is_float:
            exact = target.bits >= 32 or source.bits <= 16
            middle = want if exact else "double"
            if source.bits == 64 and target.name == "bf16":
                x = cpu_casts.rounded_to_odd(self, x, source, 11, width)
            number = self.convert("sitofp" if source.is_signed else "uitofp", x, have, middle, width)
            return self.round(number if exact else self.narrow_double(number, width), target, width)
        if source.bits == target.bits:
            return x
        grow = "sext" if source.is_signed else "zext"
        return self.convert(grow if source.bits < target.bits else "trunc", x, have, want, width)

    def _cast_float(self, x: str, source: DType, target: DType, width: int) -> str:
        if source.bits == 64:
            if target.name in NARROW:
                return self.round(self.narrow_double(x, width), target, width)
            return self.convert("fptrunc", x, "double", "float", width)
        if target.bits == 64:
            return self.convert("fpext", x, "float", "double", width)
        return self.round(x, target, width)

    def bitcast(self, x: str, source: DType | Pointer, target: DType | Pointer, width: int) -> str:
        if not isinstance(source, Pointer) and source.name in NARROW:
            x = self.to_narrow(x, source, width)
        if not isinstance(target, Pointer) and target.name in NARROW:
            return self.from_narrow(self._same_bits(x, memory_type(source), "i16", width), target, width)
        have = memory_type(source) if source.bits > 1 else "i1"
        return self._same_bits(x, have, register_type(target), width)

    def _same_bits(self, x: str, have: str, want: str, width: int) -> str:
        return x if have == want else self.convert("bitcast", x, have, want, width)
