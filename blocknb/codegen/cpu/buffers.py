"""Scratch memory: the buffers of a program's tiles, and the places that they get at compile time.

Each thread has one block of scratch memory. A place is used again after the last reader of its buffer was emitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blocknb.codegen.scalar_math.register_types import scratch_type
from blocknb.ir.core import Op

CACHE_LINE = 64  # bytes of a cache line, and of the widest vector
#: Places a multiple of this apart share the lines of one cache set, and a load seems to depend on a store (4K aliasing).
PAGE = 4096


@dataclass(eq=False)
class ScratchBuffer:
    """A tile in scratch: byte offset, size, stored dtype, and the stride in elements of each axis.

    With `panel` = (axis of k, axis of n, width) the layout is the microkernel's: panels of `width` columns, each with its rows one after
    another. `holders` are the values that need the buffer; without any, its place is free.
    """

    offset: int
    bytes: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    panel: tuple[int, int, int] | None = None
    holders: set = field(default_factory=set)

    @property
    def element(self) -> str:
        """The LLVM type of an element."""
        return scratch_type(self.dtype)

    def row_major(self) -> bool:
        """Whether the last axis runs fastest."""
        return self.panel is None and self.strides == row_major(self.shape)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements; 0 along axes of size one."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(0 if n == 1 else step)
        step *= n
    return tuple(reversed(strides))


def strides_along(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Strides with `axis` running fastest and the others in row-major order."""
    if axis is None:
        return row_major(shape)
    order = [a for a in range(len(shape)) if a != axis] + [axis]
    packed = row_major(tuple(shape[a] for a in order))
    return tuple(packed[order.index(a)] for a in range(len(shape)))


class Scratch:
    """Allocates scratch memory by first fit; `bytes` is the largest amount in use at a time."""

    def __init__(self) -> None:
        self.bytes = 0
        self._taken: list[tuple[int, int]] = []

    def allocate(self, size: int, maker: Op | None = None) -> int:
        """Allocates `size` bytes, which `maker` writes, and returns their offset."""
        size = -(-size // CACHE_LINE) * CACHE_LINE
        if size >= PAGE // 4:
            size += 5 * CACHE_LINE  # tiles are powers of two and loops read several at once, so this avoids 4K aliasing
        at = 0
        for start, end in sorted(self._taken):
            if start - at >= size:
                break
            at = max(at, end)
        self._taken.append((at, at + size))
        self.bytes = max(self.bytes, at + size)
        return at

    def free(self, offset: int) -> None:
        """Frees the bytes at an offset."""
        self._taken = [(a, b) for a, b in self._taken if a != offset]
