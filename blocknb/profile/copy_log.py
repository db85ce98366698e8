"""The copies of a timeline: the stage of a circular buffer that each fills, when it completes, and when its last reader ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from blocknb.ir.core import Op
from blocknb.profile.timeline_spans import TimelineSpan


@dataclass(frozen=True)
class Slot:
    """One stage of a circular buffer (`ring` is its op id), or a single buffer."""

    ring: int
    name: str
    index: int
    slots: int


class CopyLog:
    """The copies to the stages of circular buffers, in the order of their starts."""

    def __init__(self) -> None:
        self.spans: list[TimelineSpan] = []
        self.newest: dict[tuple[int, int], list[int]] = {}  # (ring, slot) -> the copies that fill it
        self.merged: dict[Any, int] = {}  # key -> the copy that those with this key are part of

    def add(self, op: Op, slot: Slot, bytes: int, start: float, landed: float, key: Any) -> None:
        """Adds a copy to a stage. Copies with the same key are one copy, as those of one mbarrier phase."""
        if key in self.merged:
            at = self.merged[key]
            old = self.spans[at]
            what = old.what if slot.name in old.what.split(", ") else f"{old.what}, {slot.name}"
            self.spans[at] = replace(old, what=what, end=max(old.end, landed), bytes=old.bytes + bytes)
        else:
            at = self.merged[key] = len(self.spans)
            self.spans.append(
                TimelineSpan("", "copy", start, landed, slot.name, _line(op), op.id, slot.index, -1, 0.0, bytes)
            )
        found = self.newest.setdefault((slot.ring, slot.index), [])
        if found[-1:] != [at]:
            found.append(at)

    def read(self, slot: Slot, now: float, end: float) -> int:
        """Records that an op reads a stage from `now` to `end`. Returns the index of the copy it reads; -1 if there is none."""
        found = self.newest.get((slot.ring, slot.index))
        if not found:
            return -1
        # The newest completed copy: a copy in flight belongs to a later product.
        at = next((i for i in reversed(found) if self.spans[i].end <= now + 1e-6), found[-1])
        self.spans[at] = replace(self.spans[at], until=max(self.spans[at].until, end))
        return at

    def numbered(self) -> tuple[list[TimelineSpan], list[str]]:
        """The copies with their numbers and lanes, and the lanes in order. Circular buffers that are filled together share lanes."""
        rings: dict[str, int] = {}
        for copy in self.spans:
            rings[copy.what] = max(rings.get(copy.what, 0), copy.slot)
        found, filled = [], dict[str, int]()
        for copy in self.spans:
            lane = f"{copy.what} {copy.slot}" if rings[copy.what] > 0 else copy.what
            number = filled[copy.what] = filled.get(copy.what, -1) + 1
            found.append(replace(copy, lane=lane, number=number))
        lanes = sorted({(list(rings).index(c.what), c.slot, c.lane) for c in found})
        return found, [lane for *_, lane in lanes]


def _line(op: Op) -> int:
    loc = op.loc
    while loc is not None and loc.caller is not None:
        loc = loc.caller
    return loc.line if loc is not None else 0
