"""The tiles of a program in scratch memory: which buffer holds which tile, and for how long.

Copies are the exception. A result takes the buffer of an operand that nothing reads any more, so `acc += x` and `acc = dot(a, b, acc)`
work in place.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from blocknb.codegen.cpu.buffers import Scratch, ScratchBuffer, strides_along
from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.dataflow import Dataflow, Index, identity
from blocknb.codegen.cpu.fusion import FusionGraph, FusionNode
from blocknb.codegen.cpu.product_terms import ProductTerms
from blocknb.codegen.cpu.uniformity import Stored, Uniform, Uniformity
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import SIZES, scratch_type
from blocknb.ir.core import Block, Op, Value, within
from blocknb.language.types import Pointer


class TileTail(NamedTuple):
    """The padding of a tile from position `end` (an i64) on: the scalar `value`. `end` is a multiple of `width`, or the tile's size."""

    end: str
    value: str
    width: int


def from_buffer(c: KernelBuilder, raw: str, buffer: ScratchBuffer, dtype: Any, width: int) -> str:
    """Converts an element of a buffer to a register of `dtype`."""
    value = casts.from_scratch(c, raw, buffer.dtype, width)
    return value if isinstance(dtype, Pointer) else casts.cast(c, value, buffer.dtype, dtype, width)


def to_buffer(c: KernelBuilder, value: str, buffer: ScratchBuffer, dtype: Any, width: int) -> str:
    """Converts a register of `dtype` to an element of a buffer."""
    if buffer.dtype != dtype and not isinstance(dtype, Pointer):
        value = casts.cast(c, value, dtype, buffer.dtype, width)
    return casts.to_scratch(c, value, buffer.dtype, width)


#: For each tile that a block yields: its preferred buffer, and the argument that the buffer holds now.
Targets = Mapping[Value, tuple[ScratchBuffer, Value]]


class BlockScope:
    """A block that is being emitted. `now` is the index of the current node. `prefetches` has the loads that a node prefetches for."""

    def __init__(self, block: Block, graph: FusionGraph, targets: Targets | None = None):
        self.graph, self.targets = graph, targets or {}
        self.nodes = graph.order()
        self.now = -1
        self.local = {*block.args, *(r for op in block.ops for r in op.results)}
        self.when: dict[Op, int] = {}  # the index of the node in which an op is emitted
        rank = self._ranks()
        for op in block.ops:
            at = rank.get(graph.node_of.get(op), len(self.nodes))  # type: ignore[arg-type]
            for inner in within(op):
                self.when[inner] = at
        self.prefetches: Mapping[FusionNode, Sequence[Op]] = {}
        self.bounded: Mapping[Op, ProductTerms] = {}  # the conditions that bound each product
        self.read_again: dict[
            Value, int
        ] = {}  # when a prefetch or a product reads the scalars of an address or a mask once more

    def _ranks(self) -> dict[FusionNode, int]:
        return {node: i for i, node in enumerate(self.nodes)}

    def set_prefetches(self, program: Dataflow, prefetches: Mapping[FusionNode, Sequence[Op]]) -> None:
        """Sets the loads for which each node prefetches. The values in their addresses stay alive until that node."""
        self.prefetches = prefetches
        for node, loads in prefetches.items():
            self._keep(program, node, [(op.args[0], identity(op.args[0].type.shape)) for op in loads])

    def set_bounds(self, program: Dataflow, bounded: Mapping[Op, ProductTerms]) -> None:
        """Sets the conditions that bound products. The values in them stay alive until the product."""
        self.bounded = bounded
        for op, terms in bounded.items():
            self._keep(program, self.graph.node_of[op], terms.all())

    def _keep(self, program: Dataflow, node: FusionNode, values: Iterable[tuple[Value, Index]]) -> None:
        rank = self._ranks()[node]
        for value, index in values:
            for leaf, _ in program.leaves(value, index):
                self.read_again[leaf] = max(self.read_again.get(leaf, -1), rank)

    @property
    def current_op(self) -> Op | None:
        """The op that is being emitted; the last one when the block ends, None if it has none."""
        nodes = self.nodes[: self.now + 1]
        return nodes[-1].ops[-1] if nodes else None

    def last_use(self, program: Dataflow, value: Value) -> int:
        """The index of the last node that reads a value, -1 if none does."""
        uses = program.uses.get(value, ())
        return max([self.read_again.get(value, -1), *(self.when.get(use.op, -1) for use in uses)])


class TileBuffers:
    """The buffers of the tiles. `scopes` are the blocks around the current op, the innermost last.

    `tails` has the tiles whose buffer is not written beyond the end of their row.
    """

    def __init__(self, program: Dataflow, code: KernelBuilder, scratch: Scratch):
        self.program, self.code, self.scratch = program, code, scratch
        self.buffers: dict[Value, ScratchBuffer] = {}
        self.tails: dict[Value, TileTail] = {}
        self.scopes: list[BlockScope] = []
        self._temporaries: list[ScratchBuffer] = []

    @property
    def scope(self) -> BlockScope:
        """The innermost block."""
        return self.scopes[-1]

    # -- buffers ---------------------------------------------------------------------------------------------------------

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        axis: int | None = None,
        panel: tuple[int, int, int] | None = None,
        value: Value | None = None,
    ) -> ScratchBuffer:
        """A buffer whose fastest axis is `axis` (default: row-major). `value`: the first value in it, if it is known."""
        size = SIZES[scratch_type(dtype)] * math.prod(shape)
        maker = self.program.definition[value] if value else self.scope.current_op
        return ScratchBuffer(self.scratch.allocate(size, maker), size, dtype, shape, strides_along(shape, axis), panel)

    def attach(self, holder: Hashable, buffer: ScratchBuffer) -> None:
        """Keeps a buffer for a holder; a value becomes a tile that it holds."""
        buffer.holders.add(holder)
        if isinstance(holder, Value):
            self.buffers[holder] = buffer

    def drop(self, holder: Hashable, buffer: ScratchBuffer) -> None:
        """Frees a buffer if it has no other holder."""
        buffer.holders.discard(holder)
        if not buffer.holders:
            self.scratch.free(buffer.offset)

    def temporary(self, shape: tuple[int, ...], dtype: Any, panel: tuple[int, int, int] | None = None) -> ScratchBuffer:
        """A buffer that is free again after the current node."""
        buffer = self.allocate(shape, dtype, None, panel)
        self._temporaries.append(buffer)
        return buffer

    def keep(self, buffer: ScratchBuffer) -> None:
        """Makes a temporary buffer an ordinary one."""
        if buffer in self._temporaries:
            self._temporaries.remove(buffer)

    def free_temporaries(self) -> None:
        """Frees the buffers of the current node."""
        for buffer in self._temporaries:
            self.scratch.free(buffer.offset)
        self._temporaries = []

    def release(self) -> None:
        """Frees the buffers of tiles that no node after the current one reads."""
        scope = self.scope
        for value in [v for v in self.buffers if v in scope.local]:
            if scope.last_use(self.program, value) <= scope.now:
                self.drop(value, self.buffers.pop(value))

    def leave(self) -> None:
        """Ends the innermost block and frees its buffers."""
        scope = self.scopes.pop()
        for value in list(self.buffers):
            if value in scope.local:
                self.drop(value, self.buffers.pop(value))
        self.free_temporaries()

    # -- reuse -----------------------------------------------------------------------------------------------------------

    def reusable_buffer(self, value: Value, reader: Sequence[Op]) -> ScratchBuffer | None:
        """The buffer of a value, if `reader` may write its result there, else None. It must be the last reader, and read at the index at
        which it writes."""
        scope, buffer = self.scope, self.buffers.get(value)
        if buffer is None or value not in scope.local or buffer.panel is not None:
            return None
        if any(isinstance(h, Value) and h is not value for h in buffer.holders):
            return None
        for use in self.program.uses.get(value, ()):
            when = scope.when.get(use.op, -1)
            in_place = use.op in reader and use.at == identity(value.type.shape)
            if when > scope.now or (when == scope.now and not in_place):
                return None
        return buffer

    def free_home(self, home: ScratchBuffer, argument: Value, reader: Sequence[Op]) -> bool:
        """Whether the buffer of a loop-carried tile may hold its next value, because no later op reads the old one (`argument`)."""
        if argument in self.buffers:
            return self.reusable_buffer(argument, reader) is home
        return not any(isinstance(h, Value) for h in home.holders)

    # -- addresses -------------------------------------------------------------------------------------------------------

    def base(self, buffer: ScratchBuffer) -> str:
        """The pointer to a buffer."""
        return self.code.w.value(f"getelementptr inbounds i8, ptr %scratch, i64 {buffer.offset}")

    def element(self, buffer: ScratchBuffer, offset: str) -> str:
        """The pointer to the element at an i64 offset."""
        return self.code.w.value(f"getelementptr inbounds {buffer.element}, ptr {self.base(buffer)}, i64 {offset}")

    def read(self, buffer: ScratchBuffer, place: str, width: int) -> str:
        """The register for `width` contiguous elements of a buffer, from the pointer `place` on."""
        return casts.from_scratch(self.code, self.code.load_strided(place, buffer.element, width), buffer.dtype, width)

    def write(self, buffer: ScratchBuffer, place: str, value: str, width: int) -> None:
        """Stores a register to `width` contiguous elements of a buffer."""
        stored = casts.to_scratch(self.code, value, buffer.dtype, width)
        self.code.store_strided(place, stored, buffer.element, width)

    def row_start(
        self, buffer: ScratchBuffer, index: Index, axis: int | None, counters: Mapping[int, str]
    ) -> tuple[str, int]:
        """The pointer to the element at position 0 of the row, and the stride along the row in elements."""
        c = self.code
        step, offset = 0, "0"
        for loop, stride in zip(index, buffer.strides, strict=True):
            if loop is None or not stride:
                continue
            if loop == axis:
                step += stride
            else:
                term = c.i64("mul", counters[loop], str(stride))
                offset = term if offset == "0" else c.i64("add", offset, term)
        return self.element(buffer, offset), step

    def row_form(self, value: Value, index: Index, axis: int | None, counters: Mapping[int, str]) -> Uniformity:
        """How a tile in scratch varies along the vector loop."""
        buffer = self.buffers[value]
        base, step = self.row_start(buffer, index, axis, counters)
        if step:
            return Stored(base, step, buffer)
        raw = self.code.w.value(f"load {buffer.element}, ptr {base}")
        return Uniform(from_buffer(self.code, raw, buffer, value.type.dtype, 1))

    def contiguous_bytes(self, value: Value, loop: int) -> int:
        """The bytes of an element, if the stored tiles from which a value is computed are contiguous along a loop.

        A tile that varies along one loop only does not count: the other loops read the same element at all positions.
        """
        total = 0
        if value.type.shape:
            for leaf, index in self.program.leaves(value, identity(value.type.shape)):
                if (buffer := self.buffers.get(leaf)) is None or sum(i is not None for i in index) < 2:
                    continue
                if any(i == loop and s == 1 for i, s in zip(index, buffer.strides, strict=True)):
                    total += SIZES[buffer.element]
        return total
