"""The views of a kernel as widgets of ipywidgets, to compose pages with.

    from ipywidgets import HBox, IntSlider, jslink
    from blocknb.widgets import Code, Diff

    diff, code = Diff(softmax), Code(softmax)
    slider = IntSlider(max=len(diff.stages) - 1)
    jslink((slider, "value"), (diff, "stage_index"))
    HBox([slider, diff, code])

All views have the traits of `KernelView`. A saved notebook shows them without a kernel (`blocknb.widgets.outputs`). `import blocknb` does
not import this package, because it needs ipywidgets.
"""

from __future__ import annotations

from blocknb.widgets.documents import record
from blocknb.widgets.outputs import install as _install
from blocknb.widgets.views import VIEWS, KernelView, view

Card = view("Card", "card", "The whole card of a kernel.")
Code = view("Code", "code", "The source, the IR after `stage`, and the machine code, linked by lines.")
Passes = view(
    "Passes", "passes", "The list of passes, and the IR after `stage`, compared with that after `compared_with`."
)
Diff = view(
    "Diff", "diff", "The IR after `stage` next to that after `compared_with`; without one, after the pass before."
)
Resources = view("Resources", "resources", "Registers, shared memory and occupancy.")
Tiles = view("Tiles", "tiles", "The memory accesses of `op` in one `program` and `iteration`.")
Launch = view("Launch", "launch", "The tiles of `program` in `iteration` on the arrays, and the bytes that they move.")
Step = view("Step", "step", "The values of `program`, line by line.")
Footprint = view("Footprint", "footprint", "Which program loads and stores each element of the arrays.")
Memory = view("Memory", "memory", "What the cell allocated, copied and left in memory.")
Timeline = view("Timeline", "timeline", "The schedule of a CTA. A selected span sets `op` and `line`.")
Roofline = view("Roofline", "roofline", "The measured launches below the ceilings of the device.")
Sweep = view("Sweep", "sweep", "The measurements over the values of a parameter.")
Workers = view("Workers", "workers", "The launches of a cell on the workers of a Dask cluster.")
Bench = view("Bench", "bench", "The kernel and its baselines, measured in turns.")
History = view("History", "history", "The versions of the kernel.")
Knobs = view("Knobs", "knobs", "Sliders for constants and options. A changed knob changes all views of the kernel.")

__all__ = ["VIEWS", "KernelView", "record", "view", *sorted(VIEWS)]

_install()
