"""Shared memory: conversions and reductions that cross warps become explicit, then buffers get their addresses.

A conversion whose data must change warps is a store to a buffer and a load from it, in a layout of the buffer (a swizzle, where
that helps) which serves both sides without bank conflicts. A reduction across warps is three steps that exist already: reduce
within each warp, convert the few partial results so that every thread has all of them, reduce those in registers. Buffers then
share memory whenever their live ranges do not meet; `barriers` runs later and sees the final addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blocknb.errors import OutOfResources
from blocknb.ir.build import Builder, Rebuild, emit_copy, rebuild
from blocknb.ir.core import Block, Func, Op, Value, uses
from blocknb.language.types import Buffer
from blocknb.layouts import convert
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout, ldmatrix_plan, row_major, vector_access
from blocknb.target import Target
from blocknb.trace import Notes

ALIGNMENT = 128  # bytes; a wavefront


def shared(func: Func, target: Target, notes: Notes) -> Func:
    """Puts what crosses warps through shared memory, and allocates it by live ranges.

    Each conversion between warps becomes a store and a load of a buffer whose swizzle avoids bank conflicts on both sides; a
    reduction across warps reduces in each warp first and exchanges only one value a warp. Buffers that are never alive at the
    same time share addresses.
    """
    func = rebuild(func, "shared", split_reductions(func.attrs["num_warps"]), level="memory")
    func = rebuild(func, "shared", Lowering(target, notes))
    return allocate(func, target, notes)


# -- reductions across warps


def split_reductions(num_warps: int) -> Callable:
    """A visitor that turns a reduction over several warps into partial results, a conversion, and a reduction in registers."""

    def visit(op: Op, rebuild: Rebuild):
        if op.name != "reduce" or "keep" in op.attrs:
            return NotImplemented
        axis, layout = op.attrs["axis"], op.args[0].type.layout
        across = [basis for basis in layout.warp if basis & layout.dim_mask(axis)]
        if not across:
            return NotImplemented
        keep = 1 << len(across)
        partial, gathered = partial_layout(layout, axis, keep), gathered_layout(layout, axis, keep)
        b = rebuild.builder
        first = b.op("reduce", *op.args, blocks=op.blocks, axis=axis, keep=keep, layout=partial)
        whole = [b.value("convert", x, layout=gathered) for x in first.results]
        last = emit_copy(op.replace(args=tuple(whole)), b, {})
        for old, new in zip(op.results, last.results, strict=True):
            assert new.type == old.type, f"{new.type} is not {old.type}"
        return last.results

    return visit


def place(layout: Layout, axis: int, keep: int) -> tuple[tuple[int, ...], Callable[[int], int], int]:
    """The shape with `axis` shrunk to `keep`, the map of a basis that does not lie on the axis, and the axis's lowest bit there."""
    shape = layout.shape[:axis] + (keep,) + layout.shape[axis + 1 :]
    bits = layout.dim_bits(axis)
    log_keep = keep.bit_length() - 1

    def move(basis: int) -> int:
        if basis & layout.dim_mask(axis):
            return 0
        return (basis >> bits.stop << bits.start + log_keep) | (basis & ((1 << bits.start) - 1))

    return shape, move, bits.start


def partial_layout(layout: Layout, axis: int, keep: int) -> Layout:
    """One value for each warp along the axis: registers and lanes of the axis are reduced, warps keep theirs, in their order."""
    shape, move, low = place(layout, axis, keep)
    warp, count = [], 0
    for basis in layout.warp:
        if basis & layout.dim_mask(axis):
            warp.append(1 << low + count)
            count += 1
        else:
            warp.append(move(basis))
    return Layout(shape, tuple(map(move, layout.reg)), tuple(map(move, layout.lane)), tuple(warp))


def gathered_layout(layout: Layout, axis: int, keep: int) -> Layout:
    """The partial results with the axis in registers, the rest as the reduction's result wants it."""
    shape, move, low = place(layout, axis, keep)
    along = tuple(1 << low + bit for bit in range(keep.bit_length() - 1))
    return Layout(shape, (*along, *filter(None, map(move, layout.reg))), tuple(map(move, layout.lane)), tuple(map(move, layout.warp)))


# -- conversions


class Lowering:
    """The visitor that makes cross-warp conversions and the operands of plain dots explicit."""

    def __init__(self, target: Target, notes: Notes):
        self.has_ldmatrix, self.notes = target.capability >= 75, notes

    def __call__(self, op: Op, rebuild: Rebuild):
        if op.name == "convert":
            return self.convert(op, rebuild)
        if op.name == "dot" and "instr" not in op.attrs:
            operands = [self.store(x, rebuild.builder, row_major(x.type.shape), f"dot operand {name}") for x, name in zip(op.args, "ab", strict=False)]
            rebuild.builder.append(op.replace(args=(*operands, op.args[2])))
            return op.results
        return NotImplemented

    def convert(self, op: Op, rebuild: Rebuild):
        source, target = op.args[0].type.layout, op.attrs["layout"]
        if source == target:
            return op.args
        bits = max(8, op.result.type.dtype.bits)
        if convert.plan(source, target, bits).kind != "shared":
            return NotImplemented
        layout = convert.choose_shared(source, target, bits, load_matrix=self.has_ldmatrix)
        buffer = self.store(op.args[0], rebuild.builder, layout, op.result.name or "conversion")
        loaded = rebuild.builder.op("local_load", buffer, layout=target)
        plan = ldmatrix_plan(target, layout, bits) if self.has_ldmatrix else None
        if plan:
            count = len(plan.steps)
            self.notes(loaded, f"shared memory read by {count} ldmatrix.x{plan.count}{'.trans' if plan.trans else ''} a thread, {plan.wavefronts // (count * plan.count)}-way")
        else:
            access = vector_access(target, layout, bits)
            self.notes(loaded, f"shared memory read as {access.vector * bits // 8}-byte accesses, {access.wavefronts / access.ideal:g}-way bank conflicts")
        return loaded.results

    def store(self, value: Value, b: Builder, layout: SharedLayout, what: str) -> Value:
        """A buffer that holds `value`; the same one for every use of it."""
        kind = Buffer(value.type.dtype, value.type.shape, layout)
        buffer = b.value("alloc", type=kind)
        buffer.name = value.name
        stored = b.op("local_store", buffer, value)
        bits = max(8, value.type.dtype.bits)
        access = vector_access(value.type.layout, layout, bits)
        self.notes(stored, f"{what}: {kind.bytes} bytes stored as {access.vector * bits // 8}-byte accesses, {access.wavefronts / access.ideal:g}-way bank conflicts")
        return buffer


# -- allocation


@dataclass
class Live:
    """A buffer's live range, in positions of a walk over the function, and its place."""

    op: Op
    size: int
    first: int
    last: int
    offset: int = 0


def allocate(func: Func, target: Target, notes: Notes) -> Func:
    """Sets the `offset` of every alloc: first fit, largest first, among buffers whose live ranges meet."""
    ranges = live_ranges(func)
    placed: list[Live] = []
    for live in sorted(ranges, key=lambda x: (-x.size, x.first)):
        taken = sorted((other.offset, other.offset + other.size) for other in placed if other.first <= live.last and live.first <= other.last)
        for start, end in taken:
            if live.offset + live.size <= start:
                break
            live.offset = max(live.offset, -(-end // ALIGNMENT) * ALIGNMENT)
        placed.append(live)
    total = max((live.offset + live.size for live in placed), default=0)
    if total > target.max_shared:
        biggest = max(placed, key=lambda x: x.size)
        raise OutOfResources(
            f"the kernel needs {total} bytes of shared memory, {target.arch} has {target.max_shared} a program",
            biggest.op.loc,
            f"make the tiles smaller: the largest buffer here takes {biggest.size} bytes",
        )
    offsets = {live.op.id: live.offset for live in placed}

    def visit(op: Op, rebuild: Rebuild):
        if op.name != "alloc":
            return NotImplemented
        rebuild.builder.append(op.replace(attrs={**op.attrs, "offset": offsets[op.id]}))
        return op.results

    if total:
        separate = sum(-(-live.size // ALIGNMENT) * ALIGNMENT for live in placed)
        reuse = f"; {separate - total} bytes saved by reuse" if separate > total else ""
        notes(None, f"shared memory: {total} bytes for {len(placed)} buffers{reuse}")
    return rebuild(func, "shared", visit).with_attrs(shared_bytes=total)


def live_ranges(func: Func) -> list[Live]:
    """From each buffer's first store to its last use. A buffer made outside a loop and used inside lives through the loop."""
    position, at, loops = 0, {}, {}

    def number(block: Block, around: tuple[int, ...]) -> None:
        nonlocal position
        for op in block.ops:
            position += 1
            start = at[op.id] = position
            if op.name == "reduce":
                continue
            inner = (*around, op.id) if op.name in ("for", "while") else around
            for nested in op.blocks:
                number(nested, inner)
            position += 1
            loops[op.id] = (start, position, around)

    number(func.body, ())
    users = uses(func)
    found = []
    for op in func.ops():
        if op.name == "alloc":
            own_loops = loops[op.id][2]
            points = [at[op.id]]
            for user, _ in users.get(op.result, ()):
                points.append(at[user.id])
                deeper = loops[user.id][2][len(own_loops) :]
                points += [loops[loop][1] for loop in deeper[:1]]
            found.append(Live(op, op.attrs["type"].bytes, min(points), max(points)))
    return found

