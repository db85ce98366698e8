"""Scans and moves along an axis: associative_scan, cumsum, cumprod, gather, flip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.frontend.combine import scan_by_doubling, user_combine
from blocknb.frontend.emitter import Emitter, Mismatch
from blocknb.frontend.numeric import Combine, _number, combine_block, summed_dtype
from blocknb.frontend.promotion import refuse_float8
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import axis_of, constant_int, flag, tile_of
from blocknb.ir.core import Value
from blocknb.language import types as t


def scan_axis(frame: Frame, inputs: Sequence[Value], axis: Any, reverse: Any, combine: Combine) -> tuple[Value, ...]:
    """Scans tiles of one shape along an axis. `combine` takes n accumulated and n new scalars, and returns n."""
    emit, shape = frame.emit, inputs[0].type.shape
    if not shape:
        raise Mismatch("a scalar has no axis to scan along", "pass a tile with at least one axis", "input")
    axis = axis_of(frame, axis, len(shape))
    reverse = {"reverse": True} if flag(frame, reverse, "reverse") else {}
    return emit.op("scan", *inputs, blocks=(combine_block(emit, inputs, combine),), axis=axis, **reverse).results


@emits("associative_scan")
def associative_scan(frame: Frame, input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    tiles, combine = user_combine(frame, input, combine_fn, "associative_scan")
    if combine.loops and tiles[0].type.shape:
        axis = axis_of(frame, axis, len(tiles[0].type.shape))
        results = scan_by_doubling(frame, tiles, axis, flag(frame, reverse, "reverse"), combine)
    else:
        results = scan_axis(frame, tiles, axis, reverse, combine)
    return results if isinstance(input, tuple) else results[0]


def _running(frame: Frame, op: str, input: Any, axis: Any, reverse: Any, dtype: Any) -> Value:
    def combine(emit: Emitter, args: Sequence[Value]) -> Sequence[Value]:
        return (emit.value(op, *args),)

    x = _number(frame, input, "input")
    own = summed_dtype(x.type.dtype, dtype)
    refuse_float8(f"`cum{'sum' if op == 'add' else 'prod'}`", own, "input")
    wide = t.float32 if own == t.bfloat16 and dtype is None else own  # one rounding at the end
    return frame.emit.cast(scan_axis(frame, [frame.emit.cast(x, wide)], axis, reverse, combine)[0], own)


@emits("cumsum")
def cumsum(frame: Frame, input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> Value:
    return _running(frame, "add", input, axis, reverse, dtype)


@emits("cumprod")
def cumprod(frame: Frame, input: Any, axis: Any = 0, reverse: Any = False) -> Value:
    return _running(frame, "mul", input, axis, reverse, None)


@emits("gather")
def gather(frame: Frame, src: Any, index: Any, axis: Any) -> Value:
    x, i = tile_of(frame, src, "src"), tile_of(frame, index, "index")
    if i.type.is_pointer or not i.type.dtype.is_integer or i.type.dtype.kind == "bool":
        raise Mismatch(f"indices must be integers, not {i.type.dtype}", "convert with .to(tl.int32)", "index")
    if not x.type.shape:
        raise Mismatch("a scalar has no elements to gather", "gather from a tile; tl.load reads from memory", "src")
    axis = axis_of(frame, axis, len(x.type.shape))
    others = [s[:axis] + s[axis + 1 :] for s in (x.type.shape, i.type.shape)]
    if len(i.type.shape) != len(x.type.shape) or others[0] != others[1]:
        raise Mismatch(
            f"the index has shape {i.type.shape} for a source of shape {x.type.shape}",
            f"all axes except axis {axis} must be equal; tl.broadcast_to repeats an index",
            "index",
        )
    return frame.emit.value("gather", x, i, axis=axis)


@emits("flip")
def flip(frame: Frame, x: Any, dim: Any = -1) -> Value:
    x = tile_of(frame, x, "x")
    if not x.type.shape:
        raise Mismatch("a scalar has no axis to flip", None, "x")
    axis = axis_of(frame, -1 if dim is None else dim, len(x.type.shape), "dim")
    mask = x.type.shape[axis] - 1
    return frame.emit.value("flip", x, axis=axis, mask=mask) if mask else x


@emits("xor_shuffle")
def xor_shuffle(frame: Frame, x: Any, axis: Any, mask: Any) -> Value:
    x = tile_of(frame, x, "x")
    axis, mask = axis_of(frame, axis, len(x.type.shape)), constant_int(frame, mask, "mask")
    if not 0 <= mask < x.type.shape[axis]:
        count = x.type.shape[axis]
        raise Mismatch(
            f"the mask {mask} is outside of the axis, which has {count} elements", f"use 0 to {count - 1}", "mask"
        )
    return frame.emit.value("flip", x, axis=axis, mask=mask) if mask else x
