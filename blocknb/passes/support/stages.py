"""The number of stages of a loop: how many iterations have loads in flight or in use at a time (`num_stages`)."""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import named

#: The default for loops without products: with one stage, no load is issued early.
STAGES = 1
#: The default for loops with products, as in Triton.
DOT_STAGES = 3

VIEWS = named("reshapes")  # the views between a load and the buffer in which its tile is stored


def views_between(defs: Mapping[Value, Op], load: Op, store: Op) -> tuple[Op, ...]:
    """The ops between a loaded tile and the tile that is stored to a buffer, in order."""
    found, value = [], store.args[1]
    while value is not load.result:
        found.append(defs[value])
        value = found[-1].args[0]
    return tuple(reversed(found))


def multiplies(loop: Op) -> bool:
    """Whether a loop's own block, without nested loops, holds a product."""
    return any(op.name == "dot" or (op.name == "if" and multiplies(op)) for block in loop.blocks for op in block.ops)


def num_stages(func: Func, loop: Op) -> int:
    """The number of stages of a loop: its own, that of the launch, or the default."""
    named = loop.attrs.get("num_stages", func.attrs.get("num_stages"))
    if named is not None:
        return int(named)
    return DOT_STAGES if multiplies(loop) else STAGES
