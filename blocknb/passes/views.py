"""Views: broadcasts, reshapes and transposes, which move no data in any layout, and what they ask of the tiles behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from blocknb.ir.core import Block, Op, Value
from blocknb.language.ops import ACCESSES, OPS, named
from blocknb.layouts.linear import Layout

if TYPE_CHECKING:
    from blocknb.passes.assign import Assignment

POINTWISE = ("elementwise", "assembly")  # kinds of ops whose operands and results lie alike
MOVING = named("reshapes")  # what gives its operand's layout on
VIEWS = named("view")


def operand_layout(op: Op, value: Value, layout: Layout) -> Any:
    """The layout an operand must have so that the op's result has `layout` and no data moves; None for a scalar."""
    if not value.type.shape:
        return None
    match op.name:
        case "expand_dims":
            return layout.expand_dims_inverse(op.attrs["axis"])
        case "broadcast":
            return layout.broadcast_inverse(value.type.shape)
        case "reshape":
            return layout.reshape(value.type.shape)
        case "trans":
            return layout.trans_inverse(op.attrs["perm"])
    return layout


def moved_layout(op: Op, layout: Layout) -> Layout:
    """The layout that the result of an op of MOVING has, from its operand's."""
    match op.name:
        case "expand_dims":
            return layout.expand_dims(op.attrs["axis"])
        case "reshape":
            return layout.reshape(op.attrs["shape"])
    return layout.trans(op.attrs["perm"])


def settle_backwards(a: Assignment, block: Block) -> None:
    """Gives groups without a layout the one that is asked of them through views, users first: what is joined, transposed or reshaped on
    its way to a store is computed where it will be stored."""
    for op in reversed(block.ops):
        for inner in op.blocks if OPS[op.name].kind != "reduce" else ():
            settle_backwards(a, inner)
        for value, layout in _asked(a, op):
            _follow(a, value, layout)


def _asked(a: Assignment, op: Op) -> Iterator[tuple[Value, Layout]]:
    """The operands of an op that are views, and the layouts that it wants them in."""
    if op.name in ACCESSES and op.args[0].type.shape:
        layout = a.access_layout(op)
    elif op.results and OPS[op.name].kind in POINTWISE and a.anchored(op.results[0]):
        found = a.layouts.get(a.groups.find(op.results[0]))
        if found is None:
            return
        layout = found
    else:
        return
    for value in op.args:
        if a.is_view(value):
            yield value, layout


def _follow(a: Assignment, value: Value, layout: Layout) -> None:
    """Through a chain of views to the tile behind it."""
    while a.is_view(value):
        op = a.defs[value]
        value = op.args[0]
        asked = operand_layout(op, value, layout)
        if asked is None:
            return
        layout = asked
    if a.anchored(value):
        a.layouts.setdefault(a.groups.find(value), layout)
