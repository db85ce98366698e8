"""Circular buffers: tiles in shared memory with several stages, which loads fill in turn and products read in turn.

A `CircularBuffer` has one allocation per tile. A producer warp and consumer warps share a `GuardedBuffer`, which has mbarriers. A phase of
`full` ends when a stage's bytes have arrived. A phase of `empty` ends when every consumer warp has released the stage. Each side then has a
`PipelineState`: the index of the stage and the parity of its phase, as values that loops carry. CUTLASS uses the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.types import Tile

NUMBER = Tile(t.int32)


def allocate(builder: Builder, alloc: Op, stages: int) -> Value:
    """Emits an allocation with stages in place of one without."""
    with builder.at(alloc):
        made = builder.value("alloc", **{**alloc.attrs, "type": replace(alloc.result.type, stages=stages)})
    made.name = alloc.result.name
    return made


class CircularBuffer:
    """Buffers with the same number of stages, one for each of some allocations."""

    def __init__(self, builder: Builder, allocs: Sequence[Op], stages: int):
        self.builder, self.stages = builder, stages
        self.buffers = [allocate(builder, x, stages) for x in allocs]

    def view(self, i: int, stage: Value) -> Value:
        """One stage of the i-th buffer."""
        found = self.builder.value("stage", self.buffers[i], stage)
        found.name = self.buffers[i].name
        return found

    def following(self, stage: Value) -> Value:
        """The index of the stage after a stage."""
        b, first = self.builder, self.builder.const(0, t.int32)
        at_end = b.value("cmp", stage, b.const(self.stages - 1, t.int32), pred="ge")
        return b.value("select", at_end, first, b.value("add", stage, b.const(1, t.int32)))


class GuardedBuffer(CircularBuffer):
    """A circular buffer between a producer warp and consumer warps. Two mbarriers guard each stage. In a cluster, the producers of all
    CTAs write each buffer, so `empty` waits for the consumers of all."""

    def __init__(self, builder: Builder, allocs: Sequence[Op], stages: int, consumers: int, cluster: int = 1):
        super().__init__(builder, allocs, stages)
        of_all: dict[str, Any] = {"cluster": cluster} if cluster > 1 else {}
        self.full = builder.value("mbarriers", stages=stages, arrivals=1)
        self.empty = builder.value("mbarriers", stages=stages, arrivals=consumers, **of_all)
        self.full.name, self.empty.name = "full", "empty"


class PipelineState:
    """The state of each circular buffer at the builder's position: the stage and the parity of its phase. `previous` holds the stage that
    products in flight still read, or -1, for buffers whose products outlast an iteration."""

    def __init__(self, builder: Builder, buffers: Sequence[CircularBuffer]):
        self.builder = builder
        self.now = {x: (builder.const(0, t.int32), builder.const(0, t.int32)) for x in buffers}
        self.previous: dict[CircularBuffer, Value] = {}

    def stage(self, buffer: CircularBuffer) -> Value:
        """The index of the current stage."""
        return self.now[buffer][0]

    def advance(self, buffer: CircularBuffer) -> None:
        """Goes on to the next stage. The parity flips after the last one."""
        b, (stage, parity) = self.builder, self.now[buffer]
        one, first = b.const(1, t.int32), b.const(0, t.int32)
        flipped = b.value("xor", parity, one)
        if buffer.stages > 1:
            after = b.value("add", stage, one)
            at_end = b.value("cmp", after, b.const(buffer.stages, t.int32), pred="eq")
            stage, flipped = b.value("select", at_end, first, after), b.value("select", at_end, flipped, parity)
        self.now[buffer] = stage, flipped

    def skip(self, buffer: CircularBuffer, count: Value) -> None:
        """Advances by the number of stages that other warps use."""
        b, (stage, parity) = self.builder, self.now[buffer]
        stages, far = b.const(buffer.stages, t.int32), b.value("add", stage, count)
        turns = b.value("and", b.value("div", far, stages), b.const(1, t.int32))
        self.now[buffer] = b.value("rem", far, stages), b.value("xor", parity, turns)

    def values(self, buffers: Sequence[CircularBuffer], late: Sequence[CircularBuffer] = ()) -> list[Value]:
        """The values that a loop or branch carries for the state of `buffers`, and for the previous stages of `late`."""
        return [x for buffer in buffers for x in self.now[buffer]] + [self.previous[buffer] for buffer in late]

    def enter(
        self, values: Sequence[Value], buffers: Sequence[CircularBuffer], late: Sequence[CircularBuffer] = ()
    ) -> None:
        """Takes the state from carried values."""
        for buffer, stage, parity in zip(buffers, values[::2], values[1::2], strict=False):
            self.now[buffer] = stage, parity
            stage.name, parity.name = "stage", "parity"
        for buffer, previous in zip(late, values[2 * len(buffers) :], strict=True):
            self.previous[buffer] = previous
            previous.name = "before"
