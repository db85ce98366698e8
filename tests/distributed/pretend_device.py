"""A device with streams that run on a simulated clock, for tests of streaming.

An operation starts when its stream is free, and all events that the stream waits for have happened. A copy also waits for the engine of its
direction. It takes one unit of time per element. Effects on memory happen at once, and the log shows a stale read. `overlapping` tells
whether a copy ran while a kernel did. `read_before_written` names kernels that began before the copies of their arrays ended.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Operation:
    """Something that ran on the device: "in", "out", "zero" or "kernel", with the arrays it used and its span of time."""

    kind: str
    stream: str
    arrays: list[int]
    begin: float
    end: float


@dataclass(eq=False)
class PretendStream:
    name: str
    end: float = 0.0


@dataclass(eq=False)
class PretendDevice:
    """A StreamingDevice. `peak` is the largest number of bytes that arrays of the device had at once."""

    log: list[Operation] = field(default_factory=list)
    held: int = 0
    peak: int = 0
    streams: list[PretendStream] = field(default_factory=list)
    engines: dict[str, float] = field(default_factory=dict)
    staged: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    local: threading.local = field(default_factory=threading.local)

    def stream(self) -> PretendStream:
        self.streams.append(PretendStream(f"stream {len(self.streams)}"))
        return self.streams[-1]

    @contextlib.contextmanager
    def active(self, stream: PretendStream):
        self.local.stream = stream
        yield
        self.local.stream = None

    def record(self, stream: PretendStream) -> float:
        return stream.end

    def wait(self, stream: PretendStream, event: float) -> None:
        stream.end = max(stream.end, event)

    def synchronize(self, what: PretendStream | float) -> None:
        """The thread waits: what it enqueues later does not start earlier."""
        happened = what.end if isinstance(what, PretendStream) else what
        self.local.now = max(getattr(self.local, "now", 0.0), happened)

    def milliseconds(self, first: float, second: float) -> float:
        return second - first

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.staged += 1
        return np.empty(shape, dtype)

    def is_pinned(self, block: np.ndarray) -> bool:
        return False

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: PretendStream) -> np.ndarray:
        array = np.full(shape, 77, dtype)
        with self.lock:
            self.held += array.nbytes
            self.peak = max(self.peak, self.held)
        weakref.finalize(array, self.free, array.nbytes)
        return array

    def free(self, count: int) -> None:
        with self.lock:
            self.held -= count

    def run(self, kind: str, stream: PretendStream, arrays: list[Any], cost: float) -> None:
        with self.lock:
            begin = max(stream.end, self.engines.get(kind, 0.0), getattr(self.local, "now", 0.0))
            stream.end = self.engines[kind] = begin + cost
            self.log.append(Operation(kind, stream.name, [id(array) for array in arrays], begin, stream.end))

    def fill_zero(self, array: np.ndarray, stream: PretendStream) -> None:
        array[...] = 0
        self.run("zero", stream, [array], 0)

    def copy_in(self, host: np.ndarray, array: np.ndarray, stream: PretendStream) -> None:
        np.copyto(array, host)
        self.run("in", stream, [array], host.size)

    def place(self, part: Any, array: np.ndarray, region: tuple[slice, ...]) -> None:
        array[region] = part
        self.run("place", self.local.stream, [array], 0)

    def copy_out(self, array: np.ndarray, host: np.ndarray, stream: PretendStream) -> None:
        np.copyto(host, array)
        self.run("out", stream, [array], host.size)

    def kernel(self, *arrays: np.ndarray) -> None:
        """What a wrapper launches: it takes as long as the copy of its first array."""
        self.run("kernel", self.local.stream, list(arrays), arrays[0].size)

    def of(self, kind: str) -> list[Operation]:
        return [one for one in self.log if one.kind == kind]

    @property
    def finish(self) -> float:
        return max(one.end for one in self.log)
