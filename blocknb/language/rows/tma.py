"""Rows of the op table: Hopper's copy engine (TMA), mbarriers and warp specialization. `language.bulk` has the types."""

from __future__ import annotations

import functools
from typing import Any

from blocknb.language import types as t
from blocknb.language.bulk import MOST_EXTENT, MOST_RANK, SWIZZLES, Barriers, TensorMap
from blocknb.language.op_spec import op
from blocknb.language.rules import in_flight, need, one_buffer
from blocknb.language.types import Tile

MEMORY = ("memory",)
shared = functools.partial(op, "shared", levels=MEMORY)


def whole(type: Any, what: str) -> None:
    need(type == Tile(t.int32), f"{what} is an int32, not {type}")


def barriers_of(types: tuple) -> None:
    need(isinstance(types[0], Barriers), f"{types[0]} is not an array of mbarriers")
    whole(types[1], "the number of an mbarrier")


def moved(
    buffer: Any, kind: Any, coordinates: tuple, axes: tuple[int, ...], extents: tuple[int, ...] | None = None
) -> None:
    """Checks the operands of a copy between a buffer, or its first elements along each axis (`extents`), and a box."""
    one_buffer(buffer)
    need(isinstance(kind, TensorMap), f"{kind} is not a tensor map")
    need(buffer.dtype == kind.dtype, f"moves {kind.dtype} between {buffer} and {kind}")
    need(len(coordinates) == len(kind.box), f"a box needs {len(kind.box)} coordinates, not {len(coordinates)}")
    for type in coordinates:
        whole(type, "a coordinate")
    need(len(axes) == len(buffer.shape) == len(set(axes)), f"axes {axes} of a buffer of shape {buffer.shape}")
    extents = extents or buffer.shape
    fits = len(extents) == len(buffer.shape) and all(0 < n <= m for n, m in zip(extents, buffer.shape, strict=True))
    need(fits, f"{extents} elements of a buffer of shape {buffer.shape}")
    for axis, extent in enumerate(kind.box):
        inside = [n for n, to in zip(extents, axes, strict=True) if to == axis]
        need(extent == 1 if not inside else not inside[0] % extent, f"boxes of {kind} do not fill {buffer}")


@op("distributed", operands="base extents... strides...", attrs="type", levels=MEMORY)
def tensor_map(types, attrs):
    """Describes an array for the copy engine. The host makes the map from the arguments when it launches the kernel.

    IR:
        The operands are the base, the extents, and the strides in elements but for the innermost axis, the outer axis first.
    """
    kind = attrs["type"]
    rank = len(kind.box)
    need(1 <= rank <= MOST_RANK, f"a tensor map has 1 to {MOST_RANK} axes, not {rank}")
    need(
        all(1 <= n <= MOST_EXTENT for n in kind.box), f"a box has 1 to {MOST_EXTENT} elements along an axis: {kind.box}"
    )
    need(kind.swizzle in SWIZZLES, f"there is no swizzle of {kind.swizzle} bytes")
    need(types[0].is_pointer and types[0].shape == (), f"a tensor map needs a pointer, not {types[0]}")
    need(types[0].dtype.element == kind.dtype, f"a map of {kind.dtype} over {types[0]}")
    need(
        len(types) == 2 * rank,
        f"a tensor map needs {rank} extents and {rank - 1} strides, not {len(types) - 1} numbers",
    )
    need(all(x.is_scalar and x.dtype in (t.int32, t.int64) for x in types[1:]), f"extents and strides are {types[1:]}")
    return (kind,)


@shared(attrs="stages arrivals cluster offset", writes="shared", traits="allocates")
def mbarriers(types, attrs):
    """Reserves mbarriers in shared memory. A phase of each ends after `arrivals` arrivals.

    IR:
        The pass `shared_memory_allocation` sets `offset` in bytes. With `cluster`, the phase ends after `arrivals` arrivals of each of so
        many CTAs, whose warps arrive at the mbarriers of all of them.
    """
    need(
        attrs["stages"] >= 1 and attrs["arrivals"] >= 1, f"{attrs['stages']} mbarriers of {attrs['arrivals']} arrivals"
    )
    return (Barriers(attrs["stages"]),)


@shared(operands="barriers index", attrs="bytes", writes="shared", traits="mbarrier interleaves producer producer_only")
def expect(types, attrs):
    """Arrives at an mbarrier, whose phase then also waits for `bytes` copied bytes.

    IR:
        One thread runs the op.
    """
    barriers_of(types)
    need(attrs["bytes"] > 0, f"expects {attrs['bytes']} bytes")
    return ()


@shared(operands="barriers index parity", reads="shared", writes="shared", traits="mbarrier interleaves producer")
def await_(types, attrs):
    """Waits until the phase of an mbarrier with the given parity (0 or 1) has ended."""
    barriers_of(types)
    whole(types[2], "a parity")
    return ()


@shared(operands="barriers index [condition]", writes="shared", traits="mbarrier interleaves consumer_only")
def arrive(types, attrs):
    """Arrives at an mbarrier, once per warp, if the condition holds."""
    barriers_of(types)
    need(len(types) == 2 or types[2] == Tile(t.int1), f"whether to arrive is {types[2:]}")
    return ()


@shared(
    operands="buffer map barriers index coordinates...",
    attrs="axes multicast evict extents",
    reads="global",
    writes="shared",
    traits="box_copy async_copy interleaves producer producer_only",
)
def copy_bulk(types, attrs):
    """Copies a box of an array to a shared buffer while the program continues. Out of bounds the buffer gets zeros.

    IR:
        The bytes count for an mbarrier. `coordinates` are those of the first element, the outer axis first. `axes` names the axis of
        the array for each axis of the buffer. One thread runs the op. With `multicast`, the CTAs of a cluster copy the same box: each
        reads some of it and writes that to the buffers of all. With `extents`, only that number of elements along each axis of the buffer,
        the first ones, are copied.
    """
    barriers_of(types[2:])
    moved(types[0], types[1], types[4:], attrs["axes"], attrs.get("extents"))
    return ()


@shared(
    operands="map buffer coordinates...",
    attrs="axes layout adds",
    reads="shared",
    writes="global",
    traits="box_copy exchanges interleaves consumer_only",
)
def store_bulk(types, attrs):
    """Copies a shared buffer to a box of an array while the program continues. Nothing is written out of bounds.

    IR:
        One thread runs the op; with a `layout`, one thread of each warp does, for the elements of its warp. With `adds`, the copy
        engine adds to the array.
    """
    moved(types[1], types[0], types[2:], attrs["axes"])
    return ()


@shared(attrs="in_flight", writes="shared", traits="interleaves consumer_only")
def store_wait(types, attrs):
    """Waits until the copy engine has read the buffers of all but the last `in_flight` `store_bulk` of the thread."""
    return in_flight(attrs)


@op("control", attrs="warps registers consumer_groups", blocks=2, levels=MEMORY)
def roles(types, attrs):
    """Runs the first block in the consumer warps and the second in the producer warps.

    IR:
        `warps` has the number of both, and `registers` those of their threads, where the hardware redistributes them. With several
        `consumer_groups`, each consumer group runs its own program.
    """
    warps, registers, groups = attrs["warps"], attrs.get("registers"), attrs.get("consumer_groups", 1)
    need(len(warps) == 2 and min(warps) >= 1, f"roles of {warps} warps")
    need(groups >= 1 and warps[0] % groups == 0, f"{groups} consumer groups of {warps[0]} warps")
    need(registers is None or len(registers) == 2, f"registers of roles are {registers}")
    return ()


@op("source", levels=MEMORY, traits="program_index")
def cta_id(types, attrs):
    """Returns the index of the CTA."""
    return (Tile(t.int32),)


@op("source", levels=MEMORY, traits="program_index")
def consumer_group_id(types, attrs):
    """Returns the index of the consumer group within its CTA."""
    return (Tile(t.int32),)


@op("source", levels=MEMORY, traits="grid_size")
def num_ctas(types, attrs):
    """Returns the number of CTAs, which may be smaller than the number of programs."""
    return (Tile(t.int32),)
