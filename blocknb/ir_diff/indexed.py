"""A function with what a comparison asks of it: the position of each op, the definition of each value, source lines, names of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from blocknb.errors import Loc
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.text import print_lines

#: The definition of a value: "param", "result" or "argument" (of a block), with the op's id and the position.
Definition = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class OpPosition:
    """An op, the id of the op that encloses it (-1: none), the index of the block there, and its place in program order."""

    op: Op
    parent: int
    block: int
    order: int


class IndexedFunc:
    """A function whose ops are found by id."""

    def __init__(self, func: Func):
        self.func = func
        self.ops: dict[int, OpPosition] = {}
        for order, (op, parent, block) in enumerate(_placed(func.body, -1, 0)):
            self.ops[op.id] = OpPosition(op, parent, block, order)

    @cached_property
    def definitions(self) -> dict[Value, Definition]:
        """Where each value is defined."""
        found: dict[Value, Definition] = {value: ("param", -1, i) for i, value in enumerate(self.func.params)}
        for position in self.ops.values():
            op = position.op
            found |= {value: ("result", op.id, i) for i, value in enumerate(op.results)}
            arguments = [value for block in op.blocks for value in block.args]
            found |= {value: ("argument", op.id, i) for i, value in enumerate(arguments)}
        return found

    @cached_property
    def layout_names(self) -> dict[str, str]:
        """The name (`#a`) of each layout in the printed function, by the layout's text."""
        head = (line.partition(" = ") for line, _, _ in print_lines(self.func) if line.startswith("#"))
        return {text: name for name, _, text in head}

    def line(self, id: int) -> int | None:
        """The source line of an op in the kernel's file; None if it has none."""
        position = self.ops.get(id)
        return None if position is None else source_line(position.op.loc, self.func.loc)

    def definer(self, value: Value) -> Op | None:
        """The op whose result a value is; None for a parameter and for an argument of a block."""
        kind, id, _ = self.definitions[value]
        return self.ops[id].op if kind == "result" else None

    def ancestors(self, id: int) -> Iterator[int]:
        """The ids of the ops that enclose an op, the innermost first."""
        while (id := self.ops[id].parent) >= 0:
            yield id

    def loop_of(self, id: int) -> int:
        """The id of the innermost loop around an op, or -1."""
        return next((up for up in self.ancestors(id) if self.ops[up].op.name in ("for", "while")), -1)

    def role_of(self, id: int) -> str:
        """ "consumer" or "producer" for an op in a warp role, otherwise ""."""
        for inner in (id, *self.ancestors(id)):
            position = self.ops[inner]
            if position.parent >= 0 and self.ops[position.parent].op.name == "roles":
                return ("consumer", "producer")[position.block]
        return ""


def source_line(loc: Loc | None, kernel: Loc | None) -> int | None:
    """The line of a location in the kernel's file; for inlined code of another file, the line of its call."""
    if loc is None:
        return None
    while kernel is not None and loc.file != kernel.file and loc.caller is not None:
        loc = loc.caller
    return loc.line


def _placed(block: Block, parent: int, index: int) -> Iterator[tuple[Op, int, int]]:
    for op in block.ops:
        yield op, parent, index
        for i, inner in enumerate(op.blocks):
            yield from _placed(inner, op.id, i)
