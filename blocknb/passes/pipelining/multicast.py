"""Multicast: the two CTAs of a cluster copy a tile that both need together; each reads half of it and writes that half to both.

The L2 cache then serves each element once for two CTAs. The launch option `num_ctas=2` asks for it. Programs 2i and 2i + 1 share a cluster.
They need the same tile if its coordinates, and the bounds of the loops around it, depend on the program's number only through a division.
The divisor must be an even constant. Source: PTX ISA, cp.async.bulk.tensor with .multicast::cluster; CUTLASS's cluster shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from blocknb.analysis.affine import Facts
from blocknb.ir.core import Func, Op, Value
from blocknb.ir.traversal import reachable
from blocknb.passes.pipelining.backward_slice import atoms, sources
from blocknb.target import CLUSTER

if TYPE_CHECKING:
    from blocknb.passes.pipelining.warp_plan import TmaCopy


def shared(facts: Facts, copies: list[TmaCopy], func: Func) -> list[TmaCopy]:
    """The copies of a function, those marked that the CTAs of a cluster can do together."""
    if "order" in func.attrs:  # neighbours in the grid may be in different clusters
        return copies
    found = []
    for copy in copies:
        around = loops(facts, copy.load)
        values = [value for poly in copy.box.start for value in atoms(poly)]
        values += [value for loop in around or () for value in loop.args[:3]]
        found.append(halved(copy) if around is not None and same(facts, values) else copy)
    return found


def loops(facts: Facts, op: Op) -> list[Op] | None:
    """The loops around an op; None if a branch decides whether a program runs it."""
    found, parent = list[Op](), facts.parent[op]
    while parent is not None and parent.name == "for":
        found.append(parent)
        parent = facts.parent[parent]
    return found if parent is None else None


def same(facts: Facts, values: Iterable[Value]) -> bool:
    """Whether scalars are equal in both programs of a pair."""

    def until_pair(value: Value) -> Iterable[Value]:
        return () if is_pair(facts, value) else sources(facts, value)

    found = [facts.definition.get(x) for x in reachable(values, until_pair) if not is_pair(facts, x)]
    return not any(op is not None and op.name in ("program_id", "load") for op in found)


def is_pair(facts: Facts, value: Value) -> bool:
    """Whether a value is the number of a program along the first axis, divided by an even constant."""
    op = facts.definition.get(value)
    if op is None or op.name != "div":
        return False
    program, by = (facts.definition.get(x) for x in op.args)
    if program is None or program.name != "program_id" or program.attrs["axis"]:
        return False
    return by is not None and by.name == "const" and by.attrs["value"] % CLUSTER == 0


def halved(copy: TmaCopy) -> TmaCopy:
    """The copy in an even number of boxes, for multicast; the copy as it is if boxes cannot be halved."""
    shape, (rows, columns) = copy.extents, copy.axes
    box = list(copy.kind.box)
    count = (shape[0] // box[rows]) * (shape[1] // box[columns])
    if count % 2:
        outer = rows if columns == len(box) - 1 else columns
        if box[outer] < 16 or (count > 1 and outer == columns):
            return copy  # no half, or halves at different distances
        box[outer] //= 2
    return replace(copy, kind=replace(copy.kind, box=tuple(box)), multicast=True)
