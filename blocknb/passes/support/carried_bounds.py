"""Carries the owner of a pointer that may come from several arguments (fat pointers).

The owner is the number of an argument, an i32 that accompanies the pointer. A select of pointers also selects their owners, and loops and
branches carry both. So a bounds check uses the array from which the pointer came, however far it moved. A pointer made from an integer,
or loaded, gets the first argument whose array holds its address, else `UNOWNED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.analysis.provenance import KEEPS, MOVES, Provenance, is_pointer
from blocknb.ir.build import Builder, Rebuild, rebuild
from blocknb.ir.core import Func, Op, Value
from blocknb.ir.provenance import UNOWNED
from blocknb.language import types as t
from blocknb.language.ops import ACCESSES, OPS, STRUCTURED
from blocknb.language.types import Tile
from blocknb.trace import Notes

Owner = int | Value
COUNTED = "checked against the bounds of the arrays"  # the end of the note that counts accesses


@dataclass(frozen=True)
class Guard:
    """The bounds of one access: those of the argument `owner`, one of `possible`, whose last entry may be UNOWNED.

    `foreign`: reasons why the address may lie in no argument's array although the program is correct. Such an address is not checked. If
    there are none, an UNOWNED address is an error. `writes`: the access is not a load.
    """

    owner: Owner
    possible: tuple[int, ...]
    foreign: tuple[str, ...]
    writes: bool

    @property
    def carried(self) -> Value | None:
        """The owner, if it is known only at run time."""
        return None if isinstance(self.owner, int) else self.owner

    @property
    def asks_readonly(self) -> bool:
        """Whether the stored-to array is known only by its address, so that the launch cannot refuse a read-only one."""
        return self.writes and UNOWNED in self.possible


def guards(func: Func, notes: Notes) -> tuple[Func, dict[int, Guard]]:
    """The function with owners next to the pointers that need them, and the guard of each access by op id."""
    provenance = Provenance(func)
    accesses = [op for op in func.ops() if op.name in ACCESSES]
    owners = Owners(func, provenance)
    if any(provenance.carried(op.args[0]) for op in accesses):
        func = rebuild(func, owners.visit)
    found = [(op, owners.guard(op)) for op in accesses]
    explain(found, notes)
    return func, {op.id: guard for op, guard in found}


def explain(found: Sequence[tuple[Op, Guard]], notes: Notes) -> None:
    """Adds a note for each access that is checked by its address or not at all, and one that counts the checked accesses."""
    for op, guard in found:
        for reason in guard.foreign:
            text = f"the {op.name} is not checked if its address lies in no array argument: {reason}"
            notes(op, text, "missed")
    if found:
        checked = sum(not guard.foreign for _, guard in found)
        notes(
            None, f"{checked} of {len(found)} access{'es' * (len(found) > 1)} checked against the bounds of the arrays"
        )


class Owners:
    """Adds owners while a function is rebuilt: pass every op to `visit`, then `of` gives the owner of any pointer seen."""

    def __init__(self, func: Func, provenance: Provenance):
        self.provenance = provenance
        self.pointers = [i for i, param in enumerate(func.params) if is_pointer(param)]
        self._owners: dict[Value, Value] = {}
        self._selected = provenance.leading_to(provenance.carried)

    def of(self, pointer: Value) -> Owner:
        """The owner of a pointer: an argument's number, or an i32 (of the pointer's shape, or a scalar for all elements). Plain numbers
        have none."""
        known = self.provenance.argument(pointer)
        return self._owners.get(pointer, UNOWNED) if known is None else known

    def guard(self, op: Op) -> Guard:
        """The guard of an access."""
        pointer, writes = op.args[0], bool(OPS[op.name].writes)
        origins = self.provenance.of(pointer)
        possible = sorted(origin for origin in origins if isinstance(origin, int))
        if len(possible) < len(origins):  # the owner was found by the address
            possible = [*self.pointers, UNOWNED]
        elif not possible:  # no pointer reaches this access
            possible = [UNOWNED]
        return Guard(self.of(pointer), tuple(possible), tuple(self.provenance.foreign(pointer)), writes)

    def visit(self, op: Op, walk: Rebuild) -> Any:
        carried = self.provenance.carried
        match op.name:
            case name if name in STRUCTURED and not any(map(carried, op.results)):
                return NotImplemented
            case "for" | "while":
                return self._loop(op, walk)
            case "if":
                return self._if(op, walk)
        if op.name == "ptradd" and op.args[1].type.dtype.bits == 64 and op.result in self._selected:
            op = op.replace(attrs={**op.attrs, "saturate": True})
        elif not any(map(carried, op.results)):
            return NotImplemented
        walk.builder.append(op)  # its combine block, if any, stays as it is
        self.follow(op, walk.builder)
        return op.results

    def follow(self, op: Op, b: Builder) -> None:
        """Emits the owners of the results of an op that has been emitted."""
        for result in op.results:
            if self.provenance.carried(result):
                self._owners[result] = self._result_owner(op, result, b)

    # -- ops -------------------------------------------------------------------------------------------------------------

    def _result_owner(self, op: Op, result: Value, b: Builder) -> Value:
        if op.name == "select":  # a select of tiles: each element takes the owner of its pointer
            condition, first, second = op.args
            shape = result.type.shape
            return b.value("select", condition, self._as(first, shape, b), self._as(second, shape, b))
        if (source := self._source(op)) is None:
            return self._resolved(result, b)
        owner = self._as(source, (), b)
        return b.value(op.name, owner, *op.args[1:], **op.attrs) if owner.type.shape and op.name in MOVES else owner

    def _source(self, op: Op) -> Value | None:
        """The operand whose owner the result of an op takes; None if only the address determines it."""
        if op.name in KEEPS:
            return op.args[0]
        if OPS[op.name].kind != "elementwise":
            return None
        return next(filter(self.provenance.owned, op.args), None)

    def _as(self, pointer: Value, shape: tuple[int, ...], b: Builder) -> Value:
        """The owner as a value, with that shape if it is not ()."""
        owner = self.of(pointer)
        if isinstance(owner, int):
            return b.const(owner, Tile(t.int32, shape))
        if shape and not owner.type.shape:
            return b.value("splat", owner, shape=shape)
        return owner

    def _resolved(self, pointer: Value, b: Builder) -> Value:
        """The first argument whose array holds the address, else UNOWNED."""
        kind = Tile(t.int32, pointer.type.shape)
        owner = b.const(UNOWNED, kind)
        for argument in reversed(self.pointers):
            inside = b.value("inside", pointer, argument=argument)
            owner = b.value("select", inside, b.const(argument, kind), owner)
        return owner

    # -- control flow ----------------------------------------------------------------------------------------------------

    def _shape(self, value: Value) -> tuple[int, ...]:
        return value.type.shape if value in self.provenance.varying else ()

    def _fresh(self, values: Sequence[Value]) -> list[Value]:
        """New values for the owners of those that carry one."""
        made = []
        for value in values:
            if self.provenance.carried(value):
                self._owners[value] = Value(
                    Tile(t.int32, self._shape(value)), f"{value.name}.owner" if value.name else ""
                )
                made.append(self._owners[value])
        return made

    def _carried_owners(self, values: Sequence[Value], targets: Sequence[Value], b: Builder) -> list[Value]:
        """The owners of `values` for those of `targets` that carry one."""
        return [
            self._as(value, self._shape(target), b)
            for value, target in zip(values, targets, strict=True)
            if self.provenance.carried(target)
        ]

    def _ends(self, op: Op, targets: Sequence[Value], walk: Rebuild, skip: int = 0) -> None:
        """A terminator with the owners of the values that it passes on."""
        with walk.builder.at(op):
            args = tuple(walk.get(a) for a in op.args)
            walk.builder.append(op.replace(args=(*args, *self._carried_owners(op.args[skip:], targets, walk.builder))))

    def _loop(self, op: Op, walk: Rebuild) -> Any:
        """Emits a loop that carries owners, too. Each block of a `while` passes its values on to the other block."""
        b, counted, blocks = walk.builder, op.name == "for", []
        targets = [block.args[1:] if counted else block.args for block in op.blocks]
        inits = self._carried_owners(op.args[3:] if counted else op.args, targets[0], b)
        for block, own, following in zip(op.blocks, targets, [*targets[1:], targets[0]], strict=True):
            with b.block((*block.args, *self._fresh(own))) as opened:
                walk.ops(block.ops[:-1])
                self._ends(block.terminator, following, walk, skip=int(block.terminator.name == "condition"))
            blocks.append(opened.done)
        results = (*op.results, *self._fresh(op.results))
        b.append(op.replace(args=(*op.args, *inits), blocks=tuple(blocks), results=results))
        return op.results

    def _if(self, op: Op, walk: Rebuild) -> Any:
        b, blocks = walk.builder, []
        for arm in op.blocks:
            with b.block() as opened:
                walk.ops(arm.ops[:-1])
                self._ends(arm.terminator, op.results, walk)
            blocks.append(opened.done)
        owners = self._fresh(op.results)
        attrs = {**op.attrs, "types": (*op.attrs["types"], *(v.type for v in owners))}
        b.append(op.replace(attrs=attrs, blocks=tuple(blocks), results=(*op.results, *owners)))
        return op.results
