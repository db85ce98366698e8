"""Phis: the registers of values that control flow merges."""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu.element_types import llvm_type, num_registers
from blocknb.codegen.gpu.registers import Registers
from blocknb.codegen.gpu.scheduling import opaque_zero
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Value

Names = Sequence[Sequence[str]]  # the registers of several values


class Phis:
    """Names the registers of merged values, and writes their phis once all edges are known."""

    def __init__(self, text: TextWriter, registers: Registers):
        self.text, self.registers = text, registers

    def names(self, values: Sequence[Value]) -> list[list[str]]:
        """New names for the registers of values."""
        return [[self.text.name() for _ in range(num_registers(v))] for v in values]

    def write(self, sink: list[str], values: Sequence[Value], names: Names, edges: Sequence[tuple[str, Names]]) -> None:
        """Writes the phis of values into `sink`. `edges` are the labels of the predecessors, with the registers that come from there."""
        for i, (value, own) in enumerate(zip(values, names, strict=True)):
            kind = llvm_type(value.type.dtype)
            for r, name in enumerate(own):
                arms = ", ".join(f"[ {incoming[i][r]}, %{label} ]" for label, incoming in edges)
                sink.append(f"  {name} = phi {kind} {arms}")

    def bind(self, values: Sequence[Value], names: Names) -> None:
        """Sets the names of the registers of values."""
        for value, own in zip(values, names, strict=True):
            self.registers.set(value, own)

    def merge(self, values: Sequence[Value], edges: Sequence[tuple[str, Names]]) -> None:
        """Writes the phis of values at the head of the current block, and binds the values to them."""
        merged = self.names(values)
        self.write(self.text.sink, values, merged, edges)
        self.bind(values, merged)
        self.text.open_chunk()

    def zero_unless(self, values: Sequence[Value], iterated: str) -> None:
        """Sets tiles to zero unless `iterated` holds: a loop that set them had an iteration."""
        text = self.text
        none, done = text.new_label("none"), text.new_label("done")
        before, had = text.label, [self.registers.regs(value) for value in values]
        text.do(f"br i1 {iterated}, label %{done}, label %{none}")
        text.start(none)
        zero = opaque_zero(text)  # LLVM would hoist a constant above the branch, once for each register
        kinds = {kind: text.emit(f"bitcast i32 {zero} to {kind}") for kind in {llvm_type(v.type.dtype) for v in values}}
        text.do(f"br label %{done}")
        text.start(done)
        zeros = [[kinds[llvm_type(value.type.dtype)]] * len(names) for value, names in zip(values, had, strict=True)]
        self.merge(values, [(before, had), (none, zeros)])
