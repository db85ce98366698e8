"""Backward slice: the scalars from which given values are computed, such as the coordinates of a copy or the bounds of its loops.

The producer of a warp-specialized function recomputes them, so they must be scalars without side effects. Source: Weiser, "Program
Slicing" (1981).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from blocknb.analysis.affine import Facts
from blocknb.analysis.linear_forms import ITERATION, VALUE
from blocknb.analysis.tma_boxes import Poly
from blocknb.ir.core import Op, Value
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS
from blocknb.language.types import Tile


def slice_or_reason(
    values: Iterable[Value], sources: Callable[[Value], Iterable[Value]], why_not: Callable[[Value], str]
) -> set[Value] | str:
    """The values and everything from which they are computed, or the first reason why one of these may not be in a slice."""
    found = set[Value]()
    for value in reachable(values, sources):
        if why := why_not(value):
            return why
        found.add(value)
    return found


class ProducerSlice:
    """The scalars that the producer warp recomputes, closed under their operands. `add` extends it unless a value has no such slice."""

    def __init__(self, facts: Facts, why_not_load: Callable[[Op], str]):
        self.facts, self.why_not_load = facts, why_not_load
        self.values: set[Value] = set()

    def add(self, values: Iterable[Value]) -> str:
        """Adds values and everything from which they are computed. Returns why the producer cannot compute them, "" if it can."""
        found = slice_or_reason(values, lambda x: () if x in self.values else self.made_of(x), self.why_not)
        if isinstance(found, str):
            return found
        self.values |= found
        return ""

    def why_not(self, value: Value) -> str:
        """The reason why the producer cannot recompute a value from its operands."""
        if not isinstance(value.type, Tile) or value.type.shape:
            return "its position depends on elements of a tile"
        if value in self.facts.argument:
            return "" if self.facts.argument[value][0].name == "for" else "its position depends on a `while`"
        op = self.facts.definition.get(value)
        if op is None or op.name in ("for", "if"):
            return ""
        if op.name == "load":
            return self.why_not_load(op)
        if op.blocks or not OPS[op.name].pure:
            return f"its position depends on a {op.name}"
        return ""

    def made_of(self, value: Value) -> Sequence[Value]:
        """The operands of a value. A loop with a carried value needs its bounds, too."""
        if value in self.facts.argument:
            loop, _, i = self.facts.argument[value]
            return carried(loop, i - 1) if i else loop.args[:3]
        op = self.facts.definition.get(value)
        if op is None:
            return ()
        i = op.results.index(value)
        return (op.blocks[0].args[i + 1], *carried(op, i)) if op.name == "for" else carried(op, i)


def sources(facts: Facts, value: Value) -> tuple[Value, ...]:
    """The values that determine a value: the operands of its op, and the values that loops and branches pass to it. In the same
    iteration, a loop's index and carried values do not depend on where the loop ends."""
    if value in facts.argument:
        op, _, i = facts.argument[value]
        if op.name == "for":
            return (op.args[2 + i], op.blocks[0].terminator.args[i - 1]) if i else (op.args[0], op.args[2])
        return carried(op, i)
    made = facts.definition.get(value)
    return () if made is None else carried(made, made.results.index(value))


def carried(op: Op, i: int) -> tuple[Value, ...]:
    """The sources of the i-th result of an op: a loop's carried values, or the results of the arms of an `if`."""
    ends = [block.terminator.args for block in op.blocks]
    match op.name:
        case "for":
            return (*op.args[:3], op.args[3 + i], ends[0][i])
        case "while":
            return (*op.args, *(value for end in ends for value in end))
        case "if":
            return (op.args[0], *(end[i] for end in ends))
    return op.args  # the blocks of a reduction use only its operands


def atoms(poly: Poly) -> list[Value]:
    """The values that `tma_boxes.emit` needs for a form."""
    found: list[Value] = []
    for symbol in poly.symbols():
        if symbol.kind == VALUE:
            found.append(symbol.value)
        else:
            found += symbol.value.args[:3]
            found += symbol.value.blocks[0].args[:1] if symbol.kind == ITERATION else ()
    return found
