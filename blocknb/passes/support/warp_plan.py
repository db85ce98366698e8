"""The plan of warp specialization: which loads the producer warp copies by TMA, into which circular buffers.

`memory/warp_specialization` makes the plan, `support/warp_partition` carries it out, and `support/pipeline_state` counts slots and phases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blocknb.analysis.tma_boxes import TmaBox
from blocknb.ir.core import Block, Op, Value
from blocknb.language.bulk import TensorMap
from blocknb.layouts import wgmma
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
    """Copies with one wait and common mbarriers. `slots`: stages of each circular buffer. `block`: the block of the copies. `last`: the
    op of that block after which nothing reads them. `lasting`: the products that still run then. `computed`: warps read the tiles into
    registers to compute with them."""

    copies: list[TmaCopy]
    block: Block
    loop: Op | None
    slots: int
    wanted: int
    named: bool
    last: Op
    lasting: tuple[Op, ...] = ()
    ring: CopyGroup | None = None  # the group whose stages these copies use
    computed: bool = False

    @property
    def bytes(self) -> int:
        return sum(copy.buffer.type.bytes for copy in self.copies)

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
    teams: int = 1

    @property
    def warps(self) -> int:
        """The number of producer warps."""
        return wgmma.GROUP if self.registers else 1

    @property
    def rings(self) -> list[CopyGroup]:
        return [group for group in self.groups if group.ring is None]

    @property
    def bytes(self) -> int:
        """The bytes of all circular buffers."""
        return sum(ring.slots * ring.bytes for ring in self.rings)

    def most(self, target: Target) -> int:
        """The bytes of shared memory that the CTA may take."""
        return target.max_shared if self.alone or any(ring.named for ring in self.rings) else HALF

    def smaller(self, notes: Notes) -> WarpSpecializationPlan | None:
        """The plan with one stage less where there are most; None if no stage can go."""
        if early := [ring for ring in self.rings if ring.loop is None and ring.slots > 1]:
            early[0].slots -= 1  # the second stage only brings the copy forward
            return self
        least = min(2, max(ring.slots for ring in self.rings))
        largest = max(self.rings, key=lambda ring: (ring.slots > least, ring.bytes * ring.slots))
        if largest.slots <= least:
            for group in self.groups:
                for copy in group.copies:
                    notes(
                        copy.load,
                        "not copied by the producer warp: shared memory has no room for two of its tiles",
                        "missed",
                    )
            return None
        largest.slots -= 1
        return self

    def explain(self, notes: Notes) -> None:
        for group in self.groups:
            slots = (group.ring or group).slots
            for copy in group.copies:
                size = copy.buffer.type.bytes
                text = f"copied by TMA, by the producer warp: {slots} slot{'s' if slots > 1 else ''} of {size} bytes"
                if copy.kind.swizzle:
                    text += f", {copy.kind.swizzle}-byte swizzle"
                if group.ring is not None:
                    text += (
                        f", those of the loop at line {group.ring.loop.loc.line}"
                        if group.ring.loop and group.ring.loop.loc
                        else ""
                    )
                if copy.store.attrs.get("tf32"):
                    text += "; truncated to tf32 by wgmma, not rounded"
                if group.named and slots < group.wanted:
                    text += f" (not {group.wanted}: for lack of shared memory)"
                notes(copy.load, text)
            for op in group.lasting:
                notes(op, "dot: still in flight when the next iteration starts; waited for after the loop")
        if self.registers:
            team, producer = self.registers
            notes(None, f"registers per thread: {team} for consumers, {producer} for the producer")
        if self.teams > 1:
            notes(
                None,
                f"{self.teams} groups of consumer warps take turns: one multiplies for its program while the other stores (ping-pong)",
            )
        if self.persistent:
            notes(
                None,
                "each CTA runs one program after another: copies for the next one begin while the last one is stored",
            )
