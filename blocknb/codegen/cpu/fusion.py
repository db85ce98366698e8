"""Operator fusion: decides which tile operations share a loop nest, and orders the nodes of a block.

A node is a group of elementwise operations, loads, stores and reductions of one shape, which becomes one loop nest. Or it is a single
operation (dot, control flow, scalars). An operation joins the latest group that allows it. The group must produce each operand at the index
at which the operation needs it. No access may pass another that may alias it, and no cycle may arise (ancestor sets are bit masks). The
graph assumes that two arguments do not overlap, and records the assumption, which the kernel tests when it is entered. Source of the
technique: Megiddo & Sarkar, "Optimal weighted loop fusion for parallel programs" (SPAA 1997); the choice here is greedy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES, VIEWS, Dataflow, Index, identity, squeezed
from blocknb.ir.core import Block, Op, Value, is_volatile, within
from blocknb.language.ops import ACCESSES, ATOMICS, OPS, PRESERVING, TERMINATORS

OPEN = 48  # nodes, and accesses to memory, that a later op is compared with


@dataclass(eq=False)
class FusionNode:
    """One node of the graph: a group of tile ops that share a loop nest, or a single op. `inputs` are the nodes that come first."""

    number: int
    ops: list[Op]
    shape: tuple[int, ...] | None = None
    axes: frozenset[int] = frozenset()
    inputs: set[int] = field(default_factory=set)

    @property
    def is_group(self) -> bool:
        """Whether the node is a loop nest."""
        return self.shape is not None


class NestAccess(NamedTuple):
    """A memory operation and its node. `top` is the op of the block that contains `op`, such as a loop."""

    op: Op
    node: FusionNode
    top: Op


@dataclass
class FusionGraph:
    """The fusion graph of a block.

    `contiguous` gives the loops along which an access is contiguous. `alias`: different arguments may overlap. Otherwise the graph adds the
    pairs that it assumes to be disjoint to `assumptions`. Without `fuse` each op is a node of its own.
    """

    program: Dataflow
    block: Block
    contiguous: Callable[[Op], frozenset[int]]
    alias: bool
    assumptions: dict[tuple[Value, Value], bool]
    fuse: bool = True
    nodes: list[FusionNode] = field(default_factory=list)
    producer: dict[Value, FusionNode] = field(default_factory=dict)
    node_of: dict[Op, FusionNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ancestors: list[int] = []
        self._accesses: list[NestAccess] = []
        self._closed = 0
        for op in self.block.ops:
            if op.name not in TERMINATORS:
                self._add(op)
                if len(self._accesses) >= OPEN or len(self.nodes) - self._closed >= OPEN:
                    self._close()

    # -- building --------------------------------------------------------------------------------------------------------

    def _add(self, op: Op) -> None:
        program = self.program
        if op.name == "const" or (op.results and all(r.type.shape and not program.is_stored(r) for r in op.results)):
            return
        edges: list[tuple[FusionNode, bool]] = []
        for leaf, index in self._reads(op):
            producer = self.producer.get(leaf)
            if producer is not None:
                maker = program.definition[leaf]
                together = producer.is_group and maker.name != "reduce" and index == identity(leaf.type.shape)
                edges.append((producer, together))
        pairs: list[tuple[FusionNode, Value, Value, bool]] = []
        for access in self._memory(op):
            edges += self._conflicts(access, op, pairs)
        shape = self._group_shape(op)
        node = None
        # Atomics have no vectors, and a loop nest of their own.
        if self.fuse and shape is not None and op.name not in ATOMICS:
            node = self._find_group(op, shape, edges)
        if node is None:
            node = FusionNode(len(self.nodes), [], shape)
            self.nodes.append(node)
            self._ancestors.append(0)
        self._join(node, op, edges, pairs)

    def _close(self) -> None:
        """Closes the nodes so far: later ops do not join them, and need no edges to them.

        They get no more inputs, and `order` takes the lowest number that is ready, so it takes them before any later node.
        """
        self._closed, self._accesses = len(self.nodes), []

    def _reads(self, op: Op) -> Iterator[tuple[Value, Index]]:
        for inner in within(op):
            for leaf, _, index in self.program.reads(inner):
                yield leaf, index

    def _memory(self, op: Op) -> Iterator[Op]:
        return (inner for inner in within(op) if OPS[inner.name].reads or OPS[inner.name].writes)

    def _group_shape(self, op: Op) -> tuple[int, ...] | None:
        """The loops of an op that can share them; None for other ops."""
        if op.name in (*ACCESSES, "reduce") or OPS[op.name].kind == "elementwise":
            shape = op.args[0].type.shape
            return squeezed(shape) if shape else None
        return None

    def _conflicts(self, access: Op, top: Op, pairs: list) -> Iterator[tuple[FusionNode, bool]]:
        """Edges from earlier accesses that may alias this one. Nodes that may share a loop add to `pairs`."""
        for earlier in self._accesses:
            loads = earlier.op.name == "load" and access.name == "load"
            if loads and not (is_volatile(earlier.op) or is_volatile(access)):
                continue
            together = access is top and earlier.op is earlier.top and self._may_share(earlier, access, pairs)
            yield earlier.node, together

    def _may_share(self, earlier: NestAccess, second: Op, pairs: list) -> bool:
        first = earlier.op
        if not {first.name, second.name} <= PLAIN_ACCESSES or is_volatile(first) or is_volatile(second):
            return False
        a, b = self.program.root(first.args[0]), self.program.root(second.args[0])
        if a is None or b is None or not first.args[0].type.shape:
            return False
        same_place = first.name == "load" and second.name == "store" and self._same_elements(first, second)
        if a is b:
            return same_place
        if self.alias:
            return False
        pairs.append((earlier.node, a, b, same_place))
        return True

    def _same_elements(self, load: Op, store: Op) -> bool:
        """Whether the store writes, at each index, the address that the load reads at this index and at no other."""
        p, q = load.args[0], store.args[0]
        if len(squeezed(p.type.shape)) != 1 or p.type.dtype.element.bytes != q.type.dtype.element.bytes:
            return False
        if 0 not in self.contiguous(load) or not self._all_distinct(p):
            return False
        if p is q:
            return True
        x, y = self.program.definition.get(p), self.program.definition.get(q)
        if x is None or y is None or x.name != "ptradd" or y.name != "ptradd" or x.args[1] is not y.args[1]:
            return False
        bases, params = (x.args[0], y.args[0]), self.program.func.params
        return all(self.program.is_uniform(base) and self._splatted(base) in params for base in bases)

    def _all_distinct(self, value: Value) -> bool:
        """Whether contiguous addresses are sums of a range and uniform terms, so that no address repeats (a remainder would)."""
        op = self.program.definition.get(value)
        if op is None or not value.type.shape:
            return False
        if op.name == "arange" or self.program.is_uniform(value):
            return True
        # Not the trait `ring`: a product with zero repeats an address.
        return op.name in ("ptradd", "add", "sub", *VIEWS) and all(map(self._all_distinct, op.args))

    def _splatted(self, value: Value) -> Value:
        while (op := self.program.definition.get(value)) is not None and op.name in PRESERVING:
            value = op.args[0]
        return value

    def _find_group(self, op: Op, shape: tuple[int, ...], edges: list[tuple[FusionNode, bool]]) -> FusionNode | None:
        axes = self._axes(op)
        for node in reversed(self.nodes[max(self._closed, len(self.nodes) - 64) :]):
            if node.shape != shape or (axes and node.axes and not axes & node.axes) or node.ops[0].name in ATOMICS:
                continue
            bit = 1 << node.number - self._closed
            if all(
                together if other is node else other.number < self._closed or not self._ancestors[other.number] & bit
                for other, together in edges
            ):
                return node
        return None

    def _axes(self, op: Op) -> frozenset[int]:
        return frozenset(self.contiguous(op)) if op.name in PLAIN_ACCESSES else frozenset()

    def _join(self, node: FusionNode, op: Op, edges: list[tuple[FusionNode, bool]], pairs: list) -> None:
        node.ops.append(op)
        self.node_of[op] = node
        if node.is_group and (axes := self._axes(op)):
            node.axes = node.axes & axes if node.axes else axes
        for result in op.results:
            self.producer[result] = node
        for access in self._memory(op):
            self._accesses.append(NestAccess(access, node, op))
        above = 0
        for other, _ in edges:
            if other is not node and other.number >= self._closed:
                node.inputs.add(other.number)
                above |= self._ancestors[other.number] | 1 << other.number - self._closed
        self._ancestors[node.number] |= above
        bit = 1 << node.number - self._closed
        for i in range(self._closed, len(self.nodes)):
            if self._ancestors[i] & bit:
                self._ancestors[i] |= above
        for other, a, b, same in pairs:
            if other is node:
                self.assumptions[a, b] = self.assumptions.get((a, b), True) and same

    # -- order -----------------------------------------------------------------------------------------------------------

    def order(self) -> list[FusionNode]:
        """The nodes in topological order, otherwise in program order."""
        waiting = {n.number: len(n.inputs) for n in self.nodes}
        after: dict[int, list[int]] = {}
        for node in self.nodes:
            for i in node.inputs:
                after.setdefault(i, []).append(node.number)
        ready = [n for n, count in waiting.items() if not count]
        heapq.heapify(ready)
        result = []
        while ready:
            number = heapq.heappop(ready)
            result.append(self.nodes[number])
            for n in after.get(number, ()):
                waiting[n] -= 1
                if not waiting[n]:
                    heapq.heappush(ready, n)
        assert len(result) == len(self.nodes), "a cycle among loop nests"
        return result
