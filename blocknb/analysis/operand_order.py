"""Postorder of operands: facts are found for operands before results.

The walk uses no recursion, because a sorting network is deeper than Python's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from blocknb.analysis.facts import FunctionFacts
from blocknb.ir.core import Op, Value
from blocknb.ir.traversal import postorder


def operands_first(
    facts: FunctionFacts,
    value: Value,
    known: Container[Value],
    asked: Callable[[Op], Iterable[Value]] = lambda op: op.args,
) -> list[Value]:
    """The value and the unknown values from which it is computed, operands first. `asked` gives the operands of an op that matter."""

    def made_of(current: Value) -> list[Value]:
        op = facts.definition.get(current)
        if op is None or op.blocks or current in facts.argument:
            return []
        return [x for x in asked(op) if x not in known]

    if value in known:
        return []
    return list(postorder((value,), made_of)) if made_of(value) else [value]
