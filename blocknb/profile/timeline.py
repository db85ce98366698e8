"""What is under way when: copies, products, arithmetic and stores of one multiprocessor, drawn from a kernel's memory IR.

The IR is walked with the launch's numbers and no arrays: who waits for whom, which stage of a circular buffer is filled and read, how
far copies run ahead follow from its mbarriers, groups and waits, as hardware obeys them (`ir.mbarriers` has the rule of parities). Each
consumer group, and the producer, is a coroutine with its own clock; the earliest one continues. **Lengths are not measured**: they are of
the table `Rates`, for a multiprocessor that has its memory to itself, and arithmetic on addresses takes none. So the picture shows
what a kernel can do at best, and why it cannot do better; a profiler shows what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blocknb.ir.core import Func
from blocknb.language.ops import named
from blocknb.profile.schedule_model import ScheduleModel
from blocknb.profile.timeline_spans import Rates, Timeline

H200 = Rates()
MOST_STEPS = 30_000  # ops; what is behind is left out
COUNTED = named("async_copy", "dot")  # a kernel without any of them has nothing to overlap


def timeline(
    func: Func,
    scalars: Mapping[str, Any],
    grid: tuple[int, int, int],
    *,
    ctas: int | None = None,
    programs: int = 1,
    rates: Rates = H200,
    most: int = MOST_STEPS,
) -> Timeline:
    """The timeline of CTA 0 of a memory-level function. `ctas`: of a persistent kernel, how many share the grid (all of it by default,
    so that each has one program); `programs`: of another kernel, how many CTAs run one after another. Raises Undecided where loaded
    data decide on the way of the program."""
    count = max(1, int(np.prod(grid)))
    machine = ScheduleModel(func, scalars, grid, min(count, ctas or count), rates, most)
    for number in range(1 if func.attrs.get("persistent") else min(programs, count)):
        machine.begin(number)
        with np.errstate(all="ignore"):
            machine.run()
        if machine.cut:
            break
    return machine.result()


def has_timeline(func: Func) -> bool:
    """Whether a function has anything under way beside its own arithmetic."""
    return func.level == "memory" and any(op.name in COUNTED for op in func.ops())
