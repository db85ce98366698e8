"""Which tile operations share a loop: from a block of tile IR to a list of nodes in order.

Values are of three sorts. *Recomputed* ones (index arithmetic, splats, shape changes of those) are worked out again wherever they
are used and never stored. *Views* are shape changes of stored tiles and cost nothing. Everything else is made by a node: a
*group* of elementwise operations, loads, stores and reductions of one shape, which becomes one loop nest, or a single operation
(dot, control flow, scalars). An operation joins the latest group that it may: all it needs of the group must be needed at the same
index, a memory access may not pass another that it may alias, and no cycle may arise (ancestor sets are kept as bit masks). Two
arguments that may overlap are assumed not to; the assumption is recorded, and tested when the kernel is entered.

An `Index` says how a value is indexed by the loops around it: for each of its axes the number of the loop, None for an axis of
size one. Loops are numbered as the axes of the group's shape without those of size one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from blocknb.codegen.cpu.elementwise import COSTS
from blocknb.ir.core import Block, Func, Op, Value, block_arguments, definitions
from blocknb.language.ops import ACCESSES, ATOMICS, OPS, TERMINATORS
from blocknb.passes.carried_bounds import Guard

Index = tuple[int | None, ...]
RECOMPUTE_LIMIT = 24
OPEN = 48  # nodes, and accesses to memory, that a later op is compared with
VIEWS = ("expand_dims", "broadcast", "trans", "reshape", "convert")


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def identity(shape: tuple[int, ...]) -> Index:
    """The index of a value of the group's own shape."""
    result, loop = [], 0
    for n in shape:
        result.append(None if n == 1 else loop)
        loop += n != 1
    return tuple(result)


class Use(NamedTuple):
    """One use of a stored value: by which op, as which operand, under which index `at` (relative to that operand's own shape)."""

    op: Op
    operand: int
    at: Index


class Program:
    """Facts about a whole Func that code generation asks for again and again."""

    def __init__(self, func: Func, guards: Mapping[int, Guard] = MappingProxyType({})):
        self.func, self.guards = func, guards
        self.definition = definitions(func)
        self.argument = block_arguments(func)
        self._recomputed: dict[Value, float] = {}
        self._roots: dict[Value, Value | None] = {}
        self.uses: dict[Value, list[Use]] = {}
        for op in func.ops():
            for leaf, operand, index in self.needs(op):
                self.uses.setdefault(leaf, []).append(Use(op, operand, index))

    # -- sorts of values -------------------------------------------------------------------------------------------------

    def cost(self, value: Value) -> float:
        """What it costs to recompute an element of a tile; infinite for a tile that must be stored."""
        if value not in self._recomputed:
            self._recomputed[value] = self._cost(value)
        return self._recomputed[value]

    def _cost(self, value: Value) -> float:
        op = self.definition.get(value)
        if op is None:
            return float("inf")
        match op.name:
            case "const" | "arange" | "splat":
                return 0
            case "expand_dims" | "broadcast" | "trans" | "convert":
                return self.cost(op.args[0])
            case "reshape":
                keeps = squeezed(op.args[0].type.shape) == squeezed(op.result.type.shape)
                return self.cost(op.args[0]) if keeps or self._same_everywhere(op.args[0]) else float("inf")
        if OPS[op.name].kind != "elementwise":
            return float("inf")
        total = COSTS.get(op.name, 1) + sum(self.cost(a) for a in op.args)
        return total if total <= RECOMPUTE_LIMIT else float("inf")

    def _same_everywhere(self, value: Value) -> bool:
        op = self.definition.get(value)
        return op is not None and (
            op.name in ("const", "splat") or (op.name in VIEWS and self._same_everywhere(op.args[0]))
        )

    def recomputed(self, value: Value) -> bool:
        return self.cost(value) < float("inf")

    def view_of(self, value: Value) -> Value | None:
        """The operand if the value is a change of shape that costs nothing, else None."""
        op = self.definition.get(value)
        if op is None or op.name not in VIEWS:
            return None
        if op.name == "reshape" and squeezed(op.args[0].type.shape) != squeezed(op.result.type.shape):
            return op.args[0] if self._same_everywhere(op.args[0]) else None
        return op.args[0]

    def is_stored(self, value: Value) -> bool:
        """Whether a tile is made by a node (or carried by a loop), rather than recomputed or seen through."""
        return bool(value.type.shape) and not self.recomputed(value) and self.view_of(value) is None

    def operand_index(self, value: Value, index: Index) -> Index:
        """For a view: the index of its operand."""
        op = self.definition[value]
        source = op.args[0].type.shape
        match op.name:
            case "expand_dims":
                axis = op.attrs["axis"]
                return index[:axis] + index[axis + 1 :]
            case "broadcast":
                return tuple(None if n == 1 else i for n, i in zip(source, index, strict=True))
            case "trans":
                inner: list[int | None] = [None] * len(source)
                for axis, i in enumerate(index):
                    inner[op.attrs["perm"][axis]] = i
                return tuple(inner)
            case "reshape":
                remaining = iter(i for n, i in zip(value.type.shape, index, strict=True) if n != 1)
                return tuple(None if n == 1 else next(remaining, None) for n in source)
        return index

    def leaves(self, value: Value, index: Index) -> set[tuple[Value, Index]]:
        """The scalars (under the index ()) and stored tiles that a value is made of, each with its index."""
        found: set[tuple[Value, Index]] = set()
        seen = set()
        todo = [(value, index)]
        while todo:
            item = todo.pop()
            if item in seen:
                continue
            seen.add(item)
            v, i = item
            if not v.type.shape:
                found.add((v, ()))
            elif self.view_of(v) is not None:
                todo.append((self.definition[v].args[0], self.operand_index(v, i)))
            elif self.recomputed(v):
                op = self.definition[v]
                todo += [(a, i if a.type.shape else ()) for a in op.args]
            else:
                found.add((v, i))
        return found

    def operands(self, op: Op) -> tuple[Value, ...]:
        """The operands of an op, and the owner that a bounds check of an access asks for."""
        guard = self.guards.get(op.id)
        return op.args if guard is None or guard.carried is None else (*op.args, guard.carried)

    def needs(self, op: Op) -> list[tuple[Value, int, Index]]:
        """What an op reads: (leaf, operand, index), without what its blocks read. Recomputed ops and views read nothing."""
        if op.results and all(r.type.shape and not self.is_stored(r) for r in op.results):
            return []
        found = []
        for operand, value in enumerate(self.operands(op)):
            found += [(leaf, operand, index) for leaf, index in self.leaves(value, identity(value.type.shape))]
        return found

    # -- pointers --------------------------------------------------------------------------------------------------------

    def root(self, value: Value) -> Value | None:
        """The parameter that a pointer (tile) points into, or None."""
        if value not in self._roots:
            self._roots[value] = value if value in self.func.params else None
            if value not in self.func.params:
                self._roots[value] = self._find_root(value)
        return self._roots[value]

    def _find_root(self, value: Value) -> Value | None:
        if value in self.argument:
            holder, block, i = self.argument[value]
            if holder.name == "for":
                return self._carried_root(value, holder.args[2 + i], holder.blocks[0].terminator.args[i - 1])
            if block == 0:
                return self._carried_root(value, holder.args[i], holder.blocks[1].terminator.args[i])
            return self.root(holder.blocks[0].terminator.args[i + 1])
        op = self.definition.get(value)
        if op is None:
            return None
        position = op.results.index(value)
        match op.name:
            case "ptradd" | "splat" | "broadcast" | "expand_dims" | "reshape" | "trans" | "convert":
                return self.root(op.args[0])
            case "select":
                a, b = self.root(op.args[1]), self.root(op.args[2])
                return a if a is b else None
            case "for":
                return self.root(op.blocks[0].args[position + 1])
            case "while":
                return self.root(op.blocks[0].terminator.args[position + 1])
            case "if":
                a, b = (self.root(arm.terminator.args[position]) for arm in op.blocks)
                return a if a is b else None
        return None

    def _carried_root(self, argument: Value, init: Value, next_value: Value) -> Value | None:
        """Assumed to be the initial value's, and dropped if the loop puts another in its place."""
        first = self.root(init)
        before = dict(self._roots)
        self._roots[argument] = first
        if self.root(next_value) is first:
            return first
        self._roots = {**before, argument: None}
        return None


@dataclass(eq=False)
class Node:
    """One piece of a block: a group of tile ops that share loops, or a single op."""

    number: int
    ops: list[Op]
    shape: tuple[int, ...] | None = None
    axes: frozenset[int] = frozenset()
    inputs: set[int] = field(default_factory=set)

    @property
    def is_group(self) -> bool:
        return self.shape is not None


class Access(NamedTuple):
    """A memory operation and the node it is in; `op` may stand inside a control op that is the node's."""

    op: Op
    node: Node
    top: Op


@dataclass
class Graph:
    """The nodes of a block. `contiguous` tells the loops along which a memory op runs through neighbouring addresses; `alias`
    means that different arguments may overlap, else pairs assumed disjoint are added to `assumptions`. Without `fuse` each op is
    a node of its own."""

    program: Program
    block: Block
    contiguous: Callable[[Op], frozenset[int]]
    alias: bool
    assumptions: dict[tuple[Value, Value], bool]
    fuse: bool = True
    nodes: list[Node] = field(default_factory=list)
    producer: dict[Value, Node] = field(default_factory=dict)
    node_of: dict[Op, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ancestors: list[int] = []
        self._accesses: list[Access] = []
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
        edges: list[tuple[Node, bool]] = []
        for leaf, index in self._reads(op):
            producer = self.producer.get(leaf)
            if producer is not None:
                maker = program.definition[leaf]
                together = producer.is_group and maker.name != "reduce" and index == identity(leaf.type.shape)
                edges.append((producer, together))
        pairs: list[tuple[Node, Value, Value, bool]] = []
        for access in self._memory(op):
            edges += self._conflicts(access, op, pairs)
        shape = self._group_shape(op)
        node = None
        if self.fuse and shape is not None and op.name not in ATOMICS:  # those have no vectors, and a loop of their own
            node = self._find_group(op, shape, edges)
        if node is None:
            node = Node(len(self.nodes), [], shape)
            self.nodes.append(node)
            self._ancestors.append(0)
        self._join(node, op, edges, pairs)

    def _close(self) -> None:
        """From here on nothing joins the nodes there are, and nothing needs to be ordered after one of them: they get no inputs
        any more, so `order`, which takes the lowest number that is ready, takes all of them before any later one."""
        self._closed, self._accesses = len(self.nodes), []

    def _reads(self, op: Op) -> Iterator[tuple[Value, Index]]:
        for leaf, _, index in self.program.needs(op):
            yield leaf, index
        for block in op.blocks:
            for inner in block.ops:
                yield from self._reads(inner)

    def _memory(self, op: Op) -> Iterator[Op]:
        if OPS[op.name].reads or OPS[op.name].writes:
            yield op
        for block in op.blocks:
            for inner in block.ops:
                yield from self._memory(inner)

    def _group_shape(self, op: Op) -> tuple[int, ...] | None:
        """The loops of an op that can share them."""
        if op.name in (*ACCESSES, "reduce") or OPS[op.name].kind == "elementwise":
            shape = op.args[0].type.shape
            return squeezed(shape) if shape else None
        return None

    def _conflicts(self, access: Op, top: Op, pairs: list) -> Iterator[tuple[Node, bool]]:
        """Edges from earlier accesses that may touch the same memory; those that may share a loop add to `pairs`."""
        for earlier in self._accesses:
            if earlier.op.name == "load" and access.name == "load":
                continue
            together = access is top and earlier.op is earlier.top and self._may_share(earlier, access, pairs)
            yield earlier.node, together

    def _may_share(self, earlier: Access, second: Op, pairs: list) -> bool:
        first = earlier.op
        if not {first.name, second.name} <= {"load", "store"}:
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
        """Whether the store writes at each index what the load has read there, and nothing that it reads elsewhere."""
        p, q = load.args[0], store.args[0]
        if (
            len(squeezed(p.type.shape)) != 1
            or 0 not in self.contiguous(load)
            or p.type.dtype.element.bytes != q.type.dtype.element.bytes
            or not self._all_distinct(p)
        ):
            return False
        if p is q:
            return True
        x, y = self.program.definition.get(p), self.program.definition.get(q)
        if x is None or y is None or x.name != "ptradd" or y.name != "ptradd" or x.args[1] is not y.args[1]:
            return False
        return all(
            self.program._same_everywhere(v) and self._splatted(v) in self.program.func.params
            for v in (x.args[0], y.args[0])
        )

    def _all_distinct(self, value: Value) -> bool:
        """Whether addresses that run through neighbours are sums of a range and uniform terms, so that none comes back, as the
        remainders of a range do."""
        op = self.program.definition.get(value)
        if op is None or not value.type.shape:
            return False
        if op.name == "arange" or self.program._same_everywhere(value):
            return True
        return op.name in ("ptradd", "add", "sub", *VIEWS) and all(map(self._all_distinct, op.args))

    def _splatted(self, value: Value) -> Value:
        while (op := self.program.definition.get(value)) is not None and op.name in (*VIEWS, "splat"):
            value = op.args[0]
        return value

    def _find_group(self, op: Op, shape: tuple[int, ...], edges: list[tuple[Node, bool]]) -> Node | None:
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
        return frozenset(self.contiguous(op)) if op.name in ("load", "store") else frozenset()

    def _join(self, node: Node, op: Op, edges: list[tuple[Node, bool]], pairs: list) -> None:
        node.ops.append(op)
        self.node_of[op] = node
        if node.is_group and (axes := self._axes(op)):
            node.axes = node.axes & axes if node.axes else axes
        for result in op.results:
            self.producer[result] = node
        for access in self._memory(op):
            self._accesses.append(Access(access, node, op))
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

    def order(self) -> list[Node]:
        """The nodes so that each comes after those it needs, otherwise as the program has them."""
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
