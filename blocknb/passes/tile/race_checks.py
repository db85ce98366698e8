"""Notes accesses in shadow memory, where races between programs and elements that were never written are found.

The technique is that of FastTrack (Flanagan and Freund, PLDI 2009), adapted to programs of a grid; docs/design/race_checks.md has the
account. The pass only adds ops: both code generators and the interpreters keep the account.
"""

from __future__ import annotations

import itertools
from typing import Any

from blocknb.analysis.effects import mask_of
from blocknb.analysis.provenance import Provenance
from blocknb.ir.build import Builder, Rebuild, rebuild
from blocknb.ir.core import Func, Op, Value, definitions
from blocknb.ir.report import action_of
from blocknb.language import types as t
from blocknb.language.check_modes import parse_checks
from blocknb.language.ops import ACCESSES, ATOMICS, OPS
from blocknb.passes.registry import tile_pass
from blocknb.passes.support.definedness import Definedness
from blocknb.target import Target
from blocknb.trace import Notes

ACQUIRING, RELEASING = ("acquire", "acq_rel"), ("release", "acq_rel")


def applies(func: Func, target: Target) -> bool:
    wanted = parse_checks(func.attrs.get("checked"))
    return not wanted.isdisjoint(["race", "init"]) and any(op.name in ACCESSES for op in func.ops())


@tile_pass(applies=applies)
def race_checks(func: Func, target: Target, notes: Notes) -> Func:
    """Records accesses in shadow memory to find races

    When: with `checked="race"` or `checked="init"`.

    What: each access notes its program and its source line in the shadow cell of its element. Two programs that access one element, one of
    which stores, have a race if nothing orders them. With an atomic that acquires, vector clocks say what is ordered. `checked="init"`
    notes which elements are written, and reports loads of others.

    Why: a race may give right results on one device and wrong ones on another.

    Limits: a race is found if both accesses happen in the launch. Inline assembly is not seen.

    Before:

        %v = load %q, %mask : tile<256xf32>
        store %p, %v, %mask

    After:

        %v = load %q, %mask : tile<256xf32>
        shadow %q, %mask {action="load", site=0}
        store %p, %v, %mask
        shadow %p, %mask {action="store", site=1}
    """
    checker = ShadowOps(func)
    result = rebuild(func, checker.visit)
    what = "by vector clocks" if checker.clocked else "without clocks, because no atomic acquires"
    notes(None, f"{checker.count} accesses are checked {what}")
    for op in func.ops():
        if op.name == "asm" and not op.attrs["pure"]:
            notes(op, "accesses of inline assembly are not checked", "missed")
    return result


class ShadowOps:
    """Adds the shadow ops while a function is rebuilt. `clocked`: an atomic may order accesses of programs."""

    def __init__(self, func: Func):
        wanted = parse_checks(func.attrs.get("checked"))
        self.races, self.init = "race" in wanted, "init" in wanted
        self.provenance, self.made = Provenance(func), definitions(func)
        self.clocked = self.races and any(orders_others(op) in ACQUIRING for op in func.ops())
        self.defined = Definedness()
        self.numbers = itertools.count()
        self.count = 0

    def visit(self, op: Op, walk: Rebuild) -> Any:
        """Rebuilds an access with its shadow ops."""
        if op.name not in ACCESSES:
            return self.defined.follow(op, walk) if self.init else NotImplemented
        self.count += 1
        b, pointer, mask = walk.builder, op.args[0], mask_of(op)
        sem = orders_others(op) if self.clocked else "relaxed"
        if sem != "relaxed":
            b.op("clock_lock", take=True)
        b.append(op)
        attrs = self.attributes(op)
        if self.races:
            self.note(op, b, pointer, mask, sem, attrs)
        if sem != "relaxed":
            b.op("clock_lock", take=False)
        if self.init:
            self.defined.access(op, b, attrs)
            spec = OPS[op.name]
            for action, applies in (("read", spec.reads), ("fill", spec.writes)):
                if applies:
                    b.op("shadow", pointer, *present(mask), action=action, **attrs)
        return op.results

    def attributes(self, op: Op) -> dict[str, Any]:
        """The attributes of an access that all its shadow ops have."""
        origins = self.provenance.of(op.args[0])
        numbers = tuple(sorted(i for i in origins if isinstance(i, int)))
        known = numbers if len(numbers) == len(origins) else ()
        return {"site": next(self.numbers), "verb": action_of(op), "arguments": known, "clocked": self.clocked}

    def note(self, op: Op, b: Builder, pointer: Value, mask: Value | None, sem: str, attrs: dict[str, Any]) -> None:
        """The ops that note an access for races."""
        if op.name == "store" and self.may_collide(pointer):
            self.compare_lanes(op, b, pointer, mask, attrs)
        if op.name == "atomic_cas" and op.attrs.get("scope") != "cta":
            # Where it does not swap it only reads, and releases nothing.
            swapped = b.value("cmp", *(bits(b, x) for x in (op.result, op.args[1])), pred="eq")
            kept = b.value("not", swapped)
            if mask is not None:
                swapped, kept = b.value("and", swapped, mask), b.value("and", kept, mask)
            b.op("shadow", pointer, swapped, action="update", **attrs)
            b.op("shadow", pointer, kept, action="observe", **attrs)
            if sem in RELEASING:
                b.op("clock_join", pointer, swapped, sem="release")
                sem = "acquire" if sem in ACQUIRING else "relaxed"
        else:
            b.op("shadow", pointer, *present(mask), action=class_of(op), **attrs)
        if sem != "relaxed":
            b.op("clock_join", pointer, *present(mask), sem=sem)

    def may_collide(self, pointer: Value) -> bool:
        """Whether two lanes of a store may have one address."""
        return bool(pointer.type.shape) and not self.distinct(pointer)

    def distinct(self, value: Value) -> bool:
        """Whether all lanes of a tile of one axis differ, as its ops show: a range plus what all lanes share."""
        op = self.made.get(value)
        if op is None or len(value.type.shape) != 1:
            return False
        if op.name == "arange":
            return True
        if op.name not in ("ptradd", "add"):
            return False
        shared = [self.uniform(x) for x in op.args]
        return any(self.distinct(x) and other for x, other in zip(op.args, reversed(shared), strict=True))

    def uniform(self, value: Value) -> bool:
        """Whether all lanes of a tile are equal, as its ops show."""
        op = self.made.get(value)
        return not value.type.shape or (op is not None and OPS[op.name].has("uniform"))

    def compare_lanes(self, op: Op, b: Builder, pointer: Value, mask: Value | None, attrs: dict[str, Any]) -> None:
        """After the store, each lane loads its element again: another value is that of another lane."""
        b.op("barrier")
        again = b.value("load", pointer, *present(mask), volatile=True)
        other = b.value("not", b.value("cmp", bits(b, again), bits(b, op.args[1]), pred="eq"))
        bad = other if mask is None else b.value("and", other, mask)
        b.op("shadow", pointer, bad, action="lanes", **attrs)


def present(mask: Value | None) -> tuple[Value, ...]:
    return () if mask is None else (mask,)


def class_of(op: Op) -> str:
    """The class of an access for races. An atomic of the scope `cta` is no atomic for other programs."""
    if op.name in ATOMICS:
        return "store" if op.attrs.get("scope") == "cta" else "update"
    return "observe" if op.attrs.get("volatile") or op.attrs.get("sem") else op.name


def orders_others(op: Op) -> str:
    """The memory order of an access as other programs see it."""
    if op.name in ATOMICS and op.attrs.get("scope") == "cta":
        return "relaxed"
    return str(op.attrs.get("sem") or "relaxed") if op.name in ACCESSES else "relaxed"


def bits(b: Builder, value: Value) -> Value:
    """The bits of a value as integers, so that a NaN equals itself."""
    dtype = value.type.dtype
    if dtype.is_integer or dtype.bits == 1:
        return value
    return b.value("bitcast", value, dtype=t.BY_NAME[f"int{max(8, dtype.bits)}"])
