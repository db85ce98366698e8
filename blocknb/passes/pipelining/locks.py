"""Locks: arrays through which the programs of one launch wait for each other, as in stream-K products.

A program that passes a lock may read what other programs wrote before they released it. If all of these run the same kernel, they write
only the arrays that the kernel writes. So a load of any other array may move before the lock, as in Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import effects, global_operands, orders, result_is_used
from blocknb.ir.core import Block, Func, Op, uses, walk
from blocknb.language.ops import ATOMICS, WRITES


def may_pass_locks(func: Func, facts: Facts, load: Op, ops: Iterable[Op]) -> bool:
    """Whether a load may move before ops that wait for other programs or order accesses. No program of the launch may write its array, and
    programs of the launch must release the arrays at which the ops wait. Two arguments are assumed to be two arrays."""
    root = facts.root(load.args[0])
    written = {facts.root(global_operands(op)[0]) for op in walk(func.body) if op.name in WRITES}
    if root is None or None in written or root in written:
        return False
    users, released = uses(func), list(releases(func.body))

    def orders_within_launch(op: Op) -> bool:
        """Whether an op orders later accesses, if at all, with those of the same launch alone. Barriers, volatile loads and assembly keep
        the places of all loads."""
        if op.name not in ATOMICS:
            return bool(op.blocks) or not effects(op).orders
        lock = facts.root(global_operands(op)[0])
        others = any(x.id != op.id and facts.root(global_operands(x)[0]) is lock for x in released)
        return not result_is_used(op, users) or (op.attrs["scope"] != "sys" and others)

    return all(map(orders_within_launch, ops))


def releases(block: Block) -> Iterator[Op]:
    """The atomics that may release a lock: all that release but those in the condition of a `while`, and `atomic_cas`, which wait."""
    for op in block.ops:
        if op.name in ATOMICS and op.name != "atomic_cas" and orders(op)[1]:
            yield op
        for inner in op.blocks[1 if op.name == "while" else 0 :]:
            yield from releases(inner)
