"""How arrays and tiles become pictures of rows and columns.

An array of several axes is a matrix: its last axis runs along the columns, all others along the rows. An array of one axis is wrapped into
rows. A set of elements is a list of rectangles in that matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from blocknb.footprint.launch import ArrayLayout

MOST_PLACES = 1 << 24  # of a strided view, whose element numbers need a table


@dataclass(frozen=True)
class ArrayPicture:
    """The picture of an array: `rows` and `columns` of elements. `wrapped`: the array has one axis."""

    array: ArrayLayout
    rows: int
    columns: int
    wrapped: bool

    @staticmethod
    def of(array: ArrayLayout) -> ArrayPicture:
        """The picture of an array; one of one axis has about twice as many columns as rows."""
        total = math.prod(array.shape)
        if len(array.shape) > 1:
            return ArrayPicture(array, total // max(1, array.shape[-1]), array.shape[-1], False)
        columns = min(max(total, 1), max(16, 1 << round(math.log2(max(1, 2 * total)) / 2)))
        return ArrayPicture(array, -(-total // columns), columns, True)

    @property
    def drawable(self) -> bool:
        """Whether the number of each element is known: not for huge strided views."""
        return self.array.dense or self.array.extent <= MOST_PLACES

    @cached_property
    def _numbers(self) -> np.ndarray:
        """For each place of a strided view the number of its element, or -1."""
        found = np.full(self.array.extent, -1, np.int64)
        found[self.array.places] = np.arange(len(self.array.places))
        return found

    def elements(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Intervals of places (from the lowest byte of the array on) as intervals of element numbers."""
        if self.array.dense:
            total = math.prod(self.array.shape)
            starts, ends = np.clip(starts, 0, total), np.clip(ends, 0, total)
            return starts[ends > starts], ends[ends > starts]
        places = expanded(starts, ends)
        numbers = self._numbers[places[(places >= 0) & (places < self.array.extent)]]
        return intervals(np.unique(numbers[numbers >= 0]))

    def rectangles(self, starts: np.ndarray, ends: np.ndarray) -> list[tuple[int, int, int, int]]:
        """Intervals of element numbers as rectangles (first row, end row, first column, end column), in order of their rows."""
        pieces: list[tuple[int, int, int, int]] = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            pieces += self._split(start, end)
        return merged(pieces)

    def _split(self, start: int, end: int) -> list[tuple[int, int, int, int]]:
        """One interval: the end of a row, whole rows, and the beginning of a row."""
        width, found = self.columns, []
        first, last = start // width, (end - 1) // width
        if first == last:
            return [(first, first + 1, start - first * width, end - first * width)]
        if start % width:
            found.append((first, first + 1, start % width, width))
            first += 1
        if end % width:
            last -= 1
        if first <= last:
            found.append((first, last + 1, 0, width))
        if end % width:
            found.append((last + 1, last + 2, 0, end % width))
        return found


def expanded(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """All numbers of some intervals, in their order."""
    lengths = ends - starts
    return np.repeat(starts - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(int(lengths.sum()))


def intervals(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ascending numbers as intervals."""
    if not len(numbers):
        return numbers, numbers
    cuts = np.flatnonzero(np.diff(numbers) != 1)
    return numbers[np.r_[0, cuts + 1]], numbers[np.r_[cuts, len(numbers) - 1]] + 1


def merged(pieces: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Rectangles with those joined that lie below each other in the same columns."""
    found: list[tuple[int, int, int, int]] = []
    open_ends: dict[tuple[int, int, int], int] = {}  # (columns, end row) -> the place in `found`
    for top, bottom, left, right in sorted(pieces):
        place = open_ends.pop((left, right, top), None)
        if place is None:
            place = len(found)
            found.append((top, bottom, left, right))
        else:
            found[place] = (found[place][0], bottom, left, right)
        open_ends[left, right, bottom] = place
    return found
