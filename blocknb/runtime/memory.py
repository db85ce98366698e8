"""Arrays as ranges of bytes: who owns the memory of an array, how it is seen, a copy of a range, and a view of a range.

NumPy, CuPy and torch say the same things in three ways; here each says them once. A view names its owner through `base`, or in torch
through its storage's own tensor; the owner is what keeps the memory alive. A copy begins at an address that is equal to the
original's modulo 256, so that a kernel specialises on it as it did on the original.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGNMENT = 256  # more than any vector access asks for


@dataclass(frozen=True)
class Seen:
    """How bytes are seen as an array. `strides` are in bytes, `origin` is where element 0 lies from the lowest byte."""

    library: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    origin: int
    readonly: bool = False


def place_of(value: Any) -> tuple[Any, int, int, Seen] | None:
    """(owner, lowest address, address behind the highest byte, how it is seen); None for what is of none of the three libraries."""
    library = _library(value)
    if library is None:
        return None
    if library == "torch":
        if value.layout is not sys.modules["torch"].strided:
            return None
        size = value.element_size()
        address, strides = value.data_ptr(), tuple(s * size for s in value.stride())
        base = value._base
        owner = value if base is None or base.untyped_storage().data_ptr() != _storage(value) else base
    else:
        size, strides = value.dtype.itemsize, tuple(value.strides)
        address = value.ctypes.data if library == "numpy" else value.data.ptr
        owner = value
        kind = np.ndarray if library == "numpy" else sys.modules["cupy"].ndarray
        while isinstance(owner.base, kind):
            owner = owner.base
    shape = tuple(map(int, value.shape))
    low, high = _reach(address, shape, strides, size)
    readonly = library == "numpy" and not value.flags.writeable
    return owner, low, high, Seen(library, shape, strides, value.dtype, address - low, readonly)


def bytes_of(owner: Any, low: int, high: int) -> Any:
    """The bytes of a range as an array of uint8 that keeps the owner alive; it shares the memory."""
    match _library(owner):
        case "numpy":
            return np.asarray(_Range(owner, low, high - low))
        case "torch":
            torch = sys.modules["torch"]
            made = torch.empty(0, dtype=torch.uint8, device=owner.device)
            return made.set_(owner.untyped_storage(), low - _storage(owner), (high - low,), (1,))
    cupy = sys.modules["cupy"]
    return cupy.ndarray((high - low,), cupy.uint8, owner.data + (low - owner.data.ptr))


def copied(held: Any, address: int) -> Any:
    """A copy of bytes that begins at `address` modulo 256, on the same device."""
    count = held.shape[0]
    match _library(held):
        case "numpy":
            room = np.empty(count + ALIGNMENT, np.uint8)
            begin = room.ctypes.data
        case "torch":
            torch = sys.modules["torch"]
            room = torch.empty(count + ALIGNMENT, dtype=torch.uint8, device=held.device)
            begin = room.data_ptr()
        case _:
            room = sys.modules["cupy"].empty(count + ALIGNMENT, np.uint8)
            begin = room.data.ptr
    skipped = (address - begin) % ALIGNMENT
    made = room[skipped : skipped + count]
    made[:] = held
    return made


def seen_as(held: Any, offset: int, seen: Seen) -> Any:
    """The array that begins `offset` bytes into a range of bytes."""
    at = offset + seen.origin
    if seen.library == "numpy":
        made = np.ndarray(seen.shape, seen.dtype, held, at, seen.strides)
        made.flags.writeable = not seen.readonly
        return made
    if seen.library == "torch":
        torch = sys.modules["torch"]
        made = torch.empty(0, dtype=seen.dtype, device=held.device)
        size = made.element_size()
        begin = held.storage_offset() + at
        return made.set_(held.untyped_storage(), begin // size, seen.shape, tuple(s // size for s in seen.strides))
    return sys.modules["cupy"].ndarray(seen.shape, seen.dtype, held.data + at, strides=seen.strides)


class _Range:
    """A range of memory for NumPy, which keeps this object and so the owner."""

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


def _reach(address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int]:
    if math.prod(shape) == 0:
        return address, address
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return address + sum(s for s in steps if s < 0), address + sum(s for s in steps if s > 0) + size
