"""The GPU's own conversions of 8-bit floats, from sm_89 on: two numbers at a time (PTX ISA: cvt, .e4m3x2 and .e5m2x2).

Where a tile has neighbouring registers, both are converted by one instruction when the first of them is asked for. What the machine
lacks, the pass `dtype_legalization` has written out before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.ir.core import Op, Value
from blocknb.language import types as t

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

NAMES = {t.float8e4nv: "e4m3x2", t.float8e5: "e5m2x2"}


def convert(g: Generator, op: Op, value: Value, index: int) -> str:
    """One register of a cast from or to an 8-bit float; its neighbour is filed as well."""
    (x,) = op.args
    if not value.type.shape or g.num_registers(value) == 1:
        return pair(g, x.type.dtype, value.type.dtype, (g.reg(x),) * 2)[0]
    first = index & ~1
    names = pair(g, x.type.dtype, value.type.dtype, (g.reg(x, first), g.reg(x, first + 1)))
    g.registers[value].update(zip((first, first + 1), names, strict=True))
    return names[index - first]


def pair(g: Generator, source: t.DType, result: t.DType, names: tuple[str, str]) -> tuple[str, str]:
    """Two numbers converted."""
    if result == t.float16:
        word = joined(g, "i8", names, "i16")
        halves = g.call("<2 x half>", f"llvm.nvvm.{NAMES[source]}.to.f16x2.rn", ("i16", word))
        low, high = (g.emit(f"extractelement <2 x half> {halves}, i32 {i}") for i in (0, 1))
        return low, high
    name = NAMES[result]
    if source == t.float32:  # the first operand goes to the upper half
        word = g.call("i16", f"llvm.nvvm.ff.to.{name}.rn", ("float", names[1]), ("float", names[0]))
    else:
        half = g.emit(f"insertelement <2 x half> poison, half {names[0]}, i32 0")
        halves = g.emit(f"insertelement <2 x half> {half}, half {names[1]}, i32 1")
        word = g.call("i16", f"llvm.nvvm.f16x2.to.{name}.rn", ("<2 x half>", halves))
    return g.emit(f"trunc i16 {word} to i8"), g.emit(f"trunc i16 {g.emit(f'lshr i16 {word}, 8')} to i8")


def joined(g: Generator, kind: str, names: tuple[str, str], wide: str) -> str:
    """Two integers side by side, the first one lowest."""
    low, high = (g.emit(f"zext {kind} {name} to {wide}") for name in names)
    return g.emit(f"or {wide} {low}, {g.emit(f'shl {wide} {high}, {kind[1:]}')}")
