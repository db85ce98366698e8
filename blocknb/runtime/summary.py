"""Summaries of the arguments of a launch, which observers may keep: dtype, shape, size or value, but never the array."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from blocknb.language import types as t
from blocknb.runtime.extents import UNBOUNDED, byte_strides, extent
from blocknb.runtime.kinds import ANYWHERE, Kind, pointer_kind

LINE_BYTES = 128  # of a cache line on a GPU


def summary(value: Any, kind: Kind, raw: Any = None) -> dict[str, Any]:
    """Returns the summary of an argument: its dtype, shape, strides (in elements) and bytes, or its value. `extent` is "unknown" for an
    object that has an address but no shape. With the address `raw`, an array has its `start` (see `start_of`) if that is known."""
    if kind.type is None:
        return {"kind": "constant", "type": None, "value": kind.constant[0]}
    if isinstance(kind.type, t.Descriptor):
        described = summary(
            value.base,
            pointer_kind(kind.type.dtype, True, ANYWHERE if kind.device is None else kind.device),
            raw[0] if isinstance(raw, tuple) else None,
        )
        numbers = [*value.shape, *value.strides[:-1]]
        return {**described, "type": str(kind), "shape": tuple(value.shape), "parts": list(map(int, numbers))}
    if not kind.is_pointer:
        return {"kind": "scalar", "type": str(kind), "value": value.item() if hasattr(value, "item") else value}
    shape = tuple(int(n) for n in getattr(value, "shape", ()) or ())
    size = kind.type.element.bytes
    strides = tuple(stride // size for stride in byte_strides(value, size) or ()) or (1,) * len(shape)
    # A broadcast axis (stride 0) repeats the same bytes.
    elements = math.prod(n for n, s in zip(shape, strides, strict=False) if s)
    found = {
        "kind": "array",
        "type": str(kind),
        "shape": shape,
        "strides": tuple(map(int, strides)),
        "bytes": elements * size,
        "device": kind.device,
    }
    if not hasattr(value, "shape") and extent(value, 1) == UNBOUNDED:
        found["extent"] = "unknown"
    if isinstance(raw, int) and (start := start_of(value, raw, kind.device)) is not None:
        found["start"] = start
    return found


def start_of(value: Any, address: int, device: int | None) -> int | None:
    """The bytes between the start of an array and the last multiple of LINE_BYTES; None if unknown.

    On a GPU they follow from the address. An address of the host says nothing about a GPU, whose allocations start at multiples of 256
    bytes. There the bytes count from the start of the memory of which the array is a view.
    """
    if device is not None and device >= 0:
        return address % LINE_BYTES
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return (address - value.ctypes.data) % LINE_BYTES
    if hasattr(value, "untyped_storage"):
        return (address - value.untyped_storage().data_ptr()) % LINE_BYTES
    return None


def scalars_of(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The scalars among the summaries of a launch's arguments, with the sizes and strides of tensor descriptors."""
    from blocknb.frontend.descriptors import field_names

    found = {name: s["value"] for name, s in arguments.items() if s["kind"] == "scalar"}
    for name, s in arguments.items():
        if "parts" in s:
            found |= dict(zip(field_names(name, len(s["shape"]))[1:], s["parts"], strict=True))
    return found
