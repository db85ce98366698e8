"""Facts from which `layout_choice` chooses: kinds of accesses, the values that a loop carries together, and the shuffles of a reduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from blocknb.ir.core import Block, Func, Op, Users, Value, uses, walk, within
from blocknb.language import types as t
from blocknb.language.ops import LOOPS, OPS
from blocknb.layouts.linear import Layout

FEW = 64  # elements of a short tile of one dimension
FEW_LOADS = 4  # of a thread, for such a tile
STEPS = 6  # of a bitonic sort of eight elements, each of which reshapes the tile
SMALL = 1024  # elements: up to this size a load with replicas is preferred to a conversion
SECTOR = 32  # the smallest memory transaction in bytes


def carried_together(op: Op) -> Iterator[tuple[Value, ...]]:
    """The groups of values that a loop or branch carries at one index."""
    match op.name:
        case "for":
            body = op.blocks[0]
            yield from zip(op.args[3:], body.args[1:], body.terminator.args, op.results, strict=True)
        case "while":
            before, after = op.blocks
            ends = before.terminator.args[1:], after.terminator.args
            yield from zip(op.args, before.args, ends[0], after.args, ends[1], op.results, strict=True)
        case "if":
            yield from zip(op.results, *(block.terminator.args for block in op.blocks), strict=True)


def enters_converted(op: Op, group: tuple[Value, ...], defs: Mapping[Value, Op], func: Func) -> bool:
    """Whether a loop takes over a product, adds loaded tiles to it, and only stores the sum, as stream-K does with partial results. One
    conversion before the loop costs less than one for each loaded tile, and one for the store.

    `group`: the values that the loop carries at one index (`carried_together`)."""
    made = defs.get(group[0])
    if op.name not in LOOPS or made is None or not any(x.name == "dot" for x in within(made)):
        return False
    seen, todo, adds, users = set(group[1:]), list(group[1:]), False, uses(func)
    ends = [block.terminator for block in op.blocks]
    while todo:
        for user, _ in users.get(todo.pop(), ()):
            kind = OPS[user.name].kind
            if user.name != "store" and user not in ends and kind != "elementwise":
                return False
            adds = adds or any(x in defs and defs[x].name == "load" for x in user.args if kind == "elementwise")
            todo += [x for x in user.results if x not in seen]
            seen.update(user.results)
    return adds


def outside_of_loops(block: Block, with_products: bool) -> Iterator[Op]:
    """The loads that no loop contains, or with `with_products` no loop that multiplies, whose loads asynchronous copies may replace."""
    for op in block.ops:
        if op.name == "load":
            yield op
        loops = op.name in LOOPS
        if loops and with_products:
            loops = any(x.name == "dot" for inner in op.blocks for x in walk(inner))
        for inner in op.blocks if not loops else ():
            yield from outside_of_loops(inner, with_products)


def is_index_vector(op: Op, num_warps: int) -> bool:
    """Whether an op loads one integer per thread at most along one axis, such as the indices of a gather. The L1 cache serves all replicas
    of such a load at once. A conversion would pass through shared memory, and keep the gather from being pipelined."""
    if op.name != "load" or len(op.result.type.shape) != 1:
        return False
    return op.result.type.dtype in (t.int32, t.int64) and op.result.type.size <= 32 * num_warps


def is_loaded_or_carried(made: Op | None) -> bool:
    """Whether an op is a small load, or a loop. None, the op of a block argument, stands for a loop that carries the value."""
    return made is None or made.name == "for" or (made.name == "load" and made.result.type.size <= SMALL)


def is_short_store(op: Op) -> bool:
    """Whether an op stores a one-dimensional tile of few elements, such as one number per row. A conversion would cost more than the
    store."""
    return op.name == "store" and len(op.args[0].type.shape) == 1 and op.args[0].type.size <= FEW


def loads_little(op: Op, wanted: Layout, contiguity: int) -> bool:
    """Whether each thread can load its part of a short tile by few accesses. The L1 cache serves all replicas at once, and
    a conversion would make all warps wait for the load. A `contiguity` of 0 forbids it."""
    width = min(contiguity, wanted.contiguous_registers(0), 16 // op.result.type.dtype.bytes)
    return bool(op.result.type.size <= FEW and wanted.num_registers <= FEW_LOADS * width)


def exchanges(layout: Layout, axis: int) -> int:
    """The number of warp shuffles of a thread that reduce a tile along an axis. Each slice along the axis takes one for each bit of the
    lanes that share it."""
    mask = layout.dim_mask(axis)
    slices = 1 << sum(1 for x in layout.reg if x & ~mask)
    return slices * sum(1 for x in layout.lane if x & mask)


def is_sorted(values: Set[Value], users: Users) -> bool:
    """Whether a group of one-dimensional tiles is compared with reshaped copies of itself in many steps, as a bitonic sort does. In the
    layout of a reduction's result several threads hold each element. They would repeat all arithmetic, and each step would convert the
    tile."""
    return sum(user.name == "reshape" for value in values for user, _ in users.get(value, ())) >= STEPS
