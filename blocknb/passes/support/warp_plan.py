"""The plan of warp specialization: which loads the producer warp copies by TMA, into which circular buffers.

`memory/warp_specialization` makes the plan, `support/warp_partition` carries it out, and `support/pipeline_state` counts stages and phases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blocknb.analysis.tma_boxes import TmaBox
from blocknb.ir.core import Block, Op, Value
from blocknb.language.bulk import TensorMap
from blocknb.layouts import wgmma
from blocknb.passes.support.pipelining_support import at_line
from blocknb.target import Target
from blocknb.trace import Notes

#: Shared memory of one of two CTAs on a multiprocessor: of 228 KB, the hardware reserves 1 KB per CTA.
HALF = 113 * 1024


@dataclass(eq=False)
class TmaCopy:
    """A load that TMA does: the box, the views between load and buffer, and the store to that buffer."""

    load: Op
    views: tuple[Op, ...]
    store: Op
    box: TmaBox
    kind: TensorMap
    axes: tuple[int, ...]  # the array's axis for each axis of the buffer

    @property
    def buffer(self) -> Value:
        return self.store.args[0]


@dataclass(eq=False)
class CopyGroup:
    """Copies with one wait and common mbarriers. `stages`: stages of each circular buffer. `block`: the block of the copies. `last`: the
    op of that block after which nothing reads them. `lasting`: the products that still run then. `computed`: warps read the tiles into
    registers to compute with them."""

    copies: list[TmaCopy]
    block: Block
    loop: Op | None
    stages: int
    wanted: int
    named: bool
    last: Op
    lasting: tuple[Op, ...] = ()
    shared_with: CopyGroup | None = None  # the group whose circular buffers these copies use, too
    computed: bool = False

    @property
    def bytes(self) -> int:
        return sum(copy.buffer.type.bytes for copy in self.copies)

    @property
    def owner(self) -> CopyGroup:
        """The group whose circular buffers these copies use: itself, or an earlier group."""
        return self.shared_with or self

    @property
    def key(self) -> tuple:
        return tuple((copy.buffer.type, copy.kind) for copy in self.copies)


@dataclass
class WarpSpecializationPlan:
    """The copies of a function, and whether a CTA runs several programs."""

    groups: list[CopyGroup] = field(default_factory=list)
    persistent: bool = False
    alone: bool = True
    registers: tuple[int, int] | None = None
    consumer_groups: int = 1

    @property
    def warps(self) -> int:
        """The number of producer warps."""
        return wgmma.GROUP if self.registers else 1

    @property
    def owners(self) -> list[CopyGroup]:
        """The groups that have circular buffers of their own."""
        return [group for group in self.groups if group.shared_with is None]

    @property
    def bytes(self) -> int:
        """The bytes of all circular buffers."""
        return sum(owner.stages * owner.bytes for owner in self.owners)

    def most(self, target: Target) -> int:
        """The bytes of shared memory that the CTA may take."""
        return target.max_shared if self.alone or any(owner.named for owner in self.owners) else HALF

    def smaller(self, notes: Notes) -> WarpSpecializationPlan | None:
        """The plan with one stage less where there are most; None if no stage can go."""
        if early := [owner for owner in self.owners if owner.loop is None and owner.stages > 1]:
            early[0].stages -= 1  # the second stage only brings the copy forward
            return self
        least = min(2, max(owner.stages for owner in self.owners))
        largest = max(self.owners, key=lambda owner: (owner.stages > least, owner.bytes * owner.stages))
        if largest.stages <= least:
            why = "not copied by the producer warp: shared memory has no room for two of its tiles"
            for load in (copy.load for group in self.groups for copy in group.copies):
                notes(load, why, "missed")
            return None
        largest.stages -= 1
        return self

    def explain(self, notes: Notes) -> None:
        for group in self.groups:
            stages = group.owner.stages
            for copy in group.copies:
                size = copy.buffer.type.bytes
                text = f"copied by TMA, by the producer warp: {stages} stage{'s' if stages > 1 else ''} of {size} bytes"
                if copy.kind.swizzle:
                    text += f", {copy.kind.swizzle}-byte swizzle"
                if group.shared_with is not None and (loop := group.shared_with.loop) is not None:
                    text += f", those of the loop{at_line(loop)}"
                if copy.store.attrs.get("tf32"):
                    text += "; truncated to tf32 by wgmma, not rounded"
                if group.named and stages < group.wanted:
                    text += f" (not {group.wanted}: for lack of shared memory)"
                notes(copy.load, text)
            for op in group.lasting:
                notes(op, "dot: still in flight when the next iteration starts; waited for after the loop")
        if self.registers:
            consumer, producer = self.registers
            notes(None, f"registers per thread: {consumer} for consumers, {producer} for the producer")
        if self.consumer_groups > 1:
            text = (
                f"{self.consumer_groups} groups of consumer warps take turns: one multiplies for its program while the other stores "
                "(ping-pong)"
            )
            notes(None, text)
        if self.persistent:
            text = "each CTA runs one program after another: copies for the next one begin while the last one is stored"
            notes(None, text)
