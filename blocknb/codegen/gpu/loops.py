"""The loops that are open at the place where code is being written."""

from __future__ import annotations

from blocknb.codegen.gpu.text import TextWriter


class OpenLoops:
    """`indices` are the type and the name of the index of each counted loop; `piece_offset` is what the open loop over the pieces of a
    tile adds to every index ("" outside of such a loop)."""

    def __init__(self) -> None:
        self.indices: list[tuple[str, str]] = []
        self.piece_offset = ""

    def varying_number(self, text: TextWriter) -> str:
        """An i32 that differs from iteration to iteration and from thread to thread. From the index alone LLVM would see that it counts."""
        kind, index = self.indices[-1]
        return text.emit(f"xor i32 %tid, {text.emit(f'trunc i64 {index} to i32') if kind == 'i64' else index}")
