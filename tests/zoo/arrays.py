"""The few array functions that the wrappers need, with one interface for NumPy, CuPy and torch.

New arrays are poisoned, so that a test detects elements which no kernel writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (np.dtype("bfloat16") exists from now on)
import numpy as np

POISON = 0xA5


def library(x: Any) -> str:
    """numpy, cupy or torch."""
    return type(x).__module__.split(".")[0]


def dtype_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def full(like: Any, shape: Any, value: Any, dtype: str = "") -> Any:
    """An array of `like`'s library and device."""
    shape, dtype = (shape,) if isinstance(shape, int) else tuple(shape), dtype or dtype_name(like)
    if library(like) == "torch":
        import torch

        return torch.full(shape, value, dtype=getattr(torch, dtype), device=like.device)
    if library(like) == "cupy":
        import cupy

        return cupy.full(shape, value, np.dtype(dtype))
    return np.full(shape, value, np.dtype(dtype))


def zeros(like: Any, shape: Any, dtype: str = "") -> Any:
    return full(like, shape, 0, dtype)


def empty(like: Any, shape: Any = None, dtype: str = "") -> Any:
    """Poison: NaN in floats, 0xA5 in every byte of integers, True in conditions."""
    shape, dtype = like.shape if shape is None else shape, dtype or dtype_name(like)
    if "float" in dtype:
        return full(like, shape, float("nan"), dtype)
    kind = np.dtype(dtype)
    value = (
        True if kind.kind == "b" else int.from_bytes(bytes([POISON]) * kind.itemsize, "little", signed=kind.kind == "i")
    )
    return full(like, shape, value, dtype)


def strides(x: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return x.stride() if library(x) == "torch" else tuple(s // x.itemsize for s in x.strides)


def table(arrays: Sequence[Any]) -> Any:
    """The addresses of arrays, as an int64 array on the same device."""
    first = arrays[0]
    match library(first):
        case "torch":
            import torch

            return torch.tensor([x.data_ptr() for x in arrays], dtype=torch.int64, device=first.device)
        case "cupy":
            import cupy

            return cupy.array([x.data.ptr for x in arrays], np.int64)
    return np.array([x.ctypes.data for x in arrays], np.int64)


def vector(like: Any, numbers: Sequence[int], dtype: str = "int32") -> Any:
    """Integers that the host has worked out, where `like` lies."""
    return place(
        np.array(numbers, dtype), library(like), "cpu" if library(like) == "torch" and not like.is_cuda else "cuda"
    )


def place(value: Any, to: str, device: str = "cpu") -> Any:
    """A copy of a NumPy array as an array of the library `to`, with its order of axes; anything else as it is."""
    if isinstance(value, list):
        return [place(v, to, device) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.c_contiguous and value.ndim > 1 and value.T.flags.c_contiguous:
        return place(value.T, to, device).T
    if to == "numpy":
        return value.copy()
    if to == "cupy":
        import cupy

        return cupy.asarray(value)
    import torch

    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(value.copy()).to(device)


def to_numpy(x: Any) -> np.ndarray:
    match library(x):
        case "cupy":
            return x.get()
        case "torch":
            x = x.detach().cpu()
            if dtype_name(x) == "bfloat16":
                return x.float().numpy()
            return x.numpy()
    return np.asarray(x)
