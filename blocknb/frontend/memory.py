"""`load`, `store` and `dot`."""

from __future__ import annotations

from typing import Any

from blocknb.frontend import blocks
from blocknb.frontend.emitter import NUMBERS, Mismatch, describe, is_pointer, spelled
from blocknb.frontend.records import BlockPointer, TensorDescriptor
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import dtype_of, flag, tile_of, trans
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import BoolPointer

CACHE = ("", ".ca", ".cg", ".cv", ".wb", ".cs", ".wt")
EVICT = ("", "evict_first", "evict_last", "evict_normal")
DOT_DTYPES = (t.float16, t.bfloat16, t.float32, t.float64, t.int8)


def _access_attrs(cache: Any, evict: Any, volatile: Any = False) -> dict[str, Any]:
    if cache not in CACHE:
        raise Mismatch(f"unknown cache modifier {cache!r}", f"one of {', '.join(CACHE[1:])}", "cache_modifier")
    if evict not in EVICT:
        raise Mismatch(f"unknown eviction policy {evict!r}", f"one of {', '.join(EVICT[1:])}", "eviction_policy")
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
        if isinstance(pointer, TensorDescriptor):
            hint = f"a tensor descriptor has methods for it: desc.{name}([...])"
        raise Mismatch(f"`{name}` needs a pointer, not {describe(pointer)}", hint, "pointer")
    if boundary_check:
        raise Mismatch(
            "boundary_check is for block pointers; this is a tile of pointers", "give a mask", "boundary_check"
        )


def _mask(frame: Frame, mask: Any) -> Value | None:
    """A mask as an int1 Value, or None when every lane is on."""
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
        )
    return mask


def _spread(frame: Frame, pointer: Value, x: Value, argument: str) -> Value:
    """x in the pointer's shape."""
    if x.type.shape and not pointer.type.shape:
        raise Mismatch(
            f"`{argument}` is a tile of shape {x.type.shape}, but the pointer is a single one",
            "add offsets to the pointer: ptr + tl.arange(...)",
            argument,
        )
    try:
        return frame.emit.broadcast(x, pointer.type.shape)
    except Mismatch as error:
        raise Mismatch(
            f"`{argument}` has shape {x.type.shape}, but the pointers have shape {pointer.type.shape}",
            _same_offsets(pointer, x, argument) or error.hint,
            argument,
        ) from None


def _same_offsets(pointer: Value, x: Value, argument: str) -> str | None:
    """The advice where the ranks agree and the sizes do not."""
    if len(pointer.type.shape) != len(x.type.shape):
        return None
    if argument == "mask":
        return "make the mask of the very offsets that are added to the pointer: mask=offsets < n"
    return f"the pointers must be as many as the values: add offsets of shape {x.type.shape}"


def _with_mask(frame: Frame, pointer: Value, mask: Any) -> tuple[Value, Value | None]:
    """Pointer and mask in one shape; a larger mask repeats the pointers, as in Triton."""
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
    if isinstance(pointer, BlockPointer):
        padding = blocks.padding(padding_option, pointer.base.type.dtype.element)
        pointer, mask = blocks.opened(frame, "load", pointer, mask, boundary_check, other)
        other, boundary_check = None if mask is None else padding, ()
    _check_pointer("load", pointer, boundary_check)
    if other is not None and mask is None:
        raise Mismatch(
            "`other` is given without a mask", "say which elements are to be replaced: mask=offsets < n", "other"
        )
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
        pointer, mask = blocks.opened(frame, "store", pointer, mask, boundary_check)
        boundary_check = ()
    _check_pointer("store", pointer, boundary_check, value)
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


@emits("dot")
def dot(
    frame: Frame, input: Any, other: Any, acc: Any = None, input_precision: Any = None, allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None, out_dtype: Any = None, *, trans_a: Any = False, trans_b: Any = False,
) -> Value:  # fmt: skip
    emit = frame.emit
    if flag(frame, trans_a, "trans_a"):
        input = trans(frame, input)
    if flag(frame, trans_b, "trans_b"):
        other = trans(frame, other)
    if all(isinstance(x, Value) and len(x.type.shape) == 3 for x in (input, other)):
        return _stacked(frame, input, other, acc, (input_precision, allow_tf32, max_num_imprecise_acc, out_dtype))
    for x, argument in ((input, "input"), (other, "other")):
        if not isinstance(x, Value) or len(x.type.shape) != 2:
            raise Mismatch(
                f"`dot` multiplies matrices, not {describe(x)}",
                "make it two-dimensional: x[:, None] is a column, x[None, :] a row",
                argument,
            )
        if x.type.dtype not in DOT_DTYPES and not x.type.dtype.is_fp8():
            raise Mismatch(
                f"`dot` does not take {x.type.dtype}", f"cast to one of {', '.join(map(str, DOT_DTYPES))}", argument
            )
    fp8 = input.type.dtype.is_fp8() and other.type.dtype.is_fp8()
    if fp8 and t.float8e4b15 in (input.type.dtype, other.type.dtype):
        input, other = emit.widened(input), emit.widened(other)
    (m, k), (k2, n), dtype = input.type.shape, other.type.shape, input.type.dtype
    if k != k2:
        hint = (
            "transpose the second operand: tl.trans(b)"
            if k == n
            else "the columns of the first must be as many as the rows of the second"
        )
        raise Mismatch(f"dot of shapes {(m, k)} and {(k2, n)}: the inner sizes {k} and {k2} differ", hint, "other")
    if dtype != other.type.dtype and not fp8:
        raise Mismatch(
            f"dot of {dtype} and {other.type.dtype}: both operands need one dtype",
            f"cast one: .to({spelled(dtype)})",
            "other",
        )
    if fp8 and isinstance(max_num_imprecise_acc, int) and max_num_imprecise_acc > k:
        raise Mismatch(
            f"max_num_imprecise_acc is {max_num_imprecise_acc}, but only {k} products are added",
            "leave it out: sums are made in fp32 here",
            "max_num_imprecise_acc",
        )
    result = _accumulator_dtype(dtype, acc, out_dtype)
    acc = emit.constant(acc)
    if acc is None or (not isinstance(acc, Value) and acc == 0):
        acc = emit.number(0, result, (m, n))
    elif not isinstance(acc, Value) or acc.type.shape not in ((m, n), ()):
        raise Mismatch(
            f"the accumulator is {describe(acc)}, but the product has shape {(m, n)}",
            f"start it as tl.zeros(({m}, {n}), dtype={spelled(result)})",
            "acc",
        )
    attrs = {"precision": _precision(input_precision, allow_tf32)} if dtype == t.float32 else {}
    return emit.value("dot", input, other, emit.broadcast(emit.cast(acc, result), (m, n)), **attrs)


def _stacked(frame: Frame, input: Value, other: Value, acc: Any, options: tuple) -> Value:
    """The products of two stacks of matrices, one after another."""
    from blocknb.frontend import calls
    from blocknb.language.moves import _stacked_dot

    if input.type.shape[0] != other.type.shape[0]:
        raise Mismatch(
            f"dot of stacks of shapes {input.type.shape} and {other.type.shape}: {input.type.shape[0]} matrices against "
            f"{other.type.shape[0]}",
            "tl.broadcast_to repeats a matrix along the first axis",
            "other",
        )
    acc = None if not isinstance(acc, Value) and not acc else acc
    return calls.call(frame, _stacked_dot, [input, other, acc, *options], {})


def _accumulator_dtype(dtype: Any, acc: Any, out_dtype: Any) -> Any:
    """The dtype of a product: the one asked for of fp16 and fp8, and always the natural one of the others, as in Triton, where kernels
    name a wider `out_dtype` for what they add it to."""
    natural = {t.int8: t.int32, t.float64: t.float64}.get(dtype, t.float32)
    chosen = dtype == t.float16 or dtype.is_fp8()
    asked = (
        dtype_of(out_dtype, "out_dtype")
        if out_dtype is not None
        else acc.type.dtype
        if isinstance(acc, Value)
        else natural
    )
    if asked == natural or (chosen and asked == t.float16):
        return asked
    if out_dtype is not None and not chosen and asked != t.bfloat16 and not isinstance(acc, Value):
        return natural
    raise Mismatch(
        f"a dot of {dtype} is accumulated in {natural}, not in {asked}",
        f"use {spelled(natural)} and cast the result",
        "acc" if out_dtype is None else "out_dtype",
    )


_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def _precision(input_precision: Any, allow_tf32: Any) -> str:
    """The precision of fp32 products. Those made of several products of bf16, to come close to fp32, are computed as ieee."""
    if input_precision is None:
        return "ieee" if allow_tf32 is False else "tf32"
    name = str(getattr(input_precision, "value", input_precision)).lower()
    if name not in _PRECISIONS:
        raise Mismatch(
            f"unknown input precision {input_precision!r}", f"one of {', '.join(_PRECISIONS)}", "input_precision"
        )
    return "ieee" if name.startswith("bf16") else name
