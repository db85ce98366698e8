"""Layouts of lines that reductions leave with copies, and that much arithmetic uses, such as scores that a sorting network orders.

The result of a reduction has the layout of the reduced tile without an axis. The threads that shared a line along that axis then hold
copies of the result. A few operations cost less on the copies than a conversion. A sorting network of hundreds of operations costs less if
each thread holds other elements. Source: Batcher, "Sorting networks and their applications" (AFIPS 1968).
"""

from __future__ import annotations

from typing import Protocol

from blocknb.ir.core import Op, Value
from blocknb.language.ops import OPS
from blocknb.layouts.convert import price
from blocknb.layouts.linear import Layout
from blocknb.passes.support.layout_groups import LayoutGroups
from blocknb.passes.support.tile_views import POINTWISE

CONVERSIONS = 4  # of the line that its arithmetic has to be worth: into the other layout, and back for several users


class GroupedLines(Protocol):
    """What `layout_choice` knows of a line and the values that share its layout."""

    defs: dict[Value, Op]
    groups: LayoutGroups

    def anchored(self, value: Value) -> bool:
        """Whether a value has one layout."""

    def default(self, shape: tuple[int, ...], vec: int = 4) -> Layout:
        """The layout in which threads hold different elements of a tile."""


def line_layout(choice: GroupedLines, result: Value, reduced: Layout) -> Layout:
    """The layout for the result of a reduction and its group: `reduced`, that of the reduction, or without copies if this saves more
    instructions per thread than conversions cost."""
    spread = choice.default(result.type.shape)
    copies = reduced.num_registers - spread.num_registers
    if copies <= 0:
        return reduced
    root = choice.groups.find(result)
    made = (op for value, op in choice.defs.items() if choice.anchored(value) and OPS[op.name].kind in POINTWISE)
    operations = sum(choice.groups.find(op.results[0]) is root for op in made)
    conversions = CONVERSIONS * price(reduced, spread, max(8, result.type.dtype.bits))
    return spread if operations * copies > conversions else reduced
