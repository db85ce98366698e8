"""Vector values with Python operators that write LLVM instructions: how the elementary functions are written.

A function is written once against `Lanes`, for fp32 and fp64 and for any vector width. `define` makes an LLVM helper function of it.
Rounding to an integer adds and subtracts 1.5 * 2^mantissa, which also leaves that integer in the low bits. It needs no instruction
that an old machine lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.text import Writer, float_literal, vector_type


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format and the constants that depend on it."""

    element: str
    bits: int
    mantissa: int
    bias: int
    least_normal: float

    @property
    def integer(self) -> str:
        """The LLVM type of integers of the same size."""
        return f"i{self.bits}"

    @property
    def magic(self) -> float:
        """The number whose addition rounds to an integer."""
        return 1.5 * 2.0**self.mantissa


Operand = Union["Lanes", float]
FORMATS = {
    "float": FloatFormat("float", 32, 23, 127, 2.0**-126),
    "double": FloatFormat("double", 64, 52, 1023, 2.0**-1022),
}


def _operator(**instructions: str) -> Callable[[Lanes, Operand], Lanes]:
    """An operator of `Lanes`: the LLVM instruction for each kind of lanes that has it."""

    def apply(self: Lanes, other: Operand) -> Lanes:
        f, element = self.f, self.f.element(self.kind)
        made = f.code.binary(instructions[self.kind], self.text, f.like(self, other).text, element, f.width)
        return Lanes(f, self.kind, made)

    return apply


class Lanes:
    """A vector value under construction: floats, integers or truth values, with operators."""

    __slots__ = ("f", "kind", "text")

    def __init__(self, f: LaneFunction, kind: str, text: str):
        self.f, self.kind, self.text = f, kind, text

    __add__ = _operator(float="fadd", int="add")
    __sub__ = _operator(float="fsub", int="sub")
    __mul__ = _operator(float="fmul", int="mul")
    __truediv__ = _operator(float="fdiv")
    __and__ = _operator(int="and", bool="and")
    __or__ = _operator(int="or", bool="or")
    __xor__ = _operator(int="xor", bool="xor")
    __lshift__ = _operator(int="shl")
    __rshift__ = _operator(int="ashr")
    #: A shift right that fills with zeros.
    logical_right = _operator(int="lshr")

    def __neg__(self) -> Lanes:
        return Lanes(self.f, "float", self.f.code.w.value(f"fneg {self.f.type('float')} {self.text}"))

    def compare(self, predicate: str, other: Operand) -> Lanes:
        """A comparison by an LLVM predicate."""
        f, b = self.f, self.f.like(self, other)
        instruction = "fcmp" if self.kind == "float" else "icmp"
        return Lanes(f, "bool", f.code.w.value(f"{instruction} {predicate} {f.type(self.kind)} {self.text}, {b.text}"))

    def __lt__(self, other: Operand) -> Lanes:
        return self.compare("olt" if self.kind == "float" else "slt", other)

    def __gt__(self, other: Operand) -> Lanes:
        return self.compare("ogt" if self.kind == "float" else "sgt", other)

    def bits(self) -> Lanes:
        """A float's bits as an integer."""
        return self._bitcast("float", "int")

    def floating(self) -> Lanes:
        """An integer's bits as a float."""
        return self._bitcast("int", "float")

    def _bitcast(self, source: str, target: str) -> Lanes:
        f = self.f
        return Lanes(f, target, f.code.convert("bitcast", self.text, f.element(source), f.element(target), f.width))


class LaneFunction:
    """The function being written: format, width, and the operations that are not operators."""

    def __init__(self, code: InstructionBuilder, element: str, width: int):
        self.code, self.width = code, width
        self.format = FORMATS["double" if element in ("double", "i64") else "float"]
        self.single = self.format.bits == 32

    def element(self, kind: str) -> str:
        """The LLVM type of one lane: of a float, an integer or a truth value."""
        return {"float": self.format.element, "int": self.format.integer, "bool": "i1"}[kind]

    def type(self, kind: str) -> str:
        """The LLVM type of all lanes."""
        return vector_type(self.element(kind), self.width)

    def like(self, x: Lanes, value: Operand) -> Lanes:
        """A constant of the kind of `x`; Lanes are left alone."""
        if isinstance(value, Lanes):
            return value
        literal = float_literal(float(value), self.format.element) if x.kind == "float" else str(int(value))
        if self.width > 1:
            literal = f"splat ({self.element(x.kind)} {literal})"
        return Lanes(self, x.kind, literal)

    def select(self, condition: Lanes, a: Lanes, b: Operand) -> Lanes:
        """Lanes of `a` where the condition holds, of `b` elsewhere."""
        b = self.like(a, b)
        return Lanes(self, a.kind, self.code.select(condition.text, a.text, b.text, self.element(a.kind), self.width))

    def fma(self, a: Lanes, b: Operand, c: Operand) -> Lanes:
        """a * b + c, fused where the machine can."""
        b, c = self.like(a, b), self.like(a, c)
        return Lanes(self, "float", self.code.fma(a.text, b.text, c.text, self.format.element, self.width))

    def polynomial(self, x: Lanes, coefficients: Sequence[float]) -> Lanes:
        """The sum of coefficients[i] * x**i, by Horner."""
        total = self.like(x, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, c)
        return total

    def absolute(self, x: Lanes) -> Lanes:
        """The magnitude of x."""
        return Lanes(self, "float", self.code.intrinsic("fabs", self.format.element, self.width, x.text))

    def copy_sign(self, magnitude: Lanes, sign: Lanes) -> Lanes:
        """The magnitude of one value with the sign of another."""
        made = self.code.intrinsic("copysign", self.format.element, self.width, magnitude.text, sign.text)
        return Lanes(self, "float", made)

    def clamp(self, x: Lanes, low: float, high: float) -> Lanes:
        """Between low and high; a NaN passes."""
        x = self.select(x < low, self.like(x, low), x)
        return self.select(x > high, self.like(x, high), x)

    def nearest(self, x: Lanes) -> tuple[Lanes, Lanes]:
        """The nearest integer of a number below 2^(mantissa - 1): as a float and as an integer."""
        shifted = x + self.format.magic
        magic = self.like(shifted, self.format.magic)
        return shifted - magic, shifted.bits() - magic.bits()

    def integer_to_float(self, n: Lanes) -> Lanes:
        """A small integer as a float, without a conversion instruction (there is none for i64 before AVX-512)."""
        magic = self.like(n.floating(), self.format.magic)
        return (n + magic.bits()).floating() - magic

    def scale(self, x: Lanes, n: Lanes, n_float: Lanes) -> Lanes:
        """x * 2^n, rounded once where it becomes subnormal, infinite where it overflows."""
        size = self.format.bits * self.width
        if self.code.machine.avx512 and size in (128, 256, 512):
            return self._scale_avx512(x, n_float, size)
        half = n >> 1
        first, second = (((h + self.format.bias) << self.format.mantissa).floating() for h in (half, n - half))
        return x * first * second

    def _scale_avx512(self, x: Lanes, n_float: Lanes, size: int) -> Lanes:
        ty, suffix = self.type("float"), "ps" if self.single else "pd"
        mask = f"i{max(self.width, 8)} -1" + (", i32 4" if size == 512 else "")
        name = f"llvm.x86.avx512.mask.scalef.{suffix}.{size}"
        operands = f"{ty} {x.text}, {ty} {n_float.text}, {ty} zeroinitializer, {mask}"
        return Lanes(self, "float", self.code.w.value(f"call {ty} @{name}({operands})"))


def define(
    code: InstructionBuilder,
    function: Callable[[LaneFunction, Lanes], Lanes],
    name: str,
    element: str,
    width: int,
    result: str = "",
) -> str:
    """The definition of a helper function of one operand."""
    inner = InstructionBuilder(Writer(), code.machine, code.helpers)
    f = LaneFunction(inner, element, width)
    value = function(f, Lanes(f, "int" if element.startswith("i") else "float", "%x"))
    ty, returns = vector_type(element, width), vector_type(result or element, width)
    # Inlined, so that a loop keeps its vectors in registers and LLVM sees constants.
    return inner.w.function(f"internal {returns} @{name}({ty} %x) alwaysinline nounwind", f"ret {returns} {value.text}")
