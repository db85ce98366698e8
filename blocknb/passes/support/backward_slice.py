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


class BackwardSlice:
    """A set of values closed under their operands. `add` extends it, and reports values that cannot be recomputed."""

    def __init__(self, facts: Facts, writer: Callable[[Op], str]):
        self.facts, self.writer = facts, writer
        self.values: set[Value] = set()

    def add(self, values: Iterable[Value]) -> str:
        """Adds values and everything from which they are computed. Returns why the producer cannot compute them, "" if it can."""
        found: dict[Value, Sequence[Value]] = {}
        for value in reachable(values, lambda x: found.get(x, ())):
            if value in self.values:
                continue
            if not isinstance(value.type, Tile) or value.type.shape:
                return "its position depends on elements of a tile"
            why, found[value] = self.made_of(value)
            if why:
                return why
        self.values |= set(found)
        return ""

    def made_of(self, value: Value) -> tuple[str, Sequence[Value]]:
        """The operands of a value, and the reason why it cannot be recomputed ("" if it can)."""
        if value in self.facts.argument:
            loop, _, i = self.facts.argument[value]
            if loop.name != "for":
                return "its position depends on a `while`", ()
            return "", loop.args[:3] if not i else carried(loop, i - 1)
        op = self.facts.definition.get(value)
        if op is None:
            return "", ()
        i = op.results.index(value)
        match op.name:
            case "for":
                return "", (op.blocks[0].args[i + 1], *carried(op, i))
            case "if":
                return "", carried(op, i)
            case "load":
                return self.writer(op), op.args
        if op.blocks or not OPS[op.name].pure:
            return f"its position depends on a {op.name}", ()
        return "", op.args


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
