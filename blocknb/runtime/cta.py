"""The number of programs of a launch that share a CTA, if the compiler allows it (see the pass `program_packing`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

#: The least number of CTAs per SM. With fewer, the load of the SMs would differ too much.
CTAS_PER_SM = 3


def programs_of_cta(grid: tuple[int, int, int], most: int, sms: int) -> int:
    """The largest power of two, up to `most`, that divides the grid's first axis and leaves enough CTAs for a GPU of `sms` SMs."""
    programs, count = most, grid[0] * grid[1] * grid[2]
    while programs > 1 and (grid[0] % programs or count < CTAS_PER_SM * sms * programs):
        programs //= 2
    return programs


def launch_packed(launch: Callable[..., Any], most: int, sms: int) -> Callable[..., Any]:
    """Wraps the driver's launch for a kernel that runs up to `most` programs per CTA, side by side along the y axis of its threads."""
    programs_of_grid = functools.lru_cache(maxsize=64)(lambda *grid: programs_of_cta(grid, most, sms))

    def start(function: int, x: int, y: int, z: int, threads: int, *rest: Any) -> None:
        programs = programs_of_grid(x, y, z)
        launch(function, x // programs, y, z, threads, programs, *rest[1:])

    return start
