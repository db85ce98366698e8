"""Operand prefetch: an iteration reads or computes the operand of the next one while its own product runs.

wgmma reads a transposed fp32 A from registers (see `layouts.wgmma.permuted_rows`). It reads an operand that is computed from staged data
from a buffer that the warps fill (see `operand_staging`). Without this pass the tensor cores wait in each iteration while the warps read
and compute. After it, an iteration starts its product with the operand that the previous iteration has prepared. Then it waits for the
next stage and reads from it.

    read(0);  for j = 0..: product(j) begins, read(j + 1) if there is one, product(j) is waited for
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blocknb.analysis import affine, ranges
from blocknb.ir.core import Block, Func, Op, Users, Value, operands, uses, walk
from blocknb.ir.traversal import backward_slice
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer, Tile
from blocknb.passes.pipelining.loop_rotation import LoopRotation
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
    return OperandPrefetchRotation(func, plans, facts).run() if plans else func


@dataclass(frozen=True)
class OperandPrefetchPlan:
    """The product of a loop, the operand to prefetch, and the ops that store it to its buffer, if any. `reading`: the ops that make the
    operand, in order, from the waits on. `made`: their results with other users. `carried`: the index of each loop-carried value on
    which they depend. `advance`: the ops that compute the next iteration's carried values."""

    dot: Op
    side: int
    stored: tuple[Op, ...]
    reading: tuple[Op, ...]
    made: tuple[Value, ...]
    carried: dict[Value, int]
    advance: tuple[Op, ...]


def planned(loop: Op, users: Users, alone: bool) -> OperandPrefetchPlan | None:
    """The plan for a loop with one product, for the first of its operands that can be prefetched."""
    (block,) = loop.blocks
    products = [op for op in walk(block) if op.name == "dot"]
    if len(products) != 1 or products[0] not in block.ops or products[0].attrs.get("in_flight"):
        return None
    for side in (0, 1):
        plan = of_operand(block, products[0], side, users)
        if plan is not None and (alone or not plan.stored):
            return plan
    return None


def of_operand(block: Block, dot: Op, side: int, users: Users) -> OperandPrefetchPlan | None:
    """The plan for an operand of a block's product; None if the product does not read it into registers or an early read is not legal."""
    made = {result: op for op in block.ops for result in op.results}
    if (found := in_registers(block, dot, side, made)) is None:
        return None
    stored, value = found
    reading = leading_to(block, value, made)
    if reading is None or any(op in stored for op in reading) or not may_run_early(block, dot, reading):
        return None
    used = [x for x in results(reading) if any(user not in reading for user, _ in users[x])]
    if not all(isinstance(x.type, Tile) for x in used):
        return None
    carried = {x: i for i, x in enumerate(block.args[1:]) if any(x in op.args for op in reading)}
    advance = next_iteration(block, dot, carried, reading, made)
    return None if advance is None else OperandPrefetchPlan(dot, side, stored, reading, tuple(used), carried, advance)


def may_run_early(block: Block, dot: Op, reading: Sequence[Op]) -> bool:
    """Whether the reads precede the product, do not depend on the index, and have a circular buffer of two stages or more. A stage is
    released only after the product that reads it, so the next read needs a stage of its own."""
    before = block.ops[: block.ops.index(dot)]
    stages = min((op.args[0].type.stages for op in reading if op.name == "stage"), default=0)
    return stages >= 2 and all(op in before and block.args[0] not in op.args for op in reading)


def results(ops: Sequence[Op]) -> list[Value]:
    """The results of ops, in order."""
    return [value for op in ops for value in op.results]


def in_registers(block: Block, dot: Op, side: int, made: Mapping[Value, Op]) -> tuple[tuple[Op, ...], Value] | None:
    """The ops that store an operand to its buffer (none if the product reads registers), and its tile; None for any other operand."""
    value = dot.args[side]
    if not isinstance(value.type, Buffer):
        return ((), value) if dot.attrs.get("permuted_rows") else None
    fill = filling(block, made[value]) if value in made else None
    return ((made[value], fill), fill.args[1]) if fill is not None and fill.name == "local_store" else None


def leading_to(block: Block, value: Value, made: Mapping[Value, Op]) -> tuple[Op, ...] | None:
    """The ops of a block that read and compute a value, in order; None if other kinds of ops are involved."""
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


def next_iteration(
    block: Block, dot: Op, carried: Mapping[Value, int], reading: Sequence[Op], made: Mapping[Value, Op]
) -> tuple[Op, ...] | None:
    """The ops after a product that compute the next iteration's values, in order; None if they include more than arithmetic, or depend
    on the values that are read."""
    after = set(block.ops[block.ops.index(dot) :])
    passed = [block.terminator.args[i] for i in carried.values()]
    found = set(backward_slice(passed, made, after.__contains__, operands))
    if any(op in reading or (op in after and (not OPS[op.name].pure or op.blocks or op is dot)) for op in found):
        return None
    return tuple(op for op in block.ops if op in found & after)


class OperandPrefetchRotation(LoopRotation[OperandPrefetchPlan]):
    """Reads an operand before the loop, and then in each iteration for the next one."""

    def rotate(self, loop: Op, plan: OperandPrefetchPlan) -> Sequence[Value]:
        """Emits the first read, then the loop, in which the product starts before the next read."""
        b, body = self.builder, loop.blocks[0]
        end = body.terminator
        nothing = [b.value("const", value=0.0 if x.type.dtype.is_float else 0, type=x.type) for x in plan.made]

        def read(index: Value, states: dict[Value, Value]) -> Sequence[Value]:
            """Emits the reads for the iteration with that index and pipeline state, if that iteration exists."""
            some = b.value("cmp", index, loop.args[1], pred="lt")
            with b.block() as then:
                known = self.copies(plan.reading, states)
                b.op("yield", *(known[value] for value in plan.made))
            with b.block() as without:
                b.op("yield", *nothing)
            types = tuple(value.type for value in plan.made)
            return b.op("if", some, blocks=(then.done, without.done), types=types).results

        def iteration(operand: list[Value]) -> Sequence[Value]:
            self.mapping.update(zip(plan.made, operand, strict=True))
            at = body.ops.index(plan.dot)
            self.ops([x for x in body.ops[:at] if x not in plan.reading])
            self.ops(plan.advance)
            dot = plan.dot
            b.append(dot.replace(args=tuple(map(self.get, dot.args)), attrs={**dot.attrs, "in_flight": 1}))
            with b.at(dot):
                states = {x: self.get(end.args[i]) for x, i in plan.carried.items()}
                following = read(b.value("add", body.args[0], loop.args[2]), states)
                self.mapping[dot.result] = b.op("dot_wait", dot.result).result
            self.mapping[dot.result].name = dot.result.name
            self.ops([x for x in body.ops[at + 1 : -1] if x not in plan.advance])
            return following

        first = read(loop.args[0], {x: loop.args[3 + i] for x, i in plan.carried.items()})
        b.append(self.carrying(loop, first, iteration))
        return loop.results
