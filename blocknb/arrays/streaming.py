"""Streams blocks of host memory through a device, so that copies of one block overlap the kernels of another.

This is double buffering with pinned memory and CUDA streams (CUDA C++ Programming Guide, "Overlapping Data Transfer and Kernel
Execution"). A `StreamPair` has two streams: one copies, one computes. Events order both. Each of four pairs serves one task at a time:
while the kernels of a task run, other tasks copy. Two tasks fill the link or the GPU. Two more cover the time in which tasks start, end and
copy on the host. So a worker needs four threads per GPU; more threads have the next tasks at hand. `accumulate` also overlaps within a
task, because it copies the next blocks while a kernel uses the last ones.

A `StreamingDevice` is the interface to the device. `cupy_device` has the one for GPUs; tests have one that records all calls.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from blocknb.arrays.halo import HaloBlock
from blocknb.arrays.in_flight import BytesInFlight, add

PAIRS = 4
Wrapper = Callable[..., Any]
HostBlock = np.ndarray | HaloBlock
ROWS = 2  # axes of a part of an array that `copy_in` fills: one row, or a matrix of rows


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
        """Copies pinned memory to an array of the device, which is contiguous, or a matrix of contiguous rows."""

    def place(self, part: Any, array: Any, region: tuple[slice, ...], stream: Any) -> None:
        """Copies an array of the device, or a number, into a region of an array of the device."""

    def copy_out(self, array: Any, host: np.ndarray, stream: Any) -> None:
        """Copies the device's memory to pinned memory."""


@dataclass(eq=False)
class StreamPair:
    """Two streams, and the staging buffers and event pairs of the task that uses them."""

    copies: Any
    kernels: Any
    staged: list[Any] = field(default_factory=list)
    copy_spans: list[tuple[Any, Any]] = field(default_factory=list)
    kernel_spans: list[tuple[Any, Any]] = field(default_factory=list)


class Streamer:
    """Runs wrappers on blocks of host memory through a device, with at most `limit` bytes of its memory in flight."""

    def __init__(self, device: StreamingDevice, limit: int | None, pairs: int = PAIRS):
        self.device, self.memory = device, BytesInFlight(limit)
        self._pairs: queue.LifoQueue[StreamPair] = queue.LifoQueue()
        for _ in range(pairs):
            self._pairs.put(StreamPair(device.stream(), device.stream()))

    def run(self, wrapper: Wrapper, blocks: Sequence[HostBlock], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Calls `wrapper(*blocks, out)` with copies of the blocks on the device, and returns the result as an array of the host.

        The result is in pinned memory if all blocks are. Raises LaunchError if the blocks and the result have more bytes than the limit."""
        device, size = self.device, _bytes(shape, dtype)
        with self.memory.hold(sum(map(self._device_bytes, blocks)) + size), self._pair() as pair:
            given = self._copied_in(pair, blocks)
            out = device.empty(shape, dtype, pair.kernels)
            self._launch(pair, wrapper, [*given, out])
            found = self._copied_out(pair, out, shape, dtype, all(map(self._copies_directly, blocks)))
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
        with self.memory.hold(two + _bytes(shape, dtype)), self._pair() as pair:
            out = device.empty(shape, dtype, pair.kernels)
            device.fill_zero(out, pair.kernels)
            done: list[Any] = []
            buffers: list[list[Any]] = []  # of the last two terms, whose kernels may still run
            for term in terms:
                if len(buffers) == 2:
                    device.wait(pair.copies, done[-2])
                    device.synchronize(done[-2])  # its pinned memory can be used again
                    del buffers[0], pair.staged[: len(term)]
                buffers.append(self._copied_in(pair, term))
                self._launch(pair, wrapper, [*buffers[-1], out])
                done.append(pair.kernel_spans[-1][1])
            pinned = bool(terms) and all(self._copies_directly(block) for term in terms for block in term)
            found = self._copied_out(pair, out, shape, dtype, pinned)
            buffers.clear()
            del out
            return found

    @contextlib.contextmanager
    def _pair(self) -> Iterator[StreamPair]:
        """A pair for one task. At the end, also after an error, its streams are idle, so that its buffers can be freed."""
        pair = self._pairs.get()
        try:
            yield pair
            add(blocks=1, copy_ms=self._sum(pair.copy_spans), compute_ms=self._sum(pair.kernel_spans))
        finally:
            try:
                for stream in (pair.copies, pair.kernels):
                    self.device.synchronize(stream)
            finally:
                for kept in (pair.staged, pair.copy_spans, pair.kernel_spans):
                    kept.clear()
                self._pairs.put(pair)

    def _sum(self, spans: Sequence[tuple[Any, Any]]) -> float:
        return sum(self.device.milliseconds(*span) for span in spans)

    def _copies_directly(self, block: HostBlock) -> bool:
        """Whether the device copies from the memory of a block, or of its chunk, without a staging buffer."""
        chunk = block.chunk if isinstance(block, HaloBlock) else block
        return bool(chunk.flags.c_contiguous and self.device.is_pinned(chunk))

    def _device_bytes(self, block: HostBlock) -> int:
        """The bytes of the device that a block takes while it is copied: those of its pieces too, if the device assembles it."""
        if not (isinstance(block, HaloBlock) and self._copies_directly(block)):
            return block.nbytes
        chunk = 0 if len(block.shape) <= ROWS else block.chunk.nbytes
        return block.nbytes + chunk + sum(piece.nbytes for _, piece in block.frame if isinstance(piece, np.ndarray))

    def _copied_in(self, pair: StreamPair, blocks: Sequence[HostBlock]) -> list[Any]:
        """Starts the copies of blocks to the device."""
        device, found = self.device, []
        for block in blocks:
            array = device.empty(block.shape, block.dtype, pair.copies)
            if isinstance(block, HaloBlock) and self._copies_directly(block):
                self._copy_in_pieces(pair, block, array)
            else:
                self._copy_in(pair, self._staged(pair, block), array)
            found.append(array)
        add(bytes_in=sum(block.nbytes for block in blocks))
        return found

    def _staged(self, pair: StreamPair, block: HostBlock) -> np.ndarray:
        """A block as one array that the device copies from. It stays in memory until the task ends."""
        if isinstance(block, HaloBlock):
            host = self.device.pinned(block.shape, block.dtype)
            block.assembled(host)
        elif self._copies_directly(block):
            host = block
        else:
            host = self.device.pinned(block.shape, block.dtype)
            np.copyto(host, block)
        pair.staged.append(host)
        return host

    def _copy_in(self, pair: StreamPair, host: np.ndarray, array: Any) -> None:
        begin = self.device.record(pair.copies)
        self.device.copy_in(host, array, pair.copies)
        pair.copy_spans.append((begin, self.device.record(pair.copies)))

    def _copy_in_pieces(self, pair: StreamPair, block: HaloBlock, array: Any) -> None:
        """Copies the chunk, and in one buffer the pieces around it. The device puts them into their regions."""
        device, stream = self.device, pair.copies
        arrays = [(region, piece) for region, piece in block.frame if isinstance(piece, np.ndarray)]
        packed = device.pinned((sum(piece.size for _, piece in arrays),), block.dtype)
        ends = np.cumsum([piece.size for _, piece in arrays]).tolist()
        for (_, piece), end in zip(arrays, ends, strict=True):
            packed[end - piece.size : end] = piece.reshape(-1)
        pair.staged += [packed, block.chunk]
        frame = device.empty(packed.shape, block.dtype, stream)
        self._copy_in(pair, packed, frame)
        begin = device.record(stream)
        if len(block.shape) <= ROWS:
            device.copy_in(block.chunk, array[block.inside], stream)
        else:
            chunk = device.empty(block.chunk.shape, block.dtype, stream)
            device.copy_in(block.chunk, chunk, stream)
            device.place(chunk, array, block.inside, stream)
        for (region, piece), end in zip(arrays, ends, strict=True):
            device.place(frame[end - piece.size : end].reshape(piece.shape), array, region, stream)
        for region, piece in block.frame:
            if not isinstance(piece, np.ndarray):
                device.place(piece, array, region, stream)
        pair.copy_spans.append((begin, device.record(stream)))

    def _launch(self, pair: StreamPair, wrapper: Wrapper, arrays: Sequence[Any]) -> None:
        """Launches the kernels of a wrapper after the copies so far."""
        device = self.device
        if pair.copy_spans:
            device.wait(pair.kernels, pair.copy_spans[-1][1])
        begin = device.record(pair.kernels)
        with device.active(pair.kernels):
            wrapper(*arrays)
        pair.kernel_spans.append((begin, device.record(pair.kernels)))

    def _copied_out(
        self, pair: StreamPair, out: Any, shape: tuple[int, ...], dtype: Any, pinned: bool = False
    ) -> np.ndarray:
        """Copies the result back after the kernels, waits, and returns it, in pinned memory or not."""
        device, host = self.device, self.device.pinned(shape, dtype)
        if pair.kernel_spans:
            device.wait(pair.copies, pair.kernel_spans[-1][1])
        else:
            device.wait(pair.copies, device.record(pair.kernels))  # the zeros of a sum without terms
        begin = device.record(pair.copies)
        device.copy_out(out, host, pair.copies)
        pair.copy_spans.append((begin, device.record(pair.copies)))
        device.synchronize(pair.copies)
        add(bytes_out=host.nbytes)
        return host if pinned else host.copy()


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    size: int = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return size
