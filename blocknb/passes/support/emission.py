"""Where the code generator of a GPU writes the code of an op, and which passes decide that.

The code of an op usually stands where the op stands. The attribute `emit` says otherwise. An op that is emitted `IN_PIECES` belongs to a
tile larger than the registers (`strip_mining`). Its consumers, whose attribute `piece` is a number of registers, emit it piece by piece. An
op that is emitted `AT_USE` is computed where its result is asked for first (`sinking`). An op that is emitted `REMATERIALIZED` is computed
again after each reduction with the attribute `rematerialize`. It is computed from a row that stays as it was loaded (`rematerialization`).
Halide calls such a choice the `compute_at` of a value.

An op has one of these at most: a pass leaves an op alone that has an attribute `emit` already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, Value
from blocknb.ir.traversal import reachable
from blocknb.language.ops import named

IN_PIECES, AT_USE, REMATERIALIZED = "in_pieces", "at_use", "rematerialized"  # the keys of `EMISSIONS`
RENAMING = named("view") | {"convert"}  # ops after which a register of a piece has another place in its tile


class Emission:
    """The values of a function that are not emitted where they stand, with their ops: `in_pieces`, `at_use`, `rematerialized`, and the
    loaded rows that stay `packed`."""

    def __init__(self, func: Func):
        placed = {op.result: op for op in func.ops() if "emit" in op.attrs}

        def at(where: str, loads: bool) -> dict[Value, Op]:
            return {v: op for v, op in placed.items() if op.attrs["emit"] == where and (op.name == "load") is loads}

        self.in_pieces = emitted(func, IN_PIECES)
        self.at_use, self.rematerialized, self.packed = (
            at(AT_USE, False),
            at(REMATERIALIZED, False),
            at(REMATERIALIZED, True),
        )


def emitted(func: Func, where: str) -> dict[Value, Op]:
    """The values that are emitted at such a place, with the ops that define them."""
    return {op.result: op for op in func.ops() if op.attrs.get("emit") == where}


def made_for(consumer: Op, values: Mapping[Value, Op]) -> set[Value]:
    """Selects the values that are emitted for one consumer. The values come with their ops."""

    def inside(operands: Sequence[Value]) -> list[Value]:
        return [value for value in operands if value in values]

    return set(reachable(inside(consumer.args), lambda value: inside(values[value].args)))


def with_attributes(func: Func, added: Mapping[Op, Mapping[str, Any]]) -> Func:
    """The function with more attributes of some ops, which keep their ids and results."""
    by_id = {op.id: attrs for op, attrs in added.items()}

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id not in by_id:
            return NotImplemented
        kept = rebuild.keep(revised(op, attrs={**op.attrs, **by_id[op.id]}))
        return kept.results

    return rebuild(func, visit)
