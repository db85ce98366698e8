"""Streams blocks of host memory through a device, so that copies of one block overlap the kernels of another.

This is a pipeline with pinned memory and CUDA streams (CUDA C++ Programming Guide, "Overlapping Data Transfer and Kernel Execution"). All
tasks share one stream for copies to the device and one for copies back. So the copies of a direction run one after another, each at the
full speed of the link. Each of four tasks in flight has a stream for its kernels. Events order the streams. Two tasks fill the link or the
GPU. Two more cover the time in which tasks start, end and copy on the host. So a worker needs four threads per GPU. `accumulate` also
overlaps within a task, because it copies the next blocks while a kernel uses the last ones.

A `StreamingDevice` is the interface to the device. `cupy_device` has the one for GPUs; tests have one that records all calls.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from blocknb.arrays.halo import HaloBlock
from blocknb.arrays.in_flight import BytesInFlight, add

TASKS = 4  # in flight at once
Wrapper = Callable[..., Any]
HostBlock = np.ndarray | HaloBlock


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
        """Waits for the end of the stream, or for an event. Raises the error of a kernel that failed."""

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
        """Copies pinned memory to a contiguous array of the device."""

    def place(self, part: Any, array: Any, region: tuple[slice, ...]) -> None:
        """Copies an array of the device into a region of another one, on the active stream."""

    def copy_out(self, array: Any, host: np.ndarray, stream: Any) -> None:
        """Copies the device's memory to pinned memory."""


@dataclass(eq=False)
class TaskStream:
    """The stream for the kernels of one task, and the staging buffers and event pairs of the task that uses it.

    `places` are (array, array, region): what the next launch first copies into a region of another array."""

    kernels: Any
    places: list[tuple[Any, Any, Any]] = field(default_factory=list)
    staged: list[Any] = field(default_factory=list)
    copy_spans: list[tuple[Any, Any]] = field(default_factory=list)
    kernel_spans: list[tuple[Any, Any]] = field(default_factory=list)


class Streamer:
    """Runs wrappers on blocks of host memory through a device, with at most `limit` bytes of its memory in flight."""

    def __init__(self, device: StreamingDevice, limit: int | None, tasks: int = TASKS):
        self.device, self.memory = device, BytesInFlight(limit)
        self._to_device, self._to_host = device.stream(), device.stream()
        self._enqueue = threading.Lock()  # a copy and the events around it are adjacent in their stream
        self._idle: queue.LifoQueue[TaskStream] = queue.LifoQueue()
        for _ in range(tasks):
            self._idle.put(TaskStream(device.stream()))

    def run(self, wrapper: Wrapper, blocks: Sequence[HostBlock], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Calls `wrapper(*blocks, out)` with copies of the blocks on the device, and returns the result as an array of the host.

        The result is in pinned memory if all blocks are. Raises LaunchError if the blocks and the result have more bytes than the limit."""
        size = _bytes(shape, dtype)
        with self.memory.hold(self._device_bytes(blocks, size) + size), self._task() as task:
            out = self.device.empty(shape, dtype, self._to_device)
            given = self._copied_in(task, blocks, out)
            self._launch(task, wrapper, [*given, out])
            found = self._copied_out(task, out, shape, dtype, all(map(self._copies_directly, blocks)))
            del given, out  # before another task may hold their bytes
            return found

    def accumulate(
        self, wrapper: Wrapper, terms: Sequence[Sequence[np.ndarray]], shape: tuple[int, ...], dtype: Any
    ) -> np.ndarray:
        """Calls `wrapper(*blocks, out)` for the blocks of each term, in order, on one result that starts as zeros, and returns it.

        The blocks of two terms are on the device at once: the next ones are copied while a kernel uses the last ones. The result is in
        pinned memory if all blocks are."""
        device, sizes = self.device, [sum(block.nbytes for block in term) for term in terms]
        two = max((sum(sizes[i : i + 2]) for i in range(len(sizes))), default=0)
        with self.memory.hold(two + _bytes(shape, dtype)), self._task() as task:
            out = device.empty(shape, dtype, task.kernels)
            device.fill_zero(out, task.kernels)
            done: list[Any] = []
            buffers: list[list[Any]] = []  # of the last two terms, whose kernels may still run
            for term in terms:
                if len(buffers) == 2:
                    device.synchronize(done[-2])  # its memory can be used again
                    del buffers[0], task.staged[: len(term)]
                buffers.append(self._copied_in(task, term))
                self._launch(task, wrapper, [*buffers[-1], out])
                done.append(task.kernel_spans[-1][1])
            pinned = bool(terms) and all(self._copies_directly(block) for term in terms for block in term)
            found = self._copied_out(task, out, shape, dtype, pinned)
            buffers.clear()
            del out
            return found

    @contextlib.contextmanager
    def _task(self) -> Iterator[TaskStream]:
        """The stream of one task. At the end, also after an error, the device has finished the task, so that its buffers can be freed."""
        task = self._idle.get()
        try:
            yield task
            add(blocks=1, copy_ms=self._sum(task.copy_spans), compute_ms=self._sum(task.kernel_spans))
            self.device.synchronize(task.kernels)
        except BaseException:
            # After an error of a kernel, each wait raises an error, too. The first one says what happened.
            for stream in (self._to_device, self._to_host, task.kernels):
                with contextlib.suppress(Exception):
                    self.device.synchronize(self.device.record(stream))
            raise
        finally:
            for kept in (task.places, task.staged, task.copy_spans, task.kernel_spans):
                kept.clear()
            self._idle.put(task)

    def _sum(self, spans: Sequence[tuple[Any, Any]]) -> float:
        return sum(self.device.milliseconds(*span) for span in spans)

    def _copies_directly(self, block: HostBlock) -> bool:
        """Whether the device copies from the memory of a block, or of its chunk, without a staging buffer."""
        chunk = block.chunk if isinstance(block, HaloBlock) else block
        return bool(chunk.flags.c_contiguous and self.device.is_pinned(chunk))

    def _device_bytes(self, blocks: Sequence[HostBlock], spare: int) -> int:
        """The bytes of the device that blocks take while they are copied: also those of pieces that the device assembles.

        `spare` are the bytes of the result, in which one chunk can land. The sum is what `_copied_in` allocates."""
        found = 0
        for block in blocks:
            found += block.nbytes
            if isinstance(block, HaloBlock) and self._copies_directly(block):
                found += _frame_bytes(block)
                if block.chunk.nbytes <= spare:
                    spare = 0
                else:
                    found += block.chunk.nbytes
        return found

    def _copied_in(self, task: TaskStream, blocks: Sequence[HostBlock], spare: Any = None) -> list[Any]:
        """Starts the copies of blocks to the device. One chunk with a halo may land in the array `spare`."""
        device, found = self.device, []
        for block in blocks:
            if isinstance(block, HaloBlock) and self._copies_directly(block):
                chunk = block.chunk
                if spare is not None and chunk.nbytes <= spare.nbytes:
                    landing, spare = _as_array(spare, chunk.shape, chunk.dtype), None
                else:
                    landing = device.empty(chunk.shape, chunk.dtype, self._to_device)
                found.append(self._copied_pieces(task, block, landing))
            else:
                found.append(device.empty(block.shape, block.dtype, self._to_device))
                self._copy(task, self._to_device, device.copy_in, self._staged(task, block), found[-1])
        add(bytes_in=sum(block.nbytes for block in blocks))
        return found

    def _staged(self, task: TaskStream, block: HostBlock) -> np.ndarray:
        """A block as one array that the device copies from. It stays in memory until the task ends."""
        if isinstance(block, HaloBlock):
            host = self.device.pinned(block.shape, block.dtype)
            block.assembled(host)
        elif self._copies_directly(block):
            host = block
        else:
            host = self.device.pinned(block.shape, block.dtype)
            np.copyto(host, block)
        task.staged.append(host)
        return host

    def _copy(
        self, task: TaskStream, stream: Any, copy: Callable[..., None], source: Any, target: Any, after: Any = None
    ) -> None:
        """Enqueues a copy on one of the streams that all tasks share, after an event."""
        device = self.device
        with self._enqueue:
            if after is not None:
                device.wait(stream, after)
            begin = device.record(stream)
            copy(source, target, stream)
            task.copy_spans.append((begin, device.record(stream)))

    def _copied_pieces(self, task: TaskStream, block: HaloBlock, landing: Any) -> Any:
        """Copies a chunk to `landing`, and in one buffer the bands around it. The launch puts them into their regions of the result.

        The copy of the chunk begins first. Meanwhile the host collects the bands, often waiting for Python's lock."""
        device, end = self.device, 0
        task.staged += [block.chunk, landing]
        self._copy(task, self._to_device, device.copy_in, block.chunk, landing)
        packed = device.pinned((_frame_bytes(block) // block.dtype.itemsize,), block.dtype)
        frame = device.empty(packed.shape, block.dtype, self._to_device)
        found = device.empty(block.shape, block.dtype, self._to_device)
        task.places.append((landing, found, block.inside))
        for region, pieces in block.bands():
            shape = tuple(part.stop - part.start for part in region)
            begin, end = end, end + math.prod(shape)
            host, there = (buffer[begin:end].reshape(shape) for buffer in (packed, frame))
            for part, piece in pieces:
                host[part] = piece
            task.places.append((there, found, region))
        task.staged += [packed, frame]
        self._copy(task, self._to_device, device.copy_in, packed, frame)
        return found

    def _launch(self, task: TaskStream, wrapper: Wrapper, arrays: Sequence[Any]) -> None:
        """Launches the kernels of a wrapper after the copies so far."""
        device = self.device
        if task.copy_spans:
            device.wait(task.kernels, task.copy_spans[-1][1])
        begin = device.record(task.kernels)
        with device.active(task.kernels):
            while task.places:
                device.place(*task.places.pop())
            wrapper(*arrays)
        task.kernel_spans.append((begin, device.record(task.kernels)))

    def _copied_out(
        self, task: TaskStream, out: Any, shape: tuple[int, ...], dtype: Any, pinned: bool = False
    ) -> np.ndarray:
        """Copies the result back after the kernels, waits, and returns it, in pinned memory or not."""
        device, host = self.device, self.device.pinned(shape, dtype)
        after = task.kernel_spans[-1][1] if task.kernel_spans else device.record(task.kernels)
        self._copy(task, self._to_host, device.copy_out, out, host, after=after)
        device.synchronize(task.copy_spans[-1][1])
        add(bytes_out=host.nbytes)
        return host if pinned else host.copy()


def _as_array(memory: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of this shape and dtype at the start of a contiguous array."""
    return memory.reshape(-1).view(np.uint8)[: _bytes(shape, dtype)].view(dtype).reshape(shape)


def _frame_bytes(block: HaloBlock) -> int:
    return block.nbytes - int(block.chunk.nbytes)


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    size: int = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return size
