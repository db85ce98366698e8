"""Computes a value that only one store needs at that store, access by access (sinking).

A row that a kernel holds while it reduces it leaves few registers, and registers decide how many programs share an SM. After the last
reduction a kernel scales the row, loads weights and adds a bias. If each line is emitted where it stands, its whole tile is ready before
the next line begins. ptxas moves little, so it then needs registers for two or three tiles. So arithmetic between a reduction and one
store sinks to that store. A load on that way takes the store's mask when all of its elements end there: one set of predicates is enough.
Kernels of several rows that share weights would need more registers this way, so they are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from blocknb.analysis.accesses import accesses
from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import mask_of
from blocknb.ir.core import Block, Func, Op, Users, Value, blocks
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS

KINDS = ("elementwise", "shape")


class StoreSinking:
    """For a memory-level Func: the `values` that are computed at the store of them, and the `masks` of stores that loads take over."""

    def __init__(self, func: Func, facts: Facts, users: Users, streamed: Set[Value]):
        self.facts, self.users, self.streamed = facts, users, streamed
        self.values: set[Value] = set()
        self.masks: dict[Op, Value] = {}
        for block in blocks(func.body):
            self.visit(block)

    def visit(self, block: Block) -> None:
        """Looks at the stores of a block."""
        place = {op: i for i, op in enumerate(block.ops)}
        made = {result: op for op in block.ops for result in op.results}
        after = -1  # the last reduction
        for op, i in place.items():
            if op.name == "reduce":
                after = i
            if op.name != "store" or after < 0 or any(x in self.streamed for x in op.args):
                continue
            if sum(size > 1 for size in op.args[0].type.shape) == 1:
                self.follow(op, after, place, made)

    def follow(self, store: Op, after: int, place: Mapping[Op, int], made: Mapping[Value, Op]) -> None:
        """Marks what is computed after a reduction for this store alone."""
        for value in reachable([store.args[1]], lambda value: made[value].args if value in self.values else ()):
            op = made.get(value)
            if op is None or place[op] < after or len(self.users[value]) > 1 or not value.type.shape:
                continue
            if op.name == "load":
                self.take_mask(op, store, place, made)
            elif (
                OPS[op.name].pure and OPS[op.name].kind in KINDS and len(op.results) == 1 and value not in self.streamed
            ):
                self.values.add(value)

    def take_mask(self, load: Op, store: Op, place: Mapping[Op, int], made: Mapping[Value, Op]) -> None:
        """Gives a load the mask of the store if that is stricter."""
        mask, wanted = mask_of(load), mask_of(store)
        if mask is None or wanted is None or load.attrs.get("volatile") or not wanted.type.shape:
            return
        maker = made.get(wanted)
        if maker is None or place[maker] > place[load] or not self.implies(wanted, mask, made):
            return
        pieces = accesses(self.facts, load)
        same = load.result.type.layout.num_registers == wanted.type.layout.num_registers
        if same and load.result.type.size == wanted.type.size and pieces == accesses(self.facts, store):
            self.masks[load] = wanted

    def implies(self, wanted: Value, mask: Value, made: Mapping[Value, Op]) -> bool:
        """Whether `wanted` is `mask`, perhaps in another shape of as many elements, and more conditions."""

        def conditions(value: Value) -> Sequence[Value]:
            op = made.get(value)
            same = op is not None and op.name == "expand_dims" and value.type.size == mask.type.size
            return op.args if op is not None and (op.name == "and" or same) else ()

        return any(value is mask for value in reachable([wanted], conditions))
