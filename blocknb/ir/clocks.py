"""Detects races by vector clocks (Fidge and Mattern, 1988) where warps synchronize through mbarriers.

Every warp has a clock, which advances when the warp arrives at a barrier or an mbarrier. A warp stores, for each other warp, the latest
moment that it has synchronized with. A wait takes over the clocks of all warps that arrived. An access is ordered if the conflicting
accesses precede these moments. Each mbarrier has a clock for the copy engine, which counts its phases. The check finds a race in every
order of execution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NO_WAIT = -1  # the column of events that no warp can wait for


class Clocks:
    """`known[a, b]` is the latest moment of b that warp a has synchronized with. Columns are warps, then mbarriers, then `NO_WAIT`."""

    def __init__(self, warps: int, mbarriers: int):
        self.warps = warps
        self.known = np.zeros((warps, warps + mbarriers + 1), np.int64)
        self.known[range(warps), range(warps)] = 1

    def now(self, warp: int) -> int:
        return int(self.known[warp, warp])

    def synchronize(self, warps: Sequence[int]) -> None:
        """A barrier: each of these warps takes the maximum of all their clocks."""
        rows = list(warps)
        self.known[rows] = self.known[rows].max(axis=0)
        self.known[rows, rows] += 1

    def release(self, warp: int) -> np.ndarray:
        """A copy of a warp's clocks at an arrival. Then advances the warp's own clock."""
        row = self.known[warp].copy()
        self.known[warp, warp] += 1
        return row

    def acquire(self, warp: int, row: np.ndarray) -> None:
        np.maximum(self.known[warp], row, out=self.known[warp])


class ClockedAccesses:
    """The moments of the accesses to each byte of a memory, by vector clocks. `interp_memory.EpochAccesses` does the same by epochs."""

    def __init__(self, size: int, clocks: Clocks):
        self.clocks = clocks
        self.read, self.written = (np.zeros((clocks.warps, size), np.int32) for _ in range(2))
        self.updated: np.ndarray | None = None  # allocated at the first atomic
        # The copy engine's last write and last read of a byte: the column of their completion, and its moment.
        self.writer, self.landed = np.zeros(size, np.int16), np.zeros(size, np.int32)
        self.reader, self.fetched = np.zeros(size, np.int16), np.zeros(size, np.int32)

    def note_read(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """Records a read. Returns an error message, or ""."""
        self.read[warp, where] = self.clocks.now(warp)
        return self._unread(warp, where)

    def note_write(self, warp: int, epoch: int, where: np.ndarray, changes: np.ndarray) -> str:
        """Records a write, which alters the bytes where `changes` is true. Returns an error message, or ""."""
        error = self.overwrite(warp, where, changes)
        self.written[warp, where] = self.clocks.now(warp)
        return error

    def note_update(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """Records an atomic, which does not race with other atomics. Returns an error message, or ""."""
        error = self._unwritten(warp, where) or self._idle(warp, where)
        if self.updated is None:
            self.updated = np.zeros_like(self.read)
        self.updated[warp, where] = self.clocks.now(warp)
        return error

    def overwrite(self, warp: int, where: np.ndarray, changes: np.ndarray | None = None) -> str:
        """An error message for a write, or "". `changes` marks the bytes that it alters; None means all."""
        late = self._late(self.written, warp, where)
        if (late if changes is None else late & changes).any():
            return "another warp writes"
        return self._idle(warp, where) or self._copied(warp, where) or self._updates(warp, where)

    def note_copy(self, where: np.ndarray, column: int, moment: int) -> None:
        """Records a write by the copy engine, which completes at that moment of that column."""
        self.writer[where], self.landed[where] = column, moment

    def note_fetch(self, warp: int, where: np.ndarray, column: int, moment: int) -> str:
        """Records a read by the copy engine that a warp issued. Returns an error message, or ""."""
        self.reader[where], self.fetched[where] = column, moment
        return self._unread(warp, where)

    def _late(self, moments: np.ndarray, warp: int, where: np.ndarray) -> np.ndarray:
        """For each byte, whether a warp accessed it after the last moment that this warp has synchronized with."""
        return np.logical_or.reduce(self._each_late(moments, warp, where), axis=0)

    def _any_late(self, moments: np.ndarray, warp: int, where: np.ndarray) -> bool:
        return bool(self._each_late(moments, warp, where).any())

    def _each_late(self, moments: np.ndarray, warp: int, where: np.ndarray) -> np.ndarray:
        known = self.clocks.known[warp, : self.clocks.warps]
        seen = moments.take(where, axis=1)  # many times faster than moments[:, where]
        return seen > known.reshape(-1, *(1 for _ in where.shape))

    def _unread(self, warp: int, where: np.ndarray) -> str:
        return self._unwritten(warp, where) or self._updates(warp, where)

    def _unwritten(self, warp: int, where: np.ndarray) -> str:
        return "another warp writes" if self._any_late(self.written, warp, where) else self._copied(warp, where)

    def _copied(self, warp: int, where: np.ndarray) -> str:
        known = self.clocks.known[warp]
        return "the copy engine writes" if (self.landed[where] > known[self.writer[where]]).any() else ""

    def _updates(self, warp: int, where: np.ndarray) -> str:
        late = self.updated is not None and self._any_late(self.updated, warp, where)
        return "another warp updates" if late else ""

    def _idle(self, warp: int, where: np.ndarray) -> str:
        """An error message if the bytes change while they may still be read, or ""."""
        if self._any_late(self.read, warp, where):
            return "another warp reads"
        known = self.clocks.known[warp]
        return "the copy engine reads" if (self.fetched[where] > known[self.reader[where]]).any() else ""
