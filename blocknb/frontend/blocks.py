"""Lowers block pointers: a window over an array becomes a tile of pointers and a mask.

A window is lowered to the ops that a kernel without block pointers would contain. A scalar pointer to the first element takes 64-bit
arithmetic, once per access. A tile of offsets within the window depends only on the strides, so a loop computes it once. The mask
`0 <= offset + i < size` is one unsigned comparison, because a negative number is larger than any size as an unsigned number. The
offsets within a window are 32-bit only if constant strides prove that they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.frontend.emitter import Emitter, Mismatch, describe, is_pointer
from blocknb.frontend.records import BlockPointer, DescriptorValue
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import constant_int, shape_of, to_scalar
from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.check_modes import parse_checks
from blocknb.language.types import BoolPointer, Pointer

PADDING = ("", "zero", "nan")

# -- windows -----------------------------------------------------------------------------------------------------------------


def window(
    frame: Frame, view: BlockPointer | DescriptorValue, offsets: Sequence[Any], checked: Sequence[int]
) -> tuple[Value, Value | None]:
    """The pointers to a block whose first element is at `offsets`, and its mask.

    The mask holds where the elements are inside the array along the `checked` axes. It is None if no axis is checked.
    """
    emit, block = frame.emit, view.block_shape
    rest = within(emit, view.strides, block)
    pointers = emit.broadcast(first_element(emit, view.base, offsets, view.strides), block)
    if rest is not None:
        pointers = emit.value("ptradd", pointers, emit.broadcast(rest, block))
    mask = None
    for axis in checked:
        index = along(emit, offsets[axis], block[axis], view.shape[axis])
        mask = both(emit, mask, raised(emit, inside(emit, index, view.shape[axis]), axis, len(block)))
    return pointers, None if mask is None else emit.broadcast(mask, block)


def first_element(emit: Emitter, base: Value, offsets: Sequence[Any], strides: Sequence[Any]) -> Value:
    """The scalar pointer to the element at `offsets`."""
    for offset, stride in zip(offsets, strides, strict=True):
        a, b = emit.constant(offset), emit.constant(stride)
        if a == 0 or b == 0:
            continue
        if isinstance(a, Value) or isinstance(b, Value):
            step = emit.cast(a, t.int64) if b == 1 else emit.value("mul", emit.cast(a, t.int64), emit.cast(b, t.int64))
        else:
            step = emit.number(a * b, t.int64)
        base = emit.value("ptradd", base, step)
    return base


def within(emit: Emitter, strides: Sequence[Any], block: Sequence[int]) -> Value | None:
    """The offsets of the elements of a window from its first element, as a tile that broadcasts to `block`.

    None if the window has only one element.
    """
    moving = [(i, n, emit.constant(s)) for i, (n, s) in enumerate(zip(block, strides, strict=True)) if n > 1]
    constants = [abs(s) * (n - 1) for _, n, s in moving if not isinstance(s, Value)]
    small = len(constants) == len(moving) and sum(constants) < 2**31
    dtype, rest = t.int32 if small else t.int64, None
    for axis, n, stride in moving:
        if stride == 0:
            continue
        steps = emit.cast(emit.value("arange", start=0, end=n), dtype)
        if stride != 1:
            steps = emit.value("mul", steps, emit.broadcast(emit.cast(stride, dtype), (n,)))
        steps = raised(emit, steps, axis, len(block))
        rest = steps if rest is None else emit.binary("+", rest, steps)
    return rest


def along(emit: Emitter, offset: Any, n: int, size: Any) -> Value:
    """The indices offset .. offset + n - 1 along an axis, in 64 bits if the offset or the size has 64 bits."""
    dtype = t.int32 if narrow(emit, offset) and narrow(emit, size) else t.int64
    steps = emit.cast(emit.value("arange", start=0, end=n), dtype)
    if emit.constant(offset) == 0:
        return steps
    return emit.value("add", emit.broadcast(emit.cast(offset, dtype), (n,)), steps)


def narrow(emit: Emitter, x: Any) -> bool:
    """Whether an integer is known to fit in int32."""
    x = emit.constant(x)
    if isinstance(x, Value):
        return x.type.dtype.bits < 32 or x.type.dtype == t.int32
    return -(2**31) <= x < 2**31


def inside(emit: Emitter, index: Value, size: Any) -> Value:
    """The mask of the indices in 0 .. size - 1. As unsigned numbers, negative indices are larger than every size."""
    if index.type.dtype == t.int32 and not narrow(emit, size):
        index = emit.cast(index, t.int64)
    signed = index.type.dtype
    unsigned = t.uint32 if signed == t.int32 else t.uint64
    size = emit.constant(size)
    if isinstance(size, Value):
        limit = emit.cast(emit.value("max", emit.cast(size, signed), emit.number(0, signed)), unsigned)
    else:
        limit = emit.number(max(size, 0), unsigned)
    return emit.value("cmp", emit.cast(index, unsigned), emit.broadcast(limit, index.type.shape), pred="lt")


def raised(emit: Emitter, x: Value, axis: int, rank: int) -> Value:
    """Reshapes a tile of rank one to the given rank: the elements lie along `axis`, the other axes have size one."""
    for i in range(rank):
        if i != axis:
            x = emit.value("expand_dims", x, axis=i)
    return x


def both(emit: Emitter, a: Value | None, b: Value) -> Value:
    """The conjunction of two masks."""
    return b if a is None else emit.value("and", *emit.agree(t.int1, a, b))


# -- arguments ---------------------------------------------------------------------------------------------------------------


def integers(frame: Frame, x: Any, argument: str) -> tuple[Any, ...]:
    """A tuple argument of integer scalars or numbers. A single number stands for a tuple of one element."""
    return tuple(integer(frame, element, argument) for element in (x if isinstance(x, tuple) else (x,)))


def integer(frame: Frame, x: Any, argument: str) -> Any:
    """An integer scalar (tiles of size one count as such), or a Python int."""
    if isinstance(x, Value) and x.type.size == 1 and x.type.shape and not x.type.is_pointer:
        x = to_scalar(frame.emit, x)
    if isinstance(x, int) and not isinstance(x, bool):
        if not -(2**63) <= x < 2**63:
            raise Mismatch(f"the number {x} in `{argument}` does not fit in 64 bits", None, argument)
        return x
    if isinstance(x, Value) and not x.type.shape and not x.type.is_pointer and x.type.dtype.is_integer:
        return frame.emit.cast(x, t.int32) if x.type.dtype.bits < 32 else x
    hint = "it is None: pass a number, or guard the line with `if ... is not None:`" if x is None else None
    raise Mismatch(f"`{argument}` must hold integer scalars, not {describe(x)}", hint, argument)


def same_rank(name: str, given: dict[str, tuple[Any, ...]], rank: int) -> None:
    """Raises Mismatch unless every tuple has one element per axis of the block."""
    for argument, elements in given.items():
        if len(elements) != rank:
            raise Mismatch(
                f"`{name}` of a block with {rank} {'axis' if rank == 1 else 'axes'} got {len(elements)} in `{argument}`",
                f"{', '.join(f'`{a}`' for a in given)} and `block_shape` need one element per axis",
                argument,
            )


def array_pointer(name: str, base: Any) -> Value:
    if not is_pointer(base) or base.type.shape:
        raise Mismatch(
            f"`{name}` needs the pointer of an array as its base, not {describe(base)}",
            "pass an array argument of the kernel, or the argument plus a scalar offset",
            "base",
        )
    return base


# -- block pointers ----------------------------------------------------------------------------------------------------------


@emits("make_block_ptr")
def make_block_ptr(
    frame: Frame, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
) -> BlockPointer:
    emit, base = frame.emit, array_pointer("make_block_ptr", base)
    if isinstance(base.type.dtype, BoolPointer):  # arrays of bools are loaded as bytes
        base = emit.cast(base, Pointer(t.int8))
    block = shape_of(frame, block_shape, "block_shape")
    axes = order if isinstance(order, tuple) else (order,)
    axes = tuple(constant_int(frame, axis, "order") for axis in axes)
    names = ("shape", "strides", "offsets")
    given = {n: integers(frame, x, n) for n, x in zip(names, (shape, strides, offsets), strict=True)}
    same_rank("make_block_ptr", given | {"order": axes}, len(block))
    if sorted(axes) != list(range(len(axes))):
        raise Mismatch(
            f"the order {axes} does not name each axis once",
            f"write each axis once; row-major arrays have {tuple(reversed(range(len(axes))))}",
            "order",
        )
    start = tuple(x if isinstance(x, Value) else emit.runtime(x) for x in given["offsets"])
    return BlockPointer(base, given["shape"], given["strides"], start, block)


@emits("advance")
def advance(frame: Frame, base: Any, offsets: Any) -> BlockPointer:
    if not isinstance(base, BlockPointer):
        raise Mismatch(
            f"`advance` needs a block pointer, not {describe(base)}",
            "move a pointer by `pointer + offset`" if is_pointer(base) else "tl.make_block_ptr makes one",
            "base",
        )
    steps = integers(frame, offsets, "offsets")
    same_rank("advance", {"offsets": steps}, len(base.block_shape))
    moved = tuple(moved_by(frame.emit, x, step) for x, step in zip(base.offsets, steps, strict=True))
    return base.rebuilt((base.base, base.shape, base.strides, moved))  # type: ignore[return-value]


def moved_by(emit: Emitter, offset: Value, step: Any) -> Value:
    """The sum of an offset and a step in the offset's dtype, so that a loop can carry it."""
    step, dtype = emit.constant(step), offset.type.dtype
    if isinstance(step, int) and step == 0:
        return offset
    if dtype.bits == 32 and not narrow(emit, step) and getattr(step, "type", None) != offset.type:
        raise Mismatch(
            f"the offsets of this block pointer are {dtype}, and {describe(step)} may not fit",
            "convert the step with .to(tl.int32), or make the block pointer with offsets.to(tl.int64)",
            "offsets",
        )
    return emit.value("add", offset, emit.cast(step, dtype))


def checked_axes(frame: Frame, boundary_check: Any, rank: int) -> tuple[int, ...]:
    """The axes of `boundary_check`: one axis, or a tuple of distinct axes."""
    if boundary_check is None or boundary_check is False:
        return ()
    axes = boundary_check if isinstance(boundary_check, tuple) else (boundary_check,)
    found = tuple(constant_int(frame, axis, "boundary_check") for axis in axes)
    for axis in found:
        if not 0 <= axis < rank:
            raise Mismatch(
                f"boundary_check names axis {axis} of a block with {rank} {'axis' if rank == 1 else 'axes'}",
                f"the axes are 0 to {rank - 1}" if rank > 1 else "its only axis is 0",
                "boundary_check",
            )
    if len(set(found)) != len(found):
        raise Mismatch(f"boundary_check names an axis twice: {found}", "name each axis once", "boundary_check")
    return tuple(sorted(found))


def padding(frame: Frame, option: Any, dtype: t.DType) -> float | None:
    """The value that a load returns outside the array: NaN, or None for zero. A kernel that looks for undefined values has the zero."""
    if option is not None and option not in PADDING:
        raise Mismatch(f"unknown padding {option!r}", 'one of "zero" and "nan"', "padding_option")
    if option != "nan":
        return 0.0 if option == "zero" and "init" in parse_checks(frame.emit.options.get("checked")) else None
    if not dtype.is_float:
        raise Mismatch(
            f"a block of {dtype} cannot be padded with NaN", 'integers have no NaN; use "zero"', "padding_option"
        )
    return float("nan")


def access(
    frame: Frame, name: str, pointer: BlockPointer, mask: Any, boundary_check: Any, other: Any = None
) -> tuple[Value, Value | None]:
    """The pointers and the mask of a load or store through a block pointer."""
    for argument, given in (("mask", mask), ("other", other)):
        if given is not None:
            raise Mismatch(
                f"`{name}` through a block pointer takes no `{argument}`",
                "name the axes that may leave the array: boundary_check=(0, 1); loads return zero outside the array",
                argument,
            )
    axes = checked_axes(frame, boundary_check, len(pointer.block_shape))
    return window(frame, pointer, pointer.offsets, axes)
