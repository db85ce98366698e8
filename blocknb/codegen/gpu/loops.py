"""The loops around the op that the generator is lowering."""

from __future__ import annotations

from blocknb.codegen.gpu.text import TextWriter


class OpenLoops:
    """`indices`: the type and the name of the index of each counted loop. `piece_offset`: inside a loop over pieces of a tile, the number
    that it adds to every index; otherwise ""."""

    def __init__(self) -> None:
        self.indices: list[tuple[str, str]] = []
        self.piece_offset = ""

    def varying_number(self, text: TextWriter) -> str:
        """An i32 that differs from iteration to iteration and from thread to thread. It is not the index itself, from which LLVM would
        derive an induction variable."""
        kind, index = self.indices[-1]
        return text.emit(f"xor i32 %tid, {text.emit(f'trunc i64 {index} to i32') if kind == 'i64' else index}")
