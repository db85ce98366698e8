"""The result of `timeline`: spans by lane, and the rates from which their durations follow."""

from __future__ import annotations

from dataclasses import dataclass

#: The character of each kind of span in `Timeline.text`.
SIGNS = {"copy": "░", "product": "█", "arithmetic": "▒", "store": "s", "wait": "·"}


@dataclass(frozen=True)
class Rates:
    """Throughput of a multiprocessor per clock; the defaults are those of an H200 in NVIDIA's tables.

    `product`: fp16 multiply-adds by wgmma (mma.sync has half the rate). `lanes`: elements of arithmetic, or multiply-adds without MMA.
    `special`: elements of exp2 and other special functions. `shared` and `memory`: bytes of shared memory and of the L2 cache. `latency`:
    clocks until a load from memory returns.
    """

    product: int = 4096 // 2
    lanes: int = 128
    special: int = 16
    shared: int = 128
    memory: int = 64
    latency: int = 700


@dataclass(frozen=True)
class TimelineSpan:
    """An interval from `start` to `end`, in clocks.

    `kind` is "copy", "product" (an MMA), "arithmetic", "store" or "wait", and `lane` is one of Timeline.lanes. A copy occupies its stage
    (`stage`) up to `until`, when the last product that reads it ends. `number` is the index of a copy in its circular buffer, or of the
    copy that a product reads (-1: none). `line` is the source line, or 0.
    """

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
    """The spans of the CTAs that run one after another on a multiprocessor. `lanes` lists the stages of circular buffers, then the warp
    roles. `cut`: the kernel continues after the last span. `flops` are those of the MMAs, and `bytes` those of the accesses to arrays."""

    lanes: tuple[str, ...]
    spans: tuple[TimelineSpan, ...]
    cut: bool = False
    flops: int = 0
    bytes: int = 0

    @property
    def end(self) -> float:
        """The time of the last event, in clocks."""
        return max((max(span.end, span.until) for span in self.spans), default=0.0)

    @property
    def busy(self) -> float:
        """The fraction of the time in which a product runs."""
        done, total = 0.0, 0.0
        for span in sorted((s for s in self.spans if s.kind == "product"), key=lambda s: s.start):
            total += max(0.0, span.end - max(span.start, done))
            done = max(done, span.end)
        return total / self.end if self.end else 0.0

    def text(self, width: int = 96) -> str:
        """The timeline as text, one line per lane."""
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
