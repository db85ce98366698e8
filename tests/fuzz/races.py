"""Detects races in GPU code while `simt` runs it: missing barriers, and programs that access the same bytes.

For every byte, the detector knows the last writer and reader, and how many barriers ago they were. Two threads race if they access a byte
without a barrier between them and one of them writes. Two programs race under the same condition, with any ops between. Atomics do not race
with each other, and neither do writes of the same value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NO_THREAD, SEVERAL = -1, -2
MET = 1 << 20  # plus the number of a warp: some of its threads, whose lanes have synchronized since
CROWD = 1 << 21  # plus the number of a warp: several of its threads


class Race(Exception):
    """Two unordered accesses, of which one writes."""


class Marks:
    """For each byte the last writer, whether it was an atomic, and the readers since: a thread number, NO_THREAD or SEVERAL."""

    def __init__(self, size: int):
        self.writer, self.reader = np.full(size, NO_THREAD, np.int32), np.full(size, NO_THREAD, np.int32)
        self.atomic = np.zeros(size, bool)

    def clear(self) -> None:
        self.writer[:] = self.reader[:] = NO_THREAD

    def access(
        self,
        places: np.ndarray,
        who: np.ndarray,
        write: bool = False,
        atomic: bool = False,
        same: bool | np.ndarray = False,
    ) -> bool:
        """Records an access; returns whether it races with an earlier one. `same`: the written value is already there."""
        writer, reader = self.writer[places], self.reader[places]
        after_write, after_read = self.others(writer, who), self.others(reader, who)
        races = after_write & ~(self.atomic[places] & atomic) & ~np.asarray(same)
        if write:
            races |= after_read
            self.note(self.writer, places, who, after_write)
            self.atomic[places] = atomic
        else:
            self.note(self.reader, places, who, after_read)
        return bool(races.any())

    @staticmethod
    def others(marks: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Which marks belong to another thread without synchronization since."""
        return (marks != NO_THREAD) & (marks != who) & (marks != MET + who // 32)

    def meet(self) -> None:
        """The lanes of each warp synchronize."""
        for marks in (self.writer, self.reader):
            threads = (marks >= 0) & (marks < MET)
            marks[threads] = MET + marks[threads] // 32
            marks[marks >= CROWD] += MET - CROWD

    @staticmethod
    def note(marks: np.ndarray, places: np.ndarray, who: np.ndarray, others: np.ndarray) -> None:
        mine = np.where(others, several(marks[places], who), who)
        marks[places] = mine
        again = marks[places] != mine  # another thread in the same instruction
        found, places = several(marks[places], who)[again], places[again]
        marks[places] = found
        marks[places[found == SEVERAL]] = SEVERAL


def several(marks: np.ndarray, who: np.ndarray) -> np.ndarray:
    """The mark of threads combined with existing marks: a CROWD, if they are all of one warp."""
    warps = np.where(marks < MET, marks // 32, marks & (MET - 1))
    return np.where((marks >= 0) & (warps == who // 32), CROWD + who // 32, SEVERAL)


class Watch:
    """Checks every access to a memory of `size` bytes. `programs`: also checks for races between programs."""

    def __init__(self, size: int, programs: bool):
        self.threads, self.programs = Marks(size), Marks(size) if programs else None
        self.program = NO_THREAD

    def begin(self, program: int) -> None:
        self.program = program
        self.threads.clear()

    def barrier(self) -> None:
        self.threads.clear()

    def warp_barrier(self) -> None:
        self.threads.meet()

    def access(self, places: np.ndarray, who: np.ndarray, where: str, **kind: Any) -> None:
        """Checks an access of each thread of `who` to the bytes at `places`, [threads, size]. Raises Race."""
        flat, threads = places.ravel(), np.repeat(who, places.shape[1])
        if self.threads.access(flat, threads, **kind):
            raise Race(f"two threads at one place, and no barrier between them: {where}")
        if self.programs and self.programs.access(flat, np.full(len(flat), self.program), **kind):
            raise Race(f"two programs at one place: {where}")
