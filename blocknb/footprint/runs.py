"""Runs: the elements that programs access, as intervals of neighbouring elements.

An access of many programs is given as factored tiles of addresses and of masks (see `analysis.partial_evaluation.factored_tiles`). Along
one axis of the tile neighbouring elements form a run; the other axes only move it. A thousand programs that store 1024 neighbours each
make a thousand runs. `ElementOwners` paints runs into arrays with one entry per element: first and last program, and a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from blocknb.analysis.partial_evaluation.factored_tiles import FactoredTile, by_axis, whole

NEVER, SEVERAL = -1, -2  # owners of an element that no program accesses, and of one that several access


@dataclass(frozen=True)
class Runs:
    """Intervals of bytes from `starts` to `ends` (int64). `programs` has the linear number of each one's program. `iterations` says how
    often the op had run in that program before. `repeated` lists programs in which several lanes access one element."""

    starts: np.ndarray
    ends: np.ndarray
    programs: np.ndarray
    iterations: np.ndarray
    repeated: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, which: np.ndarray) -> Runs:
        return Runs(self.starts[which], self.ends[which], self.programs[which], self.iterations[which], self.repeated)

    def scaled(self, shift: int, unit: int) -> Runs:
        """The runs in units of some bytes, from byte `shift` on."""
        starts, ends = (self.starts - shift) // unit, -((shift - self.ends) // unit)
        return Runs(starts, ends, self.programs, self.iterations, self.repeated)


def joined(parts: Iterable[Runs]) -> Runs:
    """All runs of several accesses, in their order."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, np.int64)
    columns = [[p.starts, p.ends, p.programs, p.iterations, p.repeated] for p in parts]
    return Runs(*(np.concatenate(c) for c in zip(*columns, strict=True))) if parts else Runs(*[empty] * 4)


def runs_of(
    address: FactoredTile,
    mask: FactoredTile | None,
    shape: tuple[int, ...],
    size: int,
    programs: np.ndarray,
    iterations: np.ndarray,
) -> Runs:
    """The runs of one access of elements of `size` bytes by `programs`, whose factored tiles have that many rows, or one for all."""
    count = len(programs)
    if not shape:
        address, shape = tuple(p.reshape(-1, 1) for p in address), (1,)
        mask = None if mask is None else tuple(p.reshape(-1, 1) for p in mask)
    places = by_axis(address, len(shape))
    masks = by_axis(mask, len(shape)) if mask is not None else (np.ones(1, bool), [np.ones((1, 1), bool)] * len(shape))
    if places is None or masks is None:
        flat = _flat(whole(address), shape)
        where = np.ones((1, 1), bool) if mask is None else _flat(whole(mask), shape)
        places, masks, shape = (np.zeros(1, np.int64), [flat]), (np.ones(1, bool), [where]), (flat.shape[1],)
    (alone, offsets), (on, wheres) = places, masks
    live = np.flatnonzero(np.broadcast_to(on, count))
    if not len(live):
        return joined(())

    def pick(a: np.ndarray) -> np.ndarray:
        return a[live] if len(a) == count and count > 1 else a

    alone = np.broadcast_to(pick(alone), len(live))
    doubled: np.ndarray = np.zeros(len(live), bool)
    tables = []
    for n, offset, where in zip(shape, offsets, wheres, strict=True):
        offset, where = pick(offset), np.broadcast_to(pick(where), (len(pick(where)), n))
        if n > 1 and offset.shape[1] == 1:  # the lanes along this axis share an address
            doubled = np.logical_or(doubled, where.sum(1) > 1)
            where = np.asarray(where.any(1, keepdims=True))
        tables.append((np.broadcast_to(offset, (len(offset), where.shape[1])), where))
    row, starts, ends = _intervals(alone, tables, size)
    overlapping = _overlapping(row, starts, ends, len(live))
    if overlapping.any():
        row, starts, ends = _merged(row, starts, ends)
    touching = np.zeros(len(live), bool)
    touching[row] = True
    repeated = programs[live[np.logical_or(doubled, overlapping) & touching]]
    chosen = live[row]
    return Runs(starts, ends, programs[chosen], np.broadcast_to(iterations, count)[chosen], repeated)


def _flat(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(array, (len(array), *shape)).reshape(len(array), -1)


def _intervals(
    alone: np.ndarray, tables: list[tuple[np.ndarray, np.ndarray]], size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Intervals as (row, first byte, byte after the last): runs along one axis, each moved by what the other axes add."""
    count = len(alone)
    runs = [_runs(offset, where, size) for offset, where in tables]
    best = min(range(len(tables)), key=lambda d: len(runs[d][0]) / max(1, tables[d][0].size))
    moved, active = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for d, (offset, where) in enumerate(tables):
        if d != best:
            moved = (moved[:, :, None] + offset[:, None, :]).reshape(max(len(moved), len(offset)), -1)
            active = (active[:, :, None] & where[:, None, :]).reshape(max(len(active), len(where)), -1)
    row, start, end = runs[best]
    if len(tables[best][0]) == 1 and len(tables[best][1]) == 1:  # the same runs for every program
        row, start, end = np.repeat(np.arange(count), len(start)), np.tile(start, count), np.tile(end, count)
    if moved.shape == (1, 1) and active.all():
        shift = alone[row] + moved[0, 0]
        return row, start + shift, end + shift
    moved, active = np.broadcast_to(moved, (count, moved.shape[1])), np.broadcast_to(active, (count, active.shape[1]))
    shift, keep = moved[row] + alone[row, None], active[row]
    rows = np.broadcast_to(row[:, None], keep.shape)
    return rows[keep], (start[:, None] + shift)[keep], (end[:, None] + shift)[keep]


def _runs(offset: np.ndarray, where: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Neighbours in memory along an axis, as (row, first byte, byte after the last). `offset` and `where` are [rows or 1, n]."""
    if len(offset) == 1 < len(where):  # most rows are on everywhere, and have the runs of the first one
        every = where.all(1)
        _, begin, end = _runs(offset, np.ones((1, where.shape[1]), bool), size)
        full, some = np.flatnonzero(every), np.flatnonzero(~every & where.any(1))
        row, first, last = _runs(np.broadcast_to(offset, (len(some), offset.shape[1])), where[some], size)
        row = np.concatenate([np.repeat(full, len(begin)), some[row]])
        return row, np.r_[np.tile(begin, len(full)), first], np.r_[np.tile(end, len(full)), last]
    rows = max(len(offset), len(where))
    offset, where = (np.broadcast_to(a, (rows, offset.shape[1])) for a in (offset, where))
    step = (np.diff(offset, axis=1) == size) & where[:, 1:] & where[:, :-1]
    edge = np.zeros((rows, 1), bool)
    begin, end = where & ~np.concatenate([edge, step], 1), where & ~np.concatenate([step, edge], 1)
    return np.nonzero(begin)[0], offset[begin], offset[end] + size


def _overlapping(row: np.ndarray, starts: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    """For each row, whether two of its intervals overlap."""
    found = np.zeros(count, bool)
    if len(row) > 1:
        order = np.lexsort((starts, row))
        row, starts, ends = row[order], starts[order], ends[order]
        found[row[1:][(row[1:] == row[:-1]) & (starts[1:] < ends[:-1])]] = True
    return found


def disjoint(runs: Runs) -> bool:
    """Whether no two runs share an element."""
    order = np.argsort(runs.starts, kind="stable")
    return bool((runs.starts[order][1:] >= runs.ends[order][:-1]).all())


def uncovered(runs: Runs, size: int) -> list[tuple[int, int]]:
    """The intervals (start, stop) of elements 0 to `size` that lie in no run."""
    order = np.argsort(runs.starts, kind="stable")
    starts, ends = runs.starts[order], np.maximum.accumulate(runs.ends[order])
    begins, stops = np.r_[0, np.clip(ends, 0, size)], np.r_[np.clip(starts, 0, size), size]
    holes = np.flatnonzero(stops > begins)
    return list(zip(begins[holes].tolist(), stops[holes].tolist(), strict=True))


def _merged(row: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The intervals with those that overlap in one row joined."""
    low = starts.min()
    span = int(ends.max() - low) + 1
    order = np.lexsort((starts, row))
    row, begin, stop = row[order], starts[order] - low, ends[order] - low
    reach = np.maximum.accumulate(row * span + stop)  # a later row reaches further than all earlier ones
    first = np.r_[True, (row * span + begin)[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return row[first], begin[first] + low, reach[last] - row[last] * span + low


class ElementOwners:
    """For each of `size` elements the first and the last program that accesses it, and the number of accesses (int64). Programs are numbers
    (int32), NEVER if there is none."""

    def __init__(self, size: int):
        self.first = np.full(size, NEVER, np.int32)
        self.last = np.full(size, NEVER, np.int32)
        self.count = np.zeros(size, np.int64)

    def paint(self, runs: Runs) -> None:
        """Adds runs in units of elements. Parts outside of the array are ignored."""
        starts, ends = np.clip(runs.starts, 0, len(self.count)), np.clip(runs.ends, 0, len(self.count))
        kept = np.flatnonzero(ends > starts)
        if not len(kept):
            return
        kept = kept[np.argsort(starts[kept], kind="stable")]
        starts, ends, programs = starts[kept], ends[kept], runs.programs[kept].astype(np.int32)
        lengths = ends - starts
        if (starts[1:] == ends[:-1]).all():  # one interval, every element once
            part = slice(starts[0], ends[-1])
            program = np.repeat(programs, lengths)
            first = self.first[part]
            self.first[part] = np.where(first < 0, program, np.minimum(first, program))
            np.maximum(self.last[part], program, out=self.last[part])
            self.count[part] += 1
            return
        if (starts[1:] < ends[:-1]).any():  # the last assignment to an element wins: that of the highest program
            order = np.argsort(programs, kind="stable")
            starts, lengths, programs = starts[order], lengths[order], programs[order]
        total = int(lengths.sum())
        where = np.repeat(starts - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(total)
        program = np.repeat(programs, lengths)
        self.count += np.bincount(where, minlength=len(self.count))
        later = program > self.last[where]
        self.last[where[later]] = program[later]
        first = self.first[where]
        earlier = (first < 0) | (program < first)
        self.first[where[earlier][::-1]] = program[earlier][::-1]

    @property
    def owner(self) -> np.ndarray:
        """int32: the program that accesses an element, NEVER or SEVERAL."""
        return np.where(self.first == self.last, self.first, SEVERAL).astype(np.int32)


def spans(flags: np.ndarray) -> list[tuple[int, int]]:
    """The intervals (start, stop) of true elements of a one-dimensional array."""
    edges = np.flatnonzero(np.diff(np.r_[False, flags, False].astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def as_slices(found: list[tuple[int, int]], most: int = 3) -> str:
    """Intervals as text: `896:1000, 7 and 3 more pieces`."""
    shown = [f"{a}" if b == a + 1 else f"{a}:{b}" for a, b in found[:most]]
    more = len(found) - most
    return ", ".join(shown) + (f" and {more} more piece{'s' * (more > 1)}" if more > 0 else "")
