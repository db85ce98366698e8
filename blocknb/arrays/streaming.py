"""Streams blocks of host memory through a device, so that copies of one block overlap the kernels of another.

This is double buffering with pinned memory and CUDA streams (CUDA C++ Programming Guide, "Overlapping Data Transfer and Kernel
Execution"). A *lane* has two streams: one copies, one computes. Events order both. There are two lanes, and each task takes one: while
the kernels of a task run, the other task copies. So a worker needs two threads per GPU. `accumulate` also overlaps within a task, because
it copies the next blocks while a kernel uses the last ones.

A `StreamingDevice` is the interface to the device. `cupy_device` has the one for GPUs; tests have one that records all calls.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from blocknb.arrays.in_flight import BytesInFlight, add

LANES = 2
Wrapper = Callable[..., Any]


class StreamingDevice(Protocol):
    """A device with streams and events. Copies and fills return before they are done; `synchronize` waits."""

    def stream(self) -> Any:
        """A new stream."""

    def active(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Inside, launches and allocations of this thread use the stream."""

    def record(self, stream: Any) -> Any:
        """An event at the present end of the stream."""

    def wait(self, stream: Any, event: Any) -> None:
        """Makes the stream wait for the event."""

    def synchronize(self, stream: Any) -> None:
        """Waits for the end of the stream. Raises the error of a kernel that failed."""

    def milliseconds(self, first: Any, second: Any) -> float:
        """The time between two events that have happened."""

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of host memory from which the device copies asynchronously."""

    def is_pinned(self, block: np.ndarray) -> bool:
        """Whether the device copies from this array asynchronously."""

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: Any) -> Any:
        """An array on the device, whose memory the stream uses first."""

    def fill_zero(self, array: Any, stream: Any) -> None:
        """Fills an array with zeros."""

    def copy_in(self, host: np.ndarray, array: Any, stream: Any) -> None:
        """Copies pinned memory to the device."""

    def copy_out(self, array: Any, host: np.ndarray, stream: Any) -> None:
        """Copies the device's memory to pinned memory."""


@dataclass(eq=False)
class Lane:
    """Two streams, and the staging buffers and event pairs of the task that uses them."""

    copies: Any
    kernels: Any
    staged: list[Any] = field(default_factory=list)
    copy_spans: list[tuple[Any, Any]] = field(default_factory=list)
    kernel_spans: list[tuple[Any, Any]] = field(default_factory=list)


class Streamer:
    """Runs wrappers on blocks of host memory through a device, with at most `limit` bytes of its memory in flight."""

    def __init__(self, device: StreamingDevice, limit: int | None, lanes: int = LANES):
        self.device, self.memory = device, BytesInFlight(limit)
        self._lanes: queue.LifoQueue[Lane] = queue.LifoQueue()
        for _ in range(lanes):
            self._lanes.put(Lane(device.stream(), device.stream()))

    def run(self, wrapper: Wrapper, blocks: Sequence[np.ndarray], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Calls `wrapper(*blocks, out)` with copies of the blocks on the device, and returns the result as an array of the host.

        Raises LaunchError if the blocks and the result have more bytes than the limit."""
        device, size = self.device, _bytes(shape, dtype)
        with self.memory.hold(sum(block.nbytes for block in blocks) + size), self._lane() as lane:
            given = self._copied_in(lane, blocks)
            out = device.empty(shape, dtype, lane.kernels)
            self._launch(lane, wrapper, [*given, out])
            return self._copied_out(lane, out, shape, dtype)

    def accumulate(
        self, wrapper: Wrapper, terms: Sequence[Sequence[np.ndarray]], shape: tuple[int, ...], dtype: Any
    ) -> np.ndarray:
        """Calls `wrapper(*blocks, out)` for the blocks of each term, in order, on one result that starts as zeros, and returns it.

        The blocks of two terms are on the device at once: the next ones are copied while a kernel uses the last ones."""
        device, sizes = self.device, [sum(block.nbytes for block in term) for term in terms]
        two = max((sum(sizes[i : i + 2]) for i in range(len(sizes))), default=0)
        with self.memory.hold(two + _bytes(shape, dtype)), self._lane() as lane:
            out = device.empty(shape, dtype, lane.kernels)
            device.fill_zero(out, lane.kernels)
            done: list[Any] = []
            buffers: list[list[Any]] = []  # of the last two terms, whose kernels may still run
            for term in terms:
                if len(buffers) == 2:
                    device.wait(lane.copies, done[-2])
                    del buffers[0]
                buffers.append(self._copied_in(lane, term))
                self._launch(lane, wrapper, [*buffers[-1], out])
                done.append(lane.kernel_spans[-1][1])
            return self._copied_out(lane, out, shape, dtype)

    @contextlib.contextmanager
    def _lane(self) -> Iterator[Lane]:
        """A lane for one task. At the end, also after an error, its streams are idle, so that its buffers can be freed."""
        lane = self._lanes.get()
        try:
            yield lane
            add(blocks=1, copy_ms=self._sum(lane.copy_spans), compute_ms=self._sum(lane.kernel_spans))
        finally:
            try:
                for stream in (lane.copies, lane.kernels):
                    self.device.synchronize(stream)
            finally:
                for kept in (lane.staged, lane.copy_spans, lane.kernel_spans):
                    kept.clear()
                self._lanes.put(lane)

    def _sum(self, spans: Sequence[tuple[Any, Any]]) -> float:
        return sum(self.device.milliseconds(*span) for span in spans)

    def _copied_in(self, lane: Lane, blocks: Sequence[np.ndarray]) -> list[Any]:
        """Starts the copies of blocks to the device."""
        device, found = self.device, []
        for block in blocks:
            host = block
            if not (block.flags.c_contiguous and device.is_pinned(block)):
                host = device.pinned(block.shape, block.dtype)
                np.copyto(host, block)
            lane.staged.append(host)
            array = device.empty(block.shape, block.dtype, lane.copies)
            begin = device.record(lane.copies)
            device.copy_in(host, array, lane.copies)
            lane.copy_spans.append((begin, device.record(lane.copies)))
            found.append(array)
        add(bytes_in=sum(block.nbytes for block in blocks))
        return found

    def _launch(self, lane: Lane, wrapper: Wrapper, arrays: Sequence[Any]) -> None:
        """Launches the kernels of a wrapper after the copies so far."""
        device = self.device
        if lane.copy_spans:
            device.wait(lane.kernels, lane.copy_spans[-1][1])
        begin = device.record(lane.kernels)
        with device.active(lane.kernels):
            wrapper(*arrays)
        lane.kernel_spans.append((begin, device.record(lane.kernels)))

    def _copied_out(self, lane: Lane, out: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Copies the result back after the kernels, waits, and returns it in memory that is not pinned."""
        device, host = self.device, self.device.pinned(shape, dtype)
        if lane.kernel_spans:
            device.wait(lane.copies, lane.kernel_spans[-1][1])
        else:
            device.wait(lane.copies, device.record(lane.kernels))  # the zeros of a sum without terms
        begin = device.record(lane.copies)
        device.copy_out(out, host, lane.copies)
        lane.copy_spans.append((begin, device.record(lane.copies)))
        device.synchronize(lane.copies)
        add(bytes_out=host.nbytes)
        return host.copy()


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
