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

    def __init__(self, builder: Builder, owners: Sequence[CopyGroup]):
        self.builder, self.now = builder, dict[CopyGroup, tuple[Value, Value]]()
        for owner in owners:
            self.now[owner] = builder.const(0, t.int32), builder.const(0, t.int32)

    def advance(self, owner: CopyGroup) -> None:
        b, (stage, parity) = self.builder, self.now[owner]
        one, first = b.const(1, t.int32), b.const(0, t.int32)
        flipped = b.value("xor", parity, one)
        if owner.stages > 1:
            after = b.value("add", stage, one)
            at_end = b.value("cmp", after, b.const(owner.stages, t.int32), pred="eq")
            stage, flipped = b.value("select", at_end, first, after), b.value("select", at_end, flipped, parity)
        self.now[owner] = stage, flipped

    def skip(self, owner: CopyGroup, count: Value) -> None:
        """Advances by the number of stages that other warps use."""
        b, (stage, parity) = self.builder, self.now[owner]
        stages, far = b.const(owner.stages, t.int32), b.value("add", stage, count)
        turns = b.value("and", b.value("div", far, stages), b.const(1, t.int32))
        self.now[owner] = b.value("rem", far, stages), b.value("xor", parity, turns)

    def values(self, owners: Sequence[CopyGroup]) -> list[Value]:
        return [value for owner in owners for value in self.now[owner]]

    def enter(self, owners: Sequence[CopyGroup], values: Sequence[Value]) -> None:
        for i, owner in enumerate(owners):
            self.now[owner] = values[2 * i], values[2 * i + 1]
            values[2 * i].name, values[2 * i + 1].name = "stage", "parity"


def fresh(owners: Sequence[CopyGroup]) -> list[Value]:
    return [Value(NUMBER) for _ in owners for _ in range(2)]
