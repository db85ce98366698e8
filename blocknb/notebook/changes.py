"""The effect of a pass on each op: created, moved, retyped, removed, or replaced by a new op.

Ops keep their ids through a rebuild, and name in `was` the op that they replace. So nothing here compares texts. An op has moved if it is
in another block, or outside of the longest common run of ops that kept their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from blocknb.ir.core import Block, Func, Op
from blocknb.ir_diff.sequences import increasing


@dataclass(frozen=True)
class Changes:
    """The changes of one pass, as op ids. `deleted` holds removed ops; `origin` maps created ops to those that they replace or copy."""

    made: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    retyped: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    origin: dict[int, tuple[int, ...]] = field(default_factory=dict)


def changes(before: Func, after: Func) -> Changes:
    """The changes between two stages of one compilation."""
    if before is after:
        return Changes()
    old, new = dict(_placed(before.body, -1, 0)), dict(_placed(after.body, -1, 0))
    both = [op for op in new if op in old]
    order = {op: i for i, op in enumerate(op for op in old if op in new)}
    stayed = {both[i] for i in increasing([order[op] for op in both])}
    made = tuple(op for op in new if op not in old)
    return Changes(
        made,
        tuple(op for op in both if op not in stayed or old[op][1] != new[op][1]),
        tuple(op for op in both if _types(old[op][0]) != _types(new[op][0])),
        tuple(op for op in old if op not in new),
        {op: new[op][0].was for op in made if new[op][0].was},
    )


def _placed(block: Block, parent: int, index: int) -> Iterator[tuple[int, tuple[Op, tuple[int, int]]]]:
    """Each op's id with the op and its position: the id of the enclosing op, and the index of the block."""
    for op in block.ops:
        yield op.id, (op, (parent, index))
        for i, inner in enumerate(op.blocks):
            yield from _placed(inner, op.id, i)


def _types(op: Op) -> tuple:
    return tuple(value.type for value in op.results)
