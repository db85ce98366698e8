"""Conversions after loops with products, which stay shuffles where shared memory costs only little less.

The loop's circular buffers fill shared memory. A buffer for the conversion of its result would take a stage from the loop, or a CTA from
the SM. The program converts only once. A kernel without such a loop has room.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocknb.ir.core import Block, Func, Op, Value, within
from blocknb.language.ops import LOOPS
from blocknb.layouts import convert


def kept_in_warps(func: Func) -> set[Value]:
    """The results of the conversions of a distributed Func that stay shuffles, although shared memory has the lower price."""
    return {op.result for op in after_loops(func.body, False) if is_close(op)}


def after_loops(block: Block, follows: bool, in_loop: bool = False) -> Iterator[Op]:
    """The conversions of blocks after loops that multiply, without products of their own, and of branches in such loops. `follows`: the
    block around is one. `in_loop`: it is that of a loop."""
    own = any(op.name == "dot" for op in block.ops)
    here = not own and (follows or any(op.name in LOOPS and multiplies(op) for op in block.ops))
    for op in block.ops:
        if op.name == "convert" and here:
            yield op
        for inner in op.blocks:
            branch = op.name == "if"
            yield from after_loops(
                inner, branch and (here or (own and in_loop)), in_loop if branch else op.name in LOOPS
            )


def multiplies(op: Op) -> bool:
    """Whether an op holds a product."""
    return any(inner.name == "dot" for inner in within(op))


def is_close(op: Op) -> bool:
    """Whether a conversion through shared memory costs only little less than shuffles."""
    return convert.is_close(op.args[0].type.layout, op.attrs["layout"], max(8, op.result.type.dtype.bits))
