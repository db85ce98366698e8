"""Every name of the language over dtypes and shapes: a table of entries, and kernels made of it."""

from __future__ import annotations

from matrix import device, memory, moves, others, pointwise, reductions  # noqa: F401 (it fills the table)
from matrix.entry import ENTRIES, Entry

__all__ = ["ENTRIES", "Entry"]
