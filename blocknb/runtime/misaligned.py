"""Launches with NumPy arrays whose address is not a multiple of the element's size: the kernel runs on aligned copies.

Such arrays come out of byte buffers, as when Dask sends a block to another process. A note of the kernel says that the launch copied.
Arrays with gaps between elements, and arrays that overlap others, are refused as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.runtime.arguments import MisalignedArray
from blocknb.runtime.binding import without_left_out
from blocknb.trace import Note


def is_aligned(array: np.ndarray) -> bool:
    """Whether the address of an array is a multiple of the size of an element. NumPy's flag may ask for less, as for complex numbers."""
    return array.flags.aligned and array.ctypes.data % array.itemsize == 0


def copies_misaligned(general: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `Kernel._general`: repeats a launch that MisalignedArray refused, on aligned copies."""

    @functools.wraps(general)
    def launch(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tried: Any = None) -> Any:
        try:
            return general(kernel, grid, args, kwargs, tried)
        except MisalignedArray as error:
            args, kwargs = without_left_out(args, kwargs)
            given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
            copies = _copies(given)
            if not copies:
                raise
            found = error
        return _on_copies(kernel, grid, given, copies, found)

    return launch


def _on_copies(
    kernel: Any, grid: Any, given: dict[str, Any], copies: dict[str, np.ndarray], refused: MisalignedArray
) -> Any:
    compiled = None
    try:
        compiled = kernel.launch(grid, **{**given, **copies})
    except MisalignedArray:  # an array that is no NumPy array
        raise refused from None
    finally:
        for name, copy in copies.items():
            if given[name].flags.writeable and (compiled is None or name in compiled.stored):
                given[name][...] = copy
    names = ", ".join(f"`{name}`" for name in copies)
    text = f"a launch copied {names}, because the address is not a multiple of the size of an element; aligned arrays are not copied"
    compiled.trace.stages.note(Note(text, "launch", kind="missed"))
    return compiled


def _copies(given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Aligned copies of the misaligned arrays by name. Empty if one of them cannot be copied."""
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if is_aligned(array):
            continue
        dense = array.flags.c_contiguous or array.flags.f_contiguous
        same = [n for n in found if _is_same(arrays[n], array)]
        others = (other for n, other in arrays.items() if n != name and not _is_same(other, array))
        if not dense or any(np.may_share_memory(array, other) for other in others):
            return {}
        found[name] = found[same[0]] if same else array.copy(order="K")
        found[name].flags.writeable = array.flags.writeable
    return found


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__ == b.__array_interface__
