"""Conversions that only branches need move into these branches: code sinking, as LLVM's `Sink` does it for other instructions.

A loop over the steps of several tiles stores a tile in one iteration of many. A conversion before that branch would move the accumulator
between threads in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Value, blocks, uses


def sunk(func: Func) -> Func:
    """The function, with each conversion in the branches that use it if nothing else does. A conversion never moves into a loop."""
    moved = BranchConversions(func)
    return moved.run() if moved.sunk else func


class BranchConversions(Rebuild):
    """Moves conversions: `into` has those of each block, `sunk` the results of all."""

    def __init__(self, func: Func):
        super().__init__(func, self.visit_op)
        self.block_of = {op: block for block in blocks(func.body) for op in block.ops}
        self.parent = {block: op for op in self.block_of for block in op.blocks}
        self.into: dict[Block, list[Op]] = {}
        self.sunk: set[Value] = set()
        self.first: Sequence[Op] = ()  # the conversions with which the next block begins
        used = uses(func)
        for op, block in self.block_of.items():
            if op.name != "convert":
                continue
            places = self.places([user for user, _ in used.get(op.result, ())], block)
            if places and block not in places:
                self.sunk.add(op.result)
                for place in places:
                    self.into.setdefault(place, []).append(op)

    def places(self, users: Iterable[Op], block: Block) -> list[Block]:
        """The innermost branches below a block that hold all users, or the block itself if it uses the value outside of branches."""
        within: dict[Block, list[Op]] = {}
        for user in users:
            inner, top = None, user
            while self.block_of[top] is not block:
                inner = self.block_of[top]
                top = self.parent[inner]
            if inner is None or top.name != "if":
                return [block]
            within.setdefault(inner, []).append(user)
        return [place for inner, some in within.items() for place in self.places(some, inner)]

    def visit_op(self, op: Op, _: Rebuild) -> Any:
        """Leaves out a conversion that moves."""
        return op.results if op.name == "convert" and op.result in self.sunk else NotImplemented

    def block(self, block: Block, args: Any = None) -> Block:
        self.first = self.into.get(block, ())
        return super().block(block, args)

    def ops(self, ops: Sequence[Op]) -> None:
        first, self.first = self.first, ()
        for op in first:
            with self.builder.at(op):
                self.mapping[op.result] = emit_copy(op, self.builder, {op.args[0]: self.get(op.args[0])}).result
        super().ops(ops)
