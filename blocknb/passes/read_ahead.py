"""Operands in registers that come from shared memory, read a trip ahead.

Where wgmma takes A from registers because memory has it along the wrong axis (see `layouts.wgmma.crossed`), each trip would read A, and
the tensor cores wait for that. So a trip begins its product with what the trip before has read, and while that runs awaits the next
slot and reads from it.

    read(0);  for j = 0..: product(j) begins, read(j + 1) if there is one, product(j) is waited for
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blocknb.analysis import affine, ranges
from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Value, uses
from blocknb.language.ops import OPS
from blocknb.passes.rings import VIEWS
from blocknb.trace import Notes


def read_ahead(func: Func, notes: Notes) -> Func:
    """The function with such operands read ahead, in loops of which they are all that is multiplied, and whose index grows."""
    facts, users = affine.analyze(func), uses(func)
    forwards = (op for op in func.ops() if op.name == "for" and ranges.bounds(facts, op.args[2])[0] > 0)
    plans = {op.id: plan for op in forwards if (plan := planned(op, users)) is not None}
    for plan in plans.values():
        notes(plan.dot, "operand a: read into registers a trip ahead, while a product runs")
    return Ahead(func, plans).run() if plans else func


@dataclass(frozen=True)
class Plan:
    """The product of a loop; `reading`: in order the wait, the slot, the load and its views that make its operand; `carried`, by value of
    the loop on which those depend: the place among what the loop carries; `sliced`: what makes the next trip's of them."""

    dot: Op
    reading: tuple[Op, ...]
    carried: dict[Value, int]
    sliced: tuple[Op, ...]


def planned(loop: Op, users: dict[Value, list[tuple[Op, int]]]) -> Plan | None:
    (block,) = loop.blocks
    made = {value: op for op in block.ops for value in op.results}
    products = [op for op in block.ops if op.name == "dot"]
    if len(products) != 1 or not products[0].attrs.get("crossed") or products[0].attrs.get("pending"):
        return None
    (dot,) = products
    reading, value = list[Op](), dot.args[0]
    while (op := made.get(value)) is not None and op.name in ("local_load", "slot", *VIEWS):
        if len(users[value]) > 1:
            return None
        reading.insert(0, op)
        value = op.args[0]
    if len(reading) < 2 or reading[0].name != "slot" or reading[1].name != "local_load":
        return None
    if reading[0].args[0].type.slots < 2:
        return None  # a slot is let go of only behind the product that reads it
    slot = reading[0].args[1]
    awaits = [op for op in block.ops if op.name == "await" and op.args[1] is slot]
    if len(awaits) != 1:
        return None
    reading.insert(0, awaits[0])
    carried = {x: i for i, x in enumerate(block.args[1:]) if x in awaits[0].args[1:]}
    if not all(x in carried or x not in made for x in awaits[0].args):
        return None
    return Plan(dot, tuple(reading), carried, found) if (found := sliced(block, carried)) is not None else None


def sliced(block: Block, carried: dict[Value, int]) -> tuple[Op, ...] | None:
    """The ops of a block that make the next trip's values, in order; None where that is more than arithmetic."""
    made = {value: op for op in block.ops for value in op.results}
    found, todo = set[Op](), [block.terminator.args[i] for i in carried.values()]
    while todo:
        op = made.get(todo.pop())
        if op is None or op in found:
            continue
        if not OPS[op.name].pure or op.blocks:
            return None
        found.add(op)
        todo += op.args
    return tuple(op for op in block.ops if op in found)


class Ahead(Rebuild):
    """The rebuilding walk, which does as the plans say."""

    def __init__(self, func: Func, plans: dict[int, Plan]):
        super().__init__(func, "overlap", lambda op, _: self.rotate(op))
        self.plans = plans
        self.nothing: Value  # an operand for trips that there are not

    def rotate(self, op: Op) -> Any:
        plan = self.plans.get(op.id)
        if plan is None:
            return NotImplemented
        b, body = self.builder, op.blocks[0]
        kind = plan.dot.args[0].type
        some = b.value("cmp", op.args[0], op.args[1], pred="lt")
        first = {x: op.args[3 + i] for x, i in plan.carried.items()}
        self.nothing = b.value("const", value=0.0, type=kind)
        begun = self.read(plan, some, first)
        operand = Value(kind, plan.dot.args[0].name)
        with b.block((*body.args, operand)) as opened:
            self.trip(op, plan, operand)
        results = (*op.results, Value(kind, operand.name))
        b.append(op.replace(args=(*op.args, begun), results=results, blocks=(opened.done,)))
        return op.results

    def read(self, plan: Plan, condition: Value, known: dict[Value, Value]) -> Value:
        """The operand of the trip whose slot is known, if there is such a trip."""
        b, known = self.builder, dict(known)
        with b.block() as then:
            for x in plan.reading:
                used = {value: self.get(value) for value in x.args if value not in known}
                known.update({old: new for old, new in used.items() if old is not new})
                emit_copy(x, b, known)
            b.op("yield", known[plan.dot.args[0]])
        with b.block() as without:
            b.op("yield", self.nothing)
        return b.op("if", condition, blocks=(then.done, without.done), types=(self.nothing.type,)).results[0]

    def trip(self, loop: Op, plan: Plan, operand: Value) -> None:
        b, body = self.builder, loop.blocks[0]
        end, following = body.terminator, operand
        for x in body.ops[:-1]:
            if x in plan.reading or x in plan.sliced:
                continue
            if x is not plan.dot:
                self.one(x)
                continue
            for other in plan.sliced:
                self.one(other)
            args = (operand, *map(self.get, x.args[1:]))
            b.append(x.replace(args=args, attrs={**x.attrs, "pending": 1}))
            with b.at(x):
                further = b.value("add", body.args[0], loop.args[2])
                more = b.value("cmp", further, loop.args[1], pred="lt")
                places = {value: self.get(end.args[i]) for value, i in plan.carried.items()}
                following = self.read(plan, more, places)
                done = b.op("dot_wait", x.result).result
            done.name = x.result.name
            self.mapping[x.result] = done
        b.append(end.replace(args=(*map(self.get, end.args), following)))
