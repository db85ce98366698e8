"""Facts from which `layout_choice` chooses: which loads bring tiles to registers, and how many shuffles a reduction takes in a layout."""

from __future__ import annotations

from collections.abc import Iterator

from blocknb.ir.core import Block, Op, walk
from blocknb.language.ops import LOOPS
from blocknb.layouts.linear import Layout


def outside_of_products(block: Block) -> Iterator[Op]:
    """The loads that no loop with products contains: they bring tiles to registers, and no asynchronous copy replaces them."""
    for op in block.ops:
        if op.name == "load":
            yield op
        multiplies = op.name in LOOPS and any(x.name == "dot" for inner in op.blocks for x in walk(inner))
        for inner in op.blocks if not multiplies else ():
            yield from outside_of_products(inner)


def exchanges(layout: Layout, axis: int) -> int:
    """The warp shuffles of a thread that reduce a tile along an axis: for each of its lines, one per bit of the lanes that share it."""
    mask = layout.dim_mask(axis)
    lines = 1 << sum(1 for x in layout.reg if x & ~mask)
    return lines * sum(1 for x in layout.lane if x & mask)
