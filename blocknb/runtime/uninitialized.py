"""Arrays that were not yet written: `uninitialized` marks them, and launches with `checked="init"` find loads of them.

A marked array is filled with a poison. An element counts as written if a checked kernel has stored it. It also counts as written if its 4
bytes no longer hold the poison, because the host or another kernel has written them. The poison is a NaN as fp16, bf16 and fp32, and a
large integer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb import forks
from blocknb.errors import LaunchError
from blocknb.runtime import cuda
from blocknb.runtime.arguments import describer
from blocknb.runtime.extents import byte_range, byte_strides, extent
from blocknb.runtime.kinds import HOST

POISON = np.frombuffer(bytes.fromhex("fbffe17f"), np.uint8)  # two bytes repeat in no host value of use
_ON_GPU = "checked='init' on a GPU"


@dataclass(eq=False)
class UnwrittenArray:
    """The bytes from `low` to `high` of an array, and a flag for each byte that a kernel has written."""

    low: int
    high: int
    device: int
    array: weakref.ref[Any]
    flags: Any

    @property
    def bytes(self) -> Any:
        """The memory of the array, as bytes of NumPy or CuPy."""
        size = self.high - self.low
        if self.device == HOST:
            return np.frombuffer(memoryview((ctypes.c_ubyte * size).from_address(self.low)), np.uint8)
        cupy = cuda.cupy_for(_ON_GPU)
        memory = cupy.cuda.UnownedMemory(self.low, size, self.array(), self.device)
        return cupy.ndarray((size,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def fill(self) -> None:
        """Writes the poison."""
        self.bytes[:] = self._poison()

    def note_writes(self) -> None:
        """Sets the flags of groups of 4 bytes that no longer hold the poison."""
        size = self.high - self.low
        changed = (self.bytes != self._poison()) & (self.flags == 0)
        whole = size // 4 * 4
        groups = changed[:whole].reshape(-1, 4).any(axis=1)
        self.flags[:whole].reshape(-1, 4)[groups] = 1
        self.flags[whole:][changed[whole:]] = 1

    def _poison(self) -> Any:
        size = self.high - self.low
        poison = np.tile(POISON, -(-size // 4))[:size]
        return poison if self.device == HOST else cuda.cupy_for(_ON_GPU).asarray(poison)


_arrays: list[UnwrittenArray] = []
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _lock=threading.Lock)


def uninitialized(array: Any) -> Any:
    """Marks an array as not yet written, and returns it: `out = blocknb.testing.uninitialized(np.empty(n, np.float32))`.

    A launch with `checked="init"` then raises UninitializedError at the first load of an element that nothing has written since. Stores of
    launches with `checked="init"` count as writes, and so do changes by the host and by other launches. The array must be contiguous. It
    is an array of NumPy, CuPy or torch, and is filled with a poison. Raises LaunchError for other objects.
    """
    kind, address = describer(array)(array)
    if kind.device is None or not hasattr(array, "shape"):
        raise LaunchError(f"uninitialized marks an array, not a {type(array).__name__}")
    size = kind.type.element.bytes
    strides = byte_strides(array, size)
    low, high = extent(array, address) if strides is None else byte_range(address, array.shape, strides, size)
    if high - low != size * int(np.prod(array.shape)):
        raise LaunchError("uninitialized marks a contiguous array", hint="mark the array, and pass views of it")
    if kind.readonly:
        raise LaunchError("uninitialized fills the array, and this one is read-only")
    host = kind.device < 0
    with contextlib.nullcontext() if host else cuda.cupy_for(_ON_GPU).cuda.Device(kind.device):
        flags = (np if host else cuda.cupy_for(_ON_GPU)).zeros(high - low, np.uint8)
        marked = UnwrittenArray(low, high, HOST if host else kind.device, weakref.ref(array, _forget), flags)
        marked.fill()
    with _lock:
        _arrays[:] = [x for x in _arrays if x.high <= low or x.low >= high or x.device != marked.device]
        _arrays.append(marked)
    return array


def _forget(reference: weakref.ref[Any]) -> None:
    _arrays[:] = [x for x in _arrays if x.array is not reference]


def unwritten(low: int, high: int, device: int) -> list[UnwrittenArray]:
    """The marked arrays that have bytes of a range, with flags that include the writes of the host."""
    with _lock:
        found = [x for x in _arrays if x.low < high and low < x.high and x.device == device and x.array() is not None]
    for array in found:
        array.note_writes()
    return found
