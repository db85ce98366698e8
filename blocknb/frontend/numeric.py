"""The pointwise builtins and the reductions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from blocknb.frontend import float8, shapes
from blocknb.frontend.constants import own_dtype
from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch, describe, is_pointer
from blocknb.frontend.promotion import refuse_float8, result_dtype
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import axis_of, dtype_of, flag, tile_of
from blocknb.ir.core import Block, Value
from blocknb.language import types as t
from blocknb.language.constants import PropagateNan
from blocknb.language.ops import named
from blocknb.language.types import Tile

# -- pointwise ---------------------------------------------------------------------------------------------------------------


def _number(frame: Frame, x: Any, argument: str = "x") -> Value:
    x = tile_of(frame, x, argument)
    if x.type.is_pointer:
        raise Mismatch("a pointer is not a number", "load first: tl.load(pointer)", argument)
    return x


def _unary(name: str, op: str = "") -> None:
    """A function of floats; fp16 and bf16 are computed in fp32 and rounded once, integers become fp32."""

    def handler(frame: Frame, x: Any) -> Value:
        x = _number(frame, x)
        dtype, emit = x.type.dtype, frame.emit
        refuse_float8(f"`{name}`", dtype, "x")
        wide = dtype if dtype in (t.float32, t.float64) else t.float32
        result = emit.value(op or name, emit.cast(x, wide))
        return emit.cast(result, dtype) if dtype.is_float else result

    emits(name)(handler)


for _name in named("special_function"):
    _unary(_name)
_unary("sqrt_rn", "sqrt")


def _rounding(name: str) -> None:
    def handler(frame: Frame, x: Any) -> Value:
        x = _number(frame, x)
        refuse_float8(f"`{name}`", x.type.dtype, "x")
        return frame.emit.value(name, x) if x.type.dtype.is_float else x

    emits(name)(handler)


_rounding("floor")
_rounding("ceil")


@emits("abs")
def absolute(frame: Frame, x: Any) -> Value:
    x, emit = _number(frame, x), frame.emit
    if x.type.dtype.is_fp8():
        return float8.signed(emit, x, "and", 0x7F)
    return x if x.type.dtype.kind in ("bool", "uint") else emit.value("abs", x)


def _extremum(op: str) -> Callable:
    def handler(frame: Frame, x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Value:
        return extremum(frame.emit, op, _operand(x, "x"), _operand(y, "y"), propagate_nan is PropagateNan.ALL)

    return handler


def _operand(x: Any, argument: str) -> Any:
    if isinstance(x, NUMBERS) or (isinstance(x, Value) and not x.type.is_pointer):
        return x
    raise Mismatch(f"`{argument}` must be a tile or a number, not {describe(x)}", None, argument)


def common_dtype(*operands: Any) -> t.DType:
    """The dtype of a function of several operands: that of the tiles, and Python numbers, together, are weak against it."""
    tiles = [x.type.dtype for x in operands if isinstance(x, Value)]
    numbers = [x for x in operands if not isinstance(x, Value)]
    if not tiles:
        return functools.reduce(t.promote, map(own_dtype, numbers))
    dtype = functools.reduce(lambda a, b: result_dtype(Value(Tile(a)), Value(Tile(b))), tiles)
    for number in numbers:
        dtype = result_dtype(Value(Tile(dtype)), number)
    return dtype


def constant_extremum(op: str, x: Any, y: Any, nan: bool) -> Any:
    """`max` or `min` of two constants: -0.0 is below 0.0. A NaN wins if `nan` is true, and loses otherwise."""
    if x != x or y != y:
        return x if (x != x) == nan else y
    if x == y:
        return x if (math.copysign(1.0, y) < 0) == (op == "max") else y
    return max(x, y) if op == "max" else min(x, y)


def extremum(emit: Emitter, op: str, x: Any, y: Any, nan: bool = False) -> Any:
    """`max` or `min` of two operands; bf16 is computed in fp32. Two constants give a constant."""
    if not isinstance(x, Value) and not isinstance(y, Value):
        return constant_extremum(op, x, y, nan)
    dtype = common_dtype(x, y)
    a, b = emit.agree(t.float32 if dtype == t.bfloat16 else dtype, x, y)
    if a.type.dtype.kind == "bool":
        return emit.value("or" if op == "max" else "and", a, b)
    if dtype.is_fp8():
        return float8.extremum(emit, op, a, b, nan)
    return emit.cast(emit.value(op, a, b, **({"nan": True} if nan and a.type.dtype.is_float else {})), dtype)


emits("maximum")(_extremum("max"))
emits("minimum")(_extremum("min"))


@emits("clamp")
def clamp(frame: Frame, x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    nan = propagate_nan is PropagateNan.ALL
    emit, operands = frame.emit, (_operand(x, "x"), _operand(min, "min"), _operand(max, "max"))
    if not any(isinstance(v, Value) for v in operands):
        return constant_extremum("min", constant_extremum("max", x, min, nan), max, nan)
    x, low, high = emit.agree(common_dtype(*operands), *operands)
    return extremum(emit, "min", extremum(emit, "max", x, low, nan), high, nan)


def _operator(name: str, symbol: str) -> None:
    def handler(frame: Frame, x: Any, y: Any, sanitize_overflow: Any = True) -> Any:
        return frame.emit.binary(symbol, x, y)

    emits(name)(handler)


for _name, _symbol in (("add", "+"), ("sub", "-"), ("mul", "*")):
    _operator(_name, _symbol)


@emits("fma")
def fma(frame: Frame, x: Any, y: Any, z: Any) -> Value:
    emit = frame.emit
    values = (_operand(x, "x"), _operand(y, "y"), _operand(z, "z"))
    dtype = common_dtype(*values)
    if not dtype.is_float:
        raise Mismatch(f"`fma` works on floats, not on {dtype}", "write x * y + z")
    refuse_float8("`fma`", dtype)
    return emit.value("fma", *emit.agree(dtype, *values))


@emits("umulhi")
def umulhi(frame: Frame, x: Any, y: Any) -> Value:
    emit, values = frame.emit, (_operand(x, "x"), _operand(y, "y"))
    dtype = common_dtype(*values)
    if dtype not in (t.int32, t.uint32, t.int64, t.uint64):
        raise Mismatch(f"`umulhi` multiplies integers of 32 or 64 bits, not {dtype}", "convert with .to(tl.uint32)")
    unsigned = t.uint32 if dtype.bits == 32 else t.uint64
    return emit.cast(emit.value("mulhi", *(emit.cast(x, unsigned) for x in emit.agree(dtype, *values))), dtype)


@emits("fdiv")
def fdiv(frame: Frame, x: Any, y: Any, ieee_rounding: Any = False) -> Any:
    return _quotient(frame, "fdiv", x, y, flag(frame, ieee_rounding, "ieee_rounding"))


@emits("div_rn")
def div_rn(frame: Frame, x: Any, y: Any) -> Any:
    return _quotient(frame, "div_rn", x, y, True)


def _quotient(frame: Frame, name: str, x: Any, y: Any, nearest: bool) -> Value:
    emit, values = frame.emit, (_operand(x, "x"), _operand(y, "y"))
    dtype = common_dtype(*values)
    if not dtype.is_float:
        raise Mismatch(f"`{name}` divides floats, not {dtype}", "for integers, write x / y (in fp32) or x // y")
    if name == "div_rn":  # fdiv takes fp8, as `/` does
        refuse_float8("`div_rn`", dtype)
    wide = dtype if dtype == t.float64 else t.float32
    return emit.value("div", *emit.agree(wide, *values), **({"nearest": True} if nearest else {}))


@emits("where")
def where(frame: Frame, condition: Any, x: Any, y: Any) -> Any:
    emit = frame.emit
    condition = emit.constant(condition)
    for v, argument in ((condition, "condition"), (x, "x"), (y, "y")):
        if not isinstance(v, (Value, *NUMBERS)):
            hint = (
                None
                if v is not None
                else "a store has no value, and `where` guards none: tl.store(..., mask=condition)"
            )
            raise Mismatch(f"`{argument}` must be a tile or a number, not {describe(v)}", hint, argument)
    condition = emit.runtime(emit.truth(condition))
    if is_pointer(x) or is_pointer(y):
        if not (is_pointer(x) and is_pointer(y)) or x.type.dtype != y.type.dtype:
            raise Mismatch(
                f"`where` cannot select between {describe(x)} and {describe(y)}",
                "select between offsets, and add the result to one pointer",
            )
        dtype = x.type.dtype
    elif isinstance(x, Value) or isinstance(y, Value):
        dtype = result_dtype(x, y)
    else:
        own = emit.runtime(x).type.dtype, emit.runtime(y).type.dtype
        dtype = t.promote(*own)
    shape = emit.common_shape(condition, x, y)
    arms = [
        emit.broadcast(emit.cast(v, dtype), shape) if isinstance(v, Value) else emit.number(v, dtype, shape)
        for v in (x, y)
    ]
    return emit.value("select", emit.broadcast(condition, shape), *arms)


def _logical(op: str) -> None:
    def handler(frame: Frame, input: Any, other: Any) -> Value:
        return frame.emit.value(op, *frame.emit.agree(t.int1, frame.emit.truth(input), frame.emit.truth(other)))

    emits(f"logical_{op}")(handler)


_logical("and")
_logical("or")


# -- reductions --------------------------------------------------------------------------------------------------------------

Combine = Callable[[Emitter, Sequence[Value]], Sequence[Value]]


def reduction(
    frame: Frame, inputs: Sequence[Value], axis: Any, keep_dims: Any, combine: Combine, along: Callable | None = None
) -> tuple[Value, ...]:
    """Reduces tiles of one shape along an axis, or over all elements if the axis is None.

    `combine` takes 2n scalars and returns n. `along` reduces along an axis, by default with one op.
    """
    along = along or reduce_axis
    emit, shape = frame.emit, inputs[0].type.shape
    if not shape:
        raise Mismatch("a scalar cannot be reduced", "pass a tile with at least one axis", "input")
    keep = flag(frame, keep_dims, "keep_dims")
    if axis is None:
        flat = tuple(shapes.ravel(frame, x) for x in inputs)
        results = along(emit, flat, 0, combine)
        return tuple(emit.broadcast(r, (1,) * len(shape)) for r in results) if keep else results
    if isinstance(axis, tuple):
        raise Mismatch(
            f"the axis of a reduction must be one integer, not {axis}",
            "reduce one axis after the other, or all with axis=None",
            "axis",
        )
    axis = axis_of(frame, axis, len(shape))
    results = along(emit, inputs, axis, combine)
    if not keep:
        return results
    return tuple(emit.value("expand_dims", r, axis=axis) if r.type.shape else emit.broadcast(r, (1,)) for r in results)


def combine_block(emit: Emitter, inputs: Sequence[Value], combine: Combine) -> Block:
    """The block of a reduction or a scan of tiles."""
    args = tuple(
        Value(Tile(x.type.dtype), f"{side}{i}" if len(inputs) > 1 else side)
        for side in "ab"
        for i, x in enumerate(inputs)
    )
    with emit.block(args) as block:
        emit.op("yield", *combine(emit, args))
    return block.done


def reduce_axis(emit: Emitter, inputs: Sequence[Value], axis: int, combine: Combine) -> tuple[Value, ...]:
    return emit.op("reduce", *inputs, blocks=(combine_block(emit, inputs, combine),), axis=axis).results


def _one_op(name: str, **attrs: Any) -> Combine:
    return lambda emit, args: (emit.value(name, *args, **attrs),)


def _first_best(predicate: str, tie_break_left: bool) -> Combine:
    """Combines (value, index) pairs: the better value wins. On ties the lower index wins. A NaN loses to numbers and equals NaNs."""

    def combine(emit: Emitter, args: Sequence[Value]) -> tuple[Value, Value]:
        a, i, b, j = args
        wins, same = emit.value("cmp", a, b, pred=predicate), []
        if tie_break_left:
            same.append(emit.value("cmp", a, b, pred="eq"))
        if a.type.dtype.is_float:
            lost = emit.value("cmp", b, b, pred="ne")
            wins = emit.value("or", wins, emit.value("and", lost, emit.value("cmp", a, a, pred="eq")))
            same.append(lost)  # a is a NaN, too, or has won
        if tie_break_left:
            tie = emit.value("or", *same) if len(same) > 1 else same[0]
            wins = emit.value("or", wins, emit.value("and", tie, emit.value("cmp", i, j, pred="lt")))
        return emit.value("select", wins, a, b), emit.value("select", wins, i, j)

    return combine


def summed_dtype(own: t.DType, asked: Any = None) -> Any:
    """The accumulation dtype of a sum: the requested one, or else the operand's, with at least 32 bits for integers."""
    if asked is not None:
        return dtype_of(asked)
    if own.is_integer and own.bits < 32:
        return t.int32 if own.kind == "int" else t.uint32
    return own


@emits("sum")
def sum_(frame: Frame, input: Any, axis: Any = None, keep_dims: Any = False, dtype: Any = None) -> Value:
    x = _number(frame, input, "input")
    own = summed_dtype(x.type.dtype, dtype)
    refuse_float8("`sum`", own, "input")
    op = "xor" if own == t.int1 else "add"  # a sum of bits modulo 2
    return reduction(frame, [frame.emit.cast(x, own)], axis, keep_dims, _one_op(op))[0]


def _best(
    frame: Frame, name: str, input: Any, axis: Any, return_indices: Any, tie_break_left: Any, keep_dims: Any
) -> Any:
    x, emit = _number(frame, input, "input"), frame.emit
    if x.type.dtype == t.bfloat16 or x.type.dtype.is_fp8():
        x = emit.cast(x, t.float32)
    if not flag(frame, return_indices, "return_indices"):
        if x.type.dtype.bits < 32:
            x = emit.cast(x, t.float32 if x.type.dtype.is_float else t.int32)
        return reduction(frame, [x], axis, keep_dims, _one_op(name))[0]
    rank = len(x.type.shape)
    if axis is None:  # the index counts all elements, in row-major order
        found = _best(frame, name, shapes.ravel(frame, x), 0, True, tie_break_left, False)
        return tuple(emit.broadcast(v, (1,) * rank) for v in found) if flag(frame, keep_dims, "keep_dims") else found
    axis = axis_of(frame, axis, rank)
    index = emit.value("arange", start=0, end=x.type.shape[axis])
    for other in range(len(x.type.shape)):
        if other != axis:
            index = emit.value("expand_dims", index, axis=other)
    combine = _first_best("gt" if name == "max" else "lt", flag(frame, tie_break_left, "tie_break_left"))
    if x.type.dtype.kind == "bool":
        x = emit.cast(x, t.int32)
    return reduction(frame, [x, emit.broadcast(index, x.type.shape)], axis, keep_dims, combine)


def _best_element(name: str) -> None:
    """The builtins `max` and `argmax`, or `min` and `argmin`."""

    def value(
        frame: Frame,
        input: Any,
        axis: Any = None,
        return_indices: Any = False,
        return_indices_tie_break_left: Any = True,
        keep_dims: Any = False,
    ) -> Any:
        return _best(frame, name, input, axis, return_indices, return_indices_tie_break_left, keep_dims)

    def index(frame: Frame, input: Any, axis: Any, tie_break_left: Any = True, keep_dims: Any = False) -> Value:
        return _best(frame, name, input, axis, True, tie_break_left, keep_dims)[1]

    emits(name)(value)
    emits(f"arg{name}")(index)


_best_element("max")
_best_element("min")


def _bitwise(name: str, op: str) -> None:
    def handler(frame: Frame, input: Any, axis: Any = None, keep_dims: Any = False) -> Value:
        x = _number(frame, input, "input")
        if x.type.dtype.is_float:
            raise Mismatch(
                f"`{name}` works on integers and conditions, not on {x.type.dtype}",
                "for the bits of a float: .to(tl.int32, bitcast=True), an integer of its width",
                "input",
            )
        return reduction(frame, [x], axis, keep_dims, _one_op(op))[0]

    emits(name)(handler)


_bitwise("xor_sum", "xor")
_bitwise("reduce_or", "or")
