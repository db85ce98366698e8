"""Expensive arithmetic on replicated rows is spread over the threads that hold copies.

After a reduction along the rows of a tile, all lanes of a row hold its result. A thread with parts of eight rows holds eight results, and
its neighbours hold the same ones. If a kernel computes the scale of each row, every lane computes eight scales. This pass lets each lane
compute one of them. Shuffles then give all lanes all scales. Triton gets the same for values that are stored: it moves the conversion to
the layout of the store up to the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb.ir.build import Rebuild
from blocknb.ir.core import Block, Func, Op, Users, Value, blocks, definitions, uses
from blocknb.language import types as t
from blocknb.language.ops import OPS, named
from blocknb.layouts.linear import Layout
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import counted
from blocknb.target import Target
from blocknb.trace import Notes

#: Rough instructions per element: of a division of fp64, of a correctly rounded one of fp32, and of a special function.
DIVISION_OF_DOUBLES, NEAREST_DIVISION, SPECIAL = 60, 15, 6
DOUBLE = 3  # any other op on fp64
SELECT, SHUFFLE, LATENCY = 2, 4, 40  # instructions per register that leaves, and that arrives; the wait for a shuffle
SPECIALS, UNIFORM = named("special_unit"), named("uniform")


def applies(func: Func, target: Target) -> bool:
    """Whether there is arithmetic that costs much."""
    return any(cost(op) >= NEAREST_DIVISION for op in func.ops() if is_arithmetic(op))


@gpu_pass(optional=True, applies=applies)
def spread_replicas(func: Func, target: Target, notes: Notes) -> Func:
    """Divides expensive arithmetic on replicated rows among the lanes

    When: divisions, or arithmetic on fp64, follow a reduction whose result several lanes share, and each thread holds several elements.

    What: each lane computes some of the elements that it shares with other lanes. Shuffles then give all lanes all results.

    Why: a division takes 15 to 60 instructions. A kernel that quantizes rows repeats it for each row in all lanes of the row.

    Limits: lanes share the work within a warp, not warps among each other.

    Before:

        %m = reduce %v {axis=1} max : tile<32xf32, #a>      // #a = reg 8,16 lane 0,0,0,0,1 warp 2,4
        %s = div %c, %m {nearest=True} : tile<32xf32, #a>

    After:

        %m = reduce %v {axis=1} max : tile<32xf32, #a>
        %n = convert %m : tile<32xf32, #b>                  // #b = reg - lane 8,16,0,0,1 warp 2,4
        %q = div %d, %n {nearest=True} : tile<32xf32, #b>
        %s = convert %q : tile<32xf32, #a>
    """
    plans = ReplicatedRows(func).plans
    for plan in plans:
        fewer = f"{counted(plan.layout.num_registers, 'element')} per thread instead of {plan.held}"
        notes(max(plan.ops, key=cost), f"{fewer}: lanes with equal elements share the work")
    return ReplicaRewriter(func, plans).run() if plans else func


def is_arithmetic(op: Op) -> bool:
    return (
        OPS[op.name].pure and OPS[op.name].kind == "elementwise" and len(op.results) == 1 and bool(op.result.type.shape)
    )


def cost(op: Op) -> int:
    """Rough instructions per element."""
    dtype = op.args[0].type.dtype
    if op.name in ("div", "rem"):
        if dtype == t.float64:
            return DIVISION_OF_DOUBLES
        return NEAREST_DIVISION if op.attrs.get("nearest") or not dtype.is_float else SPECIAL
    if t.float64 in (dtype, op.result.type.dtype):
        return DOUBLE
    return SPECIAL if op.name in SPECIALS else 1


@dataclass(eq=False)
class SpreadPlan:
    """Connected arithmetic in one layout, and the `layout` in which it will be done. `held`: the registers of a thread before."""

    held: int
    layout: Layout
    ops: list[Op] = field(default_factory=list)


class ReplicatedRows:
    """The `plans` of a function: the connected arithmetic that pays."""

    def __init__(self, func: Func):
        self.defs, self.users = definitions(func), uses(func)
        self.plans = [plan for block in blocks(func.body) for plan in self.connected(block) if self.pays(plan)]

    def connected(self, block: Block) -> Iterator[SpreadPlan]:
        """The connected arithmetic of a block on replicated rows."""
        of: dict[Value, SpreadPlan] = {}
        found: list[SpreadPlan] = []
        for op in block.ops:
            layout = spread(op.result.type.layout) if is_arithmetic(op) else None
            if layout is None or any(x.type.shape and x.type.layout != op.result.type.layout for x in op.args):
                continue
            joined = list(dict.fromkeys(of[x] for x in op.args if x in of))
            plan = joined[0] if joined else SpreadPlan(op.result.type.layout.num_registers, layout)
            for other in joined[1:]:
                plan.ops += other.ops
                of.update(dict.fromkeys((x.result for x in other.ops), plan))
                found.remove(other)
            if not joined:
                found.append(plan)
            plan.ops.append(op)
            of[op.result] = plan
        yield from found

    def pays(self, plan: SpreadPlan) -> bool:
        """Whether less is computed than the conversions cost."""
        inside = {op.result for op in plan.ops}
        arriving = {
            x for op in plan.ops for x in op.args if x.type.shape and x not in inside and not self.is_uniform(x)
        }
        leaving = [op for op in plan.ops if leaves(op, plan, self.users)]
        moved = plan.held * (SELECT * len(arriving) + SHUFFLE * len(leaving)) + LATENCY
        return (plan.held - plan.layout.num_registers) * sum(map(cost, plan.ops)) > 2 * moved

    def is_uniform(self, value: Value) -> bool:
        op = self.defs.get(value)
        return op is not None and op.name in UNIFORM


def leaves(op: Op, plan: SpreadPlan, users: Users) -> bool:
    """Whether the result is needed in the old layout: by an op that neither is of the plan nor converts it anyway."""
    return any(user not in plan.ops and user.name != "convert" for user, _ in users.get(op.result, ()))


def spread(layout: Layout) -> Layout | None:
    """The layout in which lanes with equal elements hold different ones instead; None if there are none, or each thread has one."""
    registers, lanes = list(layout.reg), list(layout.lane)
    for position, basis in enumerate(lanes):
        if not basis and registers:
            lanes[position] = registers.pop()
    return layout.replace(reg=tuple(registers), lane=tuple(lanes)) if len(registers) < len(layout.reg) else None


class ReplicaRewriter(Rebuild):
    """Does the planned arithmetic in its new layout. `small` has the values in that layout, by the original value and the layout."""

    def __init__(self, func: Func, plans: list[SpreadPlan]):
        super().__init__(func, lambda op, _: self.step(op))
        self.originals: Mapping[int, Op] = {op.id: op for op in func.ops()}
        self.plan_of = {op.id: plan for plan in plans for op in plan.ops}
        self.layout_of = {op.result: plan.layout for plan in plans for op in plan.ops}
        self.defs, self.users = definitions(func), uses(func)
        self.small: dict[tuple[Value, Layout], Value] = {}

    def step(self, op: Op) -> Any:
        old = self.originals[op.id]
        if op.name == "convert" and (layout := self.layout_of.get(old.args[0])) is not None:
            return [self.converted(self.small[old.args[0], layout], op.attrs["layout"])]
        plan = self.plan_of.get(op.id)
        if plan is None:
            return NotImplemented
        args = [self.in_layout(x, plan.layout) if x.type.shape else self.get(x) for x in old.args]
        made = self.builder.value(op.name, *args, **op.attrs)
        made.name = old.result.name
        self.small[old.result, plan.layout] = made
        return [self.converted(made, old.result.type.layout) if leaves(old, plan, self.users) else made]

    def converted(self, value: Value, layout: Layout) -> Value:
        return value if value.type.layout == layout else self.builder.value("convert", value, layout=layout)

    def in_layout(self, value: Value, layout: Layout) -> Value:
        """An original value in the new layout of its row."""
        if (value, layout) in self.small:
            return self.small[value, layout]
        op = self.defs.get(value)
        if op is not None and op.name == "const":
            return self.builder.const(op.attrs["value"], value.type.with_layout(layout))
        if op is not None and op.name == "splat":
            return self.builder.value("splat", self.get(op.args[0]), shape=value.type.shape, layout=layout)
        return self.converted(self.get(value), layout)
