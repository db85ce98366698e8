"""Large results past the cache: stores that fill whole lines without reading them first.

An ordinary store fetches the line that it writes to, which for a result that nobody finds in a cache any more is a third of all
traffic. Where an argument is as large as that, a row of stores begins with a masked part up to the next boundary of a vector, and goes
on with aligned non-temporal ones. Whether it is so large is known at run time, from the bounds of the argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen.cpu_graph import identity
from blocknb.codegen.cpu_kinds import Prefix, Progression, Uniform
from blocknb.codegen.cpu_ops import SIZES, memory_type
from blocknb.ir.core import Op

if TYPE_CHECKING:
    from blocknb.codegen.cpu_loops import Row

LARGE = 12 << 20  # bytes of an argument: what it is computed from is at least as much again
VECTORS = (16, 32, 64)  # bytes of which there are non-temporal stores


def stores(row: Row) -> list[Op]:
    """The stores of a row that may go past the cache: all of them, or none."""
    group = row.group
    found = [op for op in group.ops if op.name == "store"]
    e = group.e
    if e.alias or group.outputs or group.axis is None or any(op.name == "reduce" for op in group.ops):
        return []
    for op in found:
        element, kind = op.args[0].type.dtype.element, row.kind(op.args[0])
        if (
            not isinstance(kind, Progression)
            or kind.step != element.bytes
            or e.program.root(op.args[0]) is None
            or SIZES[memory_type(element)] != element.bytes
            or element.bytes != found[0].args[0].type.dtype.element.bytes
            or element.bytes * group.width not in VECTORS
        ):
            return []
    return found


class Stream:
    """The streaming form of one row: `holds` whether it is to be taken, `first` the position of the first aligned vector."""

    def __init__(self, row: Row, ops: list[Op], least: str):
        group, c = row.group, row.code
        self.row, self.size = row, ops[0].args[0].type.dtype.element.bytes
        length = self.size * group.width
        holds, origin = "true", ""
        for op in ops:
            kind = row.kind(op.args[0])
            assert isinstance(kind, Progression)
            argument = group.program.root(op.args[0])
            assert argument is not None
            _, lower, upper = row.e.bounds[group.program.func.params.index(argument)]
            extent = c.binary("sub", upper, lower, "i64", 1)
            holds = c.binary("and", holds, c.w.value(f"icmp uge i64 {extent}, {LARGE}"), "i1", 1)
            inside = c.binary("and", c.binary("sub", "0", kind.base, "i64", 1), str(length - 1), "i64", 1)
            origin = origin or inside
            holds = c.binary("and", holds, c.w.value(f"icmp eq i64 {inside}, {origin}"), "i1", 1)
        shift = str(self.size.bit_length() - 1)
        whole = c.binary("and", origin, str(self.size - 1 if shiftable(row) else length - 1), "i64", 1)
        holds = c.binary("and", holds, c.w.value(f"icmp eq i64 {whole}, 0"), "i1", 1)
        self.first = c.binary("lshr", origin, shift, "i64", 1)
        room = c.binary("sub", least, self.first, "i64", 1)
        step = group.width * group.unroll
        self.holds = c.binary("and", holds, c.w.value(f"icmp sge i64 {room}, {step}"), "i1", 1)
        self.stop = c.binary("add", self.first, c.binary("and", room, str(-step), "i64", 1), "i64", 1)


def shiftable(row: Row) -> bool:
    """Whether vectors may begin anywhere: beyond the end of the row a mask holds every access back."""

    def held(op: Op) -> bool:
        mask = row.masks.get(op)
        if op.name == "load" and isinstance(row.kinds.memo.get((op.result, identity(op.result.type.shape))), Uniform):
            return True
        return isinstance(mask, Prefix) and mask.count != str(row.group.size)

    return all(held(op) for op in row.group.ops if op.name in ("load", "store"))
