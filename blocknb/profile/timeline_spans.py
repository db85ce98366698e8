"""What `timeline` finds: spans of time, by lanes; and the rates by which their lengths are reckoned."""

from __future__ import annotations

from dataclasses import dataclass

#: What stands for a span where there are only characters.
SIGNS = {"copy": "░", "product": "█", "arithmetic": "▒", "store": "s", "wait": "·"}


@dataclass(frozen=True)
class Rates:
    """What a multiprocessor does in a clock, an H200's by NVIDIA's tables: `product` multiply-adds of fp16 by wgmma (mma.sync does half
    of it, plain multiply-adds `lanes`), `lanes` elements of arithmetic, `special` ones of exp2 and the like, bytes of `shared` memory and
    of `memory` (the L2 cache). `latency`: clocks until memory answers."""

    product: int = 4096 // 2
    lanes: int = 128
    special: int = 16
    shared: int = 128
    memory: int = 64
    latency: int = 700


@dataclass(frozen=True)
class TimelineSpan:
    """From `start` to `end`, in clocks. `kind`: "copy", "product", "arithmetic", "store" or "wait"; `lane` as in Timeline.lanes. A copy
    stays in its stage up to `until`, when the last product that reads it ends. `number`: which copy of its lane's buffer,
    or which a product reads (-1: none). `line` of the source, 0 for none."""

    lane: str
    kind: str
    start: float
    end: float
    what: str = ""
    line: int = 0
    op: int = -1
    stage: int = -1
    number: int = -1
    until: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Timeline:
    """The spans of one CTA after another on a multiprocessor. `lanes`: stages of buffers, then who works; `cut`: the kernel goes on."""

    lanes: tuple[str, ...]
    spans: tuple[TimelineSpan, ...]
    cut: bool = False

    @property
    def end(self) -> float:
        """Clocks."""
        return max((max(span.end, span.until) for span in self.spans), default=0.0)

    @property
    def busy(self) -> float:
        """The share of the time in which a product is under way."""
        done, total = 0.0, 0.0
        for span in sorted((s for s in self.spans if s.kind == "product"), key=lambda s: s.start):
            total += max(0.0, span.end - max(span.start, done))
            done = max(done, span.end)
        return total / self.end if self.end else 0.0

    def text(self, width: int = 96) -> str:
        """The picture in characters, a lane a line."""
        scale, names = self.end / width or 1.0, max(map(len, self.lanes), default=0)
        lines = []
        for lane in self.lanes:
            row = [" "] * width
            for span in sorted((s for s in self.spans if s.lane == lane), key=lambda s: s.kind != "wait"):
                start, end, until = int(span.start / scale), round(span.end / scale), round(span.until / scale)
                for cell in range(start, min(width, max(start + 1, end))):
                    row[cell] = SIGNS[span.kind]
                for cell in range(end, min(width, until)):
                    row[cell] = "-"
            lines.append(f"{lane.ljust(names)} |{''.join(row)}|")
        return "\n".join(lines)
