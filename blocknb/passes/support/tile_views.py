"""Layouts through views (broadcasts, reshapes and transposes), which move no data in any layout."""

from __future__ import annotations

from typing import Any

from blocknb.ir.core import Op, Value
from blocknb.language.ops import named
from blocknb.layouts.linear import Layout

POINTWISE = ("elementwise", "assembly")  # kinds of ops whose operands and results have one layout
MOVING = named("reshapes")  # views whose result's layout follows from the operand's
VIEWS = named("view")


def operand_layout(op: Op, value: Value, layout: Layout) -> Any:
    """The operand layout for which an op's result has `layout` without a data movement; None for a scalar."""
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
    """The layout of the result of a view, from the layout of its operand. The threads of a broadcast's operand hold its copies, too."""
    match op.name:
        case "broadcast":
            return layout.broadcast(op.attrs["shape"])
        case "expand_dims":
            return layout.expand_dims(op.attrs["axis"])
        case "reshape":
            return layout.reshape(op.attrs["shape"])
    return layout.trans(op.attrs["perm"])
