"""Operand prefetch: an iteration reads or computes the operand of the next one while its own product runs.

wgmma takes A from registers if A is stored along the wrong axis (see `layouts.wgmma.permuted_rows`) or computed from staged data (see
`operand_staging`). Without this pass the tensor cores wait in each iteration while the warps read and compute. After it, an iteration
starts its product with the operand that the previous iteration has prepared. Then it waits for the next stage and reads from it.

    read(0);  for j = 0..: product(j) begins, read(j + 1) if there is one, product(j) is waited for
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.analysis import affine, ranges
from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Users, Value, operands, uses, walk
from blocknb.ir.traversal import backward_slice
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer, Tile
from blocknb.trace import Notes

ALONE = 8  # consumer warps that fill a multiprocessor; with fewer, the product of another CTA overlaps the reads
READS = ("await", "stage", "local_load", "alloc", "local_store")  # the ops of a read, besides arithmetic


def prefetch_operands(func: Func, notes: Notes) -> Func:
    """Prefetches such operands in loops with one product and a growing index."""
    facts, users, alone = affine.analyze(func), uses(func), func.attrs["num_warps"] >= ALONE
    forwards = (op for op in func.ops() if op.name == "for" and ranges.bounds(facts, op.args[2])[0] > 0)
    plans = {op.id: plan for op in forwards if (plan := planned(op, users, alone)) is not None}
    for plan in plans.values():
        computed = any(op.name == "alloc" for op in plan.stored)
        how = "computed" if computed else "read into registers"
        notes(plan.dot, f"operand {'ab'[plan.side]}: {how} an iteration ahead, while a product runs")
    return OperandPrefetchRotation(func, plans).run() if plans else func


@dataclass(frozen=True)
class OperandPrefetchPlan:
    """The product of a loop, the operand to prefetch, and the ops that store it to its buffer, if any. `reading`: the ops that make the
    operand, in order, from the waits on. `made`: their results with other users. `carried`: the index of each loop-carried value on
    which they depend. `sliced`: the ops that compute the next iteration's carried values."""

    dot: Op
    side: int
    stored: tuple[Op, ...]
    reading: tuple[Op, ...]
    made: tuple[Value, ...]
    carried: dict[Value, int]
    sliced: tuple[Op, ...]


def planned(loop: Op, users: Users, alone: bool) -> OperandPrefetchPlan | None:
    (block,) = loop.blocks
    products = [op for op in walk(block) if op.name == "dot"]
    if len(products) != 1 or products[0] not in block.ops or products[0].attrs.get("in_flight"):
        return None
    for side, value in enumerate(products[0].args[:2]):
        plan = of_operand(block, products[0], side, value, users)
        if plan is not None and (alone or not plan.stored):
            return plan
    return None


def of_operand(block: Block, dot: Op, side: int, value: Value, users: Users) -> OperandPrefetchPlan | None:
    """The plan for an operand of a block's product; None if the product does not read it into registers or an early read is not legal."""
    found = in_registers(block, dot, value)
    if found is None:
        return None
    stored, value = found
    reading = leading_to(block, value)
    if reading is None or any(op in reading for op in stored) or not from_circular_buffers(reading):
        return None
    inside = set(reading)
    carried = {x: i for i, x in enumerate(block.args[1:]) if any(x in op.args for op in reading)}
    if any(block.args[0] in op.args for op in reading) or inside & behind(block, dot):
        return None
    used = [x for op in reading for x in op.results if any(user not in inside for user, _ in users[x])]
    if not all(isinstance(x.type, Tile) for x in used):
        return None
    sliced = next_iteration(block, dot, carried, inside)
    return None if sliced is None else OperandPrefetchPlan(dot, side, stored, reading, tuple(used), carried, sliced)


def in_registers(block: Block, dot: Op, value: Value) -> tuple[tuple[Op, ...], Value] | None:
    """The ops that store an operand to its buffer (none if the product reads registers), and its tile; None for any other operand."""
    if not isinstance(value.type, Buffer):
        return ((), value) if dot.attrs.get("permuted_rows") else None
    made = {result: op for op in block.ops for result in op.results}
    stores = [op for op in block.ops if op.name == "local_store" and op.args[0] is value]
    if value not in made or made[value].name != "alloc" or len(stores) != 1:
        return None
    return (made[value], stores[0]), stores[0].args[1]


def from_circular_buffers(reading: Sequence[Op]) -> bool:
    """Whether ops read circular buffers of at least two stages; a stage is released only after the product that reads it."""
    buffers = [op.args[0].type for op in reading if op.name == "stage"]
    return bool(buffers) and all(buffer.stages >= 2 for buffer in buffers)


def leading_to(block: Block, value: Value) -> tuple[Op, ...] | None:
    """The ops of a block that read and compute a value, in order; None if other kinds of ops are involved."""
    made = {result: op for op in block.ops for result in op.results}
    kept, fills = set[Op](), dict[Op, Op]()  # `fills`: the op that must precede a buffer's readers

    def used(op: Op) -> Sequence[Value]:
        return (*op.args, *fills[op].args) if op in fills else op.args

    for op in backward_slice([value], made, operands=used):
        if op.blocks or not (OPS[op.name].pure or op.name in READS):
            return None
        kept.add(op)
        if op.name in ("stage", "alloc"):
            if (fill := filling(block, op)) is None:
                return None
            fills[op] = fill
    kept.update(fills.values())
    return tuple(op for op in block.ops if op in kept)


def filling(block: Block, op: Op) -> Op | None:
    """The only op that waits for a stage or stores to a buffer; None if there are none or several."""
    if op.name == "stage":
        found = [x for x in block.ops if x.name == "await" and x.args[1] is op.args[1]]
    else:
        found = [x for x in block.ops if x.name == "local_store" and x.args[0] is op.result]
    return found[0] if len(found) == 1 else None


def behind(block: Block, dot: Op) -> set[Op]:
    """The ops of a block after its product."""
    return set(block.ops[block.ops.index(dot) :])


def next_iteration(block: Block, dot: Op, carried: dict[Value, int], reading: set[Op]) -> tuple[Op, ...] | None:
    """The ops after a product that compute the next iteration's values, in order; None if they include more than arithmetic, or depend
    on the values that are read."""
    made = {value: op for op in block.ops for value in op.results}
    late, found = behind(block, dot), set[Op]()
    passed = [block.terminator.args[i] for i in carried.values()]
    for op in backward_slice(passed, made, late.__contains__, operands):
        if op in reading:
            return None
        if op not in late:
            continue
        if not OPS[op.name].pure or op.blocks or op is dot:
            return None
        found.add(op)
    return tuple(op for op in block.ops if op in found)


class OperandPrefetchRotation(Rebuild):
    """Rebuilds the function according to the plans."""

    def __init__(self, func: Func, plans: dict[int, OperandPrefetchPlan]):
        super().__init__(func, lambda op, _: self.rotate(op))
        self.plans = plans
        self.nothing: list[Value] = []  # placeholders for values of iterations that do not exist

    def rotate(self, op: Op) -> Any:
        plan = self.plans.get(op.id)
        if plan is None:
            return NotImplemented
        b, body = self.builder, op.blocks[0]
        some = b.value("cmp", op.args[0], op.args[1], pred="lt")
        first = {x: op.args[3 + i] for x, i in plan.carried.items()}
        self.nothing = [b.value("const", value=zero(x), type=x.type) for x in plan.made]
        begun = self.read(plan, some, first)
        inner = [Value(x.type, x.name) for x in plan.made]
        with b.block((*body.args, *inner)) as opened:
            self.mapping.update(zip(plan.made, inner, strict=True))
            self.iteration(op, plan)
        results = (*op.results, *(Value(x.type, x.name) for x in inner))
        b.append(op.replace(args=(*op.args, *begun), results=results, blocks=(opened.done,)))
        return op.results

    def read(self, plan: OperandPrefetchPlan, condition: Value, known: dict[Value, Value]) -> tuple[Value, ...]:
        """Emits the reads for the iteration with the given pipeline state, if that iteration exists."""
        b, known = self.builder, dict(known)
        with b.block() as then:
            own = {value for x in plan.reading for value in x.results}
            for x in plan.reading:
                used = {value: self.get(value) for value in x.args if value not in known and value not in own}
                known.update({old: new for old, new in used.items() if old is not new})
                emit_copy(x, b, known)
            b.op("yield", *(known[value] for value in plan.made))
        with b.block() as without:
            b.op("yield", *self.nothing)
        types = tuple(value.type for value in self.nothing)
        return b.op("if", condition, blocks=(then.done, without.done), types=types).results

    def iteration(self, loop: Op, plan: OperandPrefetchPlan) -> None:
        b, body = self.builder, loop.blocks[0]
        end, following = body.terminator, tuple[Value, ...]()
        for x in body.ops[:-1]:
            if x in plan.reading or x in plan.sliced:
                continue
            if x is not plan.dot:
                self.one(x)
                continue
            for other in plan.sliced:
                self.one(other)
            b.append(x.replace(args=tuple(map(self.get, x.args)), attrs={**x.attrs, "in_flight": 1}))
            with b.at(x):
                further = b.value("add", body.args[0], loop.args[2])
                more = b.value("cmp", further, loop.args[1], pred="lt")
                places = {value: self.get(end.args[i]) for value, i in plan.carried.items()}
                following = self.read(plan, more, places)
                done = b.op("dot_wait", x.result).result
            done.name = x.result.name
            self.mapping[x.result] = done
        b.append(end.replace(args=(*map(self.get, end.args), *following)))


def zero(value: Value) -> float | int:
    """Zero, of a value's dtype."""
    return 0.0 if value.type.dtype.is_float else 0
