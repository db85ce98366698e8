"""A simulated CuPy whose arrays lie in host memory: pools with memory hooks, the free memory of a device, and arrays that share blocks.

It behaves as CuPy 14 does where blocknb's figures depend on it. Sizes are rounded up to 512 bytes, and a freed block stays in the pool. The
pool asks the device only if no free block fits. Hooks belong to a thread, and `float(x)` or `x.item()` call `get`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from blocknb.runtime import cuda, machine

UNIT, PAGE = 512, 2 << 20


class OutOfMemoryError(MemoryError):
    """The pool cannot get a block."""


OutOfMemoryError.__module__ = "cupy.cuda.memory"


class MemoryHook:
    """The base class of hooks, with CuPy's protocol."""

    name = "MemoryHook"

    def __enter__(self) -> Any:
        hooks = _hooks()
        if self.name in hooks:
            raise KeyError(f"memory hook {self.name} already exists")
        hooks[self.name] = self
        return self

    def __exit__(self, *ignored: Any) -> None:
        del _hooks()[self.name]

    def _nothing(self, **ignored: Any) -> None:
        pass

    alloc_preprocess = alloc_postprocess = malloc_preprocess = malloc_postprocess = _nothing
    free_preprocess = free_postprocess = _nothing


_thread = threading.local()


def _hooks() -> dict[str, Any]:
    return vars(_thread).setdefault("hooks", {})


def _call(when: str, **facts: Any) -> None:
    for hook in list(_hooks().values()):
        getattr(hook, when)(**facts)


class PretendBlock:
    """A block of the pool, which goes back to it when the last array goes."""

    def __init__(self, pool: PretendPool, storage: np.ndarray):
        self.storage, self.size, self.ptr, self.device_id = storage, storage.nbytes, storage.ctypes.data, 0
        weakref.finalize(self, pool.take_back, storage).atexit = False


class PretendPool:
    """A memory pool of one device."""

    def __init__(self, device: PretendDevice):
        self.device, self.free, self.used, self.total, self.limit = device, list[np.ndarray](), 0, 0, 0

    def malloc(self, size: int) -> Any:
        rounded = -(-size // UNIT) * UNIT
        _call("malloc_preprocess", device_id=0, size=size, mem_size=rounded)
        block, address = None, 0
        try:
            block = PretendBlock(self, self._storage(rounded))
            self.used, address = self.used + rounded, block.ptr
        finally:
            _call("malloc_postprocess", device_id=0, size=size, mem_size=rounded, mem_ptr=address, pmem_id=id(block))
        return SimpleNamespace(mem=block, ptr=address, device_id=0)

    def _storage(self, size: int) -> np.ndarray:
        for i, storage in enumerate(self.free):
            if storage.nbytes == size:
                return self.free.pop(i)
        if self.limit and self.total + size > self.limit:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes (allocated so far: {self.total} bytes).")
        _call("alloc_preprocess", device_id=0, mem_size=size)
        self.total += size
        self.device.taken += -(-size // PAGE) * PAGE
        _call("alloc_postprocess", device_id=0, mem_size=size, mem_ptr=1)
        return np.zeros(size, np.uint8)

    def take_back(self, storage: np.ndarray) -> None:
        facts = {"device_id": 0, "mem_size": storage.nbytes, "mem_ptr": storage.ctypes.data, "pmem_id": 0}
        _call("free_preprocess", **facts)
        self.used -= storage.nbytes
        self.free.append(storage)
        _call("free_postprocess", **facts)

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.total

    def get_limit(self) -> int:
        return self.limit


class PretendDevice:
    """The memory of the device: `taken` bytes of `total`."""

    def __init__(self) -> None:
        self.taken, self.total = 0, 1 << 34

    def info(self) -> tuple[int, int]:
        return self.total - self.taken, self.total


class _Base:
    """The methods that CuPy's array inherits."""

    def __init__(self, pool: PretendPool, host: Any, data: Any = None, base: Any = None):
        values = np.asarray(host)
        self.data = pool.malloc(values.nbytes) if data is None else data
        self._values = np.ndarray(values.shape, values.dtype, self.data.mem.storage)
        if data is None:
            self._values[...] = values
        self.shape, self.strides, self.size = values.shape, values.strides, values.size
        self.dtype, self.nbytes, self.base, self._pool = values.dtype, values.nbytes, base, pool
        self.flags = SimpleNamespace(c_contiguous=True)

    __cuda_array_interface__ = {"version": 3}

    def get(self) -> Any:
        return self._values.copy()

    def set(self, host: Any) -> None:
        self._values[...] = host

    def item(self) -> Any:
        return self.get().item()

    def __float__(self) -> float:
        return float(self.get())

    def __getitem__(self, place: slice) -> Any:
        assert place == slice(None)
        return type(self)(self._pool, self._values, self.data, self if self.base is None else self.base)


class PretendCupy:
    """`module` stands for CuPy; `pool` and `device` are its memory."""

    def __init__(self) -> None:
        self.device = PretendDevice()
        self.pool = PretendPool(self.device)
        pool = self.pool
        array_class = type("ndarray", (_Base,), {"__module__": "cupy"})
        runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1, memGetInfo=self.device.info)
        self.module: Any = ModuleType("cupy")
        self.module.cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda device: contextlib.nullcontext(),
            get_allocator=lambda: pool.malloc,
            alloc=pool.malloc,
            memory_hook=SimpleNamespace(MemoryHook=MemoryHook),
        )
        self.module.ndarray = array_class
        self.module.get_default_pinned_memory_pool = lambda: SimpleNamespace(n_free_blocks=lambda: 3)
        self.module.asarray = self.module.array = self.module.asanyarray = lambda host, *rest: (
            host if isinstance(host, array_class) else array_class(pool, host)
        )
        self.module.zeros = lambda count, dtype=np.float32: array_class(pool, np.zeros(count, dtype))


@contextlib.contextmanager
def pretend_cupy() -> Iterator[PretendCupy]:
    """Replaces CuPy by a simulated one."""
    import pytest

    from blocknb.notebook import device_copies, out_of_memory

    found, is_users = PretendCupy(), device_copies.is_users
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", found.module)
        patch.setattr(cuda, "cupy", lambda: found.module)
        patch.setattr(machine, "has_gpu", lambda: True)
        for module in (device_copies, out_of_memory):  # CuPy's own code has no Python frames there
            patch.setattr(module, "is_users", lambda file: file != __file__ and is_users(file))
        yield found
