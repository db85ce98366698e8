"""Single LLVM instructions on `<W x T>` for any width W including 1: arithmetic, selects, conversions, intrinsics and helper functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blocknb.codegen.text import Writer, vector_type
from blocknb.target import Target

Define = Callable[[str, str, int], str]  # (name, element, width) -> the definition of a helper function


def suffix(element: str, width: int) -> str:
    """How the name of an intrinsic ends for `<width x element>`, such as `v8f32`."""
    name = {"float": "f32", "double": "f64"}.get(element, element)
    return name if width == 1 else f"v{width}{name}"


@dataclass(frozen=True)
class TargetFeatures:
    """The properties of a target that code generation needs. It has the bytes of a vector that it writes and of the widest vector register.
    It says whether there are fused multiply-add, fp16 conversion, rounding and mask registers. It also has the instruction set (see
    `Target.isa`; "" for one without special code).

    `f16c` and `sse41` are x86's names of features that Arm's baseline has, too.
    """

    vector_bytes: int
    register_bytes: int
    fma: bool
    f16c: bool
    sse41: bool
    avx512: bool
    isa: str = ""

    @property
    def x86(self) -> bool:
        """Whether x86's instructions exist, at least up to SSE2."""
        return self.isa == "x86_64"

    @property
    def neon(self) -> bool:
        """Whether the vectors are Arm's: 32 registers of 16 bytes, conversions that saturate, extrema that order zeros and NaNs."""
        return self.isa == "aarch64"

    @property
    def vector_registers(self) -> int:
        """How many vector registers there are."""
        return 32 if self.avx512 or self.neon else 16

    @staticmethod
    def of(target: Target) -> TargetFeatures:
        if target.isa == "aarch64":
            return TargetFeatures(16, 16, fma=True, f16c=True, sse41=True, avx512=False, isa=target.isa)
        avx512 = target.has("avx512f") and target.has("avx512vl") and target.has("avx512bw") and target.has("avx512dq")
        bits = target.vector_bits
        if bits == 512 and (not avx512 or target.has("prefer-256-bit")):
            bits = 256
        fma, f16c, sse41 = (target.has(feature) for feature in ("fma", "f16c", "sse4.1"))
        return TargetFeatures(bits // 8, bits // 8, fma, f16c, sse41, avx512, target.isa)


class InstructionBuilder:
    """Writes instructions with a Writer for a machine; `helpers` has the definitions of the functions that the code calls, by name."""

    def __init__(self, writer: Writer, machine: TargetFeatures, helpers: dict[str, str]):
        self.w, self.machine, self.helpers = writer, machine, helpers
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

    def any(self, mask: str, width: int) -> str:
        """Whether any lane of an <width x i1> is set, as i1."""
        if width == 1:
            return mask
        return self.w.value(f"call i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1> {mask})")

    def intrinsic(self, name: str, element: str, width: int, *operands: str, result: str = "") -> str:
        """Calls an elementwise intrinsic such as llvm.sqrt; all operands have the type of the first."""
        ty = vector_type(element, width)
        listed = ", ".join(f"{ty} {o}" for o in operands)
        made = self.w.value(f"call {result or ty} @llvm.{name}.{suffix(element, width)}({listed})")
        return self._noted(made, name in ("fabs", "copysign"))

    def integer_abs(self, x: str, element: str, width: int) -> str:
        """The magnitude of signed integers; that of the least one wraps around."""
        ty = vector_type(element, width)
        return self.w.value(f"call {ty} @llvm.abs.{suffix(element, width)}({ty} {x}, i1 false)")

    def fma(self, a: str, b: str, c: str, element: str, width: int) -> str:
        """a * b + c, fused where the machine can: for polynomials and dot products."""
        return self.intrinsic("fma" if self.machine.fma else "fmuladd", element, width, a, b, c)

    def binary(self, instruction: str, a: str, b: str, element: str, width: int) -> str:
        """An instruction on two operands."""
        made = self.w.value(f"{instruction} {vector_type(element, width)} {a}, {b}")
        return self._noted(made, instruction in ("and", "or", "xor"))

    def i64(self, instruction: str, a: str, b: str) -> str:
        """An instruction on two i64 scalars: addresses, counters and sizes."""
        return self.binary(instruction, a, b, "i64", 1)

    def i64_least(self, first: str, *others: str) -> str:
        """The least of i64 scalars, as signed numbers."""
        for other in others:
            first = self.intrinsic("smin", "i64", 1, first, other)
        return first

    def i64_most(self, first: str, *others: str) -> str:
        """The greatest of i64 scalars, as signed numbers."""
        for other in others:
            first = self.intrinsic("smax", "i64", 1, first, other)
        return first

    def select(self, condition: str, a: str, b: str, element: str, width: int) -> str:
        """Elements of `a` where the condition holds, of `b` elsewhere.

        LLVM 22 makes one masked vpternlog of bitwise operations and a select between their result and one of their operands. It confuses
        the operands where a constant is among them. A fence, which is no instruction, keeps the two apart.
        """
        if self.machine.avx512 and width > 1:
            a, b = (self._fenced(x, element, width) if x in self.bitwise else x for x in (a, b))
        ty = vector_type(element, width)
        return self.w.value(f"select {vector_type('i1', width)} {condition}, {ty} {a}, {ty} {b}")

    def _fenced(self, x: str, element: str, width: int) -> str:
        as_float = {"i32": "float", "i64": "double", "float": "float", "double": "double"}.get(element)
        if as_float is None:  # masks of vpternlog have a bit for 32 or 64 bits
            return x
        ty = vector_type(as_float, width)
        bits = x if element == as_float else self.w.value(f"bitcast {vector_type(element, width)} {x} to {ty}")
        kept = self.w.value(f"call {ty} @llvm.arithmetic.fence.{suffix(as_float, width)}({ty} {bits})")
        return kept if element == as_float else self.w.value(f"bitcast {ty} {kept} to {vector_type(element, width)}")

    def _noted(self, made: str, bitwise: bool) -> str:
        if bitwise:
            self.bitwise.add(made)
        return made

    def convert(self, instruction: str, x: str, source: str, target: str, width: int) -> str:
        """A conversion instruction, such as trunc or bitcast."""
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
