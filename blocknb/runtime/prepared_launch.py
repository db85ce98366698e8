"""A prepared launch: arguments are described and the code is loaded, so that a call only starts the kernel.

A measurement repeats it. The Python code of `kernel[grid](...)` takes longer than a small kernel on a CPU, and would hide its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.runtime.binding import normal_grid
from blocknb.runtime.launch_context import Grid
from blocknb.runtime.launchable import Launchable
from blocknb.runtime.plan import LaunchPlan


@dataclass(frozen=True, eq=False)
class PreparedLaunch:
    """One launch of a plan. The `values` keep the arrays alive whose addresses are in `raws`."""

    plan: LaunchPlan
    grid: Grid
    raws: Sequence[Any]
    values: Sequence[Any]

    def __call__(self) -> None:
        if 0 not in self.grid:
            self.plan.start(self.grid, self.raws, self.values)


def prepare(kernel: Launchable, grid: Any, given: Mapping[str, Any]) -> PreparedLaunch:
    """Compiles and loads a kernel for arguments, constants and options by name. Raises KernelError as a launch does."""
    kernel.warmup(**given)
    binding, values = kernel.bound_call((), dict(given))
    kinds, raws = kernel.describe(binding, values)
    sizes = normal_grid(kernel.source, grid, binding.bound(values) if callable(grid) else {})
    return PreparedLaunch(binding.plans[kinds], sizes, raws, values)
