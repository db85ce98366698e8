"""Rows before they are asked for: while one program computes, the cache fetches what the next one will load.

A kernel over rows loads a row, computes for a while, and stores it, so the memory has nothing to do half of the time: a row is too
short for the hardware to run far ahead, and too long for the processor to see the next one. So a later loop nest, one that touches no
array if there is one, asks for what will be loaded next time. Where that is needs no analysis: as far on from this time's address as
that was from the one before. A guess that is wrong costs nothing but the fetch, which cannot fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from blocknb.codegen.cpu import memory
from blocknb.codegen.cpu.elementwise import COSTS
from blocknb.codegen.cpu.fusion import Node, identity
from blocknb.codegen.cpu.uniformity import Kinds, Progression
from blocknb.ir.core import Op, Value

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter
    from blocknb.codegen.cpu.loop_nests import Group, Row
    from blocknb.codegen.cpu.vectors import Body

LEAST, MOST = 512, 1 << 17  # bytes of a tile: fewer are there at once, more would push out what is being worked on
LOADS = 3  # of a block: more streams than that are more than the memory keeps apart
COST = 3  # of a nest that has time for it


def plan(e: Emitter, nodes: Sequence[Node]) -> dict[Node, list[Op]]:
    """Which nests of a block fetch ahead, and for which loads."""
    if e.alias or "row_prefetch" in e.off:
        return {}
    best: dict[tuple[int, ...] | None, Node] = {}  # of the nodes behind, by shape: the nest that has most time
    hosts: list[tuple[Op, Node]] = []
    for node in reversed(nodes):
        if node.is_group and node.shape in best:
            hosts += [(op, best[node.shape]) for op in reversed(node.ops) if op.name == "load"]
        if _cost(node) >= COST and (node.shape not in best or _leisure(node) >= _leisure(best[node.shape])):
            best[node.shape] = node
    found: dict[Node, list[Op]] = {}
    chosen = (pair for pair in reversed(hosts) if _worth(e, pair[0]))
    for op, host in islice(chosen, LOADS):
        found.setdefault(host, []).append(op)
    return found


def _worth(e: Emitter, op: Op) -> bool:
    """Whether a load reads neighbours whose address is known before its loops, and another one each time."""
    pointers = op.args[0]
    size = math.prod(pointers.type.shape) * pointers.type.dtype.element.bytes
    if not LEAST <= size <= MOST or not e.contiguous(op):
        return False
    leaves = [leaf for leaf, _ in e.program.leaves(pointers, identity(pointers.type.shape))]
    return any(_moves(e, leaf) for leaf in leaves)


def _moves(e: Emitter, scalar: Value) -> bool:
    op = e.program.definition.get(scalar)
    return scalar not in e.program.func.params and (op is None or op.name != "const")


def _leisure(node: Node) -> tuple[bool, int]:
    """More of it has a nest that touches no array, and one that computes more."""
    return all(op.name not in ("load", "store") for op in node.ops), _cost(node)


def _cost(node: Node) -> int:
    return sum(COSTS.get(op.name, 1) for op in node.ops)


class Ahead:
    """What one group fetches: for each load how far on its next address is."""

    def __init__(self, group: Group, ops: Sequence[Op]):
        self.group, self.ops = group, ops
        self.steps: dict[Op, str] = {}

    def prepare(self) -> None:
        """Before all loops: remembers where the tile begins, for the next time."""
        g, c = self.group, self.group.code
        origin = {loop: "0" for loop in range(len(g.shape)) if loop != g.axis}
        for op in self.ops:
            pointers = op.args[0]
            kinds = Kinds(g.program, c, g.axis, g.size, origin, g.e.scalar, g.leaf, "loop_versioning" not in g.e.off)
            kind = kinds.of(pointers, identity(pointers.type.shape))
            if not isinstance(kind, Progression) or kind.step != pointers.type.dtype.element.bytes:
                continue
            slot = c.w.slot("i64", "before")
            c.w.slots.append(f"  store i64 0, ptr {slot}")
            before = c.w.value(f"load i64, ptr {slot}")
            c.w.do(f"store i64 {kind.base}, ptr {slot}")
            step = c.binary("sub", kind.base, before, "i64", 1)
            self.steps[op] = c.select(c.w.value(f"icmp eq i64 {before}, 0"), "0", step, "i64", 1)
            g.e.notes(op, "the next program's (or trip's) elements are fetched while this one's are worked on")

    def bases(self, row: Row) -> list[tuple[str, int]]:
        """Where this row will lie next time, and the bytes of an element, for each load.

        The form of a row that wraps around has no neighbours to fetch, and fetches nothing.
        """
        found = []
        for op, step in self.steps.items():
            if isinstance(kind := row.kind(op.args[0]), Progression):
                found.append((self.group.code.binary("add", kind.base, step, "i64", 1), kind.step))
        return found

    def fetch(self, body: Body) -> None:
        """Asks for the cache lines of one vector."""
        c = self.group.code
        for base, size in body.row.ahead:
            length = body.width * size
            if length < memory.LINE and body.number % (memory.LINE // length):
                continue
            at = c.binary("add", base, c.binary("mul", body.position, str(size), "i64", 1), "i64", 1)
            for line in range(0, length, memory.LINE):
                place = memory.pointer(c, c.binary("add", at, str(line), "i64", 1) if line else at)
                c.w.do(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")
