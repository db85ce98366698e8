"""Facts about the values of a function: whether a tile is recomputed, a view or stored, and the argument of each pointer.

Tiles are of three sorts. A *recomputed* tile (index arithmetic, splats, shape changes of those) is computed again wherever it is used,
and never stored. A *view* is a shape change of a stored tile and costs nothing. A node of the fusion graph *stores* every other tile.

An `Index` describes how the enclosing loops index a value. For each axis it has the number of the loop, or None for an axis of size one.
Loops are numbered as the axes of the loop nest's shape, without those of size one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from blocknb.ir.core import Func, Op, Value, block_arguments, definitions
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ATOMICS, OPS, PRESERVING, lane_cost, named
from blocknb.passes.support.carried_bounds import Guard

Index = tuple[int | None, ...]
RECOMPUTE_LIMIT = 24
VIEWS = named("view")
PLAIN_ACCESSES = named("memory") - ATOMICS  # loads and stores, for which there are vector instructions


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its axes of size one."""
    return tuple(n for n in shape if n != 1)


def identity(shape: tuple[int, ...]) -> Index:
    """The index of a value of the loop nest's own shape."""
    result, loop = [], 0
    for n in shape:
        result.append(None if n == 1 else loop)
        loop += n != 1
    return tuple(result)


class Use(NamedTuple):
    """One use of a stored value: the op, the operand's number, and the index `at`, relative to that operand's own shape."""

    op: Op
    operand: int
    at: Index


class Dataflow:
    """Facts about the values of a Func. `guards`: the guard of each access by op id."""

    def __init__(self, func: Func, guards: Mapping[int, Guard] = MappingProxyType({})):
        self.func, self.guards = func, guards
        self.definition = definitions(func)
        self.argument = block_arguments(func)
        self._recomputed: dict[Value, float] = {}
        self._leaves: dict[tuple[Value, Index], frozenset[tuple[Value, Index]]] = {}
        self._roots: dict[Value, Value | None] = {}
        self.uses: dict[Value, list[Use]] = {}
        for op in func.ops():
            for leaf, operand, index in self.reads(op):
                self.uses.setdefault(leaf, []).append(Use(op, operand, index))

    # -- sorts of values -------------------------------------------------------------------------------------------------

    def cost(self, value: Value) -> float:
        """The cost of recomputing an element of a tile; infinite for a tile that must be stored."""
        if value not in self._recomputed:
            self._recomputed[value] = self._cost(value)
        return self._recomputed[value]

    def _cost(self, value: Value) -> float:
        op = self.definition.get(value)
        if op is None:
            return float("inf")
        if OPS[op.name].has("rematerializable"):
            return 0
        if op.name in VIEWS:
            return float("inf") if self.view_of(value) is None else self.cost(op.args[0])
        if OPS[op.name].kind != "elementwise":
            return float("inf")
        total = lane_cost(op.name) + sum(self.cost(a) for a in op.args)
        return total if total <= RECOMPUTE_LIMIT else float("inf")

    def is_uniform(self, value: Value) -> bool:
        """Whether all elements of a tile are equal, as its ops show."""
        op = self.definition.get(value)
        if op is None:
            return False
        return OPS[op.name].has("uniform") or (op.name in VIEWS and self.is_uniform(op.args[0]))

    def recomputed(self, value: Value) -> bool:
        """Whether a tile is computed again wherever it is used."""
        return self.cost(value) < float("inf")

    def view_of(self, value: Value) -> Value | None:
        """The operand if the value is a change of shape that costs nothing, else None."""
        op = self.definition.get(value)
        if op is None or op.name not in VIEWS:
            return None
        if op.name == "reshape" and squeezed(op.args[0].type.shape) != squeezed(op.result.type.shape):
            return op.args[0] if self.is_uniform(op.args[0]) else None
        return op.args[0]

    def is_stored(self, value: Value) -> bool:
        """Whether a node stores a tile or a loop carries it; otherwise it is recomputed or a view."""
        return bool(value.type.shape) and not self.recomputed(value) and self.view_of(value) is None

    def operand_index(self, value: Value, index: Index) -> Index:
        """The index of a view's operand."""
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

    def leaves(self, value: Value, index: Index) -> frozenset[tuple[Value, Index]]:
        """The scalars (under the index ()) and stored tiles from which a value is computed, each with its index."""
        key = (value, index if value.type.shape else ())
        if key not in self._leaves:
            self._leaves[key] = self._find_leaves(key)
        return self._leaves[key]

    def _find_leaves(self, key: tuple[Value, Index]) -> frozenset[tuple[Value, Index]]:
        def operands(item: tuple[Value, Index]) -> list[tuple[Value, Index]]:
            v, i = item
            if not v.type.shape or self.is_stored(v):
                return []
            if self.view_of(v) is not None:
                i = self.operand_index(v, i)
            return [(a, i if a.type.shape else ()) for a in self.definition[v].args]

        return frozenset((v, i) for v, i in reachable([key], operands) if not v.type.shape or self.is_stored(v))

    def operands(self, op: Op) -> tuple[Value, ...]:
        """The operands of an op, and the owner that a bounds check of an access reads."""
        guard = self.guards.get(op.id)
        return op.args if guard is None or guard.carried is None else (*op.args, guard.carried)

    def reads(self, op: Op) -> list[tuple[Value, int, Index]]:
        """The leaves that an op reads, as (leaf, operand, index), without those of its blocks. Recomputed ops and views read nothing."""
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
            case name if name == "ptradd" or name in PRESERVING:
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
        """The root of a loop-carried pointer: that of the initial value, if the loop keeps it."""
        first = self.root(init)
        before = dict(self._roots)
        self._roots[argument] = first
        if self.root(next_value) is first:
            return first
        self._roots = {**before, argument: None}
        return None
