"""The copies of a timeline: the stage of a circular buffer that each fills, when it completes, and when its last reader ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from blocknb.analysis.partial_evaluation.evaluator import line_number
from blocknb.ir.core import Op
from blocknb.profile.timeline_spans import TimelineSpan


@dataclass(frozen=True)
class BufferStage:
    """One stage of a circular buffer (`buffer` is its op id), or a single buffer."""

    buffer: int
    name: str
    index: int
    stages: int


class CopyLog:
    """The copies to the stages of circular buffers, in the order of their starts."""

    def __init__(self) -> None:
        self.spans: list[TimelineSpan] = []
        self.newest: dict[tuple[int, int], list[int]] = {}  # (buffer, stage) -> the copies that fill it
        self.merged: dict[Any, int] = {}  # key -> the copy that those with this key are part of

    def add(self, op: Op, stage: BufferStage, bytes: int, start: float, landed: float, key: Any) -> None:
        """Adds a copy to a stage. Copies with the same key are one copy, as those of one mbarrier phase."""
        if key in self.merged:
            at = self.merged[key]
            old = self.spans[at]
            what = old.what if stage.name in old.what.split(", ") else f"{old.what}, {stage.name}"
            self.spans[at] = replace(old, what=what, end=max(old.end, landed), bytes=old.bytes + bytes)
        else:
            at = self.merged[key] = len(self.spans)
            self.spans.append(
                TimelineSpan("", "copy", start, landed, stage.name, line_number(op), op.id, stage.index, -1, 0.0, bytes)
            )
        found = self.newest.setdefault((stage.buffer, stage.index), [])
        if found[-1:] != [at]:
            found.append(at)

    def read(self, stage: BufferStage, now: float, end: float) -> int:
        """Records that an op reads a stage from `now` to `end`. Returns the index of the copy it reads; -1 if there is none."""
        found = self.newest.get((stage.buffer, stage.index))
        if not found:
            return -1
        # The newest completed copy: a copy in flight belongs to a later product.
        at = next((i for i in reversed(found) if self.spans[i].end <= now + 1e-6), found[-1])
        self.spans[at] = replace(self.spans[at], until=max(self.spans[at].until, end))
        return at

    def numbered(self) -> tuple[list[TimelineSpan], list[str]]:
        """The copies with their numbers and lanes, and the lanes in order. Circular buffers that are filled together share lanes."""
        stages: dict[str, int] = {}
        for copy in self.spans:
            stages[copy.what] = max(stages.get(copy.what, 0), copy.stage)
        found, filled = [], dict[str, int]()
        for copy in self.spans:
            lane = f"{copy.what} {copy.stage}" if stages[copy.what] > 0 else copy.what
            number = filled[copy.what] = filled.get(copy.what, -1) + 1
            found.append(replace(copy, lane=lane, number=number))
        lanes = sorted({(list(stages).index(c.what), c.stage, c.lane) for c in found})
        return found, [lane for *_, lane in lanes]
