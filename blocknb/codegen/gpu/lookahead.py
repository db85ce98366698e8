"""Looks at the ops that follow in the block that the generator is lowering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from blocknb.ir.core import Op, Users
from blocknb.language.ops import OPS
from blocknb.layouts import wgmma


class Lookahead:
    """The ops after the current one, in the order of the text."""

    def __init__(self, users: Users):
        self.users = users
        self.ops: Sequence[Op] = ()
        self.position = 0

    def move(self, ops: Sequence[Op], position: int) -> None:
        """Sets the ops that follow to those of `ops` from `position` on."""
        self.ops, self.position = ops, position

    def following(self) -> Iterator[Op]:
        """The ops that follow."""
        return islice(self.ops, self.position, None)

    def feeds_next_mma(self, op: Op) -> bool:
        """Whether a dot on a tensor core is the only user of `op`, and only reads and arithmetic come between them."""
        for later in self.following():
            if later.name == "dot":
                sole = self.users[op.result] == [(later, 0)] or self.users[op.result] == [(later, 1)]
                return sole and later.args[0].type.dtype.bits == 16 and "instr" in later.attrs
            if later.name != "local_load" and not OPS[later.name].pure:
                return False
        return False

    def mma_follows(self) -> bool:
        """Whether mma.sync comes next, after only reads, arithmetic and copies."""
        for op in self.following():
            if op.name == "dot":
                return "instr" in op.attrs and not wgmma.is_name(op.attrs["instr"])
            if not may_precede_mma(op):
                return False
        return False


def may_precede_mma(op: Op) -> bool:
    """Whether postponed copies may move past an op to the next MMA. They may pass reads, other copies and arithmetic."""
    return op.name in ("local_load", "copy_async", "commit") or OPS[op.name].pure
