"""Graph traversals: backward and forward slices of values and ops, and orders of nodes.

Every traversal keeps its own stack, because an unrolled kernel is deeper than Python's call stack. `reachable` and the slices are
generators. They ask for the successors of a node only after the caller has seen the node. So a caller can stop the walk when it has its
answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from blocknb.ir.core import Op, Value

Node = TypeVar("Node", bound=Hashable)
Successors = Callable[[Node], Iterable[Node]]


def reachable(start: Iterable[Node], successors: Successors) -> Iterator[Node]:
    """Yields the nodes of `start` and all nodes reachable by `successors`, each once, depth first, with the last successor first."""
    todo, seen = list(start), set[Node]()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += successors(node)


def breadth_first(start: Iterable[Node], successors: Successors) -> Iterator[Node]:
    """Yields the nodes of `reachable`, with the nodes nearest to `start` first."""
    todo, seen = deque(start), set[Node]()
    while todo:
        node = todo.popleft()
        if node not in seen:
            seen.add(node)
            yield node
            todo += successors(node)


def postorder(start: Iterable[Node], successors: Successors) -> Iterator[Node]:
    """Yields the nodes of `reachable`, each after its successors. The graph must not have cycles."""
    seen = set[Node]()
    stack = [(node, False) for node in start]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(x, False) for x in successors(node)]


def backward_slice(
    values: Iterable[Value],
    definition: Mapping[Value, Op],
    through: Callable[[Op], bool] = lambda op: True,
    operands: Callable[[Op], Iterable[Value]] = lambda op: op.args,
) -> Iterator[Op]:
    """Yields the ops that lead to values.

    Only ops of `definition` count. The walk continues to the `operands` of an op if `through(op)` is true.
    """

    def makers(found: Iterable[Value]) -> list[Op]:
        return [definition[x] for x in found if x in definition]

    return reachable(makers(values), lambda op: makers(operands(op)) if through(op) else ())


def forward_slice(
    values: Iterable[Value],
    users: Mapping[Value, Sequence[tuple[Op, int]]],
    through: Callable[[Op], bool] = lambda op: True,
) -> Iterator[Op]:
    """Yields the ops that use values, as `ir.core.uses` has them. The walk continues to the results of an op if `through(op)` is true."""

    def used_by(found: Iterable[Value]) -> list[Op]:
        return [op for x in found for op, _ in users.get(x, ())]

    return reachable(used_by(values), lambda op: used_by(op.results) if through(op) else ())
