"""Bounds the memory of the blocks in flight, and counts what this process has computed and moved.

A task acquires the bytes of all its blocks before it copies the first one. It waits while other tasks of the process hold too many bytes.
`totals()` gives the figures of the process: blocks, bytes, times of copies and kernels, and the peak of the bytes in flight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from blocknb.errors import LaunchError


@dataclass
class BlockTotals:
    """Counts of the work of a process on blocks since it started, or since `reset_totals`.

    `copy_ms` and `compute_ms` are sums over blocks. `busy_ms` is the time in which at least one block was in flight. So copies overlap
    kernels, or blocks each other, where `busy_ms` is less than the sum of the others. `aligned` counts blocks that were copied because
    their address was not a multiple of the element size. `peak` is the largest number of bytes in flight."""

    blocks: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    copy_ms: float = 0.0
    compute_ms: float = 0.0
    busy_ms: float = 0.0
    aligned: int = 0
    peak: int = 0


_lock = threading.Lock()
_totals = BlockTotals()
_running, _since = 0, 0.0


def totals() -> BlockTotals:
    """The figures of this process."""
    with _lock:
        return replace(_totals)


def reset_totals() -> None:
    """Sets the figures of this process to zero."""
    global _totals
    with _lock:
        _totals = BlockTotals()


def add(**amounts: float) -> None:
    """Adds to the figures of this process, by name."""
    with _lock:
        for name, amount in amounts.items():
            setattr(_totals, name, getattr(_totals, name) + amount)


@contextmanager
def _busy() -> Iterator[None]:
    """Counts the time inside as busy, once for all threads."""
    global _running, _since
    with _lock:
        if not _running:
            _since = time.perf_counter()
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _totals.busy_ms += (time.perf_counter() - _since) * 1e3


class BytesInFlight:
    """The bytes that the tasks of a process may hold at once: `limit`, or any number for None."""

    def __init__(self, limit: int | None):
        self.limit, self.used = limit, 0
        self._free = threading.Condition()

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Holds bytes inside, after a wait for other tasks. Raises LaunchError for more bytes than the limit."""
        limit = self.limit
        if limit is not None and count > limit:
            raise LaunchError(
                f"the blocks of one task have {count:,} bytes, more than the limit of {limit:,} bytes",
                hint="use smaller chunks, x.rechunk(...), or a larger limit=",
            )
        with self._free:
            self._free.wait_for(lambda: limit is None or self.used + count <= limit)
            self.used += count
            with _lock:
                _totals.peak = max(_totals.peak, self.used)
        try:
            with _busy():
                yield
        finally:
            with self._free:
                self.used -= count
                self._free.notify_all()
