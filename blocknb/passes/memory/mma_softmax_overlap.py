"""Overlap of matrix products and softmax by loop rotation, within one warpgroup.

In attention, a product makes scores, a softmax makes weights of them, and a second product takes the weights. The tensor cores wait for
the softmax. So the second product is delayed by one iteration. An iteration starts its own product of scores, then the delayed product,
and computes the softmax while that one runs.

    scores(0), softmax(0);  for j = 1..: scores(j), weights(j-1) x values(j-1), softmax(j);  weights(last) x values(last)

If the second product has at least as many accumulators as there are scores, the wait for it comes as soon as the largest score of each
row is known. What needs its result is then computed while the exponentials run. Otherwise the wait comes after the weights. The delayed
ops are those on the place in the circular buffer of the second product: the wait, the product and the arrival move together. Source:
Shah et al., FlashAttention-3, arXiv 2407.08608, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.analysis import affine, ranges
from blocknb.analysis.effects import Effects, effects
from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Block, Func, Op, Users, Value, operands, uses, walk
from blocknb.ir.traversal import backward_slice
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer, Tile
from blocknb.layouts import wgmma
from blocknb.passes.pipelining.operand_prefetch import prefetch_operands
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes


def applies(func: Func, target: Target) -> bool:
    return any(op.name == "roles" for op in func.ops())


@gpu_pass(optional=True, applies=applies)
def mma_softmax_overlap(func: Func, target: Target, notes: Notes) -> Func:
    """Delays the second product of attention by one iteration to overlap the softmax

    When: warps have roles, and a loop has two products by wgmma of which the second needs what is computed from the first one's result.

    What: the loop is rotated. An iteration starts its first product, then the second product of the iteration before, and computes the
    softmax while that one runs. An operand that is read from shared memory into registers is read while the product before it runs.

    Why: otherwise the tensor cores wait for the softmax.

    Limits: the second product's buffer must be used for nothing else, and its result may only be carried on. (Shah et al.,
    FlashAttention-3, arXiv 2407.08608, section 3.2.)

    Before:

        for %j = 0 to %n step 1 iter(%o = %zero) {
          %s = dot %q, %k, %nothing : tile<64x64xf32>
          %p = exp %s : tile<64x64xf32>
          %next = dot %p, %v, %o : tile<64x64xf32>
        }

    After:

        for %j = 1 to %n step 1 iter(%o = %zero, %p = %first) {
          %s = dot %q, %k, %nothing {in_flight=1} : tile<64x64xf32>
          %d = dot %p, %v, %o {in_flight=2} : tile<64x64xf32>
          %t = dot_wait %s {in_flight=1} : tile<64x64xf32>
          %next_p = exp %t : tile<64x64xf32>
          %next = dot_wait %d : tile<64x64xf32>
        }
        %result = dot %last, %v, %sum : tile<64x64xf32>
    """
    facts, users = affine.analyze(func), uses(func)
    plans = {}
    for loop in func.ops():
        if loop.name == "for" and (plan := planned(loop, facts, users)) is not None:
            plans[loop.id] = plan
            notes(plan.second, "dot: delayed by one iteration: it runs while the operand of the next one is computed")
    return prefetch_operands(OverlapRotation(func, plans).run() if plans else func, notes)


@dataclass(frozen=True)
class OverlapPlan:
    """The products of a loop and the delayed ops. `late` holds these in order, including the `second` product. `place` is the index of
    its result among the carried values, and `states` are the indices of its pipeline state. `certain`: the loop runs at least once."""

    first: Op
    second: Op
    late: tuple[Op, ...]
    place: int
    states: tuple[int, ...]
    certain: bool

    @property
    def waits_soon(self) -> bool:
        """Whether the wait for the second product comes before the weights are computed."""
        scores, sums = (dot.result.type.layout.num_registers for dot in (self.first, self.second))
        return sums >= scores


def planned(loop: Op, facts: affine.Facts, users: Users) -> OverlapPlan | None:
    """The ops of a loop to delay; None if there are none."""
    (body,) = loop.blocks
    dots = [op for op in walk(body) if op.name == "dot"]
    if len(dots) != 2 or any(op not in body.ops or not wgmma.is_name(op.attrs.get("instr", "")) for op in dots):
        return None
    first, second = dots
    end = body.terminator
    if any(op.attrs.get("in_flight") for op in dots):
        return None
    if not isinstance(first.args[0].type, Buffer) or isinstance(second.args[0].type, Buffer):
        return None
    if users[second.result] != [(end, _place(end, second.result))]:
        return None
    if ranges.bounds(facts, loop.args[2])[0] <= 0:
        return None  # otherwise the number of iterations is not known in this form
    stage = facts.definition.get(second.args[1])
    if stage is None or stage.name != "stage" or stage.args[1] not in body.args:
        return None
    late = closure(body, second, stage.args[1])
    if late is None:
        return None
    ops, states = late
    behind = after(body, body.args[1 + _place(end, second.result)], ops)
    if first in behind or not all(OPS[op.name].pure for op in behind):
        return None  # every use of the second product's result is at the end of an iteration
    return OverlapPlan(first, second, ops, _place(end, second.result), states, ranges.iterations(facts, loop)[0] >= 1)


def _place(end: Op, value: Value) -> int:
    return end.args.index(value) if value in end.args else -1


def after(body: Block, total: Value, late: Sequence[Op]) -> list[Op]:
    """The ops that use the previous iteration's second product, without the delayed ones."""
    moved, found = {total}, []
    for op in body.ops[:-1]:
        if op not in late and any(value in moved for value in operands(op)):
            moved.update(op.results)
            found.append(op)
    return found


def closure(body: Block, second: Op, stage: Value) -> tuple[tuple[Op, ...], tuple[int, ...]] | None:
    """The ops that use a pipeline state, and the carried values of the state; None if other ops depend on them."""
    made = {value: op for op in body.ops for value in op.results}
    place = places_of(body, stage)
    late, moved = hanging_on(body, second, place)
    if any(op.blocks for op in late):
        return None
    own = [value for op in late for value in (op.args[1:2] if op is second else op.args)]
    if any(made[value] not in late if value in made else value in body.args and value not in place for value in own):
        return None
    states = tuple(i for i, value in enumerate(body.args[1:]) if value in place)
    carried = {i for i, value in enumerate(body.terminator.args) if value in moved}
    if not carried <= {*states, _place(body.terminator, second.result)}:
        return None
    return tuple(late), states


def places_of(body: Block, stage: Value) -> set[Value]:
    """The carried values of a circular buffer's state: the stage, and the parity that its wait reads."""
    awaits = [op for op in body.ops if op.name == "await" and op.args[1] is stage]
    return {stage, *(op.args[2] for op in awaits if op.args[2] in body.args)}


def hanging_on(body: Block, second: Op, place: set[Value]) -> tuple[dict[Op, None], set[Value]]:
    """The second product and all ops that use a pipeline state, directly or not; and the values that follow from it."""
    late, moved = dict[Op, None](), set(place)
    for op in body.ops[:-1]:
        if op is second or any(value in moved for value in operands(op)):
            late[op] = None
            moved.update(op.results)
    return late, moved


def exponentials(plan: OverlapPlan, early: Sequence[Op]) -> list[Op]:
    """The computation of whole tiles for the second product's operand that follows its reductions, and the users of it. Empty if there
    is no reduction, because no small value is then available to wait for. Also empty if any op accesses memory, which has an order."""
    made = {value: op for op in early for value in op.results}
    leading = needed_for([plan.second.args[0]], made)
    first = needed_for([op.results[0] for op in leading if op.name == "reduce"], made)
    if not first:
        return []
    found: list[Op] = []
    unknown: set[Value] = set()
    for op in early[early.index(plan.first) + 1 :]:
        whole = any(isinstance(x.type, Tile) and x.type.size >= plan.second.args[0].type.size for x in op.results)
        if op not in first and ((whole and op in leading) or any(value in unknown for value in operands(op))):
            found.append(op)
            unknown.update(op.results)
    return found if all(effects(op) == Effects() for op in found) else []


def carried_tiles(plan: OverlapPlan, end: Op, weights: Value, moved: set[Value]) -> list[Value]:
    """The weights and other tiles that an iteration carries on, except those that depend on the second product's result."""
    found = [weights, *(value for value in end.args if value.type.shape and value is not plan.second.args[0])]
    return [x for x in found if x not in moved and x is not plan.second.result]


def in_the_shade(plan: OverlapPlan, early: Sequence[Op], there: list[Value]) -> tuple[list[Op], list[Value]]:
    """The ops to compute after the wait for the second product, and the values of `there` that are computed before it."""
    shaded = exponentials(plan, early) if plan.waits_soon else []
    known = [x for x in there if not any(x in op.results for op in shaded)]
    if all(x.type.dtype.bits != 32 for x in known):  # a 32-bit value keeps the wait in its place
        return [], there
    return shaded, known


def needed_for(values: Sequence[Value], made: Mapping[Value, Op]) -> set[Op]:
    """The ops of an iteration from which values are computed."""
    return set(backward_slice(values, made, operands=operands))


class OverlapRotation(Rebuild):
    """Rebuilds the function according to the plans."""

    def __init__(self, func: Func, plans: dict[int, OverlapPlan]):
        super().__init__(func, lambda op, _: self.rotate(op))
        self.plans = plans
        self.users = {value: len(found) for value, found in uses(func).items()}

    def rotate(self, op: Op) -> Any:
        plan = self.plans.get(op.id)
        if plan is None:
            return NotImplemented
        b = self.builder
        if plan.certain:
            return self.whole(op, plan)
        some = b.value("cmp", op.args[0], op.args[1], pred="lt")
        with b.block() as then:
            b.op("yield", *self.whole(op, plan))
        with b.block() as otherwise:
            b.op("yield", *op.args[3:])
        types = tuple(value.type for value in op.results)
        return b.op("if", some, blocks=(then.done, otherwise.done), types=types).results

    def whole(self, op: Op, plan: OverlapPlan) -> list[Value]:
        """Emits the first iteration, the loop and the last product; returns the values that replace the loop's results."""
        b, body = self.builder, op.blocks[0]
        end, weights, sum = body.terminator, plan.second.args[0], plan.second.args[2]
        early = [x for x in body.ops[:-1] if x not in plan.late]
        known = dict(zip(body.args, (op.args[0], *op.args[3:]), strict=True))
        known |= {x: self.get(x) for x in self.outer(body)}
        for x in early:
            emit_copy(x, b, known)
        init = [known.get(x, x) for x in end.args]
        for i in plan.states:
            init[i] = op.args[3 + i]
        init[plan.place] = known.get(sum, sum)
        following = b.value("add", op.args[0], op.args[2])
        put_off, added = Value(weights.type, weights.name), Value(sum.type, sum.name)
        inner = [added if i == plan.place else value for i, value in enumerate(body.args[1:])]
        with b.block((body.args[0], *inner, put_off)) as opened:
            self.iteration(body, plan, early, put_off, added)
        args = (following, *op.args[1:3], *init, known.get(weights, weights))
        results = (*(Value(value.type, value.name) for value in op.results), Value(weights.type))
        b.append(op.replace(args=args, results=results, blocks=(opened.done,)))
        last = {body.args[1 + i]: results[i] for i in plan.states} | {weights: results[-1], sum: results[plan.place]}
        for x in plan.late:
            emit_copy(x, b, last)
        late = {*plan.states, plan.place}
        return [last.get(end.args[i], end.args[i]) if i in late else results[i] for i in range(len(op.results))]

    def outer(self, body: Block) -> set[Value]:
        """The replaced values from outside of a block that the block uses."""
        used = {value for op in walk(body) for value in op.args}
        return {value for value in used if value in self.mapping}

    def iteration(self, body: Block, plan: OverlapPlan, early: Sequence[Op], put_off: Value, added: Value) -> None:
        """Emits one iteration: the first product, the previous iteration's second product, the ops that need the first, and the ops
        that need the second."""
        b, end = self.builder, body.terminator
        product = plan.late.index(plan.second)
        total = body.args[1 + plan.place]
        narrowed, weights = self.narrowed(plan, early)
        needing = after(body, total, plan.late)
        moved = {total, *(value for x in needing for value in x.results)}
        later = [x for x in early if x in narrowed or x in needing]
        at = early.index(plan.first)
        self.ops([x for x in early[:at] if x not in later])
        self.one(plan.first.replace(attrs={**plan.first.attrs, "in_flight": 1}))
        self.ops(plan.late[:product])
        with b.at(plan.second):
            args = (put_off, self.get(plan.second.args[1]), added)
            b.append(plan.second.replace(args=args, attrs={**plan.second.attrs, "in_flight": 2}))
        with b.at(plan.first):
            scores = b.op("dot_wait", plan.first.result, in_flight=1).result
        scores.name = plan.first.result.name
        self.mapping[plan.first.result] = scores
        shaded, known = in_the_shade(plan, early, carried_tiles(plan, end, weights, moved))
        self.ops([x for x in early[at + 1 :] if x not in later and x not in shaded])
        self.wait(plan, total, plan.late[product + 1 :], [self.get(x) for x in known])
        self.ops([x for x in early if x in later or x in shaded])
        values = [self.get(value) for value in end.args]
        values[plan.place] = self.get(plan.second.args[2])
        b.append(end.replace(args=(*values, self.get(plan.second.args[0]))))

    def narrowed(self, plan: OverlapPlan, early: Sequence[Op]) -> tuple[list[Op], Value]:
        """The conversions to the second product's operand, whose registers the running product still reads; and their operands."""
        found, value = [], plan.second.args[0]
        made = {x.result: x for x in early if len(x.results) == 1}
        while value in made and made[value].name in ("cast", "convert") and self.users[value] == 1:
            found.append(made[value])
            value = made[value].args[0]
        return found, value

    def wait(self, plan: OverlapPlan, total: Value, behind: Sequence[Op], there: Sequence[Value]) -> None:
        """Emits the wait for the delayed product, after which its stage is free. The values in `there` are computed before it."""
        with self.builder.at(plan.second):
            done = self.builder.op("dot_wait", plan.second.result, *there).results[0]
        done.name = total.name
        self.mapping[total] = self.mapping[plan.second.result] = done
        self.ops(behind)
