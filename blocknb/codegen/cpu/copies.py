"""Copies of tiles to a buffer, and reshapes, which give the same bytes another shape."""

from __future__ import annotations

from blocknb.codegen.cpu.buffers import ScratchBuffer, row_major
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.dataflow import squeezed
from blocknb.codegen.cpu.loop_nests import LoopNestEmitter
from blocknb.ir.core import Op, Value


class TileCopies(VersionPart):
    """Copies tiles by loop nests of their own."""

    def __init__(self, context: VersionContext, nests: LoopNestEmitter):
        super().__init__(context)
        self.nests = nests

    def copy(self, value: Value, buffer: ScratchBuffer) -> None:
        """Writes a tile to a buffer. The tile may be stored, recomputed or a view."""
        if self.tiles.buffers.get(value) is not buffer:
            self.nests.emit(self.nests.plan([], squeezed(value.type.shape), [value], lambda v, axis: buffer))

    def row_major(self, value: Value) -> ScratchBuffer:
        """A buffer with the tile in row-major order, its own or a temporary copy."""
        buffer = self.tiles.buffers.get(value)
        if buffer is None or not buffer.row_major() or buffer.dtype != value.type.dtype:
            buffer = self.tiles.temporary(value.type.shape, value.type.dtype)
            self.copy(value, buffer)
        return buffer

    @lowers("reshape")
    def reshape(self, op: Op) -> None:
        """A buffer with the same bytes and another shape; a scalar stays unchanged."""
        (x,), result = op.args, op.result
        if not x.type.shape:
            self.scalars[result] = self.scalars.of(x)
            return
        buffer = self.row_major(x)
        self.tiles.keep(buffer)
        shape = result.type.shape
        strides = row_major(shape)
        view = ScratchBuffer(buffer.offset, buffer.bytes, buffer.dtype, shape, strides, None, buffer.holders)
        self.tiles.attach(result, view)
