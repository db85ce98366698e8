"""Unique bytes: the bytes that the programs of a launch access, each counted once, as a union of address intervals.

An access of many programs is given as factored tiles of addresses and of masks (see `factored_tiles`). A hash of their parameters
finds programs that access the same bytes, and each such group is counted once. Neighbouring addresses along one axis of the tile form
one interval. A matrix that a thousand programs read in overlapping tiles thus costs a few thousand intervals.
"""

from __future__ import annotations

import numpy as np

from blocknb.analysis.partial_evaluation.factored_tiles import FactoredTile, by_axis, whole

MOST_INTERVALS = 1 << 21  # kept apart before they are merged


class Touched:
    """A set of bytes. `add` takes intervals, `total` is the number of bytes; a window is 2**`window` bytes of addresses."""

    def __init__(self) -> None:
        self.starts: list[np.ndarray] = []
        self.ends: list[np.ndarray] = []
        self.waiting = 0

    def add(self, starts: np.ndarray, ends: np.ndarray) -> None:
        self.starts.append(starts)
        self.ends.append(ends)
        self.waiting += len(starts)
        if self.waiting > MOST_INTERVALS:
            self.merge()

    def merge(self) -> tuple[np.ndarray, np.ndarray]:
        """The intervals, sorted and disjoint."""
        if not self.starts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts, ends = np.concatenate(self.starts), np.concatenate(self.ends)
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        first = np.r_[True, starts[1:] > ends[:-1]][: len(starts)]
        last = np.r_[first[1:], True][: len(starts)]
        self.starts, self.ends, self.waiting = [starts[first]], [ends[last]], 0
        return self.starts[0], self.ends[0]

    def by_window(self, bits: int) -> dict[int, int]:
        """Bytes by window of 2**bits addresses."""
        starts, ends = self.merge()
        windows, inverse = np.unique(starts >> bits, return_inverse=True)
        sizes = np.bincount(inverse, weights=(ends - starts).astype(np.float64), minlength=len(windows))
        return {int(w): int(n) for w, n in zip(windows, sizes, strict=True)}


def touch(touched: Touched, address: FactoredTile, mask: FactoredTile | None, shape: tuple[int, ...], size: int) -> int:
    """Adds an access of elements of `size` bytes to the set; returns how many numbers were looked at."""
    rank = len(shape)
    if not rank:
        address, shape, rank = tuple(p.reshape(-1, 1) for p in address), (1,), 1
        mask = None if mask is None else tuple(p.reshape(-1, 1) for p in mask)
    places = by_axis(address, rank)
    masks = by_axis(mask, rank) if mask is not None else (np.ones(1, bool), [np.ones((1, 1), bool)] * rank)
    if places is None or masks is None:
        flat = _flat(whole(address), shape)
        where = np.ones((1, 1), bool) if mask is None else _flat(whole(mask), shape)
        places, masks = (np.zeros(1, np.int64), [flat]), (np.ones(1, bool), [where])
        shape = (flat.shape[1],)
    alone, tables = _distinct(places, masks, shape)
    if not len(alone):
        return 0
    return _intervals(touched, alone, tables, size)


def _flat(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(array, (len(array), *shape)).reshape(len(array), -1)


def _distinct(places: tuple, masks: tuple, shape: tuple[int, ...]) -> tuple[np.ndarray, list]:
    """The programs that differ: a number each, and by axis their offsets and masks [programs or 1, size]."""
    (alone, offsets), (on, wheres) = places, masks
    arrays = [alone, on, *offsets, *wheres]
    programs = max(len(a) for a in arrays)
    chosen = np.arange(programs)
    if programs > 1:
        key = np.zeros(programs, np.uint64)
        for i, array in enumerate(arrays):
            if len(array) == programs:
                key = key + _mixed(array.reshape(programs, -1), i)
        chosen = np.unique(key, return_index=True)[1]
    pick = lambda a: a[chosen] if len(a) == programs else a  # noqa: E731
    live = np.broadcast_to(pick(on), len(chosen))
    alone = np.broadcast_to(pick(alone), len(chosen))[live]
    tables = []
    for n, offset, where in zip(shape, offsets, wheres, strict=True):
        offset, where = pick(offset), pick(where)
        rows = max(len(offset), len(where))
        pair = [np.broadcast_to(a, (rows, n)) for a in (offset, where)]
        tables.append([a[live] if rows == len(live) and rows > 1 else a for a in pair])
    return alone, tables


def _mixed(rows: np.ndarray, salt: int) -> np.ndarray:
    """A 64-bit hash of each row (the finaliser of splitmix64 on each element and its position)."""
    positions = np.arange(salt + 1, salt + 1 + rows.shape[1], dtype=np.uint64)
    x: np.ndarray = rows.astype(np.uint64) + positions * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).sum(1, dtype=np.uint64) * np.uint64(2 * salt + 1)


def _intervals(touched: Touched, alone: np.ndarray, tables: list, size: int) -> int:
    """Adds the intervals of distinct programs: runs of neighbours along one axis, each moved by what the other axes add."""
    runs = [_runs(offset, where, size) for offset, where in tables]
    best = min(range(len(tables)), key=lambda d: len(runs[d][0]) / max(1, tables[d][0].size))
    count = len(alone)
    moved, active = alone.reshape(-1, 1), np.ones((1, 1), bool)
    for d, (offset, where) in enumerate(tables):
        if d != best:
            moved = (moved[:, :, None] + offset[:, None, :]).reshape(max(len(moved), len(offset)), -1)
            active = (active[:, :, None] & where[:, None, :]).reshape(max(len(active), len(where)), -1)
    row, start, end = runs[best]
    if len(tables[best][0]) == 1 and count > 1:  # the same runs for every program
        row, start, end = np.repeat(np.arange(count), len(start)), np.tile(start, count), np.tile(end, count)
    moved, active = np.broadcast_to(moved, (count, moved.shape[1])), np.broadcast_to(active, (count, active.shape[1]))
    shift, keep = moved[row], active[row]
    touched.add((start[:, None] + shift)[keep], (end[:, None] + shift)[keep])
    return shift.size + sum(a.size for a, _ in tables)


def _runs(offset: np.ndarray, where: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Neighbours in memory along an axis, as (row, first byte, byte after the last), offsets being [rows, n]."""
    step = (np.diff(offset, axis=1) == size) & where[:, 1:] & where[:, :-1]
    edge = np.zeros((len(offset), 1), bool)
    begin, end = where & ~np.concatenate([edge, step], 1), where & ~np.concatenate([step, edge], 1)
    return np.nonzero(begin)[0], offset[begin], offset[end] + size
