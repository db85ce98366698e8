"""The builtins `load` and `store`."""

from __future__ import annotations

from typing import Any

from blocknb.frontend import blocks
from blocknb.frontend.emitter import NUMBERS, Mismatch, describe, is_pointer
from blocknb.frontend.records import BlockPointer, DescriptorValue
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import flag, tile_of
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import BoolPointer

CACHE = ("", ".ca", ".cg", ".cv", ".wb", ".cs", ".wt")
EVICT = ("", "evict_first", "evict_last", "evict_normal")


def _access_attrs(cache: Any, evict: Any, volatile: Any = False) -> dict[str, Any]:
    if cache not in CACHE:
        raise Mismatch(
            f"unknown cache modifier {cache!r}", f"one of {', '.join(CACHE[1:])}", "cache_modifier"
        ).in_triton(f"Cache modifier {cache} not supported")
    if evict not in EVICT:
        raise Mismatch(
            f"unknown eviction policy {evict!r}", f"one of {', '.join(EVICT[1:])}", "eviction_policy"
        ).in_triton(f"Eviction policy {evict} not supported")
    attrs = {"cache": cache, "evict": evict, "volatile": bool(volatile)}
    return {key: value for key, value in attrs.items() if value}


def _check_pointer(name: str, pointer: Any, boundary_check: Any, value: Any = None) -> None:
    if not is_pointer(pointer):
        hint = "pointers are array arguments of the kernel, moved by offsets: x_ptr + offsets"
        if pointer is None:
            hint = "it is None: guard the line with `if ... is not None:`"
        elif is_pointer(value):
            hint = "the pointer comes first: tl.store(pointer, value)"
        elif name == "store" and isinstance(pointer, (Value, *NUMBERS)):
            hint = "to change a variable, assign to it; " + hint
        if isinstance(pointer, DescriptorValue):
            hint = f"a tensor descriptor has methods for it: desc.{name}([...])"
        raise Mismatch(f"`{name}` needs a pointer, not {describe(pointer)}", hint, "pointer").in_triton(
            "Unsupported ptr type"
        )
    if boundary_check:
        raise Mismatch(
            "boundary_check is for block pointers; this is a tile of pointers", "give a mask", "boundary_check"
        )


def check_writable(pointer: Value) -> None:
    """Raises Mismatch for a pointer that derives from a parameter annotated with `tl.const`."""
    if pointer.type.dtype.const:
        raise Mismatch(
            "the pointer is constant: it derives from a parameter annotated with `tl.const`",
            "store through another parameter, or drop the annotation",
            "pointer",
        ).in_triton("Cannot store to a constant pointer")


def _mask(frame: Frame, mask: Any) -> Value | None:
    """A mask as an int1 Value, or None if all elements are accessed."""
    mask = frame.emit.constant(mask)
    if mask is None or mask is True:
        return None
    if mask is False:
        return frame.emit.number(False, t.int1)
    if not isinstance(mask, Value) or mask.type.dtype != t.int1:
        raise Mismatch(
            f"the mask must be a condition, not {describe(mask)}",
            "compare: mask=offsets < n, or mask != 0 for integers",
            "mask",
        ).in_triton("Mask must have boolean scalar type")
    return mask


def _spread(frame: Frame, pointer: Value, x: Value, argument: str) -> Value:
    """x in the pointer's shape."""
    if x.type.shape and not pointer.type.shape:
        raise Mismatch(
            f"`{argument}` is a tile of shape {x.type.shape}, but the pointer is a scalar",
            "add offsets to the pointer: ptr + tl.arange(...)",
            argument,
        ).in_triton(f"{argument.capitalize()} argument cannot be block type if pointer argument is not a block")
    try:
        return frame.emit.broadcast(x, pointer.type.shape)
    except Mismatch as error:
        raise Mismatch(
            f"`{argument}` has shape {x.type.shape}, but the pointers have shape {pointer.type.shape}",
            _same_offsets(pointer, x, argument) or error.hint,
            argument,
        ) from None


def _same_offsets(pointer: Value, x: Value, argument: str) -> str | None:
    """The hint for equal ranks with different sizes."""
    if len(pointer.type.shape) != len(x.type.shape):
        return None
    if argument == "mask":
        return "make the mask from the same offsets as the pointers: mask=offsets < n"
    return f"add offsets of shape {x.type.shape} to the pointer, one per value"


def _with_mask(frame: Frame, pointer: Value, mask: Any) -> tuple[Value, Value | None]:
    """Broadcasts the pointer and the mask to one shape. A larger mask repeats the pointers, as in Triton."""
    mask = _mask(frame, mask)
    if mask is None:
        return pointer, None
    if pointer.type.shape and mask.type.shape:
        try:
            pointer = frame.emit.broadcast(pointer, frame.emit.common_shape(pointer, mask))
        except Mismatch as error:
            raise Mismatch(
                f"the mask has shape {mask.type.shape}, but the pointers have shape {pointer.type.shape}",
                _same_offsets(pointer, mask, "mask") or error.hint,
                "mask",
            ) from None
    return pointer, _spread(frame, pointer, mask, "mask")


@emits("load")
def load(
    frame: Frame, pointer: Any, mask: Any = None, other: Any = None, boundary_check: Any = (), padding_option: Any = "",
    cache_modifier: Any = "", eviction_policy: Any = "", volatile: Any = False,
) -> Value:  # fmt: skip
    emit = frame.emit
    zero = isinstance(pointer, BlockPointer) and padding_option == "zero"
    if isinstance(pointer, BlockPointer):
        padding = blocks.padding(frame, padding_option, pointer.base.type.dtype.element)
        pointer, mask = blocks.access(frame, "load", pointer, mask, boundary_check, other)
        other, boundary_check = None if mask is None else padding, ()
    _check_pointer("load", pointer, boundary_check)
    if other is not None and mask is None:
        raise Mismatch(
            "`other` is given without a mask",
            "`other` replaces the elements outside the mask; add one: mask=offsets < n",
            "other",
        ).in_triton("`other` cannot be provided without `mask`")
    pointer, mask_value = _with_mask(frame, pointer, mask)
    args = [pointer]
    if mask_value is not None:
        args.append(mask_value)
        if other is not None:
            other = emit.constant(other)
            if isinstance(pointer.type.dtype, BoolPointer):
                other = emit.truth(other)
            dtype = pointer.type.dtype.element
            shaped = (
                _spread(frame, pointer, emit.cast(tile_of(frame, other, "other"), dtype), "other")
                if isinstance(other, Value)
                else None
            )
            if shaped is None:
                if not isinstance(other, NUMBERS):
                    raise Mismatch(f"`other` must be a number or a tile, not {describe(other)}", None, "other")
                shaped = emit.number(other, dtype, pointer.type.shape)
            args.append(shaped)
    value = emit.value(
        "load", *args, **_access_attrs(cache_modifier, eviction_policy, flag(frame, volatile, "volatile"))
    )
    if zero:
        emit.padded.add(value)
    if isinstance(pointer.type.dtype, BoolPointer):
        value = emit.value("cmp", value, emit.number(0, t.int8, value.type.shape), pred="ne")
    return value


@emits("store")
def store(
    frame: Frame,
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = "",
    eviction_policy: Any = "",
) -> None:
    emit = frame.emit
    if isinstance(pointer, BlockPointer):
        pointer, mask = blocks.access(frame, "store", pointer, mask, boundary_check)
        boundary_check = ()
    _check_pointer("store", pointer, boundary_check, value)
    check_writable(pointer)
    pointer, mask_value = _with_mask(frame, pointer, mask)
    value = emit.constant(value)
    if not isinstance(value, (Value, *NUMBERS)):
        raise Mismatch(f"`value` must be a number or a tile, not {describe(value)}", None, "value")
    if isinstance(pointer.type.dtype, BoolPointer):
        value = emit.truth(value)
    dtype = pointer.type.dtype.element
    if isinstance(value, Value):
        value = _spread(frame, pointer, emit.cast(value, dtype), "value")
    else:
        value = emit.number(value, dtype, pointer.type.shape)
    args = (pointer, value) if mask_value is None else (pointer, value, mask_value)
    emit.op("store", *args, **_access_attrs(cache_modifier, eviction_policy))
