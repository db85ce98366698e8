"""How many programs of a launch share a CTA, where the compiler lets them (see the pass `program_packing`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

#: CTAs that each SM gets at least: with fewer, some would have a good deal more to do than others.
CTAS = 3


def programs_of_cta(grid: tuple[int, int, int], most: int, sms: int) -> int:
    """The largest power of two, up to `most`, that divides the grid's first axis and leaves enough CTAs for a GPU of `sms` SMs."""
    programs, count = most, grid[0] * grid[1] * grid[2]
    while programs > 1 and (grid[0] % programs or count < CTAS * sms * programs):
        programs //= 2
    return programs


def packed(launch: Callable[..., Any], most: int, sms: int) -> Callable[..., Any]:
    """The driver's launch of a function on a grid of programs, of which a CTA has several: one above the other along its y axis."""

    found = functools.lru_cache(maxsize=64)(lambda *grid: programs_of_cta(grid, most, sms))

    def start(function: int, x: int, y: int, z: int, threads: int, *rest: Any) -> None:
        programs = found(x, y, z)
        launch(function, x // programs, y, z, threads, programs, *rest[1:])

    return start
