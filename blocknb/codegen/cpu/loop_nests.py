"""A group of tile operations as one loop nest: rows outside, vectors inside.

Whatever is the same for a whole row, and every form of `uniformity`, is computed before the vector loop. Reductions along the vector
loop keep one accumulator for each unrolled vector. Results are written to scratch only if another node needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from blocknb.codegen.cpu.addresses import AddressAnalysis
from blocknb.codegen.cpu.builder import KernelBuilder, ScalarNames
from blocknb.codegen.cpu.checks import BoundsChecks
from blocknb.codegen.cpu.dataflow import Dataflow, Index, identity
from blocknb.codegen.cpu.mask_bounds import MaskBounds
from blocknb.codegen.cpu.nests import LoopNest, NestPlanner, Placement
from blocknb.codegen.cpu.nontemporal_stores import NontemporalStores
from blocknb.codegen.cpu.options import CpuOptions
from blocknb.codegen.cpu.reductions import Reduction
from blocknb.codegen.cpu.row_accesses import RowAccesses
from blocknb.codegen.cpu.row_prefetch import RowPrefetch
from blocknb.codegen.cpu.rows import RowLoops
from blocknb.codegen.cpu.tiles import TileBuffers
from blocknb.codegen.cpu.uniformity import VARYING, Uniformity, UniformityAnalysis
from blocknb.codegen.scalar_math.structured import counted
from blocknb.ir.core import Op, Value
from blocknb.trace import Notes


class LoopNestEmitter:
    """Plans and emits loop nests."""

    def __init__(
        self,
        program: Dataflow,
        code: KernelBuilder,
        options: CpuOptions,
        scalars: ScalarNames,
        tiles: TileBuffers,
        checks: BoundsChecks,
        addresses: AddressAnalysis,
        nontemporal: NontemporalStores,
        notes: Notes,
    ):
        self.program, self.code, self.options, self.scalars, self.tiles = program, code, options, scalars, tiles
        self.checks, self.addresses, self.nontemporal, self.notes = checks, addresses, nontemporal, notes
        self.planner = NestPlanner(addresses, tiles, options)

    def plan(self, ops: Sequence[Op], shape: tuple[int, ...], outputs: Sequence[Value], place: Placement) -> LoopNest:
        """The loop nest of some ops; `place` gives each output its buffer."""
        return self.planner.plan(ops, shape, outputs, place)

    def emit(self, nest: LoopNest, prefetches: Sequence[Op] = ()) -> None:
        """Emits a nest, which also prefetches for some loads of other nests."""
        reductions = {
            op: Reduction(op, nest, self.code, self.scalars, self.tiles) for op in nest.ops if op.name == "reduce"
        }
        prefetch = RowPrefetch(prefetches, self.code, self.notes)
        self._note(nest)
        for r in reductions.values():
            r.prepare()
        origin = {loop: "0" for loop in range(len(nest.shape)) if loop != nest.axis}
        prefetch.prepare(lambda: self._analysis(nest, origin, self.options.uses("loop_versioning")))
        outer = [loop for loop in range(len(nest.shape)) if loop != nest.axis]
        self._outer(nest, outer, lambda: self._row(nest, reductions, prefetch))
        for r in reductions.values():
            r.done()

    def _note(self, nest: LoopNest) -> None:
        """Says how each access is made."""
        for op in nest.ops:
            if op.name not in ("load", "store") or nest.axis is None:
                continue
            index = identity(op.args[0].type.shape)
            axis = f"axis {index.index(nest.axis)}" if len(index) > 1 else "the block"
            if nest.axis in self.addresses.contiguous(op):
                lanes = f"vectors of {nest.width} {op.args[0].type.dtype.element}"
                self.notes(op, f"{lanes} along {axis}{f', {nest.unroll} at a time' if nest.unroll > 1 else ''}")
            elif self.addresses.one_element(op, nest.axis):
                self.notes(op, f"one element for all of {axis}")
            else:
                what = "gathers" if op.name == "load" else "scatters"
                self.notes(op, f"{what} lane by lane: addresses along {axis} are not contiguous", "missed")

    def _outer(self, nest: LoopNest, loops: list[int], row: Callable[[], None]) -> None:
        """The loops around a row."""
        if not loops:
            row()
            return
        with counted(self.code.w, "0", str(nest.shape[loops[0]]), 1) as counter:
            nest.counters[loops[0]] = counter
            self._outer(nest, loops[1:], row)

    def _row(self, nest: LoopNest, reductions: Mapping[Op, Reduction], prefetch: RowPrefetch) -> None:
        """One row: a version for addresses that do not wrap around, and a general one where a test at run time decides."""
        for r in reductions.values():
            r.start_row()
        forms = self._row_analysis(nest, speculate=self.options.uses("loop_versioning"))
        if forms.conditions:
            w = self.code.w
            fast, slow, done = w.fresh("straight"), w.fresh("wrapped"), w.fresh("row.done")
            holds = forms.conditions[0]
            for condition in forms.conditions[1:]:
                holds = self.code.binary("and", holds, condition, "i1", 1)
            w.branch(holds, fast, slow)
            w.place(fast)
            self._version(nest, forms, reductions, prefetch, alone=False)
            w.jump(done)
            w.place(slow)
            self._version(nest, self._row_analysis(nest, speculate=False), reductions, prefetch, alone=False)
            w.place(done)
        else:
            self._version(nest, forms, reductions, prefetch, alone=True)
        for r in reductions.values():
            r.end_row()

    def _version(
        self,
        nest: LoopNest,
        forms: UniformityAnalysis,
        reductions: Mapping[Op, Reduction],
        prefetch: RowPrefetch,
        alone: bool,
    ) -> None:
        """The loops of a row under what `forms` assumes; only a row that has a single version (`alone`) ends at its masks."""
        accesses = RowAccesses(self.code, self.checks, forms)
        rows = RowLoops(nest, forms, accesses, reductions, prefetch, self.code, self.tiles, self.options)
        bounds = None
        if alone and not self.options.alias and self.options.uses("mask_bounds"):
            bounds = MaskBounds(nest, forms, accesses.masks, reductions, self.code, self.tiles)
        rows.emit(self.nontemporal, bounds)
        if bounds is not None and bounds.end:
            bounds.leave(self.scalars, self.options.redzones)

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

        return UniformityAnalysis(
            self.program, self.code, nest.axis, nest.size, counters, self.scalars.of, leaf, speculate
        )
