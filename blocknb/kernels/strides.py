"""What differs between libraries' arrays: strides in elements, as kernels want them, new arrays beside an array, and where it is."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def strides(array: Any) -> tuple[int, ...]:
    """Elements from one index to the next along each axis; NumPy and CuPy count bytes, torch elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    return tuple(step // array.dtype.itemsize for step in array.strides)


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An array of `like`'s library, on its device, whose elements are not set."""
    if hasattr(like, "new_empty"):
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
    if hasattr(like, "device") and hasattr(like.device, "id"):
        import cupy

        with like.device:
            return cupy.empty(shape, dtype)
    return np.empty(shape, dtype)


def on_host(array: Any) -> bool:
    """Whether kernels on this array run on the CPU."""
    if isinstance(array, np.ndarray):
        return True
    return getattr(getattr(array, "device", None), "type", "") == "cpu"
