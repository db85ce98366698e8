"""Pointer provenance: the arguments that each pointer may come from (LLVM's "underlying objects").

The analysis follows pointers, and 64-bit integers made from pointers, through arithmetic, selects, casts and control flow, to a
fixed point over loops. A pointer that can come from one argument only needs no run-time work: its bounds are that argument's. For
the others `passes.support.carried_bounds` makes code that carries the owner. A pointer made from a plain integer, or loaded from memory, is
*foreign*: it may point to memory that no argument describes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS, named
from blocknb.language.types import Tile

LOADED = "its pointer was loaded from memory"
NUMBER = "its pointer was made from an integer"
ASSEMBLY = "its pointer comes from inline assembly"
FOREIGN = (LOADED, NUMBER, ASSEMBLY)
#: Several pointers went into one number: only the address determines the argument.
MIXED = "mixed"

Origins = frozenset[int | str]
NONE: Origins = frozenset()
#: Ops that move or reshape elements, and all ops whose result points into the array of their first operand.
MOVES = named("moves_data")
KEEPS = MOVES | {"ptradd", "promise", "splat"}


def is_pointer(value: Value) -> bool:
    return isinstance(value.type, Tile) and value.type.is_pointer


def may_hold_address(value: Value) -> bool:
    """Whether a value is a pointer or an integer of the same width."""
    kind = value.type  # memory IR also has buffers, tensor maps and barriers
    return isinstance(kind, Tile) and (kind.is_pointer or (kind.dtype.is_integer and kind.dtype.bits == 64))


@dataclass
class Provenance:
    """The possible origins of each pointer: `of(value)` has numbers of arguments, and strings for other origins. Empty for plain
    integers."""

    func: Func
    found: dict[Value, Origins] = field(default_factory=dict)
    #: Pointers whose owner may differ between elements.
    varying: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        for i, param in enumerate(self.func.params):
            if is_pointer(param):
                self.found[param] = frozenset([i])
        while self._grow(self.func.body):
            pass

    def of(self, value: Value) -> Origins:
        return self.found.get(value, NONE)

    def argument(self, pointer: Value) -> int | None:
        """The argument from which a pointer comes, if there is only one possibility; else None."""
        origins = self.of(pointer)
        (only,) = origins if len(origins) == 1 else (None,)
        return only if isinstance(only, int) else None

    def owned(self, value: Value) -> bool:
        """Whether a value has an owner: every pointer has one, and so has an integer made from one address."""
        origins = self.of(value)
        return bool(origins) and (is_pointer(value) or MIXED not in origins)

    def carried(self, value: Value) -> bool:
        """Whether the code must carry the owner of a value at run time."""
        return self.owned(value) and self.argument(value) is None

    def foreign(self, pointer: Value) -> list[str]:
        """Why a pointer may point to memory that belongs to no argument; empty if it may not."""
        return [reason for reason in FOREIGN if reason in self.of(pointer)]

    def leading_to(self, wanted: Callable[[Value], bool]) -> set[Value]:
        """The wanted pointers, and the pointers from which they may be made."""
        edges = [(target, sources) for op in self.func.ops() for target, sources in flows(op) if is_pointer(target)]
        found = {target for target, _ in edges if wanted(target)}
        makers: dict[Value, list[Value]] = {}
        for target, sources in edges:
            makers.setdefault(target, []).extend(filter(is_pointer, sources))
        return set(reachable(found, lambda pointer: makers.get(pointer, ())))

    # -- the fixed point -------------------------------------------------------------------------------------------------

    def _grow(self, block: Block) -> bool:
        """Walks through a block once in program order; True if a set of origins grew."""
        learnt = False
        for op in block.ops:
            learnt |= self._flow(op)  # before its blocks, so that they see the initial values of a loop
            if OPS[op.name].kind == "control":
                for inner in op.blocks:
                    learnt |= self._grow(inner)
                learnt |= self._flow(op)
        return learnt

    def _flow(self, op: Op) -> bool:
        learnt = False
        for target, sources in flows(op):
            if may_hold_address(target):
                found = self._transfer(op, target, sources), self._varies(op, target, sources)
                learnt |= self._join(target, *found)
        return learnt

    def _join(self, target: Value, origins: Origins, varies: bool) -> bool:
        before = self.of(target), target in self.varying
        if origins:
            self.found[target] = before[0] | origins
        if varies:
            self.varying.add(target)
        return before != (self.of(target), target in self.varying)

    def _transfer(self, op: Op, target: Value, sources: list[Value]) -> Origins:
        known = [self.of(source) for source in sources if self.of(source)]
        joined: Origins = frozenset().union(*known)
        if OPS[op.name].kind == "control":
            return joined
        if OPS[op.name].reads:
            return frozenset([LOADED]) if is_pointer(target) else NONE
        match op.name:
            case "asm":
                return frozenset([ASSEMBLY]) if is_pointer(target) else NONE
            case "const":
                return frozenset([NUMBER]) if is_pointer(target) else NONE
            case "bitcast":
                return joined or (frozenset([NUMBER]) if is_pointer(target) else NONE)
            case "select":
                return joined
            case name if name in KEEPS:
                return self.of(sources[0])
        # An address plus a number points into the same array; a number made from two addresses may point anywhere.
        mixes = len(known) > 1 or OPS[op.name].kind != "elementwise"
        return joined | {MIXED} if known and mixes else joined

    def _varies(self, op: Op, target: Value, sources: list[Value]) -> bool:
        if not target.type.shape:
            return False
        match op.name:
            case "load" | "asm" | "const":
                return True
            case "select":
                return self._differ(sources)
            case "bitcast" if is_pointer(target) and not self.of(sources[0]):
                return True
        # The owner of such a pointer is looked up by its address, element by element.
        if MIXED in self.of(target) and OPS[op.name].kind != "control" and op.name not in KEEPS:
            return True
        return any(source in self.varying for source in sources)

    def _differ(self, sources: list[Value]) -> bool:
        """Whether a select of tiles may choose between pointers of different owners."""
        owners = [self.argument(source) for source in sources]
        return None in owners or len(set(owners)) > 1


def flows(op: Op) -> list[tuple[Value, list[Value]]]:
    """The possible sources of each result and block argument of an op."""
    match op.name:
        case "for":
            (body,) = op.blocks
            places = zip(body.args[1:], op.results, op.args[3:], body.terminator.args, strict=True)
            return [(target, [init, given]) for arg, result, init, given in places for target in (arg, result)]
        case "while":
            test, body = op.blocks
            sources = (op.args, test.terminator.args[1:], body.terminator.args)
            rows = zip(test.args, body.args, op.results, *sources, strict=True)
            # One set of origins for each carried value, throughout the loop.
            return [(target, given) for first, second, result, *given in rows for target in (first, second, result)]
        case "if":
            arms = (block.terminator.args for block in op.blocks)
            return [(result, given) for result, *given in zip(op.results, *arms, strict=True)]
        case "select":
            return [(op.result, list(op.args[1:]))]
    return [(result, list(op.args)) for result in op.results]
