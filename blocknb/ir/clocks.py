"""Who knows of what: the account of races where warps wait for each other at mbarriers, and not only all of them at once.

Every warp has a clock, which goes on whenever it lets others know what it has done (it arrives somewhere). A warp knows, of each other
one, up to which moment its deeds are known to it; who waits learns all that those knew who arrived. An access is in order if what
it must come after lies in the known part of the past. The copy engine's work is known by the mbarrier that it arrives at, whose phases
are that one's clock. So a race is found however the warps happen to run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NEVER = -1  # the column of what nobody can have waited for


class Clocks:
    """`known[a, b]`: the latest moment of b that the warp a knows of. Columns are warps, then mbarriers, then `NEVER`."""

    def __init__(self, warps: int, mbarriers: int):
        self.warps = warps
        self.known = np.zeros((warps, warps + mbarriers + 1), np.int64)
        self.known[range(warps), range(warps)] = 1

    def now(self, warp: int) -> int:
        return int(self.known[warp, warp])

    def meet(self, warps: Sequence[int]) -> None:
        """A barrier: each of these warps knows what all of them know."""
        rows = list(warps)
        self.known[rows] = self.known[rows].max(axis=0)
        self.known[rows, rows] += 1

    def tell(self, warp: int) -> np.ndarray:
        """What a warp knows when it arrives somewhere; what it does from now on is not part of that."""
        row = self.known[warp].copy()
        self.known[warp, warp] += 1
        return row

    def learn(self, warp: int, row: np.ndarray) -> None:
        np.maximum(self.known[warp], row, out=self.known[warp])


class Marks:
    """Of each byte of a memory the moments of its accesses, by clocks: what `interp_memory.Touches` is by epochs."""

    def __init__(self, size: int, clocks: Clocks):
        self.clocks = clocks
        self.read, self.written = (np.zeros((clocks.warps, size), np.int32) for _ in range(2))
        self.updated: np.ndarray | None = None  # few memories see atomics
        # The copy engine's last write to a byte, and its last read: which column tells of its end, and the moment of that.
        self.writer, self.landed = np.zeros(size, np.int16), np.zeros(size, np.int32)
        self.reader, self.fetched = np.zeros(size, np.int16), np.zeros(size, np.int32)

    def note_read(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """Remembers a read; what is wrong with it, or ""."""
        self.read[warp, where] = self.clocks.now(warp)
        return self._unread(warp, where)

    def note_write(self, warp: int, epoch: int, where: np.ndarray, changes: np.ndarray) -> str:
        """Remembers a write, which alters the bytes where `changes` is true; what is wrong with it, or ""."""
        trouble = self.overwrite(warp, where, changes)
        self.written[warp, where] = self.clocks.now(warp)
        return trouble

    def note_update(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """Remembers an atomic, which meets other atomics without harm; what is wrong with it, or ""."""
        trouble = self._unwritten(warp, where) or self._idle(warp, where)
        if self.updated is None:
            self.updated = np.zeros_like(self.read)
        self.updated[warp, where] = self.clocks.now(warp)
        return trouble

    def overwrite(self, warp: int, where: np.ndarray, changes: np.ndarray | None = None) -> str:
        """What is wrong with a write, or "". `changes`: the bytes that it alters, all if None."""
        late = self._late(self.written, warp, where)
        if (late if changes is None else late & changes).any():
            return "another warp writes"
        return self._idle(warp, where) or self._copied(warp, where) or self._updates(warp, where)

    def note_copy(self, where: np.ndarray, column: int, moment: int) -> None:
        """Remembers that the copy engine writes bytes, of whose end that column tells at that moment."""
        self.writer[where], self.landed[where] = column, moment

    def note_fetch(self, warp: int, where: np.ndarray, column: int, moment: int) -> str:
        """Remembers that the copy engine reads bytes, told to by a warp; what is wrong with it, or ""."""
        self.reader[where], self.fetched[where] = column, moment
        return self._unread(warp, where)

    def _late(self, moments: np.ndarray, warp: int, where: np.ndarray) -> np.ndarray:
        """Whether some warp has done it at a moment that this one does not know of, for each byte."""
        known = self.clocks.known[warp, : self.clocks.warps]
        return np.any(moments[:, where] > known.reshape(-1, *(1 for _ in where.shape)), axis=0)

    def _unread(self, warp: int, where: np.ndarray) -> str:
        return self._unwritten(warp, where) or self._updates(warp, where)

    def _unwritten(self, warp: int, where: np.ndarray) -> str:
        return "another warp writes" if self._late(self.written, warp, where).any() else self._copied(warp, where)

    def _copied(self, warp: int, where: np.ndarray) -> str:
        known = self.clocks.known[warp]
        return "the copy engine writes" if (self.landed[where] > known[self.writer[where]]).any() else ""

    def _updates(self, warp: int, where: np.ndarray) -> str:
        late = self.updated is not None and self._late(self.updated, warp, where).any()
        return "another warp updates" if late else ""

    def _idle(self, warp: int, where: np.ndarray) -> str:
        """What is wrong with a change of bytes that somebody may be reading, or ""."""
        if self._late(self.read, warp, where).any():
            return "another warp reads"
        known = self.clocks.known[warp]
        return "the copy engine reads" if (self.fetched[where] > known[self.reader[where]]).any() else ""
