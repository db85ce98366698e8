"""One vector of every value of a loop nest: the code of the innermost loop.

A `VectorBody` makes vectors on demand and remembers them, so an iteration computes each value once. A uniform value is splatted. A strided
one is its first lane plus a constant vector. A prefix mask is a comparison, or nothing where all lanes are on. A stored tile is read
from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.dataflow import Index, identity
from blocknb.codegen.cpu.elementwise import elementwise
from blocknb.codegen.cpu.tiles import from_buffer
from blocknb.codegen.cpu.uniformity import Prefix, Stored, Strided, Uniform, UniformityAnalysis
from blocknb.codegen.scalar_math.register_types import constant, register_type
from blocknb.codegen.text import vector_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t

VectorLowering = Callable[[Op, "VectorBody"], str]


@dataclass(eq=False)
class VectorBody:
    """One vector of every value.

    `position` is the i64 position of the first lane, and `number` counts the vectors of an iteration. `full`: no prefix ends within the
    vector. `streaming` makes its stores non-temporal. `lowerings` make the results of loads and atomics.
    """

    forms: UniformityAnalysis
    code: KernelBuilder
    lowerings: Mapping[str, VectorLowering]
    width: int
    position: str
    number: int
    full: bool
    streaming: bool = False
    _memo: dict[tuple[Value, Index], str] = field(default_factory=dict)

    def value(self, value: Value) -> str:
        """A vector of a value of the nest's shape."""
        return self.of(value, identity(value.type.shape))

    def of(self, value: Value, index: Index) -> str:
        """A vector of a value under an index."""
        key = (value, index)
        if key not in self._memo:
            self._memo[key] = self._of(value, index)
        return self._memo[key]

    def _of(self, value: Value, index: Index) -> str:
        c, dtype = self.code, value.type.dtype
        form = self.forms.of(value, index)
        match form:
            case Uniform(text):
                return c.splat(text, register_type(dtype), self.width)
            case Strided(base, step):
                return self._strided(base, step, register_type(dtype))
            case Prefix(count):
                return constant(True, t.int1, self.width) if self.full else self.prefix(count)
            case Stored():
                return self._from_scratch(form, dtype)
        program = self.forms.program
        if program.view_of(value) is not None:
            return self.of(program.definition[value].args[0], program.operand_index(value, index))
        op = program.definition[value]
        if op.name in self.lowerings:
            return self.lowerings[op.name](op, self)
        recomputed = program.recomputed(value)
        args = [self.of(a, index if recomputed else identity(a.type.shape)) for a in op.args]
        return elementwise(c, op, args, self.width)

    def _strided(self, base: str, step: int, element: str) -> str:
        c = self.code
        at = self.position if element == "i64" else c.convert("trunc", self.position, "i64", element, 1)
        if step != 1:
            at = c.binary("mul", at, str(step), element, 1)
        first = c.binary("add", base, at, element, 1)
        if self.width == 1:
            return first
        lanes = c.splat(first, element, self.width)
        return c.binary("add", lanes, c.iota(element, self.width, step), element, self.width)

    def prefix(self, count: str) -> str:
        """Lanes before the bound, compared in the narrowest integers that count the lanes."""
        c = self.code
        rest = c.i64("sub", count, self.position)
        if self.width == 1:
            return c.w.value(f"icmp sgt i64 {rest}, 0")
        rest = c.i64_most(c.i64_least(rest, str(self.width)), "0")
        element = f"i{c.machine.vector_bytes * 8 // self.width}"
        if element not in ("i8", "i16", "i32", "i64"):
            element = "i32"
        lanes = c.splat(rest if element == "i64" else c.convert("trunc", rest, "i64", element, 1), element, self.width)
        return c.w.value(f"icmp ult {vector_type(element, self.width)} {c.iota(element, self.width)}, {lanes}")

    def _from_scratch(self, form: Stored, dtype: Any) -> str:
        c, element = self.code, form.buffer.element
        at = self.position if form.step == 1 else c.i64("mul", self.position, str(form.step))
        place = c.w.value(f"getelementptr inbounds {element}, ptr {form.base}, i64 {at}")
        raw = c.load_strided(place, element, self.width, form.step)
        return from_buffer(c, raw, form.buffer, dtype, self.width)
