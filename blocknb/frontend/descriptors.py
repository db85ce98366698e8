"""Lowers tensor descriptors, which a kernel makes itself or receives as arguments, and their block accesses.

An access is a window over the array (see `blocks`) with all axes checked. Loads return the padding outside the array, and stores write
nothing there. Descriptors therefore work on targets without TMA. The front end still checks the rules of TMA on constants: a last stride of
1, and multiples of 16 bytes. A kernel that breaks them would not run in Triton.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blocknb.frontend import blocks
from blocknb.frontend.emitter import Mismatch, describe, is_pointer
from blocknb.frontend.memory import load as load_tile
from blocknb.frontend.memory import store as store_tile
from blocknb.frontend.records import DescriptorValue
from blocknb.frontend.scope import HANDLERS, Frame, emits
from blocknb.frontend.shapes import shape_of
from blocknb.ir.core import Value
from blocknb.language import types as t

MAX_RANK = 5
ALIGNMENT = 16  # bytes: alignment of the base and of all strides but the last; minimum size of a block's last axis
LEAST_ROWS, LEAST_ROW_BYTES = 8, 32  # of a gather or scatter

# -- making one --------------------------------------------------------------------------------------------------------------


@emits("make_tensor_descriptor")
def make_tensor_descriptor(
    frame: Frame, base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: Any = "zero"
) -> DescriptorValue:
    emit, base = frame.emit, blocks.array_pointer("make_tensor_descriptor", base)
    block = shape_of(frame, block_shape, "block_shape")
    given = {n: blocks.integers(frame, x, n) for n, x in (("shape", shape), ("strides", strides))}
    blocks.same_rank("make_tensor_descriptor", given, len(block))
    dtype = base.type.dtype.element_ty
    if (why := refusal(dtype, block, [emit.constant(s) for s in given["strides"]])) is not None:
        error = Mismatch(*why)
        if why[2] == "block_shape" and len(block) <= MAX_RANK:
            error.in_triton(f"Descriptor block shape must have at least {ALIGNMENT} bytes in the last dimension")
        raise error
    blocks.padding(frame, padding_option, dtype)
    # As in Triton and in descriptors of the host, every descriptor has the same types of fields, so that loops can carry one.
    sizes = tuple(emit.cast(n, t.int32) if isinstance(n, Value) else n for n in given["shape"])
    steps = tuple(emit.cast(s, t.int64) if isinstance(s, Value) else s for s in (*given["strides"][:-1], 1))
    return DescriptorValue(base, sizes, steps, block, padding_option or "zero")


def refusal(dtype: t.DType, block: tuple[int, ...], strides: list[Any]) -> tuple[str, str, str] | None:
    """The message, the hint and the faulty argument of an invalid descriptor. Accepts strides that are known only at run time."""
    if len(block) > MAX_RANK:
        return f"a tensor descriptor has at most {MAX_RANK} axes, not {len(block)}", "merge some axes", "block_shape"
    if block[-1] * dtype.bytes < ALIGNMENT:
        return (
            f"the last axis of the block {block} has {block[-1] * dtype.bytes} bytes of {dtype}, but needs at least {ALIGNMENT}",
            f"give the last axis at least {ALIGNMENT // dtype.bytes} elements",
            "block_shape",
        )
    if isinstance(strides[-1], Value):
        return (
            "the last stride of a tensor descriptor must be the constant 1",
            "write 1; if the last axis is strided, use a block pointer or a tile of pointers",
            "strides",
        )
    if strides[-1] != 1:
        return (
            f"the last stride of a tensor descriptor must be 1, not {strides[-1]}",
            "make the descriptor of the transposed array",
            "strides",
        )
    for stride in strides[:-1]:
        if not isinstance(stride, Value) and stride * dtype.bytes % ALIGNMENT:
            return (
                f"a stride of {stride} elements is {stride * dtype.bytes} bytes, not a multiple of {ALIGNMENT}",
                f"pad the rows of the array to a multiple of {ALIGNMENT // dtype.bytes} elements, or use a block pointer",
                "strides",
            )
    return None


@emits("_experimental_make_tensor_descriptor")
def make_tensor_descriptor_before(frame: Frame, base: Any, shape: Any, strides: Any, block_shape: Any) -> Any:
    return make_tensor_descriptor(frame, base, shape, strides, block_shape)


# -- passed to a kernel ----------------------------------------------------------------------------------------------------------


def field_names(name: str, rank: int) -> tuple[str, ...]:
    """The run-time parameters of a descriptor argument `name`: the base under that name, the sizes, and all strides but the last."""
    return name, *(f"{name}.shape{i}" for i in range(rank)), *(f"{name}.stride{i}" for i in range(rank - 1))


def passed_descriptor(name: str, kind: t.Descriptor, divisor: int) -> tuple[DescriptorValue, dict[Value, int]]:
    """A descriptor parameter, with its run-time parameters and their divisors. `divisor` is that of the last size."""
    rank = kind.rank
    pointer = t.BoolPointer() if kind.dtype == t.int1 else t.Pointer(kind.dtype)
    types = [pointer, *[t.int32] * rank, *[t.int64] * (rank - 1)]
    divisors = [ALIGNMENT, *[1] * (rank - 1), divisor, *[ALIGNMENT // min(kind.dtype.bytes, ALIGNMENT)] * (rank - 1)]
    values = [Value(t.Tile(type_), n) for type_, n in zip(types, field_names(name, rank), strict=True)]
    shape, strides = tuple(values[1 : 1 + rank]), (*values[1 + rank :], 1)
    record = DescriptorValue(values[0], shape, strides, kind.block_shape, kind.padding)
    return record, dict(zip(values, divisors, strict=True))


# -- whole blocks ------------------------------------------------------------------------------------------------------------


def access(frame: Frame, name: str, desc: Any, offsets: Any, argument: str = "desc") -> tuple[Value, Value | None]:
    """The pointers and the mask of the block at `offsets`."""
    desc = described(name, desc, argument)
    start = blocks.integers(frame, offsets, "offsets")
    blocks.same_rank(name, {"offsets": start}, len(desc.block_shape))
    return blocks.window(frame, desc, start, range(len(start)))


def described(name: str, desc: Any, argument: str) -> DescriptorValue:
    if isinstance(desc, DescriptorValue):
        return desc
    hint = "make one with tl.make_tensor_descriptor, or pass a blocknb.TensorDescriptor to the kernel"
    if desc is None:
        hint = "it is None: guard the line with `if ... is not None:`"
    elif is_pointer(desc):
        hint = "pass blocknb.TensorDescriptor(array, shape, strides, block_shape) instead of this pointer"
    raise Mismatch(f"`{name}` needs a tensor descriptor, not {describe(desc)}", hint, argument)


def block_load(
    frame: Frame, name: str, desc: Any, offsets: Any, argument: str = "desc", eviction_policy: Any = ""
) -> Value:
    return padded_load(frame, desc, *access(frame, name, desc, offsets, argument), eviction_policy)


def padded_load(
    frame: Frame, desc: DescriptorValue, pointers: Value, mask: Value | None, eviction_policy: Any = ""
) -> Value:
    """Loads elements of a described array; outside of it, 0 or NaN."""
    padding = blocks.padding(frame, desc.padding, desc.dtype)
    value = load_tile(frame, pointers, mask, padding, eviction_policy=eviction_policy)
    frame.emit.padded.add(value)
    return value


def block_value(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """The value of a store. It is a scalar or has the shape of the block."""
    if isinstance(value, Value) and value.type.shape not in ((), shape):
        raise Mismatch(f"`{name}` writes a block of shape {shape}, not {describe(value)}", "reshape it first", "value")
    return value


def block_store(frame: Frame, name: str, desc: Any, offsets: Any, value: Any, argument: str = "desc") -> None:
    pointers, mask = access(frame, name, desc, offsets, argument)
    store_tile(frame, pointers, block_value(name, value, desc.block_shape), mask)


@emits("load_tensor_descriptor")
def load_tensor_descriptor(frame: Frame, desc: Any, offsets: Any) -> Value:
    return block_load(frame, "load_tensor_descriptor", desc, offsets)


@emits("store_tensor_descriptor")
def store_tensor_descriptor(frame: Frame, desc: Any, offsets: Any, value: Any) -> None:
    block_store(frame, "store_tensor_descriptor", desc, offsets, value)


@emits("tensor_descriptor.load")
def descriptor_load(frame: Frame, self: Any, offsets: Any, eviction_policy: Any = "") -> Value:
    return block_load(frame, "load", self, offsets, "self", eviction_policy)


@emits("tensor_descriptor.store")
def descriptor_store(frame: Frame, self: Any, offsets: Any, value: Any) -> None:
    block_store(frame, "store", self, offsets, value, "self")


def read_as(frame: Frame, desc: DescriptorValue, dtype: Any) -> DescriptorValue:
    """Reinterprets a descriptor in another dtype of the same size.

    A descriptor made of an untyped address has unsigned integers.
    """
    if (
        desc.dtype.kind != "uint"
        or desc.dtype == dtype
        or not isinstance(dtype, t.DType)
        or dtype.bits != desc.dtype.bits
    ):
        return desc
    return replace(desc, base=frame.emit.cast(desc.base, t.Pointer(dtype)))


@emits("_experimental_descriptor_load")
def load_before(frame: Frame, desc_pointer: Any, offsets: Any, shape: Any, dtype: Any) -> Value:
    name = "_experimental_descriptor_load"
    desc, asked = read_as(frame, described(name, desc_pointer, "desc_pointer"), dtype), shape_of(frame, shape)
    if asked != desc.block_shape or dtype != desc.dtype:
        raise Mismatch(
            f"`{name}` reads {dtype} of shape {asked}, but the descriptor has blocks of {desc.dtype} of shape {desc.block_shape}",
            "give both the same block",
            "shape" if asked != desc.block_shape else "dtype",
        )
    return block_load(frame, name, desc, offsets, "desc_pointer")


@emits("_experimental_descriptor_store")
def store_before(frame: Frame, desc_pointer: Any, value: Any, offsets: Any) -> None:
    name = "_experimental_descriptor_store"
    desc = described(name, desc_pointer, "desc_pointer")
    if isinstance(value, Value):
        desc = read_as(frame, desc, value.type.dtype)
    block_store(frame, name, desc, offsets, value, "desc_pointer")


def _update(kind: str) -> None:
    def handler(frame: Frame, self: Any, offsets: Any, value: Any) -> None:
        pointers, mask = access(frame, f"atomic_{kind}", self, offsets, "self")
        value = block_value(f"atomic_{kind}", value, self.block_shape)
        HANDLERS[f"atomic_{kind}"](frame, pointers, value, mask, "relaxed")

    emits(f"tensor_descriptor.atomic_{kind}")(handler)


for _kind in ("add", "min", "max", "and", "or", "xor"):
    _update(_kind)

# -- rows here and there -----------------------------------------------------------------------------------------------------


def rows(frame: Frame, name: str, desc: Any, x_offsets: Any, y_offset: Any) -> tuple[Value, Value]:
    """The pointers and the mask of the rows `x_offsets` from column `y_offset` on."""
    emit, desc = frame.emit, described(name, desc, "self")
    if len(desc.block_shape) != 2 or desc.block_shape[0] != 1:
        raise Mismatch(
            f"`{name}` needs a descriptor of one-row blocks, not of shape {desc.block_shape}",
            "make the descriptor with block_shape=(1, columns)",
            "self",
        )
    columns = desc.block_shape[1]
    least = LEAST_ROW_BYTES // desc.dtype.bytes
    if not isinstance(x_offsets, Value) or len(x_offsets.type.shape) != 1 or not x_offsets.type.dtype.is_integer:
        raise Mismatch(
            f"`{name}` needs a one-dimensional tile of row numbers, not {describe(x_offsets)}",
            "for example tl.load(rows + ...)",
            "x_offsets",
        )
    count = x_offsets.type.shape[0]
    if count < LEAST_ROWS or columns < least:
        raise Mismatch(
            f"`{name}` of {count} rows and {columns} columns of {desc.dtype}: it needs at least {LEAST_ROWS} rows and {least} columns",
            "use larger blocks, or a tile of pointers",
            "x_offsets" if count < LEAST_ROWS else "self",
        )
    start = blocks.integer(frame, y_offset, "y_offset")
    index = emit.cast(
        x_offsets, t.int64 if x_offsets.type.dtype.bits == 64 or x_offsets.type.dtype == t.uint32 else t.int32
    )
    stride = emit.broadcast(emit.cast(desc.strides[0], t.int64), (count,))
    down = emit.value("mul", emit.cast(index, t.int64), stride)
    across = emit.value("arange", start=0, end=columns)
    far = emit.binary("+", blocks.raised(emit, down, 0, 2), blocks.raised(emit, across, 1, 2))
    base = blocks.first_element(emit, desc.base, (start,), (1,))
    pointers = emit.value("ptradd", emit.broadcast(base, (count, columns)), far)
    inside = blocks.inside(emit, index, desc.shape[0])
    mask = blocks.raised(emit, inside, 0, 2)
    right = blocks.inside(emit, blocks.along(emit, start, columns, desc.shape[1]), desc.shape[1])
    return pointers, blocks.both(emit, mask, blocks.raised(emit, right, 1, 2))


@emits("tensor_descriptor.gather")
def gather(frame: Frame, self: Any, x_offsets: Any, y_offset: Any) -> Value:
    return padded_load(frame, self, *rows(frame, "gather", self, x_offsets, y_offset))


@emits("tensor_descriptor.scatter")
def scatter(frame: Frame, self: Any, value: Any, x_offsets: Any, y_offset: Any) -> None:
    pointers, mask = rows(frame, "scatter", self, x_offsets, y_offset)
    store_tile(frame, pointers, block_value("scatter", value, pointers.type.shape), mask)
