"""Arrays of NumPy, CuPy and torch as ranges of bytes: the owner of an array's memory, copies of a range, and views of a range.

The owner is the object that keeps the memory alive. NumPy and CuPy views name it through `base`, torch views through `_base`. A copy
begins at an address that equals the original's modulo 256, so a kernel specializes on both alike.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.runtime.extents import byte_range, byte_strides

ALIGNMENT = 256  # bytes, more than any vector access needs


@dataclass(frozen=True)
class StridedView:
    """The interpretation of a range of bytes as an array. `strides` and the `offset` of element 0 in the range are in bytes."""

    library: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    offset: int
    readonly: bool = False


def owner_and_view(value: Any) -> tuple[Any, int, int, StridedView] | None:
    """Returns (owner, lowest address, address after the highest byte, view) of an array, or None for an object of another library."""
    library = _library(value)
    if library is None:
        return None
    if library == "torch":
        if value.layout is not sys.modules["torch"].strided:
            return None
        size, address = value.element_size(), value.data_ptr()
        base = value._base
        owner = value if base is None or base.untyped_storage().data_ptr() != _storage(value) else base
    else:
        size, address = value.dtype.itemsize, value.ctypes.data if library == "numpy" else value.data.ptr
        owner = value
        kind = np.ndarray if library == "numpy" else sys.modules["cupy"].ndarray
        while isinstance(owner.base, kind):
            owner = owner.base
    shape, strides = tuple(map(int, value.shape)), byte_strides(value, size) or ()
    low, high = byte_range(address, shape, strides, size)
    readonly = library == "numpy" and not value.flags.writeable
    return owner, low, high, StridedView(library, shape, strides, value.dtype, address - low, readonly)


def bytes_of(owner: Any, low: int, high: int) -> Any:
    """Returns the bytes of a range as an array of uint8, which shares the memory and keeps the owner alive."""
    match _library(owner):
        case "numpy":
            return np.asarray(_Range(owner, low, high - low))
        case "torch":
            torch = sys.modules["torch"]
            array = torch.empty(0, dtype=torch.uint8, device=owner.device)
            return array.set_(owner.untyped_storage(), low - _storage(owner), (high - low,), (1,))
    cupy = sys.modules["cupy"]
    return cupy.ndarray((high - low,), cupy.uint8, owner.data + (low - owner.data.ptr))


def aligned_copy(data: Any, address: int) -> Any:
    """Returns a copy of bytes on the same device. It begins at an address that equals `address` modulo 256."""
    count = data.shape[0]
    match _library(data):
        case "numpy":
            buffer = np.empty(count + ALIGNMENT, np.uint8)
            begin = buffer.ctypes.data
        case "torch":
            torch = sys.modules["torch"]
            buffer = torch.empty(count + ALIGNMENT, dtype=torch.uint8, device=data.device)
            begin = buffer.data_ptr()
        case _:
            buffer = sys.modules["cupy"].empty(count + ALIGNMENT, np.uint8)
            begin = buffer.data.ptr
    skipped = (address - begin) % ALIGNMENT
    array = buffer[skipped : skipped + count]
    array[:] = data
    return array


def address_of(data: Any) -> int:
    """The address of the first byte of an array."""
    match _library(data):
        case "numpy":
            return int(data.ctypes.data)
        case "torch":
            return int(data.data_ptr())
    return int(data.data.ptr)


def array_of(data: Any, offset: int, view: StridedView) -> Any:
    """Returns the array of a view whose range begins `offset` bytes into `held`."""
    offset += view.offset
    if view.library == "numpy":
        array = np.ndarray(view.shape, view.dtype, data, offset, view.strides)
        array.flags.writeable = not view.readonly
        return array
    if view.library == "torch":
        torch = sys.modules["torch"]
        array = torch.empty(0, dtype=view.dtype, device=data.device)
        size = array.element_size()
        begin = (data.storage_offset() + offset) // size
        return array.set_(data.untyped_storage(), begin, view.shape, tuple(s // size for s in view.strides))
    return sys.modules["cupy"].ndarray(view.shape, view.dtype, data.data + offset, strides=view.strides)


def transfer(device: int, remote: int, host: int, size: int, back: bool) -> None:
    """Copies bytes from an address of a GPU to one of the host, or back, once the GPU is idle."""
    from blocknb.runtime import cuda

    library = cuda.api()
    with library.Device(device) as gpu:
        gpu.synchronize()
        if size:
            runtime = library.runtime
            ends = (remote, host) if back else (host, remote)
            runtime.memcpy(*ends, size, runtime.memcpyHostToDevice if back else runtime.memcpyDeviceToHost)


class _Range:
    """A range of memory with the array interface. The NumPy array made from it keeps this object, and so the owner, alive."""

    def __init__(self, owner: Any, low: int, count: int):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": (count,), "typestr": "|u1", "data": (low, False)}


def _library(value: Any) -> str | None:
    if isinstance(value, np.ndarray):
        return "numpy"
    for name, kind in (("torch", "Tensor"), ("cupy", "ndarray")):
        module = sys.modules.get(name)
        if module is not None and isinstance(value, getattr(module, kind, ())):
            return name
    return None


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage().data_ptr()
