"""Makes registers forget what is computed again after a reduction (see the pass `rematerialization`).

An op with `emit="rematerialized"` is emitted where its result is asked for, and forgotten after each reduction with `rematerialize`. ptxas
would find the first results and keep them. It does not know that `n * (n + 1)` is even. So after a reduction, the code combines the words
of a loaded row with the last bit of such a product. That takes one instruction for two elements.
"""

from __future__ import annotations

from blocknb.codegen.gpu.registers import Registers, Words
from blocknb.codegen.gpu.scheduling import opaque_zero
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op, Value
from blocknb.passes.support.emission import Emission


class Rematerializer:
    """Makes registers forget the values that are computed again."""

    def __init__(self, text: TextWriter, registers: Registers, emission: Emission):
        self.text, self.registers, self.emission = text, registers, emission
        self.words: dict[Value, Words] = {}  # as they were loaded
        self.reductions = 0  # so far

    def reduced(self, op: Op) -> None:
        """Runs after each reduction: drops the values computed from rows and renames the packed words of the rows."""
        if not op.attrs.get("rematerialize"):
            return
        self.reductions += 1
        zero, text = "", self.text
        for value in self.emission.rematerialized:
            self.registers.names.get(value, {}).clear()
        for value in self.emission.packed:
            if value in self.registers.words:
                zero = zero or opaque_zero(text, text.emit(f"lshr i32 %tid, {self.reductions % 5}"))
                self.hide_from_ptxas(value, zero)

    def hide_from_ptxas(self, value: Value, zero: str) -> None:
        """Gives the words of a row new names, by an instruction that ptxas cannot remove."""
        text, registers = self.text, self.registers
        op, _, dbg, compute = registers.lazy[value]
        loaded = self.words.setdefault(value, registers.words[value])
        known = registers.words[value] = {}
        registers.names.get(value, {}).clear()
        registers.lazy[value] = op, None, dbg, compute

        def fetch(wanted: tuple[int, ...]) -> None:
            piece = next(piece for piece in loaded if wanted[0] in piece)
            text.remember(known, piece, text.emit(f"xor i32 {loaded[piece]}, {zero}"))

        registers.fetch[value] = fetch
