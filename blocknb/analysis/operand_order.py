"""Postorder of operands: facts are found for operands before results.

The walk uses no recursion, because a sorting network is deeper than Python's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from blocknb.analysis.facts import FunctionFacts
from blocknb.ir.core import Op, Value


def operands_first(
    facts: FunctionFacts,
    value: Value,
    known: Container[Value],
    asked: Callable[[Op], Iterable[Value]] = lambda op: op.args,
) -> list[Value]:
    """The value, after whatever straight ops make it of and is not `known`; `asked` are those operands of an op that matter."""
    order: list[Value] = []
    seen, stack = set(), [(value, False)]
    while stack:
        current, ready = stack.pop()
        if ready:
            order.append(current)
        elif current not in seen and current not in known:
            seen.add(current)
            stack.append((current, True))
            op = facts.definition.get(current)
            if op is not None and not op.blocks and current not in facts.argument:
                stack.extend((a, False) for a in asked(op))
    return order
