"""Types of Hopper's copy engine (TMA) and of its barriers. `language.rows.tma` declares the ops.

A *tensor map* describes an array to the copy engine. One instruction copies a *box* of it. An *mbarrier* counts arrivals and bytes. Its
phase completes when all expected arrivals and bytes have come, and the next phase begins. The parity of the first phase is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SWIZZLES = (0, 32, 64, 128)  # bytes per row of a swizzle pattern; 0: no swizzle
MOST_RANK = 5
MOST_EXTENT = 256  # largest extent of a box along an axis
UNBOUNDED = 2**31  # the extent of an axis without bounds


@dataclass(frozen=True)
class TensorMap:
    """The type of a tensor map. `box` is the shape that one instruction copies, from outer to inner axis. `swizzle` is in SWIZZLES."""

    dtype: Any
    box: tuple[int, ...]
    swizzle: int = 128

    is_pointer = is_scalar = False
    shape, layout = (), None

    def __str__(self) -> str:
        return f"map<{''.join(f'{n}x' for n in self.box)}{self.dtype.short}, {self.swizzle}>"


@dataclass(frozen=True)
class Barriers:
    """The type of an array of mbarriers in shared memory."""

    stages: int

    is_pointer = is_scalar = False
    shape, layout = (), None
    EACH = 8  # bytes

    @property
    def bytes(self) -> int:
        return self.EACH * self.stages

    def __str__(self) -> str:
        return f"mbarriers<{self.stages}>"
