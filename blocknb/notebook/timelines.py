"""The timeline part of the document: a schedule of copies, products and waits in the first CTA of a GPU launch (`profile.timeline`).

Spans are rows of numbers that refer to a table of names; the whole is packed like the tiles. Pages without scripts show the same picture
in characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from blocknb.errors import KernelError
from blocknb.notebook import numbers
from blocknb.notebook.blobs import pack
from blocknb.notebook.observe import Specialisation
from blocknb.notebook.sections import ListingLine, Section, line_of
from blocknb.profile.occupancy import occupancy
from blocknb.profile.timeline import has_timeline, timeline
from blocknb.profile.timeline_spans import Timeline
from blocknb.trace import Trace

MOST_STEPS = 6000  # ops, so that a card does not wait for its timeline
MOST_SPANS = 500
MULTIPROCESSORS = 132  # of an H200, the default
KINDS = ("copy", "product", "arithmetic", "store", "wait")

NO_GPU = "The Timeline view needs GPU code. Compile for a GPU, for example with %%blockkernel --target sm_90a."
NO_LAUNCH = "The kernel was compiled but not launched. Its loop counts depend on the arguments."
NOTHING = "The kernel has no MMA and no copies to shared memory, so there is no timeline."
ABOUT = (
    "The waits and the stages of the circular buffers follow from the code. The durations are modelled with the rates of an "
    "H200, for one multiprocessor without contention for memory. They are not measured."
)


def predicted(cell: tuple[Specialisation, Trace], now: tuple[Specialisation, Trace]) -> str:
    """The modelled time of GPU code before and after a change, each with its launch; or why there is no model."""
    (why, old), (_, new) = (offered(made, [trace]) for made, trace in (cell, now))
    label = str(cell[1].target)
    if old is None or new is None:
        return f"{label}: the code differs, and its time is not predicted. {why.get('why', NOTHING)}"
    if old.cut or new.cut:
        return f"{label}: the code differs, and its time is not predicted. The kernel is too long for the timeline's model."
    text = f"{label}: the timeline's model predicts {old.end:,.0f} cycles per CTA for the cell and {new.end:,.0f} now"
    if cell[0].grid != now[0].grid:
        text += f", with grids of {numbers.grid(cell[0].grid)} and {numbers.grid(now[0].grid)}"
    return text


def offered(made: Specialisation, traces: Sequence[Trace | None]) -> tuple[dict[str, Any], Timeline | None]:
    """The document's part for the first GPU trace, and the Timeline; otherwise the reason why there is none."""
    view, trace = next(((i, t) for i, t in enumerate(traces) if t is not None and t.target.is_gpu), (0, None))
    if trace is None or not len(trace.stages):
        return {"why": NO_GPU}, None
    func = trace.stages[-1].after
    if not has_timeline(func):
        return {"why": NOTHING}, None
    if not made.launches or not math.prod(made.grid):
        return {"why": NO_LAUNCH}, None
    held = occupancy(trace.target, trace.resources)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    try:
        found = timeline(func, numbers.scalars(made), made.grid, ctas=ctas, most=MOST_STEPS)
    except KernelError as error:
        return {"why": f"There is no timeline: {error.message}."}, None
    if not found.spans:
        return {"why": "The first program has no work."}, None
    return {"view": view, "packed": pack(_part(found, trace))}, found


def _part(found: Timeline, trace: Trace) -> dict[str, Any]:
    lines = {op.id: line_of(op.loc, trace.file) or 0 for op in trace.stages[-1].after.ops()}
    shown = sorted(found.spans, key=lambda span: span.start)[:MOST_SPANS]
    words = list(dict.fromkeys(span.what for span in shown))
    rows = [
        [
            found.lanes.index(span.lane), KINDS.index(span.kind), round(span.start), round(span.end), round(span.until),
            words.index(span.what), lines.get(span.op, 0), span.op, span.stage, span.number, span.bytes,
        ]
        for span in shown
    ]  # fmt: skip
    cut = found.cut or len(shown) < len(found.spans)
    head = {"lanes": list(found.lanes), "busy": round(found.busy, 4), "cut": cut, "about": ABOUT}
    return {**head, "words": words, "spans": rows}


def section(found: Timeline, expression: str, group: str) -> Section:
    """The timeline in characters, for pages without scripts."""
    key = "░ copy in flight   - data held in a stage   █ MMA   ▒ arithmetic   s store   · wait"
    texts = [*found.text().split("\n"), "", key, f"{found.end:,.0f} cycles{' and more' if found.cut else ''}. {ABOUT}"]
    detail = f"MMA in flight {found.busy:.0%} of the time"
    lines = tuple(ListingLine(text) for text in texts)
    return Section("timeline", "timeline", group, lines, f"{expression}.stages", "Schedule of one CTA", detail)
