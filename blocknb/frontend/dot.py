"""The builtin `dot`: checks its operands, chooses the accumulator's dtype, and splits batched products into single ones."""

from __future__ import annotations

from typing import Any

from blocknb.frontend.calls import call
from blocknb.frontend.emitter import Mismatch, describe
from blocknb.frontend.promotion import spelled
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import dtype_of, flag, reshape, trans
from blocknb.frontend.target_queries import capability
from blocknb.ir.core import Value
from blocknb.language import types as t

#: Batched products with one pair of matrices per warp: the least rows and inner size, and the range of columns. mma.sync takes 16-bit
#: floats of both kinds from this sm_* on.
ROWS, COLUMNS, STACKED_FROM = 16, (8, 16), 80
DOT_DTYPES = (t.float16, t.bfloat16, t.float32, t.float64, t.int8)


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
    input, other = _operands(frame, input, other, max_num_imprecise_acc)
    (m, _), (_, n), dtype = input.type.shape, other.type.shape, input.type.dtype
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


def _operands(frame: Frame, input: Any, other: Any, max_num_imprecise_acc: Any) -> tuple[Value, Value]:
    """Converts the operands to two matrices of one dtype with equal inner sizes. Raises Mismatch if that is not possible."""
    for x, argument in ((input, "input"), (other, "other")):
        if not isinstance(x, Value) or len(x.type.shape) != 2:
            raise Mismatch(
                f"`dot` multiplies matrices, not {describe(x)}",
                "tl.sum(a * x[None, :], axis=1) multiplies a matrix by a vector; x[:, None] makes a column of it, x[None, :] a row",
                argument,
            )
        if x.type.dtype not in DOT_DTYPES and not x.type.dtype.is_fp8():
            raise Mismatch(
                f"`dot` does not take {x.type.dtype}", f"cast to one of {', '.join(map(str, DOT_DTYPES))}", argument
            )
    fp8 = input.type.dtype.is_fp8() and other.type.dtype.is_fp8()
    if fp8 and t.float8e4b15 in (input.type.dtype, other.type.dtype):
        input, other = frame.emit.widened(input), frame.emit.widened(other)
    (m, k), (k2, n), dtype = input.type.shape, other.type.shape, input.type.dtype
    if k != k2:
        hint = (
            "transpose the second operand: tl.trans(b)"
            if k == n
            else "the first operand needs as many columns as the second has rows"
        )
        raise Mismatch(f"dot of shapes {(m, k)} and {(k2, n)}: the inner sizes {k} and {k2} differ", hint, "other")
    if dtype != other.type.dtype and not fp8:
        raise Mismatch(
            f"dot of {dtype} and {other.type.dtype}: both operands need the same dtype",
            f"cast one: .to({spelled(dtype)})",
            "other",
        )
    if fp8 and isinstance(max_num_imprecise_acc, int) and max_num_imprecise_acc > k:
        raise Mismatch(
            f"max_num_imprecise_acc is {max_num_imprecise_acc}, but the inner size is only {k}",
            "leave it out: blocknb accumulates in fp32",
            "max_num_imprecise_acc",
        ).in_triton(f"max_num_imprecise_acc ({max_num_imprecise_acc}) must be <= K ({k})")
    return input, other


def _stacked(frame: Frame, input: Value, other: Value, acc: Any, options: tuple) -> Value:
    """A batched product: one `dot` per pair of matrices."""
    from blocknb.language.moves import _stacked_dot

    if input.type.shape[0] != other.type.shape[0]:
        raise Mismatch(
            f"dot of stacks of shapes {input.type.shape} and {other.type.shape}: {input.type.shape[0]} matrices against "
            f"{other.type.shape[0]}",
            "tl.broadcast_to repeats a matrix along the first axis",
            "other",
        )
    acc = None if not isinstance(acc, Value) and not acc else acc
    if (made := _by_warps(frame, input, other, acc, options)) is not None:
        return made
    return call(frame, _stacked_dot, [input, other, acc, *options], {})


def _by_warps(frame: Frame, input: Value, other: Value, acc: Any, options: tuple) -> Value | None:
    """A batched product of as many pairs of 16-bit matrices as the program has warps: one `dot` in which each warp multiplies one pair.

    None if the launch names another number of warps, or the matrices do not fit mma.sync or are wide: then all warps share each product.
    """
    (count, m, k), n, emit = input.type.shape, other.type.shape[2], frame.emit
    halves = input.type.dtype == other.type.dtype in (t.float16, t.bfloat16) and other.type.shape[1] == k
    fits = m >= ROWS and k >= ROWS and COLUMNS[0] <= n <= COLUMNS[1] and count > 1
    sums = all(x is None for x in options) and (acc is None or (isinstance(acc, Value) and acc.type.dtype == t.float32))
    if not (halves and fits and sums and capability(frame) >= STACKED_FROM and emit.options.get("num_warps") == count):
        return None
    if acc is not None and acc.type.shape != (count, m, n):
        return None
    a, b = reshape(frame, input, (count * m, k)), reshape(frame, other, (count * k, n))
    c = emit.number(0, t.float32, (count * m, n)) if acc is None else reshape(frame, acc, (count * m, n))
    return reshape(frame, emit.value("dot", a, b, c, stacked=count), (count, m, n))


def _accumulator_dtype(dtype: Any, acc: Any, out_dtype: Any) -> Any:
    """The accumulator dtype of a product.

    Products of fp16 and fp8 take the requested dtype. All others take their natural dtype, as in Triton, where kernels may name a wider
    `out_dtype`.
    """
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
        f"a dot of {dtype} accumulates in {natural}, not in {asked}",
        f"use {spelled(natural)} and cast the result",
        "acc" if out_dtype is None else "out_dtype",
    )


_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def _precision(input_precision: Any, allow_tf32: Any) -> str:
    """The precision of fp32 products. `bf16x3` and `bf16x6`, which approximate fp32 by products of bf16, are computed as `ieee`."""
    if input_precision is None:
        return "ieee" if allow_tf32 is False else "tf32"
    name = str(getattr(input_precision, "value", input_precision)).lower()
    if name not in _PRECISIONS:
        raise Mismatch(
            f"unknown input precision {input_precision!r}", f"one of {', '.join(_PRECISIONS)}", "input_precision"
        )
    return "ieee" if name.startswith("bf16") else name
