"""Rows of the op table: shared memory. Passes make these ops below the tile level, where data has to change warps."""

from __future__ import annotations

import functools

from blocknb.language import types as t
from blocknb.language.op_spec import op
from blocknb.language.rules import check_mask, in_flight, need, one_buffer
from blocknb.language.types import Buffer, Tile

shared = functools.partial(op, "shared", levels=("memory",))


@shared(attrs="type offset align", traits="allocates")
def alloc(types, attrs):
    """Reserves a buffer in shared memory.

    IR:
        The pass `shared_memory_allocation` sets `offset` in bytes, a multiple of `align`.
    """
    return (attrs["type"],)


@shared(operands="buffer x", attrs="tf32", writes="shared", traits="exchanges")
def local_store(types, attrs):
    """Writes a tile to a shared buffer.

    IR:
        With `tf32`, the op rounds the elements to tf32.
    """
    one_buffer(types[0])
    need((types[0].dtype, types[0].shape) == (types[1].dtype, types[1].shape), f"stores {types[1]} to {types[0]}")
    return ()


@shared(operands="buffer", attrs="layout", reads="shared", traits="exchanges")
def local_load(types, attrs):
    """Reads a tile from a shared buffer."""
    one_buffer(types[0])
    return (Tile(types[0].dtype, types[0].shape, attrs["layout"]),)


@shared(writes="shared", traits="consumer_only")
def fence(types, attrs):
    """Lets wgmma read, after the next barrier, the data that this warp has written to shared memory."""
    return ()


@shared(writes="shared")
def warp_barrier(types, attrs):
    """Waits for the lanes of the warp. After it they see the shared memory accesses of each other before it."""
    return ()


@shared(operands="x...", attrs="in_flight", reads="shared")
def dot_wait(types, attrs):
    """Waits until at most the last `in_flight` wgmma are in flight.

    IR:
        `in_flight` is 0 unless it is set. After the op the kernel may use the results of the others.
    """
    return tuple(types)


@shared(operands="buffer index", traits="producer")
def stage(types, attrs):
    """Selects one stage of a circular buffer.

    IR:
        The index is below the number of stages.
    """
    buffer, index = types
    need(isinstance(buffer, Buffer), f"{buffer} is not a shared buffer")
    need(index == Tile(t.int32), f"the index of a stage must be an int32, not {index}")
    return (buffer.stage,)


@shared(
    operands="buffer pointer [mask]",
    attrs="cache evict vec",
    reads="global",
    writes="shared",
    traits="access async_copy",
)
def copy_async(types, attrs):
    """Copies elements from an array to a shared buffer while the program continues. Where the mask is off, the buffer gets zeros.

    IR:
        The thread that copies sees the elements after a `wait` for their group, and other threads after a barrier that follows. `vec`
        is the number of elements that one instruction copies.
    """
    buffer, pointer = types[:2]
    one_buffer(buffer)
    need(pointer.is_pointer and pointer.shape != (), f"copies from {pointer}, which is no tile of pointers")
    wanted = (pointer.dtype.element, pointer.shape)
    need((buffer.dtype, buffer.shape) == wanted, f"copies elements of {pointer} to {buffer}")
    need(attrs["vec"] * buffer.dtype.bytes in (4, 8, 16), f"copies {attrs['vec']} x {buffer.dtype} at once")
    if len(types) > 2:
        check_mask(pointer.shape, pointer.layout, types[2:])
    return ()


@shared(writes="shared")
def commit(types, attrs):
    """Makes a group of the copies that the thread has begun since the last `commit`. The group may be empty."""
    return ()


@shared(attrs="in_flight", writes="shared", traits="exchanges")
def wait(types, attrs):
    """Waits until all groups of copies but the last `in_flight` have arrived."""
    return in_flight(attrs)
