"""Strides in elements, as kernels want them, of any library's arrays."""

from __future__ import annotations

from typing import Any


def strides(array: Any) -> tuple[int, ...]:
    """Elements from one index to the next along each axis; NumPy and CuPy count bytes, torch elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    return tuple(step // array.dtype.itemsize for step in array.strides)
