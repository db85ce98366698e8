"""The shape of one loop nest: which loop runs in vectors, how wide they are, and how many vectors an iteration computes.

The vector loop runs along the axis on which most bytes are contiguous. A vector is as wide as a register of the widest type in the nest.
Cheap nests take several vectors per iteration, so that several loads are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import VersionPart
from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES
from blocknb.codegen.cpu.reduction_kinds import ReductionKind
from blocknb.codegen.scalar_math.register_types import register_bits
from blocknb.ir.core import Op, Value
from blocknb.language.ops import ATOMICS, lane_cost
from blocknb.language.types import Pointer

#: Gives a value its buffer, which should run along a loop.
Placement = Callable[[Value, "int | None"], ScratchBuffer]
STREAM_COST = 6  # of nests that only load, change a little, and store
UNROLL_COST = 12  # vectors per iteration times the cost of one stay near this


@dataclass(eq=False)
class LoopNest:
    """`ops` in program order over loops of sizes `shape`; `outputs` are the values written to scratch, with their buffers.

    `axis` is the vector loop (None: there is no loop). An iteration takes `unroll` vectors of `width` lanes.
    `counters` has the i64 counters of the other loops.
    """

    ops: list[Op]
    shape: tuple[int, ...]
    axis: int | None
    outputs: list[tuple[Value, ScratchBuffer]]
    width: int
    unroll: int
    counters: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The positions of the vector loop."""
        return self.shape[self.axis] if self.axis is not None else 1

    @property
    def members(self) -> set[Value]:
        """The tiles that the nest computes, without results of reductions."""
        return {r for op in self.ops for r in op.results if op.name != "reduce"}


def cost(ops: Sequence[Op]) -> int:
    """The relative cost of one element of each op."""
    return sum(lane_cost(op.name) for op in ops)


class NestPlanner(VersionPart):
    """Plans loop nests for a target."""

    def plan(self, ops: Sequence[Op], shape: tuple[int, ...], outputs: Sequence[Value], place: Placement) -> LoopNest:
        """The loop nest of some ops; `place` gives each output its buffer."""
        axis = self._axis(ops, shape, outputs)
        placed = [(v, place(v, axis)) for v in outputs]
        total = cost(ops) + len(placed)
        width = self._width(ops, placed, total, shape[axis] if axis is not None else 1)
        unroll = self._unroll(ops, axis, width, total, shape[axis] if axis is not None else 1)
        return LoopNest(list(ops), shape, axis, placed, width, unroll)

    def _axis(self, ops: Sequence[Op], shape: tuple[int, ...], outputs: Sequence[Value]) -> int | None:
        """The loop along which most bytes are contiguous; the last one if there is no difference."""
        if not shape:
            return None

        def score(loop: int) -> tuple[float, int]:
            total = 0.0
            for op in ops:
                if op.name in PLAIN_ACCESSES and loop in self.addresses.contiguous(op):
                    total += op.args[0].type.dtype.element.bytes
                for a in op.args:
                    total += self.tiles.contiguous_bytes(a, loop)
            written = sum(self.tiles.contiguous_bytes(v, loop) for v in outputs)
            return total * min(shape[loop], 8) + written * 8, loop

        return max(range(len(shape)), key=score)

    def _width(self, ops: Sequence[Op], outputs: list[tuple[Value, ScratchBuffer]], total: int, size: int) -> int:
        """The lanes of a vector; one where a nest has atomics."""
        if any(op.name in ATOMICS for op in ops):
            return 1
        bits = [8]
        for op in ops:
            dtypes = [v.type.dtype for v in (*op.results, *op.args[op.name == "store" :])]
            bits += [register_bits(dtype) for dtype in dtypes if not isinstance(dtype, Pointer)]
        bits += [register_bits(v.type.dtype) for v, _ in outputs]
        vector = self.options.machine.vector_bytes
        if not outputs and total <= STREAM_COST and not any(op.name == "reduce" for op in ops):
            vector = min(vector, 32)  # memory keeps up with these, and 64-byte vectors measured up to 5 % slower
        panels = [b.panel[2] for _, b in outputs if b.panel]
        return min([vector * 8 // max(bits), size, *panels])

    def _unroll(self, ops: Sequence[Op], axis: int | None, width: int, total: int, size: int) -> int:
        """The vectors of an iteration; one in code for arguments that overlap, which rarely runs."""
        if self.options.alias or not self.options.uses("unroll") or any(op.name in ATOMICS for op in ops):
            return 1
        if any(not ReductionKind(op).can_unroll(axis) for op in ops if op.name == "reduce"):
            return 1
        unroll = 4 if total <= UNROLL_COST else 2 if total <= 3 * UNROLL_COST else 1
        return max(1, min(unroll, size // width))
