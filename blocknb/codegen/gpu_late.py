"""What only a store needs is made at the store, piece by piece.

A row that is held while it is reduced leaves few registers for the rest, and registers decide how many programs share a multiprocessor.
Behind the last reduction a kernel scales the row, loads weights, adds a bias: where that stands line by line, every line's tile is whole
before the next one begins, and ptxas, which moves little, needs registers for two or three. So arithmetic on the way from a reduction to
one store is emitted at that store, access by access. And a load on that way takes the store's mask when all of its elements end there: the
store asks for no other, and one set of predicates is enough. (Several rows that share weights need more registers so, not fewer.)
"""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import mask_of
from blocknb.codegen import gpu_memory
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.language.ops import OPS

Uses = Mapping[Value, list[tuple[Op, int]]]
KINDS = ("elementwise", "shape")


class Late:
    """For a memory-level Func: the `values` that are made where they are stored, and the `masks` that loads take of stores."""

    def __init__(self, func: Func, facts: Facts, users: Uses, streamed: frozenset[Value]):
        self.facts, self.users, self.streamed = facts, users, streamed
        self.values: set[Value] = set()
        self.masks: dict[Op, Value] = {}
        for block in (func.body, *(b for op in func.ops() if OPS[op.name].kind != "reduce" for b in op.blocks)):
            self.visit(block)

    def visit(self, block: Block) -> None:
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
        """Marks what is made behind a reduction for one store alone."""
        todo = [store.args[1]]
        while todo:
            value = todo.pop()
            op = made.get(value)
            if op is None or place[op] < after or len(self.users[value]) > 1 or not value.type.shape:
                continue
            if op.name == "load":
                self.take_mask(op, store, place, made)
            elif (
                OPS[op.name].pure and OPS[op.name].kind in KINDS and len(op.results) == 1 and value not in self.streamed
            ):
                self.values.add(value)
                todo += op.args

    def take_mask(self, load: Op, store: Op, place: Mapping[Op, int], made: Mapping[Value, Op]) -> None:
        mask, wanted = mask_of(load), mask_of(store)
        if mask is None or wanted is None or load.attrs.get("volatile") or not wanted.type.shape:
            return
        maker = made.get(wanted)
        if maker is None or place[maker] > place[load] or not self.implies(wanted, mask, made):
            return
        pieces = gpu_memory.accesses(self.facts, load)
        same = load.result.type.layout.num_registers == wanted.type.layout.num_registers
        if same and load.result.type.size == wanted.type.size and pieces == gpu_memory.accesses(self.facts, store):
            self.masks[load] = wanted

    def implies(self, wanted: Value, mask: Value, made: Mapping[Value, Op]) -> bool:
        """Whether one mask is another one, under a shape of as many elements, and more conditions."""
        todo: list[Value] = [wanted]
        while todo:
            value = todo.pop()
            if value is mask:
                return True
            op = made.get(value)
            if op is not None and (
                op.name == "and" or (op.name == "expand_dims" and value.type.size == mask.type.size)
            ):
                todo += op.args
        return False
