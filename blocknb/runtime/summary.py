"""Summaries of the arguments of a launch, which observers may keep: dtype, shape, size or value, but never the array."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blocknb.language import types as t
from blocknb.runtime.extents import UNBOUNDED, byte_strides, extent
from blocknb.runtime.kinds import ANYWHERE, Kind, pointer_kind


def summary(value: Any, kind: Kind) -> dict[str, Any]:
    """Returns the summary of an argument: its dtype, shape, strides (in elements) and bytes, or its value. `extent` is "unknown" for an
    object that has an address but no shape."""
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
    return found


def scalars_of(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The scalars among the summaries of a launch's arguments, with the sizes and strides of tensor descriptors."""
    from blocknb.frontend.descriptors import field_names

    found = {name: s["value"] for name, s in arguments.items() if s["kind"] == "scalar"}
    for name, s in arguments.items():
        if "parts" in s:
            found |= dict(zip(field_names(name, len(s["shape"]))[1:], s["parts"], strict=True))
    return found
