"""The results of a loop nest that another node reads: each vector is written to its buffer in scratch."""

from __future__ import annotations

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import Emitter, KernelContext
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.tiles import to_buffer
from blocknb.codegen.cpu.vectors import VectorBody
from blocknb.ir.core import Value


class RowOutputs(Emitter):
    """The outputs of one row. `starts` has the pointer to position 0 of the row, and the stride along it."""

    def __init__(self, context: KernelContext, nest: LoopNest):
        super().__init__(context)
        self.nest = nest
        self.starts: dict[Value, tuple[str, int]] = {}

    def prepare(self) -> None:
        """Before the vector loop: finds where the row begins in each buffer."""
        nest = self.nest
        for value, buffer in nest.outputs:
            if buffer.panel is None:
                index = identity(value.type.shape)
                self.starts[value] = self.tiles.row_start(buffer, index, nest.axis, nest.counters)

    def store(self, body: VectorBody) -> None:
        """Writes one vector of each output."""
        for value, buffer in self.nest.outputs:
            raw = to_buffer(self.code, body.value(value), buffer, value.type.dtype, body.width)
            place, step = self._place(value, buffer, body.position)
            self.code.store_strided(place, raw, buffer.element, body.width, step)

    def _place(self, value: Value, buffer: ScratchBuffer, position: str) -> tuple[str, int]:
        """The pointer to the lane at a position, and the stride of the lanes."""
        if buffer.panel is not None:
            return self._panel_place(value, buffer, position)
        c, (base, step) = self.code, self.starts[value]
        at = position if step == 1 else c.i64("mul", position, str(step))
        return c.w.value(f"getelementptr inbounds {buffer.element}, ptr {base}, i64 {at}"), step

    def _panel_place(self, value: Value, buffer: ScratchBuffer, position: str) -> tuple[str, int]:
        """The same in panels, which the microkernel reads."""
        c, axis = self.code, self.nest.axis
        assert buffer.panel is not None
        k_axis, n_axis, panel = buffer.panel
        index = identity(value.type.shape)

        def at(loop: int | None) -> str:
            return "0" if loop is None else position if loop == axis else self.nest.counters[loop]

        k, n = at(index[k_axis]), at(index[n_axis])
        shift = panel.bit_length() - 1
        whole = c.i64("mul", c.i64("lshr", n, str(shift)), str(buffer.shape[k_axis] * panel))
        line = c.i64("mul", k, str(panel))
        inside = c.i64("add", line, c.i64("and", n, str(panel - 1)))
        base = self.tiles.base(buffer)
        offset = c.i64("add", whole, inside)
        place = c.w.value(f"getelementptr inbounds {buffer.element}, ptr {base}, i64 {offset}")
        return place, panel if index[k_axis] is not None and index[k_axis] == axis else 1
