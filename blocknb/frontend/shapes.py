"""The builtins that create and reshape tiles, and the checks of constant shapes, axes and dtypes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from blocknb.frontend.constants import convert_number
from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch, check_size, describe
from blocknb.frontend.float8 import toward_zero
from blocknb.frontend.hints import did_you_mean, literal_dtype_name
from blocknb.frontend.promotion import spelled
from blocknb.frontend.scope import Frame, emits
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import DType, Pointer, Tile

# -- arguments that must be known at compile time ----------------------------------------------------------------------------


def constant_int(frame: Frame, x: Any, argument: str, what: str = "") -> int:
    """An argument that must be a compile-time integer. Raises Mismatch, which names the argument."""
    x = folded(frame.emit, x)
    what = what or f"`{argument}`"
    if isinstance(x, Value):
        raise unknown_yet(frame, x, what, argument)
    if isinstance(x, float) and x.is_integer():
        raise Mismatch(f"{what} must be an integer, not {x!r}", f"write {int(x)}, or // instead of /", argument)
    if not isinstance(x, int):
        raise Mismatch(f"{what} must be an integer, not {describe(x)}", None, argument)
    return int(x)


#: Ops whose result `folded` knows if it knows their operands.
FOLDS: dict[str, Callable[[int, int], int]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def folded(emit: Emitter, x: Any) -> Any:
    """The integer of a scalar that is computed from known integers, such as `rows * columns`; x itself if it is unknown.

    A plain assignment makes a number a run-time value, as in Triton; so does unpacking a tuple that is an argument.
    """
    x = emit.constant(x)
    if not isinstance(x, Value) or x.type.shape or x.type.is_pointer or x.type.dtype.kind not in ("int", "uint"):
        return x
    made = emit.definition(x)
    if made is None or made.name not in (*FOLDS, "div"):
        return x
    a, b = (folded(emit, operand) for operand in made.args)
    if not (isinstance(a, int) and isinstance(b, int)):
        return x
    if made.name == "div":
        return a // b if a >= 0 and b > 0 else x
    return convert_number(FOLDS[made.name](a, b), x.type.dtype)


def unknown_yet(frame: Frame, x: Value, what: str, argument: str) -> Mismatch:
    """The error for a run-time value where a constant is needed. For an argument of the kernel the hint shows the annotation."""
    if x.name and x in frame.emit.promised and "." in x.name:
        return Mismatch(
            f"{what} must be known at compile time, but `{x.name}` is an element of a tuple argument ({describe(x)})",
            f"annotate the tuple in the `def`, `{x.name.split('.')[0]}: tl.constexpr`, or pass tl.constexpr(n) in it",
            argument,
        )
    if x.name and x in frame.emit.promised:
        return Mismatch(
            f"{what} must be known at compile time, but `{x.name}` is an argument of the kernel ({describe(x)})",
            f"annotate it in the `def`: `{x.name}: tl.constexpr`",
            argument,
        )
    return Mismatch(
        f"{what} must be known at compile time, but {f'`{x.name}`' if x.name else 'it'} is {describe(x)} computed at run time",
        "make it a parameter annotated tl.constexpr, or assign it as `NAME: tl.constexpr = ...`",
        argument,
    )


def flag(frame: Frame, x: Any, argument: str) -> bool:
    x = frame.emit.constant(x)
    if isinstance(x, Value):
        raise unknown_yet(frame, x, f"`{argument}`", argument)
    return bool(x)


def nearest_powers(n: int) -> str:
    above = 1 << max(n - 1, 0).bit_length()
    return f"{above // 2} or {above}" if n > 1 else "1"


def shape_of(frame: Frame, shape: Any, argument: str = "shape") -> tuple[int, ...]:
    """A shape: a tuple (or one int) of powers of two known at compile time, of at most 2^20 elements."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    sizes = tuple(constant_int(frame, n, argument, "the size of a tile") for n in shape)
    for n in sizes:
        if n <= 0 or n & (n - 1):
            raise Mismatch(
                f"the size {n} in the shape {sizes} is not a power of two",
                f"take {nearest_powers(n)} and mask the surplus; blocknb.next_power_of_2 rounds up",
                argument,
            ).in_triton(f"Shape element {sizes.index(n)} must be a power of 2")
    try:
        check_size(sizes)
    except Mismatch as error:
        error.argument = argument
        raise
    return sizes


def unpack_shape(shape: tuple) -> Any:
    """The sizes of a shape, which may be one tuple or several ints: `reshape(x, (4, 8))` equals `reshape(x, 4, 8)`."""
    return shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape


def dtype_of(x: Any, argument: str = "dtype") -> Any:
    """A dtype argument. Python's int, float and bool mean int32, fp32 and int1."""
    if x in (int, float, bool):
        return {int: t.int32, float: t.float32, bool: t.int1}[x]
    if isinstance(x, Tile):  # a scalar type, or the block type that a block pointer points to
        return x.dtype
    if isinstance(x, str) and x in t.BY_NAME:
        return t.BY_NAME[x]
    if not isinstance(x, (DType, Pointer)):
        foreign = None if isinstance(x, (str, Value)) else literal_dtype_name(x, t.BY_NAME)
        hint = f"write {spelled(t.BY_NAME[foreign])}" if foreign else None
        if isinstance(x, str):
            hint = did_you_mean(x, t.BY_NAME)
        raise Mismatch(
            f"`{argument}` must be a dtype of the language, not {describe(x)}",
            hint or "write a dtype such as tl.float32, or that of another value: x.dtype",
            argument,
        )
    return x


def axis_of(frame: Frame, axis: Any, rank: int, argument: str = "axis") -> int:
    axis = constant_int(frame, axis, argument)
    if not -rank <= axis < rank:
        raise Mismatch(
            f"a tile with {rank} {'axis' if rank == 1 else 'axes'} has no axis {axis}",
            f"the last axis is {rank - 1}" if rank else "a scalar has no axes",
            argument,
        ).in_triton(f"invalid axis {axis}")
    return axis % rank


def tile_of(frame: Frame, x: Any, argument: str = "input") -> Value:
    """A tile argument; numbers become scalars."""
    if isinstance(x, (Value, *NUMBERS)):
        return frame.emit.runtime(x)
    raise Mismatch(f"`{argument}` must be a tile or a number, not {describe(x)}", None, argument)


# -- programs and sources ----------------------------------------------------------------------------------------------------


def _grid_axis(frame: Frame, axis: Any) -> int:
    axis = constant_int(frame, axis, "axis")
    if axis not in (0, 1, 2):
        raise Mismatch(f"the grid has axes 0, 1 and 2, not {axis}", None, "axis").in_triton(
            f"program_id axis must be 0, 1, or 2 but got {axis}"
        )
    return axis


@emits("program_id")
def program_id(frame: Frame, axis: Any) -> Value:
    return frame.emit.value("program_id", axis=_grid_axis(frame, axis))


@emits("num_programs")
def num_programs(frame: Frame, axis: Any) -> Value:
    return frame.emit.value("num_programs", axis=_grid_axis(frame, axis))


@emits("arange")
def arange(frame: Frame, start: Any, end: Any) -> Value:
    start, end = constant_int(frame, start, "start"), constant_int(frame, end, "end")
    n = end - start
    if n <= 0:
        raise Mismatch(f"arange({start}, {end}) is empty", "the end must be above the start", "end").in_triton(
            "arange's end argument must be greater than the start argument"
        )
    if n & (n - 1):
        raise Mismatch(
            f"arange({start}, {end}) has {n} elements, which is not a power of two",
            f"take {nearest_powers(n)} elements and mask the surplus; blocknb.next_power_of_2 rounds up",
            "end",
        ).in_triton("arange's range must be a power of 2")
    if n > t.MAX_TILE_ELEMENTS:
        raise Mismatch(
            f"arange({start}, {end}) has {n} elements; a tile holds at most {t.MAX_TILE_ELEMENTS}",
            "make the block smaller, and launch more programs or loop",
            "end",
        )
    return frame.emit.value("arange", start=start, end=end)


@emits("full")
def full(frame: Frame, shape: Any, value: Any, dtype: Any) -> Value:
    shape, dtype, emit = shape_of(frame, shape), dtype_of(dtype), frame.emit
    value = emit.constant(value)
    if isinstance(value, Value):
        if value.type.size > 1:
            raise Mismatch(
                f"`value` must be a number or a scalar, not {describe(value)}",
                "tl.broadcast_to repeats a tile",
                "value",
            )
        return emit.broadcast(emit.cast(to_scalar(emit, value), dtype), shape)
    if not isinstance(value, NUMBERS):
        raise Mismatch(f"`value` must be a number or a scalar, not {describe(value)}", None, "value")
    return emit.number(value, dtype, shape)


@emits("zeros")
def zeros(frame: Frame, shape: Any, dtype: Any) -> Value:
    return frame.emit.number(0, dtype_of(dtype), shape_of(frame, shape))


@emits("zeros_like")
def zeros_like(frame: Frame, input: Any) -> Value:
    x = tile_of(frame, input)
    return frame.emit.number(0, x.type.dtype, x.type.shape)


@emits("to_tensor")
def to_tensor(frame: Frame, x: Any) -> Value:
    return tile_of(frame, x, "x")


# -- shapes ------------------------------------------------------------------------------------------------------------------


def to_scalar(emit: Emitter, x: Value) -> Value:
    """The only element of a tile of size one, as a scalar."""
    if not x.type.shape:
        return x
    if len(x.type.shape) > 1:
        x = emit.value("reshape", x, shape=(1,))
    if x.type.dtype.is_fp8():
        number = to_scalar(emit, emit.value("bitcast", x, dtype=t.uint8))
        return emit.value("bitcast", number, dtype=x.type.dtype)
    combine = "or" if x.type.dtype.kind == "bool" else "max"
    args = Value(Tile(x.type.dtype)), Value(Tile(x.type.dtype))
    with emit.block(args) as block:
        emit.op("yield", emit.value(combine, *args))
    return emit.op("reduce", x, blocks=(block.done,), axis=0).result


@emits("item")
def item(frame: Frame, input: Any) -> Value:
    x = tile_of(frame, input)
    if x.type.size != 1:
        raise Mismatch(
            f"`item` takes a tile of one element, not of shape {x.type.shape}", "reduce it first: tl.sum(x)", "input"
        )
    return to_scalar(frame.emit, x)


@emits("condition")
def condition(frame: Frame, arg1: Any, disable_licm: Any = False) -> Any:
    return arg1


@emits("reshape")
def reshape(frame: Frame, input: Any, *shape: Any, can_reorder: bool = False) -> Value:
    x, emit = tile_of(frame, input), frame.emit
    new = shape_of(frame, unpack_shape(shape))
    size = 1
    for n in new:
        size *= n
    if size != x.type.size:
        raise Mismatch(
            f"a tile of shape {x.type.shape} ({x.type.size} elements) cannot take the shape {new} ({size} elements)",
            None,
            "shape",
        ).in_triton("reshape() cannot change total number of elements in tensor")
    if new == x.type.shape:
        return x
    if not x.type.shape:
        return emit.broadcast(x, new)
    return emit.value("reshape", x, shape=new) if new else to_scalar(emit, x)


@emits("view")
def view(frame: Frame, input: Any, *shape: Any) -> Value:
    return reshape(frame, input, *shape)


@emits("ravel")
def ravel(frame: Frame, x: Any, can_reorder: bool = False) -> Value:
    x = tile_of(frame, x, "x")
    return x if len(x.type.shape) == 1 else reshape(frame, x, x.type.size)


@emits("broadcast_to")
def broadcast_to(frame: Frame, input: Any, *shape: Any) -> Value:
    return frame.emit.broadcast(tile_of(frame, input), shape_of(frame, unpack_shape(shape)))


@emits("broadcast")
def broadcast(frame: Frame, input: Any, other: Any) -> tuple:
    x, y = tile_of(frame, input), tile_of(frame, other, "other")
    shape = frame.emit.common_shape(x, y)
    return frame.emit.broadcast(x, shape), frame.emit.broadcast(y, shape)


@emits("expand_dims")
def expand_dims(frame: Frame, input: Any, axis: Any) -> Value:
    x = tile_of(frame, input)
    axes = axis if isinstance(axis, tuple) else (axis,)
    rank = len(x.type.shape) + len(axes)
    places = sorted(axis_of(frame, a, rank) for a in axes)
    if len(set(places)) < len(places):
        raise Mismatch(f"the axes {axes} name one axis twice", "name each new axis once", "axis").in_triton(
            f"duplicate axes, normalized axes = {places}"
        )
    for a in places:
        x = frame.emit.value("expand_dims", x, axis=a) if x.type.shape else frame.emit.broadcast(x, (1,))
    return x


@emits("trans", "permute")
def trans(frame: Frame, input: Any, *dims: Any) -> Value:
    x = tile_of(frame, input)
    rank = len(x.type.shape)
    dims = unpack_shape(dims)
    if not dims:
        if rank < 2:
            raise Mismatch(
                f"a tile of shape {x.type.shape} cannot be transposed",
                "make it a row x[None, :] or a column x[:, None] first",
                "input",
            )
        dims = (*range(rank - 2), rank - 1, rank - 2)
    perm = tuple(axis_of(frame, d, rank, "dims") for d in dims)
    if sorted(perm) != list(range(rank)):
        raise Mismatch(f"{perm} does not name each axis of the shape {x.type.shape} once", None, "dims").in_triton(
            f"permute dims must be a permutation of 0, 1, ..., n-1, but were {perm}"
        )
    return x if perm == tuple(range(rank)) else frame.emit.value("trans", x, perm=perm)


@emits("cast", "to")
def cast(frame: Frame, input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> Value:
    x, dtype, emit = tile_of(frame, input), dtype_of(dtype), frame.emit
    if fp_downcast_rounding not in (None, "rtne", "rtz"):
        raise Mismatch(
            f"rounding {fp_downcast_rounding!r} does not exist",
            '"rtne" rounds to the nearest, ties to even; "rtz" toward zero',
            "fp_downcast_rounding",
        )
    if not flag(frame, bitcast, "bitcast"):
        narrower = x.type.dtype.is_float and dtype.is_float and dtype.bits < x.type.dtype.bits
        if fp_downcast_rounding is not None and not narrower and x.type.dtype != dtype:
            raise Mismatch(
                f"fp_downcast_rounding is for casts to a narrower float, not from {x.type.dtype} to {dtype}",
                "leave it out",
                "fp_downcast_rounding",
            ).in_triton("fp_downcast_rounding should be set only for truncating fp conversions")
        nearest = emit.cast(x, dtype)
        return toward_zero(emit, x, nearest) if fp_downcast_rounding == "rtz" and narrower else nearest
    if x.type.dtype == dtype:
        return x
    if x.type.dtype.bits != dtype.bits:
        raise Mismatch(
            f"a bitcast cannot change the width from {x.type.dtype.bits} bits ({x.type.dtype}) to {dtype.bits} ({dtype})",
            "leave bitcast=True out to convert the numbers",
            "dtype",
        ).in_triton(f"Cannot bitcast data-type of size {x.type.dtype.bits} to data-type of size {dtype.bits}")
    return emit._cast_pointer(x, dtype) if isinstance(dtype, Pointer) else emit.value("bitcast", x, dtype=dtype)
