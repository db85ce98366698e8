"""A GPU as a device that blocks stream through: CuPy's streams, events, memory pools and pinned memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from blocknb.runtime import cuda

_PINNED = 1  # cudaMemoryTypeHost, "Runtime API", Unified Addressing


class CupyDevice:
    """The GPU with a number, as a `StreamingDevice`. The memory pools of CuPy keep the buffers for the next blocks."""

    def __init__(self, number: int):
        self.number, self.cupy = number, cuda.cupy()

    def free_memory(self) -> int:
        """The bytes that the driver has free, and those of CuPy's pool that no array uses."""
        with self.cupy.cuda.Device(self.number):
            pool = self.cupy.get_default_memory_pool()
            return int(self.cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes())

    def stream(self) -> Any:
        with self.cupy.cuda.Device(self.number):
            return self.cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def active(self, stream: Any) -> Iterator[None]:
        with self.cupy.cuda.Device(self.number), stream:
            yield

    def record(self, stream: Any) -> Any:
        # The driver creates an event on the current device. A thread that enters a device may have to wait for Python's lock again.
        if self.cupy.cuda.runtime.getDevice() == self.number:
            return stream.record()
        with self.cupy.cuda.Device(self.number):
            return stream.record()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()

    def milliseconds(self, first: Any, second: Any) -> float:
        return float(self.cupy.cuda.get_elapsed_time(first, second))

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        memory = self.cupy.cuda.alloc_pinned_memory(max(count * dtype.itemsize, 1))
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def is_pinned(self, block: np.ndarray) -> bool:
        return bool(block.size) and self.cupy.cuda.runtime.pointerGetAttributes(block.ctypes.data).type == _PINNED

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: Any) -> Any:
        with self.active(stream):
            return self.cupy.empty(shape, dtype)

    def fill_zero(self, array: Any, stream: Any) -> None:
        array.data.memset_async(0, array.nbytes, stream)

    def copy_in(self, host: np.ndarray, array: Any, stream: Any) -> None:
        if host.nbytes:
            array.data.copy_from_host_async(host.ctypes.data, host.nbytes, stream)

    def place(self, part: Any, array: Any, region: tuple[slice, ...]) -> None:
        array[region] = part

    def copy_out(self, array: Any, host: np.ndarray, stream: Any) -> None:
        if host.nbytes:
            array.data.copy_to_host_async(host.ctypes.data, host.nbytes, stream)
