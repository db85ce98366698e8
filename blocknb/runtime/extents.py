"""The byte extent of an array, from its lowest to its highest address. Bounds checks compare with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from blocknb.runtime.interface import TensorWrapper

UNBOUNDED = (0, 2**64 - 1)
EMPTY = (2**64 - 1, 2**64 - 1)  # of an empty array without an address: the bytes just below address 0 are outside, too


def byte_range(address: int, shape: Sequence[int], strides: Sequence[int], size: int) -> tuple[int, int]:
    """The lowest address of an array and the address after its highest byte. `address` is that of element 0; `strides` and the `size` of an
    element are in bytes."""
    if 0 in shape:
        return address, address
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    return address + sum(s for s in steps if s < 0), address + sum(s for s in steps if s > 0) + size


def byte_strides(array: Any, size: int) -> tuple[int, ...] | None:
    """The strides of an array in bytes, or None if it has none. Torch counts strides in elements (of `size` bytes), NumPy in bytes."""
    if callable(getattr(array, "stride", None)):
        return tuple(stride * size for stride in array.stride())
    strides = getattr(array, "strides", None)
    return None if strides is None else tuple(strides)


def extent(value: Any, address: int) -> tuple[int, int]:
    """The lowest address of an array and the address after its highest byte; UNBOUNDED if the object does not have a shape."""
    if isinstance(value, TensorWrapper):
        return extent(value.base, address)
    if isinstance(value, np.ndarray):
        if value.flags.c_contiguous:
            return address, address + value.nbytes
        return np.lib.array_utils.byte_bounds(value)
    found = _layout(value)
    if found is None:
        return UNBOUNDED
    return EMPTY if 0 in found[0] and not address else byte_range(address, *found)


def device_extent(value: Any, address: int, size: int) -> tuple[int, int]:
    """The extent of an array on a GPU with elements of `size` bytes. An object without a shape has one element."""
    value = value.base if isinstance(value, TensorWrapper) else value
    shape = getattr(value, "shape", ())
    if (strides := byte_strides(value, size)) is not None:
        return byte_range(address, shape, strides, size)
    return byte_range(address, *(_interface_layout(value) or (shape, _contiguous(shape, size), size)))


def adopted(address: int, extents: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The extent of an object of which only the address is known: that of the largest array that contains it, else UNBOUNDED."""
    holding = [(low, high) for low, high in extents if low <= address < high and (low, high) != UNBOUNDED]
    return max(holding, key=lambda e: e[1] - e[0], default=UNBOUNDED)


def readonly(value: Any) -> bool:
    """Whether an array is a read-only array of the host."""
    if isinstance(value, TensorWrapper):
        return readonly(value.base)
    return isinstance(value, np.ndarray) and not value.flags.writeable


def _layout(value: Any) -> tuple[Sequence[int], Sequence[int], int] | None:
    """(shape, strides in bytes, bytes of an element) of an array with DLPack or the CUDA array interface, else None."""
    if not (hasattr(value, "__dlpack__") and hasattr(value, "shape")):
        return _interface_layout(value)
    if callable(getattr(value, "stride", None)):
        size = value.element_size()
        return tuple(value.shape), tuple(stride * size for stride in value.stride()), size
    view = value if hasattr(value, "strides") and hasattr(value, "itemsize") else np.from_dlpack(value)
    return tuple(value.shape), tuple(view.strides), view.itemsize


def _interface_layout(value: Any) -> tuple[Sequence[int], Sequence[int], int] | None:
    if (interface := getattr(value, "__cuda_array_interface__", None)) is None:
        return None
    shape, size = interface["shape"], np.dtype(interface["typestr"]).itemsize
    return shape, interface.get("strides") or _contiguous(shape, size), size


def _contiguous(shape: Sequence[int], size: int) -> list[int]:
    return [size * math.prod(shape[i + 1 :]) for i in range(len(shape))]
