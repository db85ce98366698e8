"""The vector loops of one row.

The loop comes in two parts. The first part runs up to the least bound of all masks, several vectors per iteration and without any mask.
The second part takes the rest, one vector at a time, with masks. An iteration writes its results to scratch last, so that a result may
take the place of an operand.
"""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowering_table
from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES, identity
from blocknb.codegen.cpu.mask_bounds import MaskBounds
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.nontemporal_stores import NontemporalStores
from blocknb.codegen.cpu.reductions import Reduction
from blocknb.codegen.cpu.row_accesses import RowAccesses
from blocknb.codegen.cpu.row_prefetch import NextRow, RowPrefetch
from blocknb.codegen.cpu.tiles import to_buffer
from blocknb.codegen.cpu.uniformity import Prefix, UniformityAnalysis
from blocknb.codegen.cpu.vectors import VectorBody
from blocknb.ir.core import Op, Value


class RowLoops(VersionPart):
    """Emits the loops of a row. `forms`: how values vary along the row."""

    def __init__(
        self,
        context: VersionContext,
        nest: LoopNest,
        forms: UniformityAnalysis,
        reductions: Mapping[Op, Reduction],
        prefetch: RowPrefetch,
    ):
        super().__init__(context)
        self.nest, self.forms, self.reductions, self.prefetch = nest, forms, reductions, prefetch
        self.accesses = RowAccesses(context, forms)
        self.lowerings = lowering_table(self.accesses)
        self._starts: dict[Value, tuple[str, int]] = {}  # of each output: the pointer to position 0, and the stride
        self._prefetched: list[NextRow] = []

    def emit(self, nontemporal: NontemporalStores, ends_at_masks: bool = False) -> None:
        """Emits the row. With `ends_at_masks` it ends at its masks, if it may end there."""
        nest, c = self.nest, self.code
        for op in nest.ops:
            if op.name in PLAIN_ACCESSES:
                with c.at(op):
                    self.accesses.prepare(op)
        for value, buffer in nest.outputs:
            if buffer.panel is None:
                index = identity(value.type.shape)
                self._starts[value] = self.tiles.row_start(buffer, index, nest.axis, nest.counters)
        self._prefetched = self.prefetch.next_rows(self.forms)
        bounds = MaskBounds(self.context, self.nest, self.forms, self.accesses.masks, self.reductions)
        ends_early = ends_at_masks and bounds.find()
        end = bounds.end if ends_early else self._end()
        bounds.fill_read(end)
        least = self._first_masked_position(end) if ends_early else self._first_masked_position()
        step = nest.width * nest.unroll
        full = least if least.isdigit() else c.i64("and", least, str(-step))
        if stores := nontemporal.stores(nest, self.forms):
            begin = self._two_versions(nontemporal.is_profitable(nest, self.forms, stores, least), least, full)
        else:
            begin = self._vectors(full)
        if not full.isdigit():
            with c.w.counted(begin, end, nest.width, "tail") as position:
                self._vector(position, 0, False)
        if ends_early:
            bounds.leave()

    def _end(self) -> str:
        """The end of the row. A row without results ends where the masks of its stores end."""
        nest, c = self.nest, self.code
        masks = [self.accesses.masks.get(op) for op in nest.ops if op.name == "store"]
        if not self.options.uses("mask_bounds") or nest.outputs or self.reductions:
            return str(nest.size)
        if not masks or not all(isinstance(m, Prefix) for m in masks):
            return str(nest.size)
        ends = dict.fromkeys(m.count for m in masks if isinstance(m, Prefix))
        return c.i64_least(c.i64_most(*ends), str(nest.size))

    def _first_masked_position(self, *more: str) -> str:
        """The position from which on a mask reaches into the row, or its size."""
        c, size = self.code, str(self.nest.size)
        found = [*(p.count for p in self.forms.prefixes()), *self.accesses.bounds, *more]
        bounds = [b for b in found if b != size]
        return c.i64_most(c.i64_least(size, *bounds), "0") if bounds else size

    def _vectors(self, stop: str, streaming: bool = False) -> str:
        """Several vectors per iteration, none of which a mask reaches into; returns `stop`."""
        nest, c = self.nest, self.code
        unroll = 1 if streaming else nest.unroll
        with c.w.counted("0", stop, nest.width * unroll, "j") as position:
            for u in range(unroll):
                at = c.i64("add", position, str(u * nest.width)) if u else position
                self._vector(at, u, True, streaming)
        return stop

    def _two_versions(self, streaming: str, least: str, full: str) -> str:
        """Two versions of the vectors: with non-temporal stores if the i1 holds, else with ordinary ones; returns where they end."""
        w = self.code.w
        past, through, done, end = w.fresh("past"), w.fresh("through"), w.fresh("streamed"), w.slot("i64", "end")
        w.branch(streaming, past, through)
        w.place(past)
        w.do(f"store i64 {self._vectors(least, streaming=True)}, ptr {end}")
        w.jump(done)
        w.place(through)
        w.do(f"store i64 {self._vectors(full)}, ptr {end}")
        w.place(done)
        return w.value(f"load i64, ptr {end}")

    def _vector(self, position: str, number: int, full: bool, streaming: bool = False) -> None:
        """Writes the code of one vector of every op."""
        body = VectorBody(self.forms, self.code, self.lowerings, self.nest.width, position, number, full, streaming)
        if full:
            self.prefetch.fetch(self._prefetched, body)
        for op in self.nest.ops:
            with self.code.at(op):
                if op.name == "store":
                    self.accesses.store(op, body)
                elif op.name == "reduce":
                    self.reductions[op].add(body)
                else:
                    body.value(op.result)
        self._store_outputs(body)

    # -- results that another node reads: each vector is written to its buffer in scratch -----------------------------------

    def _store_outputs(self, body: VectorBody) -> None:
        """Writes one vector of each output."""
        for value, buffer in self.nest.outputs:
            raw = to_buffer(self.code, body.value(value), buffer, value.type.dtype, body.width)
            place, step = self._place(value, buffer, body.position)
            self.code.store_strided(place, raw, buffer.element, body.width, step)

    def _place(self, value: Value, buffer: ScratchBuffer, position: str) -> tuple[str, int]:
        """The pointer to the lane at a position, and the stride of the lanes."""
        if buffer.panel is not None:
            return self._panel_place(value, buffer, position)
        c, (base, step) = self.code, self._starts[value]
        at = position if step == 1 else c.i64("mul", position, str(step))
        return c.w.value(f"getelementptr inbounds {buffer.element}, ptr {base}, i64 {at}"), step

    def _panel_place(self, value: Value, buffer: ScratchBuffer, position: str) -> tuple[str, int]:
        """The place of an element in panels, which the microkernel reads."""
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
