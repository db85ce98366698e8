"""Pointer provenance: the arguments that each pointer may come from (LLVM's "underlying objects").

The analysis follows pointers, and 64-bit integers made from pointers, through arithmetic, selects, casts and control flow, to a
fixed point over loops. A pointer that can come from one argument only needs no run-time work: its bounds are that argument's. For
the others `passes.carried_bounds` makes code that carries the owner. A pointer made from a plain integer, or loaded from memory, is
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
#: Several pointers went into one number: only the address tells the argument.
MIXED = "mixed"

Origins = frozenset[int | str]
NONE: Origins = frozenset()
#: Ops that give elements another place or shape, and all whose result points where their first operand does.
MOVES = named("moves_data")
KEEPS = MOVES | {"ptradd", "promise", "splat"}


def is_pointer(value: Value) -> bool:
    return isinstance(value.type, Tile) and value.type.is_pointer


def may_hold_address(value: Value) -> bool:
    """Whether a value is a pointer, or an integer as wide as one."""
    kind = value.type
    return isinstance(kind, Tile) and (kind.is_pointer or (kind.dtype.is_integer and kind.dtype.bits == 64))


@dataclass
class Provenance:
    """`of(value)`: numbers of arguments, and strings for what else a pointer may come from. Empty for plain integers."""

    func: Func
    found: dict[Value, Origins] = field(default_factory=dict)
    #: Pointers whose owner may differ from lane to lane.
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
        """The only argument that a pointer may come from, else None."""
        origins = self.of(pointer)
        (only,) = origins if len(origins) == 1 else (None,)
        return only if isinstance(only, int) else None

    def carried(self, value: Value) -> bool:
        """Whether the owner of a value has to be carried at run time."""
        origins = self.of(value)
        if not origins or self.argument(value) is not None:
            return False
        return is_pointer(value) or MIXED not in origins

    def foreign(self, pointer: Value) -> list[str]:
        """Why a pointer may point to memory that belongs to no argument; empty if it may not."""
        return [reason for reason in FOREIGN if reason in self.of(pointer)]

    def leading_to(self, wanted: Callable[[Value], bool]) -> set[Value]:
        """Pointers that are wanted, and those that they may be made of."""
        edges = [(target, sources) for op in self.func.ops() for target, sources in flows(op) if is_pointer(target)]
        found = {target for target, _ in edges if wanted(target)}
        makers: dict[Value, list[Value]] = {}
        for target, sources in edges:
            makers.setdefault(target, []).extend(filter(is_pointer, sources))
        return set(reachable(found, lambda pointer: makers.get(pointer, ())))

    # -- the fixed point -------------------------------------------------------------------------------------------------

    def _grow(self, block: Block) -> bool:
        """One pass through a block in program order; True if anything was learnt."""
        learnt = False
        for op in block.ops:
            learnt |= self._flow(op)  # before its blocks, so that they see what a loop begins with
            if op.blocks and OPS[op.name].kind == "control":
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
        if op.blocks and OPS[op.name].kind == "control":
            return joined
        if OPS[op.name].reads:
            return frozenset([LOADED]) if is_pointer(target) else NONE
        match op.name:
            case "asm":
                return frozenset([ASSEMBLY]) if is_pointer(target) else NONE
            case "const":
                return frozenset([NUMBER]) if is_pointer(target) else NONE
            case "bitcast" | "cast":
                return joined or (frozenset([NUMBER]) if is_pointer(target) else NONE)
            case "select":
                return joined
            case name if name in KEEPS:
                return self.of(sources[0])
        # An address plus a number is an address of the same array; what two addresses make is anybody's.
        mixes = len(known) > 1 or OPS[op.name].kind != "elementwise"
        return joined | {MIXED} if known and mixes else joined

    def _varies(self, op: Op, target: Value, sources: list[Value]) -> bool:
        if not isinstance(target.type, Tile) or not target.type.shape:
            return False
        match op.name:
            case "load" | "asm" | "const":
                return True
            case "select":
                return self._differ(sources)
            case "bitcast" | "cast" if is_pointer(target) and self._resolved(sources[0]):
                return True
        if MIXED in self.of(target) and OPS[op.name].kind != "control" and op.name not in KEEPS:
            return True
        return any(source in self.varying for source in sources)

    def _differ(self, sources: list[Value]) -> bool:
        """Whether a select of tiles may take pointers of different owners."""
        owners = [self.argument(source) for source in sources]
        return None in owners or len(set(owners)) > 1

    def _resolved(self, source: Value) -> bool:
        """Whether a cast to a pointer has to look for the owner by the address."""
        return not self.of(source) or (not is_pointer(source) and MIXED in self.of(source))


def flows(op: Op) -> list[tuple[Value, list[Value]]]:
    """Where each result and block argument of an op may get its value from."""
    match op.name:
        case "for":
            carried, given = op.blocks[0].args[1:], op.blocks[0].terminator.args
            return [(t, [i, g]) for t, i, g in zip(carried, op.args[3:], given, strict=True)] + [
                (r, [i, g]) for r, i, g in zip(op.results, op.args[3:], given, strict=True)
            ]
        case "while":
            test, body = op.blocks
            places = zip(op.args, test.terminator.args[1:], body.terminator.args, strict=True)
            sources = [
                list(place) for place in places
            ]  # one set of origins for each place, wherever in the loop it is asked
            targets = zip(test.args, body.args, op.results, strict=True)
            return [(t, given) for three, given in zip(targets, sources, strict=True) for t in three]
        case "if":
            return [
                (r, list(pair)) for r, *pair in zip(op.results, *(b.terminator.args for b in op.blocks), strict=True)
            ]
        case "select":
            return [(op.results[0], list(op.args[1:]))]
    return [(r, list(op.args)) for r in op.results]
