"""Backward slice: the scalars that lead to given values, such as the coordinates of a copy or the bounds of its loops.

The producer of a warp-specialized function recomputes them, so they must be scalars without side effects. Source: Weiser, "Program
Slicing" (1981).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from blocknb.analysis.affine import Facts
from blocknb.analysis.linear_forms import TRIP, VALUE
from blocknb.analysis.tma_boxes import Poly
from blocknb.ir.core import Op, Value
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS
from blocknb.language.types import Tile


class BackwardSlice:
    """The values that lead to some: `add` takes more, and says what cannot be followed."""

    def __init__(self, facts: Facts, writer: Callable[[Op], str]):
        self.facts, self.writer = facts, writer
        self.values: set[Value] = set()

    def add(self, values: Iterable[Value]) -> str:
        """Why the producer cannot make these values, "" if it can; then they and what they are made of are needed."""
        found: dict[Value, Sequence[Value]] = {}
        for value in reachable(values, lambda x: found.get(x, ())):
            if value in self.values:
                continue
            if not isinstance(value.type, Tile) or value.type.shape:
                return "where it lies depends on elements of a tile"
            why, found[value] = self.made_of(value)
            if why:
                return why
        self.values |= set(found)
        return ""

    def made_of(self, value: Value) -> tuple[str, Sequence[Value]]:
        """What a value is made of, or why that cannot be done twice."""
        if value in self.facts.argument:
            loop, _, i = self.facts.argument[value]
            if loop.name != "for":
                return "where it lies depends on a `while`", ()
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
            return f"where it lies depends on a {op.name}", ()
        return "", op.args


def sources(facts: Facts, value: Value) -> tuple[Value, ...]:
    """What a value follows from: the operands of the op that makes it, and what loops and branches carry to it. What a loop carries, and
    its index, are the same in the same iteration wherever the loop ends."""
    if value in facts.argument:
        op, _, i = facts.argument[value]
        if op.name == "for":
            return (op.args[2 + i], op.blocks[0].terminator.args[i - 1]) if i else (op.args[0], op.args[2])
        return carried(op, i)
    made = facts.definition.get(value)
    return () if made is None else carried(made, made.results.index(value))


def carried(op: Op, i: int) -> tuple[Value, ...]:
    """What the i-th result of an op is made of: of a loop that is what it carries, of an `if` what its arms give."""
    ends = [block.terminator.args for block in op.blocks]
    match op.name:
        case "for":
            return (*op.args[:3], op.args[3 + i], ends[0][i])
        case "while":
            return (*op.args, *(value for end in ends for value in end))
        case "if":
            return (op.args[0], *(end[i] for end in ends))
    return op.args  # the blocks of a reduction see its operands only


def atoms(poly: Poly) -> list[Value]:
    """The values that `tma_boxes.emit` asks for."""
    found: list[Value] = []
    for symbol in poly.symbols():
        if symbol.kind == VALUE:
            found.append(symbol.value)
        else:
            found += symbol.value.args[:3]
            found += symbol.value.blocks[0].args[:1] if symbol.kind == TRIP else ()
    return found
