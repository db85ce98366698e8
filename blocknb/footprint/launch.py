"""A launch as the footprint sees it: the tile IR, the grid, the numbers, and where each array lies.

An array is its lowest and highest byte and its strides. Arrays that share bytes form one region, so that an array given twice, or two
views of one, are one memory. The contents of arrays are read on demand, and only for copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from blocknb.ir.core import Func

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class ArrayLayout:
    """An array argument. `parameter` is the index of its pointer among the parameters of the Func; `strides` are in elements of `size`
    bytes. It occupies the bytes from `low` up to `high`, and element 0 lies at `address`. `device` is -1 for the host."""

    name: str
    parameter: int
    dtype: str
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    low: int
    high: int
    device: int

    @property
    def extent(self) -> int:
        """The number of elements from the lowest to the highest byte, including those between the elements of a strided view."""
        return (self.high - self.low) // self.size

    @cached_property
    def dense(self) -> bool:
        """Whether the elements lie without gaps in the order of their numbers, as those of a contiguous array do."""
        wanted = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        return all(n == 1 or s == w for n, s, w in zip(self.shape, self.strides, wanted, strict=True))

    @cached_property
    def places(self) -> np.ndarray:
        """For each element, in row-major order, its place from the lowest byte on, in elements (int64)."""
        place: np.ndarray = np.full((1,) * len(self.shape), (self.address - self.low) // self.size, np.int64)
        for axis, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            place = place + (np.arange(n) * stride).reshape(-1, *[1] * (len(self.shape) - 1 - axis))
        return np.broadcast_to(place, self.shape).reshape(-1)

    @cached_property
    def gaps(self) -> np.ndarray | None:
        """bool per place: whether it lies between the elements of a strided view. None if there are no gaps."""
        if self.dense:
            return None
        found = np.ones(self.extent, bool)
        found[self.places] = False
        return found if found.any() else None

    def element(self, place: int) -> str:
        """The text of the element at a place: `element 99`, or `element [3, 7]` of an array with more axes."""
        if self.dense:
            number = place
        else:
            where = np.flatnonzero(self.places == place)
            if not len(where):
                return f"the place {place}, between the elements,"
            number = int(where[0])
        if len(self.shape) < 2 or not 0 <= number < math.prod(self.shape):
            return f"element {number}"
        return f"element [{', '.join(str(int(i)) for i in np.unravel_index(number, self.shape))}]"


@dataclass(frozen=True)
class MemoryRegion:
    """Bytes that arrays share, and the arrays. `unit` is the number of bytes in which all their elements are counted."""

    low: int
    high: int
    arrays: tuple[ArrayLayout, ...]
    unit: int

    @property
    def extent(self) -> int:
        return -(-(self.high - self.low) // self.unit)


@dataclass(frozen=True)
class MemoryLaunch:
    """One launch. `scalars` are its numbers by parameter name. `contents(low, high)` copies bytes of the host or of a GPU's array to the
    host, as uint8."""

    func: Func
    grid: Grid
    scalars: Mapping[str, Any]
    arrays: Sequence[ArrayLayout]
    contents: Callable[[ArrayLayout, int, int], np.ndarray]

    @property
    def programs(self) -> int:
        return math.prod(self.grid)

    @cached_property
    def by_parameter(self) -> dict[int, ArrayLayout]:
        return {array.parameter: array for array in self.arrays}

    @cached_property
    def regions(self) -> list[MemoryRegion]:
        """The arrays, joined where they share bytes."""
        found: list[list[ArrayLayout]] = []
        high = 0
        for array in sorted(self.arrays, key=lambda a: (a.device, a.low)):
            if found and found[-1][0].device == array.device and array.low < high:
                found[-1].append(array)
                high = max(high, array.high)
            else:
                found.append([array])
                high = array.high
        regions = []
        for arrays in found:
            low = arrays[0].low
            unit = math.gcd(*(a.size for a in arrays), *(a.low - low for a in arrays))
            regions.append(MemoryRegion(low, max(a.high for a in arrays), tuple(arrays), unit))
        return regions

    def program_ids(self, number: int) -> tuple[int, int, int]:
        """The ids of a program, given its number; axis 0 of the grid runs fastest."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    def spelled(self, number: int) -> str:
        """The name of a program in sentences: `3`, or `(3, 1)` for a grid of several axes."""
        axes = max((i + 1 for i, n in enumerate(self.grid) if n > 1), default=1)
        ids = self.program_ids(int(number))[:axes]
        return str(ids[0]) if axes == 1 else f"({', '.join(map(str, ids))})"
