"""The byte extent of an array, from its lowest to its highest address. Bounds checks compare with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from blocknb.runtime.interface import TensorWrapper

UNBOUNDED = (0, 2**64 - 1)
NOTHING = (2**64 - 1, 2**64 - 1)  # of an empty array without an address: what lies just below 0 is outside, too


def extent(value: Any, address: int) -> tuple[int, int]:
    """The lowest address and the one behind the highest byte of an array; UNBOUNDED where nobody knows."""
    if isinstance(value, TensorWrapper):
        return extent(value.base, address)
    if isinstance(value, np.ndarray):
        if value.flags.c_contiguous:
            return address, address + value.nbytes
        return np.lib.array_utils.byte_bounds(value)
    found = _placed(value)
    if found is None:
        return UNBOUNDED
    shape, strides, size = found
    if 0 in shape:
        return (address, address) if address else NOTHING
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return address + sum(r for r in reach if r < 0), address + sum(r for r in reach if r > 0) + size


def adopted(address: int, extents: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The extent of an object that tells nothing but its address: that of the largest array that holds it, else UNBOUNDED."""
    holding = [(low, high) for low, high in extents if low <= address < high and (low, high) != UNBOUNDED]
    return max(holding, key=lambda e: e[1] - e[0], default=UNBOUNDED)


def readonly(value: Any) -> bool:
    """Whether nothing may be stored to an array of the host."""
    if isinstance(value, TensorWrapper):
        return readonly(value.base)
    return isinstance(value, np.ndarray) and not value.flags.writeable


def _placed(value: Any) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """(shape, strides in bytes, bytes of an element) of an array on any device that tells them, else None."""
    if hasattr(value, "__dlpack__") and hasattr(value, "shape"):
        shape = tuple(value.shape)
        if callable(getattr(value, "stride", None)):
            size = value.element_size()
            return shape, tuple(s * size for s in value.stride()), size
        view = value if hasattr(value, "strides") and hasattr(value, "itemsize") else np.from_dlpack(value)
        return shape, tuple(view.strides), view.itemsize
    if (interface := getattr(value, "__cuda_array_interface__", None)) is None:
        return None
    shape, size = tuple(interface["shape"]), np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides") or [size * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return shape, tuple(strides), size
