"""The plan of warp specialization: which loads the producer warp copies by TMA, into which circular buffers.

`memory/warp_specialization` makes the plan, and `warp_partition` carries it out. `circular_buffer` counts stages and phases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from blocknb.analysis.tma_boxes import TmaBox
from blocknb.ir.core import Block, Op
from blocknb.language.bulk import TensorMap
from blocknb.layouts import wgmma
from blocknb.passes.pipelining.legality import OUTLASTS, TRUNCATED, modifier_lost
from blocknb.passes.pipelining.staged_tiles import StagedTile
from blocknb.passes.support.note_text import at_line, counted
from blocknb.target import CLUSTER, Target
from blocknb.trace import Notes

#: Shared memory of one of two CTAs on a multiprocessor: of 228 KB, the hardware reserves 1 KB per CTA.
HALF = 113 * 1024


@dataclass(frozen=True, eq=False)
class TmaCopy(StagedTile):
    """A staged tile that TMA copies: the box, its tensor map, and the array's axis for each axis of the buffer. `extents`: the number of
    elements along each axis of the buffer that products read, the first ones. `multicast`: the CTAs of a cluster copy the same tile
    together."""

    box: TmaBox
    kind: TensorMap
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    multicast: bool = False

    @property
    def copied_bytes(self) -> int:
        return math.prod(self.extents) * self.buffer.type.dtype.bytes


@dataclass(eq=False)
class CopyGroup:
    """Copies with one wait and common mbarriers.

    `block`: the block of the copies. `stages`: stages of each circular buffer; `wanted_stages`: the number before shared memory ran out;
    `user_stages`: the kernel asks for that number. `last_reader`: the op of the block after which nothing reads the copies. `outlasting`:
    the products that still run then. `computed`: warps read the tiles into registers to compute with them. `shared_with`: the group whose
    circular buffers these copies use, too.
    """

    copies: list[TmaCopy]
    block: Block
    loop: Op | None
    stages: int
    wanted_stages: int
    user_stages: bool
    last_reader: Op
    outlasting: tuple[Op, ...] = ()
    shared_with: CopyGroup | None = None
    computed: bool = False

    @property
    def bytes(self) -> int:
        return sum(copy.buffer.type.bytes for copy in self.copies)

    @property
    def copied_bytes(self) -> int:
        """The bytes that the copies of a stage move."""
        return sum(copy.copied_bytes for copy in self.copies)

    @property
    def owner(self) -> CopyGroup:
        """The group whose circular buffers these copies use: itself, or an earlier group."""
        return self.shared_with or self

    @property
    def key(self) -> tuple:
        return tuple((copy.buffer.type, copy.kind) for copy in self.copies)


@dataclass
class WarpSpecializationPlan:
    """The copies of a function. `persistent`: a CTA runs several programs. `one_cta`: a multiprocessor runs one CTA, not two. `registers`:
    per thread of the consumers and of the producer, if they get different shares."""

    groups: list[CopyGroup] = field(default_factory=list)
    persistent: bool = False
    one_cta: bool = True
    registers: tuple[int, int] | None = None
    consumer_groups: int = 1

    @property
    def cluster(self) -> int:
        """The number of CTAs that copy tiles together, 1 for none."""
        return CLUSTER if any(copy.multicast for group in self.groups for copy in group.copies) else 1

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
        """The bytes of shared memory that the CTA may take. Registers that are shared out for two CTAs count more than stages."""
        asked = self.registers is None and any(owner.user_stages for owner in self.owners)
        return target.max_shared if self.one_cta or asked else HALF

    def smaller(self, notes: Notes) -> WarpSpecializationPlan | None:
        """The plan with one stage less where there are most; None if no stage can go."""
        if early := [owner for owner in self.owners if owner.loop is None and owner.stages > 1]:
            early[0].stages -= 1  # the second stage only brings the copy forward
            return self
        least = min(2, max(owner.stages for owner in self.owners))
        largest = max(self.owners, key=lambda owner: (owner.stages > least, owner.bytes * owner.stages))
        if largest.stages <= least:
            why = "not pipelined by TMA: shared memory has no room for two of its tiles"
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
                text = f"pipelined: copied by TMA, by the producer warp: {counted(stages, 'stage')} of {size} bytes"
                if copy.kind.swizzle:
                    text += f", {copy.kind.swizzle}-byte swizzle"
                if copy.multicast:
                    text += f", to {CLUSTER} CTAs at a time (multicast)"
                if group.shared_with is not None and (loop := group.shared_with.loop) is not None:
                    text += f", those of the loop{at_line(loop)}"
                text += TRUNCATED * bool(copy.store.attrs.get("tf32")) + modifier_lost(copy.load)
                if group.user_stages and stages < group.wanted_stages:
                    text += f" (not {group.wanted_stages}: for lack of shared memory)"
                notes(copy.load, text)
            for op in group.outlasting:
                notes(op, OUTLASTS)
        if self.registers:
            consumer, producer = self.registers
            two = "" if self.one_cta else ", so that an SM has room for two CTAs"
            notes(None, f"registers per thread: {consumer} for consumers, {producer} for the producer{two}")
        if self.consumer_groups > 1:
            text = (
                f"{self.consumer_groups} groups of consumer warps take turns: one multiplies for its program while the other stores "
                "(ping-pong)"
            )
            notes(None, text)
        if self.persistent:
            text = "each CTA runs one program after another: copies for the next one begin while the last one is stored"
            notes(None, text)
