"""The state of a circular buffer on one side: the index of the stage, and the parity of its phase, as loop-carried values.

CUTLASS calls it PipelineState.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.ir.build import Builder
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import Tile
from blocknb.passes.support.warp_plan import CopyGroup

NUMBER = Tile(t.int32)


class PipelineState:
    """The stage and the parity of each circular buffer at the builder's position."""

    def __init__(self, builder: Builder, rings: Sequence[CopyGroup]):
        self.builder, self.now = builder, dict[int, tuple[Value, Value]]()
        for ring in rings:
            self.now[id(ring)] = builder.const(0, t.int32), builder.const(0, t.int32)

    def advance(self, ring: CopyGroup) -> None:
        b, (slot, parity) = self.builder, self.now[id(ring)]
        one, first = b.const(1, t.int32), b.const(0, t.int32)
        turned = b.value("xor", parity, one)
        if ring.slots > 1:
            after = b.value("add", slot, one)
            at_end = b.value("cmp", after, b.const(ring.slots, t.int32), pred="eq")
            slot, turned = b.value("select", at_end, first, after), b.value("select", at_end, turned, parity)
        self.now[id(ring)] = slot, turned

    def skip(self, ring: CopyGroup, count: Value) -> None:
        """Advances by the number of stages that other warps use."""
        b, (slot, parity) = self.builder, self.now[id(ring)]
        slots, far = b.const(ring.slots, t.int32), b.value("add", slot, count)
        turns = b.value("and", b.value("div", far, slots), b.const(1, t.int32))
        self.now[id(ring)] = b.value("rem", far, slots), b.value("xor", parity, turns)

    def values(self, rings: Sequence[CopyGroup]) -> list[Value]:
        return [value for ring in rings for value in self.now[id(ring)]]

    def enter(self, rings: Sequence[CopyGroup], values: Sequence[Value]) -> None:
        for i, ring in enumerate(rings):
            self.now[id(ring)] = values[2 * i], values[2 * i + 1]
            values[2 * i].name, values[2 * i + 1].name = "slot", "parity"


def fresh(rings: Sequence[CopyGroup]) -> list[Value]:
    return [Value(NUMBER) for _ in rings for _ in range(2)]
