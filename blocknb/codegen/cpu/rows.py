"""The vector loops of one row.

The loop comes in two parts. The first part runs up to the least bound of all masks, several vectors per iteration and without any mask.
The second part takes the rest, one vector at a time, with masks. An iteration writes its results to scratch last, so that a result may
take the place of an operand.
"""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.codegen.cpu.context import Emitter, KernelContext
from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES
from blocknb.codegen.cpu.lowering import lowering_table
from blocknb.codegen.cpu.mask_bounds import MaskBounds, fill_read
from blocknb.codegen.cpu.nests import LoopNest
from blocknb.codegen.cpu.nontemporal_stores import NontemporalStores
from blocknb.codegen.cpu.reductions import Reduction
from blocknb.codegen.cpu.row_accesses import RowAccesses
from blocknb.codegen.cpu.row_outputs import RowOutputs
from blocknb.codegen.cpu.row_prefetch import RowPrefetch
from blocknb.codegen.cpu.uniformity import Prefix, UniformityAnalysis
from blocknb.codegen.cpu.vectors import VectorBody
from blocknb.ir.core import Op


class RowLoops(Emitter):
    """Emits the loops of a row. `forms` says how values vary along it."""

    def __init__(
        self,
        context: KernelContext,
        nest: LoopNest,
        forms: UniformityAnalysis,
        reductions: Mapping[Op, Reduction],
        prefetch: RowPrefetch,
    ):
        super().__init__(context)
        self.nest, self.forms, self.reductions, self.prefetch = nest, forms, reductions, prefetch
        self.accesses, self.outputs = RowAccesses(context, forms), RowOutputs(context, nest)
        self.lowerings = lowering_table(self.accesses)
        self._prefetched: list[tuple[str, int]] = []

    def emit(self, nontemporal: NontemporalStores, ends_at_masks: bool = False) -> None:
        """Emits the row. With `ends_at_masks` it ends at its masks, if it may end there."""
        nest, c = self.nest, self.code
        for op in nest.ops:
            if op.name in PLAIN_ACCESSES:
                with c.at(op):
                    self.accesses.prepare(op)
        self.outputs.prepare()
        self._prefetched = self.prefetch.next_rows(self.forms)
        bounds = MaskBounds(self.context, self.nest, self.forms, self.accesses.masks, self.reductions)
        ends_early = ends_at_masks and bounds.find()
        end = bounds.end if ends_early else self._end()
        fill_read(nest, c, self.tiles, end)
        least = self._least(end) if ends_early else self._least()
        step = nest.width * nest.unroll
        full = least if least.isdigit() else c.i64("and", least, str(-step))
        if stores := nontemporal.stores(nest, self.forms):
            begin = self._two_versions(nontemporal.worth(nest, self.forms, stores, least), least, full)
        else:
            begin = self._vectors(full)
        if not full.isdigit():
            with c.w.counted(begin, end, nest.width, "tail") as position:
                self._vector(position, 0, False)
        if ends_early:
            bounds.leave()

    def _end(self) -> str:
        """Where the row ends: a row that only stores ends where the masks of its stores do."""
        nest, c = self.nest, self.code
        masks = [self.accesses.masks.get(op) for op in nest.ops if op.name == "store"]
        if not self.options.uses("mask_bounds") or nest.outputs or self.reductions:
            return str(nest.size)
        if not masks or not all(isinstance(m, Prefix) for m in masks):
            return str(nest.size)
        end, *others = dict.fromkeys(m.count for m in masks if isinstance(m, Prefix))
        for other in others:
            end = c.intrinsic("smax", "i64", 1, end, other)
        return c.intrinsic("smin", "i64", 1, end, str(nest.size))

    def _least(self, *more: str) -> str:
        """The position from which on a mask reaches into the row, or its size."""
        c, size = self.code, str(self.nest.size)
        found = [*(p.count for p in self.forms.prefixes()), *self.accesses.bounds, *more]
        bounds, least = [b for b in found if b != size], size
        for bound in bounds:
            least = c.intrinsic("smin", "i64", 1, least, bound)
        return c.intrinsic("smax", "i64", 1, least, "0") if bounds else least

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
        """One vector of every op."""
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
        self.outputs.store(body)
