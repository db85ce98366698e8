"""A group of tile operations as one loop nest: rows outside, vectors inside.

The code computes values that are the same for a whole row, and every form of `uniformity`, before the vector loop. Reductions along the
vector loop keep one accumulator for each unrolled vector. Results are written to scratch only if another node needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from blocknb.codegen.cpu.context import VersionContext
from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES, Index, identity
from blocknb.codegen.cpu.nests import LoopNest, NestPlanner
from blocknb.codegen.cpu.nontemporal_stores import NontemporalStores
from blocknb.codegen.cpu.reductions import Reduction
from blocknb.codegen.cpu.row_prefetch import RowPrefetch
from blocknb.codegen.cpu.rows import RowLoops
from blocknb.codegen.cpu.uniformity import VARYING, Uniformity, UniformityAnalysis
from blocknb.ir.core import Op, Value


class LoopNestEmitter(NestPlanner):
    """Plans and emits loop nests."""

    def __init__(self, context: VersionContext):
        super().__init__(context)
        self.nontemporal = NontemporalStores(context)

    def emit(self, nest: LoopNest, prefetches: Sequence[Op] = ()) -> None:
        """Emits a nest, which also prefetches for some loads of other nests."""
        reductions = {op: Reduction(self.context, op, nest) for op in nest.ops if op.name == "reduce"}
        prefetch = RowPrefetch(prefetches, self.code, self.notes)
        self._note(nest)
        for r in reductions.values():
            r.prepare()
        outer = [loop for loop in range(len(nest.shape)) if loop != nest.axis]
        prefetch.prepare(lambda: self._addresses(nest, dict.fromkeys(outer, "0")))
        if self.options.uses("row_prefetch"):
            prefetch.prepare_stores(nest, lambda row: self._addresses(nest, {outer[0]: row}))
        self._outer(nest, outer, lambda: self._row(nest, reductions, prefetch))
        for r in reductions.values():
            r.done()

    def _note(self, nest: LoopNest) -> None:
        """Adds a note on how the loops execute each access."""
        for op in nest.ops:
            if op.name not in PLAIN_ACCESSES or nest.axis is None:
                continue
            index = identity(op.args[0].type.shape)
            axis = f"axis {index.index(nest.axis)}" if len(index) > 1 else "the block"
            if nest.axis in self.addresses.contiguous(op):
                lanes = f"vectors of {nest.width} {op.args[0].type.dtype.element}"
                self.notes(op, f"{lanes} along {axis}{f', {nest.unroll} at a time' if nest.unroll > 1 else ''}")
            elif self.addresses.one_element(op, nest.axis):
                self.notes(op, f"one element, the same along {axis}")
            else:
                what = "gather" if op.name == "load" else "scatter"
                self.notes(op, f"{what}, one address per lane: addresses along {axis} are not contiguous", "missed")

    def _outer(self, nest: LoopNest, loops: list[int], row: Callable[[], None]) -> None:
        """The loops around a row."""
        if not loops:
            row()
            return
        with self.code.w.counted("0", str(nest.shape[loops[0]]), 1) as counter:
            nest.counters[loops[0]] = counter
            self._outer(nest, loops[1:], row)

    def _row(self, nest: LoopNest, reductions: Mapping[Op, Reduction], prefetch: RowPrefetch) -> None:
        """One row: a version for addresses that do not wrap around, and a general one where a test at run time decides."""
        for r in reductions.values():
            r.start_row()
        forms = self._row_analysis(nest, speculate=self.options.uses("loop_versioning"))
        if forms.conditions:
            w = self.code.w
            fast, slow, done = (w.fresh(s) for s in ("straight", "wrapped", "row.done"))
            holds = forms.conditions[0]
            for condition in forms.conditions[1:]:
                holds = self.code.binary("and", holds, condition, "i1", 1)
            w.branch(holds, fast, slow)
            w.place(fast)
            RowLoops(self.context, nest, forms, reductions, prefetch).emit(self.nontemporal)
            w.jump(done)
            w.place(slow)
            general = self._row_analysis(nest, speculate=False)
            RowLoops(self.context, nest, general, reductions, prefetch).emit(self.nontemporal)
            w.place(done)
        else:
            rows = RowLoops(self.context, nest, forms, reductions, prefetch)
            rows.emit(self.nontemporal, ends_at_masks=not self.options.alias and self.options.uses("mask_bounds"))
        for r in reductions.values():
            r.end_row()

    def _row_analysis(self, nest: LoopNest, speculate: bool) -> UniformityAnalysis:
        """How the operands and outputs of a nest vary along a row."""
        forms = self._analysis(nest, nest.counters, speculate)
        for op in nest.ops:
            with self.code.at(op):
                for a in self.program.operands(op):
                    forms.of_operand(a)
        for value, _ in nest.outputs:
            forms.of_operand(value)
        return forms

    def _analysis(self, nest: LoopNest, counters: dict[int, str], speculate: bool) -> UniformityAnalysis:
        members = nest.members

        def leaf(value: Value, index: Index) -> Uniformity:
            """A stored tile: made in this very nest, or in scratch."""
            return VARYING if value in members else self.tiles.row_form(value, index, nest.axis, nest.counters)

        scalar = self.scalars.of
        return UniformityAnalysis(self.program, self.code, nest.axis, nest.size, counters, scalar, leaf, speculate)

    def _addresses(self, nest: LoopNest, counters: dict[int, str]) -> UniformityAnalysis:
        """How addresses vary along one row, before all loops. Addresses that depend on tiles in scratch follow no pattern."""
        scalar, speculate = self.scalars.of, self.options.uses("loop_versioning")
        return UniformityAnalysis(
            self.program, self.code, nest.axis, nest.size, counters, scalar, lambda value, index: VARYING, speculate
        )
