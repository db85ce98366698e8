"""Scans along an axis that several warps share (a two-level parallel prefix sum).

Each warp holds consecutive elements of a slice along the axis. The scan becomes three ops. A reduction gives the total of each warp. A
conversion through shared memory gives every thread all totals of its slice. A scan starts each warp at the total of the warps before it.
The code generator scans the elements within each warp once, for both the reduction and the scan. Source: Blelloch, "Prefix Sums and Their
Applications" (1990).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Op
from blocknb.layouts.linear import Layout
from blocknb.trace import Notes


def split_scans(notes: Notes) -> Callable:
    """A visitor that rewrites a scan over several warps as the totals of the warps, a conversion, and a scan that takes them."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name != "scan" or "keep" in op.attrs:
            return NotImplemented
        axis, layout = op.attrs["axis"], op.args[0].type.layout
        keep = layout.parts_by_warp(axis)
        if keep is None or keep == 1:
            return NotImplemented
        b, attrs = rebuild.builder, {**op.attrs, "scan": op.id, "keep": keep}
        totals = b.op("reduce", *op.args, blocks=op.blocks, layout=layout.slice_partial(axis), **attrs)
        gathered = [b.value("convert", x, layout=all_totals(layout, axis, keep)) for x in totals.results]
        for one, other in zip(totals.results, gathered, strict=True):
            one.name = other.name = "total"
        notes(
            totals,
            f"a scan by {keep} warps: each scans {layout.shape[axis] // keep} elements, and combines them with the totals before",
        )
        return emit_copy(op.replace(args=(*op.args, *gathered), attrs=attrs), b, {}).results

    return visit


def all_totals(layout: Layout, axis: int, keep: int) -> Layout:
    """The layout of the totals of `keep` warps along an axis: each thread has those of its slices, in registers."""
    bits, count = layout.dim_bits(axis), keep.bit_length() - 1

    def moved(basis: int) -> int:
        """The basis in the shape of the totals; nothing if it lies on the axis."""
        if basis & layout.dim_mask(axis):
            return 0
        return (basis >> bits.stop << bits.start + count) | (basis & ((1 << bits.start) - 1))

    shape = (*layout.shape[:axis], keep, *layout.shape[axis + 1 :])
    reg, lane, warp = (tuple(map(moved, bases)) for bases in (layout.reg, layout.lane, layout.warp))
    return Layout(shape, (*(1 << bits.start + bit for bit in range(count)), *reg), lane, warp)
