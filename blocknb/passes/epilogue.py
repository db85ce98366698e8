"""The way of a product's result to memory: part by part, each through a small buffer.

A tensor core leaves a thread pairs of neighbours, eight rows of them a warp: memory wants 16 bytes a thread and rows of 128. What lies
between the two is a conversion through shared memory, and for a whole tile that takes as much of it as the operands of several steps
along K, which are on their way already when the last tile is stored. So a tile is stored in parts, as wide as a row of 128 bytes: a
part is registers that every thread has, so that to take it costs nothing, and each part goes through a buffer of its size.

Where the layout that is stored leaves every warp its own rows (`assign` sees to that), warps do not wait for each other.
"""

from __future__ import annotations

from typing import Any

from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Func, Op, Value, definitions, experimental, uses
from blocknb.layouts import convert, tables, wgmma
from blocknb.layouts.linear import Layout, format_shape
from blocknb.target import Target
from blocknb.trace import Notes

ROW = 128  # bytes of a row of a part
SMALL = 32 * 1024  # bytes of a tile that goes at once, where warps have to wait for each other


def epilogue(func: Func, target: Target, notes: Notes) -> Func:
    """Stores large tiles in parts.

    A tile that goes through shared memory on its way to a store, as a product's result does, is cut into parts of 128 bytes a row,
    so that a small buffer serves them all one after another. Each thread has its piece of every part in registers of its own.
    """
    found = Stores(func)

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id in found.converts:
            return op.args
        if op.id not in found.stores:
            return NotImplemented
        made, (axis, count) = found.stores[op.id]
        pointer, value, *mask = op.args
        layout, b = pointer.type.layout.part(axis, count), rebuild.builder

        def part(x: Value, index: int) -> Value:
            return b.value("part", x, axis=axis, index=index, count=count) if x.type.shape else x

        for index in range(count):
            piece = part(value, index)
            converted = b.value("convert", piece, layout=layout)
            piece.name = converted.name = made.result.name or value.name
            args = (part(pointer, index), converted, *(part(x, index) for x in mask))
            stored = b.op("store", *args, **op.attrs, part_of=op.id)
            if not index:
                notes(stored, explain(made, layout, count))
        return ()

    return rebuild(func, "epilogue", visit)


class Stores:
    """The stores of a laid-out Func that are cut, by op id: what is converted for each, and (axis, number of parts)."""

    def __init__(self, func: Func):
        defs, users = definitions(func), uses(func)
        self.stores: dict[int, tuple[Op, tuple[int, int]]] = {}
        for op in func.ops():
            made = defs.get(op.args[1]) if op.name == "store" else None
            if made is None or made.name != "convert" or len(users[made.result]) > 1:
                continue
            if (cut := parts(op, made)) is not None:
                self.stores[op.id] = made, cut
        self.converts = {made.id for made, _ in self.stores.values()}


def parts(store: Op, made: Op) -> tuple[int, int] | None:
    """The axis along which a converted tile is cut, and into how many parts; None for a tile that goes whole."""
    source, target, kind = made.args[0].type.layout, made.attrs["layout"], made.result.type
    bits = max(8, kind.dtype.bits)
    if convert.plan(source, target, bits).kind != "shared":
        return None
    near = convert.within_warps(source, target)
    if not near and kind.size * bits // 8 <= SMALL:
        return None
    first = target.reg[0] if target.reg and store.attrs.get("vec", 1) > 1 else target.lane[0]
    fast = next((axis for axis in range(len(kind.shape)) if first & target.dim_mask(axis)), -1)
    count = kind.shape[fast] * bits // 8 // ROW
    while count > 1 and not all(can_part(layout, fast, count) for layout in (source, target)):
        count //= 2
    return (range(len(kind.shape))[fast], count) if count > 1 else None


def products(func: Func) -> set[Layout]:
    """The layouts of products whose tiles warps shall store by themselves: of wgmma; of mma.sync it is not measured yet."""
    found = (op.attrs for op in func.ops() if op.name == "dot" and "instr" in op.attrs)
    return {attrs["layout"] for attrs in found if wgmma.is_name(attrs["instr"]) or experimental(func)}


def by_warp(op: Op, product: Layout, own: Layout) -> Layout:
    """The layout of an access whose tile lies as a product does: one in which warps keep their elements, so that no warp waits for
    another, if it moves vectors as wide as `own` and rows of half of ROW bytes at least; else `own`."""
    first = own.reg[0] if own.reg and op.attrs.get("vec", 1) > 1 else own.lane[0]
    fast = next((axis for axis in range(len(own.shape)) if first & own.dim_mask(axis)), None)
    if fast is None:
        return own
    vec, bytes = op.attrs.get("vec", 1), op.args[0].type.dtype.element.bytes
    found = tables.stored_by_warp(product, fast, vec, ROW // bytes)
    return found if found is not None and found.consecutive(fast, vec) * bytes >= ROW // 2 else own


def can_part(layout: Layout, axis: int, count: int) -> bool:
    try:
        layout.part(axis, count)
    except ValueError:
        return False
    return True


def explain(made: Op, layout: Layout, count: int) -> str:
    source, kind = made.args[0].type.layout, made.result.type
    size = layout.size * kind.dtype.bytes
    piece = source.part(next(i for i, n in enumerate(layout.shape) if n != kind.shape[i]), count)
    if convert.plan(piece, layout, max(8, kind.dtype.bits)).kind == "shared":
        whose = "each warp its own" if convert.within_warps(piece, layout) else "all warps together"
        how = f"through {size} bytes of shared memory, {whose}"
    else:
        how = "by shuffles within warps"
    return f"store: in {count} parts of {format_shape(layout.shape)}, {how}"
