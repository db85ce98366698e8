"""Rematerialization: rows of 16-bit floats are widened again after each reduction instead of being kept in registers.

A kernel that widens a row, reduces it and uses it again holds a register for each element, although a register has room for two. Registers
decide how many programs share an SM, hence how many bytes are in flight. So the kernel computes values again after each reduction if they
depend on one such row and on scalars of the row (`emit="rematerialized"`). It computes values of several rows at their first use
(`emit="at_use"`). The term is that of register allocation: Briggs, Cooper and Torczon, "Rematerialization" (PLDI 1992).

The repeated instructions do not always pay (`support.throughput`). They pay if an SM holds more programs with packed rows, and if waiting
programs limit the throughput. Memory that is busy already gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.accesses import accesses
from blocknb.analysis.affine import Facts
from blocknb.ir.core import Func, Op, Users, Value, definitions, is_volatile, uses
from blocknb.ir.traversal import reachable
from blocknb.language import types as t
from blocknb.language.ops import OPS, named
from blocknb.language.types import Tile
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.emission import AT_USE, REMATERIALIZED, with_attributes
from blocknb.passes.support.throughput import Throughput, issue_slots, moved_bytes, throughput
from blocknb.target import Target
from blocknb.trace import Notes

LEAST = 16  # elements of a row that a thread holds
FEW = 4  # registers that may be held
#: The factor by which a kernel has to become faster in the model. It predicts too much, because warps of one program overlap, too. Softmax
#: of 32768 elements took 17 % less time on an H200, where the model predicts 31 %.
GAIN = 1.1
VIEWS = named("reshapes") | {"promise"}


def applies(func: Func, target: Target) -> bool:
    """Whether a kernel reduces, and loads a tile of many 16-bit floats."""
    ops = list(func.body.ops)
    return any(op.name == "reduce" for op in ops) and any(op.name == "load" and is_narrow(op.result) for op in ops)


@gpu_pass(optional=True, applies=applies)
def rematerialization(func: Func, target: Target, notes: Notes) -> Func:
    """Widens rows of 16-bit floats again after each reduction instead of keeping them

    When: a kernel loads rows of 16-bit floats, reduces them and uses them again. The saved registers must let an SM hold more programs.

    What: the loaded words stay packed, two elements per register. The kernel computes values that depend on one row and its scalars again
    after each reduction.

    Why: softmax of 32768 elements in 16 warps holds 64 fp32 registers per thread, so an SM has room for one program. Memory is idle while
    it computes. With 32 packed registers an SM holds two programs, and one loads while the other computes.

    Limits: a note compares registers, programs and instructions. Where enough programs keep the memory busy, repeated work gains nothing.
    A loop or branch that uses any of these rows disables the pass.

    Before:

        %h = load %p : tile<1024xf16, #a>
        %x = cast %h : tile<1024xf32, #a>
        %m = reduce %x {axis=0} max : f32
        %all = splat %m : tile<1024xf32, #a>
        %y = sub %x, %all : tile<1024xf32, #a>

    After:

        %h = load %p {emit="rematerialized"} : tile<1024xf16, #a>
        %x = cast %h {emit="rematerialized"} : tile<1024xf32, #a>
        %m = reduce %x {axis=0, rematerialize=True} max : f32
        %all = splat %m : tile<1024xf32, #a>
        %y = sub %x, %all {emit="rematerialized"} : tile<1024xf32, #a>
    """
    plan = PackedRows(func, affine.analyze(func), uses(func))
    if not plan.reductions:
        return func
    before, after = plan.compare(target)
    explain(plan, before, after, notes)
    return with_attributes(func, plan.attributes()) if pays(before, after) else func


def pays(before: Throughput, after: Throughput) -> bool:
    """Whether a kernel is faster with packed rows, by more than the model's error."""
    return before.time > GAIN * after.time


def explain(plan: PackedRows, before: Throughput, after: Throughput, notes: Notes) -> None:
    """Notes the decision at the first row, with the numbers that led to it."""
    load = plan.loads[0]
    rows = f"{load.type.layout.num_registers} elements of a row per thread"
    count = "1 reduction" if len(plan.reductions) == 1 else f"{len(plan.reductions)} reductions"
    spilled = f" ({before.spilled} of them spilled)" if before.spilled else ""
    registers = f"about {before.registers}{spilled} -> {after.registers} registers per thread"
    programs = f"{before.programs} -> {after.programs} programs per SM"
    added = after.instructions - before.instructions
    more = f"{abs(added)} {'more' if added >= 0 else 'fewer'} instructions than {before.instructions} per thread"
    op = plan.defs[load]
    if pays(before, after):
        text = f"{rows} stay in packed words and are widened again after {count}: {registers}, {programs}, {more}"
        notes(op, f"{text}; shorter rows gain nothing, since more programs share an SM")
        return
    if after.registers >= before.registers:
        why = "the other values need all of these registers"
    elif after.programs <= before.programs:
        why = "an SM would hold no more programs"
    elif before.time <= before.memory:
        why = f"{before.programs} programs per SM keep the memory busy already"
    else:
        why = f"the model predicts no gain above {GAIN - 1:.0%}"
    notes(op, f"{rows} are widened once: packed words would mean {registers}, {programs}, {more}, but {why}")


class PackedRows:
    """The plan for a memory-level Func. The elements of `loads` stay in words, and the kernel computes the `values` from them again after
    each of the `reductions`. Values that need one of these are computed `after` them, where they are first used."""

    def __init__(self, func: Func, facts: Facts, users: Users):
        self.func, self.facts, self.users, self.defs = func, facts, users, definitions(func)
        self.loads: list[Value] = []
        self.values: dict[Value, Value] = {}  # with the row from which each is computed
        self.after: set[Value] = set()
        self.reductions: list[Op] = []
        self.find()
        inside, made = set(func.body.ops), (*self.loads, *self.values, *self.after)
        if any(user not in inside for value in made for user, _ in users.get(value, ())):
            self.reductions = []
        self.place = {op: i for i, op in enumerate(func.body.ops)}

    def find(self) -> None:
        """Sorts the values of the body."""
        roots: dict[Value, Value] = {}  # the one row from which a value is computed
        shared = set(self.func.params)
        for op in self.func.body.ops:
            if is_shared(op, shared):
                shared.add(op.result)
            if op.name == "load" and stays_packed(op, self.facts):
                self.loads.append(op.result)
                roots[op.result] = op.result
            elif op.name == "reduce" and any(x in self.values or x in self.after for x in op.args):
                self.reductions.append(op)
            elif OPS[op.name].pure and len(op.results) == 1:
                rows = {roots[x] for x in op.args if x in roots}
                if len(rows) == 1 and is_repeatable(op) and roots.keys() | shared >= {*op.args}:
                    self.values[op.result] = roots[op.result] = rows.pop()
                elif rows or not self.after.isdisjoint(op.args):
                    self.after.add(op.result)

    def attributes(self) -> dict[Op, Mapping[str, Any]]:
        """The attributes that make the code generator follow the plan. An op that another pass has placed stays there."""
        added: dict[Op, Mapping[str, Any]] = {
            self.defs[v]: {"emit": REMATERIALIZED} for v in (*self.loads, *self.values)
        }
        added |= {self.defs[v]: {"emit": AT_USE} for v in self.after}
        added = {op: attrs for op, attrs in added.items() if "emit" not in op.attrs}
        return added | {op: {"rematerialize": True} for op in self.reductions}

    # -- what it costs

    def compare(self, target: Target) -> tuple[Throughput, Throughput]:
        """The throughput of the kernel without and with packed rows."""
        moved, once = moved_bytes(self.func, self.facts), issue_slots(self.func.ops())
        across = [self.live_across(op) for op in self.reductions]
        wide = max(sum(map(registers, values)) for values in across)
        packed = max(sum(map(registers, self.with_packed(values))) for values in across)
        again = sum(issue_slots(self.repeated(values)) for values in across)
        last = self.place[self.reductions[-1]]
        arriving = sum(op.name == "load" and op.result.type.size > 1 for op in self.func.body.ops[last:])
        # A wide row dies as it is used, and leaves its registers to the rows that arrive.
        before = throughput(self.func, target, wide, 0, moved, once)
        return before, throughput(self.func, target, packed, arriving, moved, once + again)

    def live_across(self, reduction: Op) -> list[Value]:
        """The tiles that are known before a reduction and used after it. Indices, masks and shared numbers need few registers."""
        here, last = self.place[reduction], len(self.place)
        found: dict[Value, None] = {}
        for op in self.func.body.ops[:here]:
            if len(op.results) != 1 or not is_held(op):
                continue
            if any(self.place.get(user, last) > here for user, _ in self.users.get(op.result, ())):
                found[self.seen_through(op.result)] = None
        return list(found)

    def seen_through(self, value: Value) -> Value:
        """The tile of which a value is a view."""
        while (op := self.defs.get(value)) is not None and op.name in VIEWS:
            value = op.args[0]
        return value

    def with_packed(self, values: Iterable[Value]) -> list[Value]:
        """The values that are held instead of these if rows stay packed."""
        return list(dict.fromkeys(self.values.get(value, value) for value in values))

    def repeated(self, values: Sequence[Value]) -> list[Op]:
        """The ops that are emitted again after a reduction across which these values are needed."""
        start = [value for value in values if value in self.values]
        again = reachable(start, lambda value: [x for x in self.defs[value].args if x in self.values])
        return [self.defs[value] for value in again]


def registers(value: Value) -> int:
    """The registers of a thread for a tile: a loaded tile of 16-bit floats is packed."""
    kind = value.type
    return -(-kind.layout.num_registers * max(kind.dtype.bits, 16) // 32) if kind.shape else 1


def is_held(op: Op) -> bool:
    """Whether the result of an op is a tile that takes many registers and is not computed from places or scalars alone."""
    kind, spec = op.result.type, OPS[op.name]
    if not isinstance(kind, Tile) or not kind.shape or kind.layout.num_registers <= FEW:
        return False
    return kind.dtype.is_float and not spec.has("uniform") and not spec.has("replicates") and op.name != "const"


def is_narrow(value: Value) -> bool:
    """Whether a tile has many 16-bit floats per thread."""
    kind = value.type
    return bool(kind.shape) and kind.dtype in (t.float16, t.bfloat16) and kind.layout.num_registers >= LEAST


def stays_packed(load: Op, facts: Facts) -> bool:
    """Whether a load brings many 16-bit floats, at least two in a word, and is not emitted in pieces."""
    if is_volatile(load) or "emit" in load.attrs:
        return False
    return is_narrow(load.result) and len(accesses(facts, load)[0]) > 1


def is_shared(op: Op, shared: set[Value]) -> bool:
    """Whether the result of an op takes few registers however long the row is: a number that the row shares, or a mask."""
    if len(op.results) != 1 or not isinstance(op.result.type, Tile):
        return False
    kind = op.result.type
    if not kind.shape or kind.dtype == t.int1 or kind.layout.num_registers <= FEW or OPS[op.name].has("uniform"):
        return True
    return OPS[op.name].pure and op.name != "arange" and all(x in shared for x in op.args)


def is_repeatable(op: Op) -> bool:
    """Whether an op may be computed again: arithmetic, and changes of the shape that move no data."""
    return OPS[op.name].kind in ("elementwise", "shape")
