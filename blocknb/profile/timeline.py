"""The timeline of a kernel: copies, MMAs, arithmetic, stores and waits of one multiprocessor, modelled from the memory IR.

`schedule_model` walks the IR with the scalars of the launch and without arrays. The mbarriers, commit groups and waits in the IR determine
the waits, the stages of circular buffers and the distance between copies and their readers. `ir.mbarriers` explains parities. Each
warpgroup and the producer warp is a coroutine with its own clock, and the earliest one runs next. **Durations are not measured.** They come
from the table `Rates`, for a multiprocessor without contention for memory. Address arithmetic takes no time. The timeline therefore shows
the best case of a kernel and its dependences. A profiler shows the actual durations.
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
MOST_STEPS = 30_000  # ops; the timeline is cut after them
COUNTED = named("async_copy", "dot")  # a kernel without any of them overlaps nothing


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
    """Returns the timeline of CTA 0 of a memory-level function.

    For a persistent kernel, `ctas` is the number of CTAs that share the grid (by default one per program). For other kernels, `programs`
    is the number of CTAs drawn one after another. Raises Undecided if control flow depends on loaded data.
    """
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
    """Whether a memory-level function has asynchronous copies or dots."""
    return func.level == "memory" and any(op.name in COUNTED for op in func.ops())
