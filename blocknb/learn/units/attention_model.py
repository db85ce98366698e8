"""What unit 11 shows without a GPU: the modelled timeline of an attention kernel for sm_90a."""

from __future__ import annotations

from typing import Any

from blocknb.learn.code_rules import MULTIPROCESSORS, TARGET
from blocknb.learn.units.matrix_model import STEPS, show
from blocknb.profile.occupancy import occupancy
from blocknb.profile.timeline import timeline
from blocknb.profile.timeline_spans import Timeline
from blocknb.runtime.kernel import Kernel


def attention_timeline(kernel: Kernel, rows: int = 8192, **options: Any) -> Timeline:
    """The modelled timeline of one multiprocessor, for a kernel with the parameters of attn-2 and so many queries and keys."""
    kinds = ("*fp16:16",) * 4 + ("i32:16", "i32:16", "fp32")
    trace = kernel.trace(*kinds, target=TARGET, **options)
    held = occupancy(trace.target, trace.resources)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    scalars = {"M": rows, "N": rows, "scale": options["D"] ** -0.5}
    return timeline(trace.stages[-1].after, scalars, (-(-rows // options["BM"]), 1, 1), ctas=ctas, most=STEPS)


def draw(kernel: Kernel, clocks: int = 7000, **options: Any) -> None:
    """Prints the copies, the softmax and the products in the first clocks of a timeline.

    A copy is on its way (░), and its data are used (-). The consumers compute (▒) or wait (·), and a product runs (█).
    """
    show(attention_timeline(kernel, **options), clocks, ("copy", "product", "arithmetic"))
