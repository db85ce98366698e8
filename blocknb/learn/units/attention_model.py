"""The pictures of unit 11 without a GPU: the modelled timeline of attn-2 for sm_90a."""

from __future__ import annotations

import functools
from typing import Any

from blocknb.learn.cell import answer_of
from blocknb.learn.code_rules import MULTIPROCESSORS, TARGET
from blocknb.learn.units.attention_kernels import ATTN_2
from blocknb.learn.units.matrix_model import STEPS, show
from blocknb.profile.occupancy import occupancy
from blocknb.profile.timeline import timeline
from blocknb.profile.timeline_spans import Timeline


@functools.cache
def attention_timeline(rows: int = 8192, **options: Any) -> Timeline:
    """The modelled timeline of one multiprocessor, for the solution of attn-2 with so many queries and keys."""
    kernel = answer_of(ATTN_2, ATTN_2.solution).base
    kinds = ("*fp16:16",) * 4 + ("i32:16", "i32:16", "fp32")
    trace = kernel.trace(*kinds, target=TARGET, **options)
    held = occupancy(trace.target, trace.resources)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    scalars = {"M": rows, "N": rows, "scale": options["D"] ** -0.5}
    return timeline(trace.stages[-1].after, scalars, (-(-rows // options["BM"]), 1, 1), ctas=ctas, most=STEPS)


def draw(clocks: int = 7000, **options: Any) -> None:
    """Prints the copies, the softmax and the products of attn-2 in the first clocks of its timeline.

    A copy is on its way (░), and its data are used (-). The consumers compute (▒) or wait (·), and a product runs (█).
    """
    show(attention_timeline(**options), clocks, ("copy", "product", "arithmetic"))
