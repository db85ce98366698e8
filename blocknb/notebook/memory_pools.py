"""Watches CuPy's memory pools during a cell: bytes used and held before and after, their peaks, and each allocation of a launch.

CuPy calls the memory hooks of a thread when a pool gives or takes back a block (`malloc`, `free`). It also calls them when a pool asks CUDA
for memory (`alloc`). The figures before and after are those of the pool itself. Between them, the watch adds up what the hooks report. At
the end it compares its sum with the pool, because allocations of other threads call no hook of this one. CuPy's pool of pinned memory tells
only how many blocks are free.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PoolReading:
    """The bytes of a device's pool that arrays use, and those that it holds; the free and total bytes of the device (cudaMemGetInfo)."""

    used: int
    held: int
    free: int
    total: int


@dataclass
class DevicePool:
    """The pool of one device during a cell. `used` is the running sum, and `peak` its maximum; `peak_held` that of the held bytes."""

    before: PoolReading
    used: int
    peak: int
    peak_held: int
    after: PoolReading | None = None

    def changed(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)


@dataclass
class Allocations:
    """The memory that one launch took from the pool: bytes, blocks, and the highest sum of bytes at a time. `live` are the blocks not freed
    yet."""

    bytes: int = 0
    blocks: int = 0
    peak: int = 0
    live: dict[tuple[int, int], int] = field(default_factory=dict)

    def allocated(self, key: tuple[int, int], size: int) -> None:
        self.live[key] = size
        self.bytes, self.blocks = self.bytes + size, self.blocks + 1
        self.peak = max(self.peak, sum(self.live.values()))


@dataclass
class PoolWatch:
    """Watches the pools from `start` to `stop`, in this thread.

    `pools` are by device, `made` the addresses and bytes of blocks that the watched time has allocated and not freed. `launch` takes the
    allocations of the launch in progress. `pinned` has the free blocks of the pinned pool before and after. `late`: the watch began
    within the cell, which imported CuPy.
    """

    cupy: Any
    late: bool = False
    pools: dict[int, DevicePool] = field(default_factory=dict)
    made: dict[tuple[int, int], int] = field(default_factory=dict)
    launch: Allocations | None = None
    pinned: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)
    _hook: Any = None

    def start(self) -> None:
        self.pinned = (self._free_pinned(), 0)
        self.see(int(self.cupy.cuda.runtime.getDevice()))
        if not hasattr(self._pool(), "used_bytes"):
            self.notes.append("CuPy's allocator is not a memory pool, so only the figures of the device are known.")
        self._hook = _hook_for(self)
        self._hook.__enter__()

    def stop(self) -> None:
        if self._hook is None:
            return
        self._hook.__exit__()
        self._hook = None
        self.pinned = (self.pinned[0], self._free_pinned())
        for device, pool in self.pools.items():
            pool.after = self._reading(device)
            if pool.used != pool.after.used:
                difference = abs(pool.used - pool.after.used)
                self.notes.append(
                    f"The pool of GPU {device} changed by {difference} bytes that no hook of this thread saw. They belong to another "
                    "thread or another allocator, so the peak may have been higher."
                )
            pool.peak, pool.peak_held = max(pool.peak, pool.after.used), max(pool.peak_held, pool.after.held)

    def see(self, device: int) -> DevicePool:
        """The pool of a device, which is watched from now on. Its figures from before the cell follow from the first event."""
        if device not in self.pools:
            now = self._reading(device)
            self.pools[device] = DevicePool(now, now.used, now.used, now.held)
        return self.pools[device]

    def allocated(self, device: int, address: int, size: int) -> None:
        self.see(device).changed(size)
        self.made[device, address] = size
        if self.launch is not None:
            self.launch.allocated((device, address), size)

    def freed(self, device: int, address: int, size: int) -> None:
        self.see(device).changed(-size)
        self.made.pop((device, address), None)
        if self.launch is not None:
            self.launch.live.pop((device, address), None)

    def grew(self, device: int) -> None:
        pool = self.see(device)
        pool.peak_held = max(pool.peak_held, int(getattr(self._pool(), "total_bytes", int)()))

    def _pool(self) -> Any:
        """The pool of the current allocator."""
        return getattr(self.cupy.cuda.get_allocator(), "__self__", None)

    def _free_pinned(self) -> int:
        return int(self.cupy.get_default_pinned_memory_pool().n_free_blocks())

    def _reading(self, device: int) -> PoolReading:
        with self.cupy.cuda.Device(device):
            pool = self._pool()
            used, held = (int(getattr(pool, name, int)()) for name in ("used_bytes", "total_bytes"))
            free, total = self.cupy.cuda.runtime.memGetInfo()
        return PoolReading(used, held, int(free), int(total))


def _hook_for(watch: PoolWatch) -> Any:
    """The memory hook that reports to a watch. Its class derives from CuPy's, so it exists only with CuPy."""

    class PoolHook(watch.cupy.cuda.memory_hook.MemoryHook):  # type: ignore[name-defined]
        name = f"blocknb {id(watch)}"  # several cells may run inside each other

        def malloc_preprocess(self, device_id: int, **ignored: Any) -> None:
            watch.see(device_id)

        def malloc_postprocess(self, device_id: int, mem_size: int, mem_ptr: int, **ignored: Any) -> None:
            if mem_ptr and mem_size:
                watch.allocated(device_id, mem_ptr, mem_size)

        def free_preprocess(self, device_id: int, **ignored: Any) -> None:
            watch.see(device_id)

        def free_postprocess(self, device_id: int, mem_size: int, mem_ptr: int, **ignored: Any) -> None:
            watch.freed(device_id, mem_ptr, mem_size)

        def alloc_postprocess(self, device_id: int, **ignored: Any) -> None:
            watch.grew(device_id)

    return PoolHook()
