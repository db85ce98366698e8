"""Summaries of arguments that observers may keep after a launch: dtype, shape, size or value, never the array's memory."""

from __future__ import annotations

import math
from typing import Any

from blocknb.language import types as t
from blocknb.runtime.extents import UNBOUNDED, extent
from blocknb.runtime.kinds import ANYWHERE, Kind, pointer_kind


def _strides(value: Any, size: int) -> tuple[int, ...]:
    """The strides of an array in elements of `size` bytes; () where nobody knows them."""
    if callable(getattr(value, "stride", None)):
        return tuple(value.stride())
    return tuple(s // size for s in getattr(value, "strides", None) or ())


def summary(value: Any, kind: Kind) -> dict[str, Any]:
    """What may be kept of an argument after the launch: its dtype, shape, strides (in elements) and bytes, or its value; never
    the array. `extent` is "unknown" of an object that tells no more than its address."""
    if kind.type is None:
        return {"kind": "constant", "type": None, "value": kind.constant[0]}
    if isinstance(kind.type, t.Descriptor):
        described = summary(
            value.base, pointer_kind(kind.type.dtype, True, ANYWHERE if kind.device is None else kind.device)
        )
        numbers = [*value.shape, *value.strides[:-1]]
        return {**described, "type": str(kind), "shape": tuple(value.shape), "parts": list(map(int, numbers))}
    if not kind.is_pointer:
        return {"kind": "scalar", "type": str(kind), "value": value.item() if hasattr(value, "item") else value}
    shape = tuple(int(n) for n in getattr(value, "shape", ()) or ())
    strides = _strides(value, kind.type.element.bytes) or (1,) * len(shape)
    # A broadcast dimension (stride 0) repeats the same bytes.
    elements = math.prod(n for n, s in zip(shape, strides, strict=False) if s)
    found = {
        "kind": "array",
        "type": str(kind),
        "shape": shape,
        "strides": tuple(map(int, strides)),
        "bytes": elements * kind.type.element.bytes,
        "device": kind.device,
    }
    if not hasattr(value, "shape") and extent(value, 1) == UNBOUNDED:
        found["extent"] = "unknown"
    return found
