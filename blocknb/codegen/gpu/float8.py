"""Conversions of 8-bit floats in hardware, from sm_89 on, two numbers at a time (PTX ISA: cvt, .e4m3x2 and .e5m2x2).

The pass `narrow` has replaced the conversions that the target lacks.
"""

from __future__ import annotations

from blocknb.codegen.gpu.text import TextWriter
from blocknb.language import types as t

NAMES = {t.float8e4nv: "e4m3x2", t.float8e5: "e5m2x2"}


def pair(text: TextWriter, source: t.DType, result: t.DType, names: tuple[str, str]) -> tuple[str, str]:
    """Two numbers, converted to another type."""
    if result == t.float16:
        word = joined(text, "i8", names, "i16")
        halves = text.call("<2 x half>", f"llvm.nvvm.{NAMES[source]}.to.f16x2.rn", ("i16", word))
        low, high = (text.emit(f"extractelement <2 x half> {halves}, i32 {i}") for i in (0, 1))
        return low, high
    name = NAMES[result]
    if source == t.float32:  # the first operand goes to the upper half
        word = text.call("i16", f"llvm.nvvm.ff.to.{name}.rn", ("float", names[1]), ("float", names[0]))
    else:
        half = text.emit(f"insertelement <2 x half> poison, half {names[0]}, i32 0")
        halves = text.emit(f"insertelement <2 x half> {half}, half {names[1]}, i32 1")
        word = text.call("i16", f"llvm.nvvm.f16x2.to.{name}.rn", ("<2 x half>", halves))
    return text.emit(f"trunc i16 {word} to i8"), text.emit(f"trunc i16 {text.emit(f'lshr i16 {word}, 8')} to i8")


def joined(text: TextWriter, kind: str, names: tuple[str, str], wide: str) -> str:
    """Two integers side by side, the first one lowest."""
    low, high = (text.emit(f"zext {kind} {name} to {wide}") for name in names)
    return text.emit(f"or {wide} {low}, {text.emit(f'shl {wide} {high}, {kind[1:]}')}")
