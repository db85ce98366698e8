"""Hides the differences between array libraries: strides in elements, new arrays like a given one, and the device."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np

from blocknb.runtime import machine


def strides(array: Any) -> tuple[int, ...]:
    """The elements from one index to the next along each axis. NumPy and CuPy count bytes, torch counts elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    return tuple(step // array.dtype.itemsize for step in array.strides)


def need_arrays(**arrays: Any) -> None:
    """Raises TypeError for the first argument that is no array: it has no shape and dtype. A list or None is none."""
    for name, array in arrays.items():
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            given = "None" if array is None else f"of type {type(array).__name__}"
            raise TypeError(f"{name} must be a NumPy, CuPy or torch array, not {given}")


def contiguous(array: Any) -> bool:
    """Whether the array is contiguous in row-major order, as every array without elements is."""
    if 0 in array.shape:
        return True
    step = 1
    for size, found in zip(reversed(array.shape), reversed(strides(array)), strict=True):
        if size > 1 and found != step:
            return False
        step *= size
    return True


def dtype_name(array: Any) -> str:
    """The dtype's common name: float16, bfloat16, float8_e4m3fn..."""
    return str(array.dtype).removeprefix("torch.")


def wide(array: Any) -> str:
    """The name of the dtype in which kernels add up: float64 for a float64 array, else float32."""
    return "float64" if dtype_name(array) == "float64" else "float32"


def address(array: Any) -> int:
    """The address of the first element."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    if hasattr(array, "data") and hasattr(array.data, "ptr"):
        return int(array.data.ptr)
    return int(array.__cuda_array_interface__["data"][0])


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An uninitialized array of `like`'s library, on its device."""
    if hasattr(like, "new_empty"):
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
    if hasattr(like, "device") and hasattr(like.device, "id"):
        import cupy

        with like.device:
            return cupy.empty(shape, dtype)
    if dtype not in np.sctypeDict:
        import ml_dtypes

        return np.empty(shape, getattr(ml_dtypes, dtype))
    return np.empty(shape, dtype)


def table(like: Any, numbers: list[int], dtype: str) -> Any:
    """A vector of these numbers, of `like`'s library and on its device."""
    if hasattr(like, "new_tensor"):
        return like.new_tensor(numbers, dtype=getattr(sys.modules["torch"], dtype))
    found = empty(like, (len(numbers),), dtype)
    found[...] = np.array(numbers, dtype) if isinstance(like, np.ndarray) else sys.modules["cupy"].array(numbers, dtype)
    return found


def on_host(array: Any) -> bool:
    """Whether kernels on this array run on the CPU."""
    if isinstance(array, np.ndarray):
        return True
    return getattr(getattr(array, "device", None), "type", "") == "cpu"


def stream(array: Any) -> int:
    """The current stream of the array's library and GPU."""
    from blocknb.runtime.cuda import current_stream

    if hasattr(array, "new_empty"):
        return int(current_stream("torch")(array.device.index))
    return int(current_stream("cupy")(array.device.id).ptr)


class Device(NamedTuple):
    """Where kernels run: multiprocessors, compute capability (90 is Hopper, 0 a CPU), and bytes of shared memory per CTA."""

    processors: int
    capability: int
    shared: int


HOST = Device(1, 0, 0)


@functools.cache
def _gpu(number: int | None) -> Device:
    found = machine.properties(number)
    return Device(found["multiprocessor_count"], machine.current_target().arch, found["max_shared_mem"])


def device(array: Any) -> Device:
    """The device on which kernels on this array run."""
    return HOST if on_host(array) or not machine.has_gpu() else _gpu(machine.current_gpu())
