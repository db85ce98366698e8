"""Blocks with a halo: a chunk, and the slices of its neighbours that surround it.

`dask.array.overlap` concatenates a chunk with its halo on the host, and does so once per axis. Here a task gets the chunk as it is, and a
slice of each neighbour. The task assembles the block once, where the launch reads it. A pinned chunk goes to the GPU without a copy on the
host. One more task per chunk makes all slices of it that neighbours need, where the chunk is. A task of Dask takes about a millisecond, as
long as the copy of 50 MB, so there is none for each slice. Dask moves only the slices between workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Edges = Mapping[int, Any]  # of each axis: "reflect", "periodic", "nearest" or a number


@dataclass(frozen=True)
class HaloBlock:
    """A block in pieces: `chunk` lies at `inside`, and `frame` has the regions around it with what fills them.

    A piece of the frame is an array that broadcasts to its region, or a number."""

    shape: tuple[int, ...]
    chunk: Any
    inside: tuple[slice, ...]
    frame: tuple[tuple[tuple[slice, ...], Any], ...]

    @property
    def dtype(self) -> Any:
        return self.chunk.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the whole block."""
        count: int = int(np.prod(self.shape, dtype=np.int64)) * self.chunk.dtype.itemsize
        return count

    def regions(self) -> Iterator[tuple[tuple[slice, ...], Any]]:
        """All regions of the block with what fills them."""
        yield self.inside, self.chunk
        yield from self.frame

    def bands(self) -> list[tuple[tuple[slice, ...], list[tuple[tuple[slice, ...], Any]]]]:
        """The frame as at most two bands per axis: the region of the block, and what fills which region of the band."""
        found: dict[tuple[int, bool], Any] = {}
        for region, piece in self.frame:
            axis = next(a for a, (part, middle) in enumerate(zip(region, self.inside, strict=True)) if part != middle)
            whole = tuple(slice(0, size) for size in self.shape[axis + 1 :])
            band = (*self.inside[:axis], region[axis], *whole)
            starts = zip(region, band, strict=True)
            part_of_band = tuple(slice(part.start - of.start, part.stop - of.start) for part, of in starts)
            key = axis, region[axis].start >= self.inside[axis].stop
            found.setdefault(key, (band, []))[1].append((part_of_band, piece))
        return list(found.values())

    def assembled(self, into: Any) -> Any:
        """Fills an array of the shape of the block, and returns it."""
        for region, piece in self.regions():
            into[region] = piece
        return into


@dataclass(frozen=True)
class HaloSpec:
    """How a block is made of the blocks that its task gets.

    `pieces` are (region, number of what the task gets, place among the slices of a neighbour, part of the slice). The number 0 stands for
    the chunk, which has no place, and -1 for a constant, which is then the part."""

    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    pieces: tuple[tuple[tuple[slice, ...], int, int, Any], ...]

    def block(self, given: Sequence[Any]) -> HaloBlock:
        """The block; the first of the given values is the chunk inside, the others are the slices of neighbours."""

        def piece(number: int, place: int, part: Any) -> Any:
            return part if number < 0 else (given[number][place] if number else given[0])[part]

        frame = tuple((region, piece(*source)) for region, *source in self.pieces)
        return HaloBlock(self.shape, given[0], self.inside, frame)


@dataclass
class EdgeSlices:
    """The slices of an array's chunks that neighbours need: by the index of a chunk, their bounds in order. `name` is that of the tasks."""

    name: str
    array: Any
    bounds: dict[tuple[int, ...], list[tuple[slice, ...]]] = field(default_factory=dict)

    def place(self, source: tuple[int, ...], part: tuple[slice, ...]) -> int:
        """The place of a slice among those of a chunk, which it is added to."""
        known = self.bounds.setdefault(source, [])
        if part not in known:
            known.append(part)
        return known.index(part)

    def tasks(self) -> dict[Any, Any]:
        """The tasks that make the slices, one per chunk."""
        return {
            (self.name, *source): (SliceCall(tuple(parts)), (self.array.name, *source))
            for source, parts in self.bounds.items()
        }


@dataclass(frozen=True)
class SliceCall:
    """The function of a task: some slices of a chunk, as views."""

    parts: tuple[tuple[slice, ...], ...]

    def __call__(self, chunk: Any) -> tuple[Any, ...]:
        return tuple(chunk[part] for part in self.parts)


def fits(array: Any, depths: Mapping[int, int]) -> bool:
    """Whether each chunk has at least the elements that its neighbours need."""
    return all(size >= depths[axis] for axis, sizes in enumerate(array.chunks) for size in sizes)


class HaloPieces:
    """Collects the pieces around the block with an index: `keys` are the chunk and the slices that its task gets. `slices` are those of
    all blocks."""

    def __init__(self, slices: EdgeSlices, index: tuple[int, ...], depths: Mapping[int, int], edges: Edges):
        self.slices, self.array, self.index, self.depths, self.edges = slices, slices.array, index, depths, edges
        self.sizes = [self.array.chunks[axis][place] for axis, place in enumerate(index)]
        self.keys: list[Any] = [(self.array.name, *index)]

    def spec(self) -> HaloSpec:
        """How the task assembles the block."""
        sides = [(-1, 0, 1) if self.depths[axis] else (0,) for axis in range(self.array.ndim)]
        pieces = tuple(self._piece(offset) for offset in itertools.product(*sides) if any(offset))
        inside = tuple(slice(self.depths[axis], self.depths[axis] + size) for axis, size in enumerate(self.sizes))
        shape = tuple(size + 2 * self.depths[axis] for axis, size in enumerate(self.sizes))
        return HaloSpec(shape, inside, pieces)

    def _piece(self, offset: tuple[int, ...]) -> tuple[tuple[slice, ...], int, int, Any]:
        """The region at an offset of -1, 0 or 1 per axis, and what fills it, as in HaloSpec."""
        region = tuple(_region(side, self.depths[axis], self.sizes[axis]) for axis, side in enumerate(offset))
        found = [
            _source(self.array.chunks[axis], self.index[axis], side, self.depths[axis], self.edges[axis])
            for axis, side in enumerate(offset)
        ]
        constants = [value for place, value in found if place is None]
        if constants:  # as in Dask, the last axis decides in a corner
            return region, -1, 0, constants[-1]
        if all(place == here for (place, _), here in zip(found, self.index, strict=True)):
            return region, 0, 0, tuple(part for _, part in found)
        return self._of_neighbour(region, found)

    def _of_neighbour(self, region: tuple[slice, ...], found: Sequence[Any]) -> tuple[tuple[slice, ...], int, int, Any]:
        """A neighbour sends one slice for all regions that it fills: whole along the axes that it shares with the chunk."""
        same = [place == here for (place, _), here in zip(found, self.index, strict=True)]
        sent = tuple(slice(None) if shared else part for (_, part), shared in zip(found, same, strict=True))
        rest = tuple(part if shared else slice(None) for (_, part), shared in zip(found, same, strict=True))
        source = tuple(place for place, _ in found)
        key = (self.slices.name, *source)
        if key not in self.keys:
            self.keys.append(key)
        return region, self.keys.index(key), self.slices.place(source, sent), rest


def _region(side: int, depth: int, size: int) -> slice:
    """Where a piece goes along an axis: before the chunk, over it, or after it."""
    return (slice(depth, depth + size), slice(depth + size, size + 2 * depth), slice(0, depth))[side]


def _source(chunks: Sequence[int], place: int, side: int, depth: int, edge: Any) -> tuple[int | None, Any]:
    """Along an axis, the place of the chunk that a piece comes from, and the slice of it; or None, and the number outside of the array."""
    if not side:
        return place, slice(None)
    other = place + side
    if not 0 <= other < len(chunks):
        if edge == "periodic":
            other %= len(chunks)
        elif edge == "reflect":
            size = chunks[place]
            stop = size - depth - 1
            return place, slice(depth - 1, None, -1) if side < 0 else slice(size - 1, stop if stop >= 0 else None, -1)
        elif edge == "nearest":
            return place, slice(0, 1) if side < 0 else slice(chunks[place] - 1, None)
        else:
            return None, edge
    size = chunks[other]
    return other, slice(size - depth, size) if side < 0 else slice(0, depth)
