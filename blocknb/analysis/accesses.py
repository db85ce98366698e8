"""Splits an access into instructions that are as wide as the layout, the addresses and the mask allow (vectorization)."""

from __future__ import annotations

from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import global_operands, mask_of
from blocknb.ir.core import Op, Value, is_volatile
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout

COPY_BYTES = (4, 8, 16)  # the sizes of one asynchronous copy per thread (PTX ISA, cp.async)


def accesses(facts: Facts, op: Op) -> list[tuple[int, ...]]:
    """The registers of each access of a load, store or copy. Each access is as wide as the layout, the addresses and the mask allow."""
    pointer = global_operands(op)[0]
    if not pointer.type.shape:
        return [(0,)]
    layout, width = pointer.type.layout, 1
    if op.name == "copy_async":
        width = op.attrs["vec"]
    elif op.attrs.get("vec", 1) > 1 and layout.reg:
        axis = next((a for a in range(len(layout.shape)) if layout.reg[0] & layout.dim_mask(a)), 0)
        bytes = pointer.type.dtype.element.bytes
        width = min(
            layout.contiguous_registers(axis),
            facts.contiguity(pointer, axis),
            facts.divisibility(pointer, axis) // bytes,
            16 // bytes,
        )
        mask = mask_of(op)
        if mask is not None:
            width = min(width, facts.constancy(mask, axis))
        width = max(1, width)
    return [tuple(range(start, start + width)) for start in range(0, layout.num_registers, width)]


def equal_registers(facts: Facts, load: Op) -> int:
    """A mask of the bits of a register's number that choose among equal elements of a load along one axis. Equal elements have the same
    address and mask. 0 if there are none, and if the load is volatile or ordered."""
    if len(load.args[0].type.shape) != 1 or is_volatile(load) or load.attrs.get("sem"):
        return 0
    run = min(facts.constancy(operand, 0) for operand in load.args if operand.type.shape)
    places = load.args[0].type.layout.reg  # in one aligned run if they differ only in lower bits
    return sum(1 << i for i, place in enumerate(places) if place < run) if run > 1 else 0


def copy_width(facts: Facts, load: Op, buffer: Value, stored: Value) -> int:
    """The number of elements that one asynchronous copy per thread could move instead of a load. The tile of the load, or a view of it,
    is `stored` to a buffer. 0 if the width is below the smallest copy."""
    width = len(accesses(facts, load)[0])
    while width > 1 and not _side_by_side(stored.type.layout, buffer.type.layout, width):
        width //= 2
    return width if width * buffer.type.dtype.bytes in COPY_BYTES else 0


def _side_by_side(layout: Layout, shared: SharedLayout, width: int) -> bool:
    """Whether each aligned run of `width` registers is contiguous and aligned in the buffer."""
    threads = 0
    for basis in (*layout.lane, *layout.warp):
        threads |= shared.offset(basis)
    places = [shared.offset(basis) for basis in layout.reg]
    count = width.bit_length() - 1
    low = [place & (width - 1) for place in places]
    return not threads & (width - 1) and places[:count] == [1 << i for i in range(count)] and not any(low[count:])
