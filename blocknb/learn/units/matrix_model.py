"""The pictures of the notebooks on matrix products without a GPU: the code of a product for sm_90a, and its timeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blocknb.learn.code_rules import MULTIPROCESSORS, TARGET
from blocknb.profile.occupancy import occupancy
from blocknb.profile.timeline import timeline
from blocknb.profile.timeline_spans import Timeline
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace

STEPS = 6000  # ops of the timeline, as on the card


def code_of(kernel: Kernel, **options: Any) -> Trace:
    """The code for sm_90a of a kernel with the parameters a, b, c, M, N, K, for fp16 matrices whose sizes are multiples of 16."""
    return kernel.trace("*fp16:16", "*fp16:16", "*fp16:16", "i32:16", "i32:16", "i32:16", target=TARGET, **options)


def timeline_of(kernel: Kernel, size: int = 4096, **options: Any) -> Timeline:
    """The modelled timeline of one multiprocessor for size x size x size, with a program per tile of BM x BN."""
    trace = code_of(kernel, **options)
    held = occupancy(trace.target, trace.resources)
    down, across = -(-size // options["BM"]), -(-size // options["BN"])
    grid = (down, across, 1)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    return timeline(trace.stages[-1].after, {"M": size, "N": size, "K": size}, grid, ctas=ctas, most=STEPS)


def draw(kernel: Kernel, clocks: int = 6000, **options: Any) -> None:
    """Prints the copies and the products in the first clocks of a timeline, and the share of the time in which a product runs.

    A row is a slot of the circular buffer, or the products. A copy is on its way (░), its data are used (-), and a product runs (█).
    """
    show(timeline_of(kernel, **options), clocks)


def show(found: Timeline, clocks: int, kinds: tuple[str, ...] = ("copy", "product")) -> None:
    """Prints the rows of a timeline that hold spans of these kinds, in its first clocks."""
    spans = [replace(s, end=min(s.end, clocks), until=min(s.until, clocks)) for s in found.spans if s.start < clocks]
    lanes = [lane for lane in found.lanes if any(s.lane == lane and s.kind in kinds for s in spans)]
    text = Timeline(tuple(lanes), tuple(s for s in spans if s.lane in lanes)).text(100)
    print(text.replace("consumer MMA", "products    "))
    print(f"products are under way for {found.busy:.0%} of the time")
