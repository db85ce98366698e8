"""Groups of values that must have one layout: union-find (Tarjan, 1975) with the layouts that the members propose."""

from __future__ import annotations

from collections.abc import Iterable

from blocknb.ir.core import Value
from blocknb.layouts.linear import Layout


class LayoutGroups:
    """Union-find over values, with the proposals made to each group: (weight, layout)."""

    def __init__(self) -> None:
        self.parent: dict[Value, Value] = {}
        self.proposals: dict[Value, list[tuple[float, Layout]]] = {}
        self.sorted_values = set[Value]()  # the members of groups that a bitonic sort compares

    def find(self, value: Value) -> Value:
        self.parent.setdefault(value, value)
        while self.parent[value] is not value:
            self.parent[value] = self.parent[self.parent[value]]
            value = self.parent[value]
        return value

    def union(self, a: Value, b: Value) -> None:
        a, b = self.find(a), self.find(b)
        if a is not b:
            self.parent[b] = a
            self.proposals.setdefault(a, []).extend(self.proposals.pop(b, []))

    def propose(self, value: Value, weight: float, layout: Layout) -> None:
        self.proposals.setdefault(self.find(value), []).append((weight, layout))

    def members(self, values: Iterable[Value]) -> dict[Value, set[Value]]:
        """The values of each group, by its root."""
        found: dict[Value, set[Value]] = {}
        for value in values:
            found.setdefault(self.find(value), set()).add(value)
        return found
