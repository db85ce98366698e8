"""Operations on scalars: arithmetic, program ids, and accesses of one element."""

from __future__ import annotations

from blocknb.codegen.cpu import scalar_accesses
from blocknb.codegen.cpu.context import VersionPart, lowers
from blocknb.codegen.cpu.elementwise import elementwise
from blocknb.codegen.cpu.status import PROGRAM_IDS
from blocknb.ir.core import Op
from blocknb.language.ops import MASK_AT, OPS

ELEMENTWISE = tuple(name for name, row in OPS.items() if row.kind == "elementwise")


class ScalarLowerings(VersionPart):
    """Lowers operations whose results are scalars."""

    def _args(self, op: Op) -> list[str]:
        return [self.scalars.of(a) for a in op.args]

    @lowers(*ELEMENTWISE)
    def elementwise(self, op: Op) -> None:
        """Arithmetic on scalars."""
        self.scalars[op.result] = elementwise(self.code, op, self._args(op), 1)

    @lowers("broadcast", "splat", "trans")  # the ops of `PRESERVING` that may have a scalar result, but for `reshape`
    def view(self, op: Op) -> None:
        """A change of shape of a scalar is the scalar."""
        self.scalars[op.result] = self.scalars.of(*op.args)

    @lowers("barrier")
    def barrier(self, op: Op) -> None:
        """Does nothing, because one thread runs the whole program."""

    @lowers("program_id")
    def program_id(self, op: Op) -> None:
        """The program's number along an axis of the grid."""
        self.scalars[op.result] = PROGRAM_IDS[op.attrs["axis"]]

    @lowers("num_programs")
    def num_programs(self, op: Op) -> None:
        """The size of the grid along an axis."""
        self.scalars[op.result] = f"%grid{op.attrs['axis']}"

    @lowers("load")
    def load(self, op: Op) -> None:
        """Loads one element of an array."""
        mask, other = ([self.scalars.of(a) for a in op.args[1:]] + [None, None])[:2]
        address = self.scalars.of(op.args[0])
        self.scalars[op.result] = scalar_accesses.load(self.code, self.checks, op, address, mask, other)

    @lowers("store")
    def store(self, op: Op) -> None:
        """Writes one element of an array."""
        args = self._args(op)
        mask = args[2] if len(args) > 2 else None
        scalar_accesses.store(self.code, self.checks, op, args[0], args[1], mask)

    @lowers("atomic", "atomic_cas")
    def atomic(self, op: Op) -> None:
        """Executes one atomic operation."""
        args = self._args(op)
        count = MASK_AT[op.name]
        mask = args[count] if len(args) > count else None
        self.scalars[op.result] = scalar_accesses.update(self.code, self.checks, op, args[0], args[1:count], mask)
