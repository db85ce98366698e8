"""What comes next in the block that is being lowered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from blocknb.ir.core import Op, Users
from blocknb.language.ops import OPS
from blocknb.layouts import wgmma


class Lookahead:
    """The ops that follow the one being lowered, in the order of the text."""

    def __init__(self, users: Users):
        self.users = users
        self.ops: Sequence[Op] = ()
        self.position = 0

    def move(self, ops: Sequence[Op], position: int) -> None:
        """Says which ops follow: those of `ops` from `position` on."""
        self.ops, self.position = ops, position

    def following(self) -> Iterator[Op]:
        """The ops that follow."""
        return islice(self.ops, self.position, None)

    def feeds_next_mma(self, op: Op) -> bool:
        """Whether a dot on a tensor core is the only user of `op`, and only reads and arithmetic stand in between."""
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
    """Whether postponed copies may pass an op on their way to an MMA: reads, the other copies and arithmetic."""
    return op.name in ("local_load", "copy_async", "commit") or OPS[op.name].pure
