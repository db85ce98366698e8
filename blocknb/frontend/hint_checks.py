"""Tests of the author's hints in checked launches: `multiple_of`, `max_contiguous` and `max_constancy`.

A launch without checks relies on hints. A checked one ignores them, so that no analysis can use a hint to prove that it holds. It computes
the condition of each hint, and an op `assert` reports the first element that breaks it.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.frontend.emitter import Emitter
from blocknb.ir.core import Value
from blocknb.language import types as t


def test_hint(emit: Emitter, x: Value, name: str, numbers: Sequence[int]) -> None:
    """Emits the test of a hint about an integer or a pointer, whose value is the address. Numbers beyond the rank of `x` say nothing."""
    if not x.type.is_pointer and x.type.dtype.kind not in ("int", "uint"):
        return
    value, shape = emit.cast(x, t.int64), x.type.shape
    step = x.type.dtype.element.bytes if x.type.is_pointer else 1
    holds: list[Value] = []
    for axis, number in enumerate(numbers[: max(1, len(shape))]):
        if number == 1:
            continue
        if not shape:
            holds += [_divides(emit, value, number)] if name == "multiple_of" else []
            continue
        index, before = _neighbours(emit, value, axis)
        if name == "multiple_of":  # of the first element, and of each one that does not continue a run
            continues = emit.compare("==", emit.binary("-", value, before), step)
            inner = emit.binary("&", continues, emit.compare(">", index, 0))
            holds.append(emit.binary("|", _divides(emit, value, number), inner))
        else:  # within each group, an element follows from the one before it
            apart = step if name == "max_contiguous" else 0
            follows = emit.compare("==", emit.binary("-", value, before), apart)
            first = emit.compare("==", emit.binary("%", index, number), 0)
            holds.append(emit.binary("|", follows, first))
    label = x.name if x.name and not x.name.isdigit() else "..."
    spelled = str(numbers[0]) if len(numbers) == 1 else str(tuple(numbers))
    for condition in holds:
        emit.op("assert", condition, value, message=f"{name}({label}, {spelled})")


def _divides(emit: Emitter, value: Value, number: int) -> Value:
    return emit.compare("==", emit.binary("%", value, number), 0)


def _neighbours(emit: Emitter, value: Value, axis: int) -> tuple[Value, Value]:
    """The index of each element along an axis, and the element before it (the first one has itself)."""
    shape = value.type.shape
    index = emit.value("arange", start=0, end=shape[axis])
    for other in range(len(shape)):
        if other != axis:
            index = emit.value("expand_dims", index, axis=other)
    index = emit.broadcast(index, shape)
    later = emit.cast(emit.compare(">", index, 0), t.int32)
    return index, emit.value("gather", value, emit.binary("-", index, later), axis=axis)
