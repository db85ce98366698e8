"""Staged tiles: tiles that a loop loads and stores to shared memory, where a copy to a circular buffer can take their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from blocknb.ir.core import Block, Op, Users, Value
from blocknb.ir.traversal import reachable
from blocknb.language.ops import STRUCTURED, named

VIEWS = named("reshapes")  # the views between a load and the buffer in which its tile is stored
CHANGES = ("cast", "bitcast", "convert")  # what else may happen to a tile between its load and its store


@dataclass(frozen=True, eq=False)
class StagedTile:
    """A loaded tile, the ops between it and the stored one, in order, and the store to a buffer."""

    load: Op
    views: tuple[Op, ...]
    store: Op

    @property
    def buffer(self) -> Value:
        """The buffer to which the tile is stored."""
        return self.store.args[0]


def staged_tile(defs: Mapping[Value, Op], store: Op, through: Collection[str] = VIEWS) -> StagedTile | None:
    """The tile that a store writes, if it is loaded and only ops `through` these names lie between; else None."""
    between, op = list[Op](), defs.get(store.args[1])
    while op is not None and op.name in through:
        between.append(op)
        op = defs.get(op.args[0])
    return StagedTile(op, tuple(reversed(between)), store) if op is not None and op.name == "load" else None


def final_users(users: Users, value: Value) -> set[Op]:
    """The ops that use a tile or its views, without the views."""
    found = [op for op, _ in users.get(value, ())]
    return {op for op in found if op.name not in VIEWS}.union(
        *(final_users(users, op.result) for op in found if op.name in VIEWS)
    )


def only_stored(users: Users, value: Value) -> bool:
    """Whether a tile and its views are only stored to shared memory."""
    return all(op.name == "local_store" for op in final_users(users, value))


def source_loads(
    values: Iterable[Value], block: Block, defs: Mapping[Value, Op], users: Users, axes: int = 2
) -> list[Op]:
    """The loads of tiles with `axes` axes or more, in a block, from which values are computed, also through buffers, but not through
    products; in order."""
    own = set(block.ops)

    def makers(values: Iterable[Value]) -> Iterator[Op]:
        for value in values:
            op = defs.get(value)
            if op is not None and op.name == "local_load":
                op = defs.get(op.args[0])
            if op is not None and op.name == "alloc":
                stores = [x for x, _ in users[op.result] if x.name == "local_store"]
                op = defs.get(stores[0].args[1]) if len(stores) == 1 else None
            if op in own and op.name != "dot" and op.name not in STRUCTURED:
                yield op

    found = set(reachable(makers(values), lambda op: () if op.name == "load" else makers(op.args)))
    loads = [op for op in block.ops if op in found and op.name == "load"]
    return [op for op in loads if sum(n > 1 for n in op.result.type.shape) >= axes]


def operand_source_loads(loop: Op, defs: Mapping[Value, Op], users: Users, axes: int = 2) -> list[Op]:
    """The loads of a loop's own block from which it computes the operands of its products, in order."""
    (block,) = loop.blocks
    operands = [value for op in block.ops if op.name == "dot" for value in op.args[:2]]
    return source_loads(operands, block, defs, users, axes)
