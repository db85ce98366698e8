"""Large results past the cache: stores that fill whole lines without reading them first.

An ordinary store fetches the line that it writes to, which for a result that nobody finds in a cache any more is a third of all
traffic. Where an argument is as large as that, and a row begins and ends with a unit of non-temporal stores, those write it: all of it,
as an ordinary store in between would make all others wait for its line. Both are known at run time only. The unit is 16 bytes,
since that is where the memory of large NumPy arrays begins; the processor puts lines together. Loops that compute for long leave the
memory the time it needs; they are slower this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen.cpu.uniformity import Progression
from blocknb.ir.core import Op

if TYPE_CHECKING:
    from blocknb.codegen.cpu.loop_nests import Row

LARGE = 12 << 20  # bytes of an argument: what it is computed from is at least as much again
MOST = 4  # stores of a loop nest: it is written down twice
UNIT = 16  # bytes of the smallest non-temporal store of a vector


def stores(row: Row) -> list[Op]:
    """The stores of a row that may go past the cache: all of them, or none."""
    group = row.group
    found = [op for op in group.ops if op.name == "store"]
    e = group.e
    if e.alias or "nontemporal_stores" in e.off or group.axis is None or len(found) > MOST or not group.waits:
        return []
    for op in found:
        element, kind = op.args[0].type.dtype.element, row.kind(op.args[0])
        if (
            not isinstance(kind, Progression)
            or kind.step != element.bytes
            or e.program.root(op.args[0]) is None
            or element.bytes * group.width < UNIT
        ):
            return []
    return found


def worth(row: Row, ops: list[Op], least: str) -> str:
    """Whether all of the row, which masks end at position `least`, goes past the cache, as an i1."""
    group, c = row.group, row.code
    part = c.binary("and", least, str(group.width - 1), "i64", 1)
    holds = c.w.value(f"icmp eq i64 {part}, 0")
    for op in ops:
        kind, argument = row.kind(op.args[0]), group.program.root(op.args[0])
        assert isinstance(kind, Progression)
        assert argument is not None
        _, lower, upper = row.e.bounds[group.program.func.params.index(argument)]
        extent = c.binary("sub", upper, lower, "i64", 1)
        holds = c.binary("and", holds, c.w.value(f"icmp uge i64 {extent}, {LARGE}"), "i1", 1)
        inside = c.binary("and", kind.base, str(UNIT - 1), "i64", 1)
        holds = c.binary("and", holds, c.w.value(f"icmp eq i64 {inside}, 0"), "i1", 1)
    return holds
