"""Overlap of matrix products and softmax by loop rotation, within one warpgroup.

In attention, a product makes scores, a softmax makes weights of them, and a second product takes the weights. The tensor cores wait for
the softmax. So the second product is delayed by one iteration. An iteration starts its own product of scores, then the delayed product,
and computes the softmax while that one runs.

    scores(0), softmax(0);  for j = 1..: scores(j), weights(j-1) x values(j-1), softmax(j);  weights(last) x values(last)

If the second product has at least as many accumulators as there are scores, the loop waits for it earlier. It waits as soon as the largest
score of each row is known, and computes the exponentials after the wait. Otherwise the wait comes after the weights. The pass delays every
op that uses the second product's pipeline state: the wait for its stage, the product and the arrival. Source: Shah et al.,
FlashAttention-3, arXiv 2407.08608, section 3.2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.analysis import affine, ranges
from blocknb.analysis.effects import Effects, effects
from blocknb.ir.core import Block, Func, Op, Users, Value, operands, uses, walk
from blocknb.ir.traversal import backward_slice
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer, Tile
from blocknb.layouts import wgmma
from blocknb.passes.pipelining.loop_rotation import LoopRotation
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

    What: the loop is rotated. An iteration starts its first product, then the second product of the iteration before. It waits for the
    scores, and computes the softmax while the second product runs. If that product has at least as many accumulators as there are scores,
    only the row maximum is computed meanwhile. An operand that warps read from shared memory into registers is read during the product
    before.

    Why: otherwise the tensor cores wait for the softmax.

    Limits: the second product's buffer must be used for nothing else, and its result may only be carried on. A note says which limit
    keeps a product in its iteration. (Shah et al.,
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
        if loop.name != "for" or (products := two_products(loop)) is None:
            continue
        plan = planned(loop, *products, facts, users)
        if isinstance(plan, OverlapPlan):
            plans[loop.id] = plan
            text = "dot: delayed by one iteration: it runs while the operand of the next one is computed"
            notes(products[1], text)
        else:
            notes(products[1], f"dot: not delayed by one iteration: {plan}", "missed")
    return prefetch_operands(OverlapRotation(func, plans, facts).run() if plans else func, notes)


@dataclass(frozen=True)
class OverlapPlan:
    """The products of a loop and the order of its ops in an iteration.

    `delayed`: the ops that run one iteration late, in order, with the `second` product. `total`: the index of its result among the
    carried values; `states`: the indices of its pipeline state. The other ops come `before` the products, are `overlapped` with the
    second product, or come `after` the wait for it. `computed`: values that the overlapped ops must have computed by then. `certain`:
    the loop runs at least once.
    """

    first: Op
    second: Op
    delayed: tuple[Op, ...]
    total: int
    states: tuple[int, ...]
    before: tuple[Op, ...]
    overlapped: tuple[Op, ...]
    after: tuple[Op, ...]
    computed: tuple[Value, ...]
    certain: bool


def two_products(loop: Op) -> tuple[Op, Op] | None:
    """The products of a loop's own block if they are two wgmma, and the second one reads its first operand from registers."""
    (body,) = loop.blocks
    dots = [op for op in walk(body) if op.name == "dot"]
    if len(dots) != 2 or not all(op in body.ops and is_synchronous_wgmma(op) for op in dots):
        return None
    first, second = dots
    return (first, second) if isinstance(first.args[0].type, Buffer) and isinstance(second.args[0].type, Tile) else None


def planned(loop: Op, first: Op, second: Op, facts: affine.Facts, users: Users) -> OverlapPlan | str:
    """The plan for a loop with two products, or the reason why the second one cannot be delayed."""
    (body,) = loop.blocks
    (user, total), *others = users[second.result]
    if user is not body.terminator or others:
        return "its result is used in the same iteration"
    if ranges.bounds(facts, loop.args[2])[0] <= 0:
        return "the loop is not known to count upwards"
    if (found := delayable(body, second, total)) is None:
        return "its operand has no circular buffer of two stages or more that nothing else uses"
    delayed, states = found
    early = [op for op in body.ops[:-1] if op not in delayed]
    needing, moved = dependents(early, {body.args[1 + total]})
    if first in needing or not all(OPS[op.name].pure for op in needing):
        return "the sum is needed before the first product, or by an op with side effects"
    narrowed, weights = narrowing(second, early, users)
    carried = carried_tiles(body, second, weights, moved)
    postponed, computed = ops_after_wait(first, second, early, carried)
    later, at = {*narrowed, *needing}, early.index(first)
    return OverlapPlan(
        first,
        second,
        delayed,
        total,
        states,
        before=tuple(x for x in early[:at] if x not in later),
        overlapped=tuple(x for x in early[at + 1 :] if x not in later and x not in postponed),
        after=tuple(x for x in early if x in later or x in postponed),
        computed=tuple(computed),
        certain=ranges.iterations(facts, loop)[0] >= 1,
    )


def carried_tiles(body: Block, second: Op, weights: Value, moved: Collection[Value]) -> list[Value]:
    """The weights and other tiles that an iteration carries on, except those that depend on the second product's result (`moved`)."""
    tiles = [weights, *(x for x in body.terminator.args if x.type.shape and x is not second.args[0])]
    return [x for x in tiles if x not in moved and x is not second.result]


def is_synchronous_wgmma(op: Op) -> bool:
    """Whether a product is a wgmma that is waited for at once."""
    return wgmma.is_name(op.attrs.get("instr", "")) and not op.attrs.get("in_flight")


def dependents(ops: Sequence[Op], values: Collection[Value], start: Collection[Op] = ()) -> tuple[list[Op], set[Value]]:
    """The ops, in order, that are in `start` or use values, directly or not; and the values with all that follow from them."""
    found, following = [], set(values)
    for op in ops:
        if op in start or any(value in following for value in operands(op)):
            found.append(op)
            following.update(op.results)
    return found, following


def delayable(body: Block, second: Op, total: int) -> tuple[tuple[Op, ...], tuple[int, ...]] | None:
    """The second product with all ops that use the state of its circular buffer, and the indices of the carried values that hold the
    state; None if other ops depend on them, or they on others."""
    made = {value: op for op in body.ops for value in op.results}
    view = made.get(second.args[1])
    if view is None or view.name != "stage":
        return None
    waits = [op for op in body.ops if op.name == "await" and op.args[1] is view.args[1]]
    state = {view.args[1], *(op.args[2] for op in waits)} & set(body.args)
    ops, moved = dependents(body.ops[:-1], state, [second])
    states = tuple(i for i, value in enumerate(body.args[1:]) if value in state)
    carried = {i for i, value in enumerate(body.terminator.args) if value in moved}
    used = {second.args[1], *(value for op in ops if op is not second for value in op.args)}
    foreign = (used - moved) & {*made, *body.args}
    if foreign or any(op.blocks for op in ops) or carried - {*states, total}:
        return None
    return tuple(ops), states


def narrowing(second: Op, early: Sequence[Op], users: Users) -> tuple[list[Op], Value]:
    """The conversions to the second product's operand, whose registers the running product still reads; and their operand."""
    found, value = list[Op](), second.args[0]
    made = {x.result: x for x in early if len(x.results) == 1}
    while value in made and made[value].name in ("cast", "convert") and len(users[value]) == 1:
        found.append(made[value])
        value = made[value].args[0]
    return found, value


def ops_after_wait(first: Op, second: Op, early: Sequence[Op], computed: list[Value]) -> tuple[list[Op], list[Value]]:
    """The ops to compute after the wait for the second product, and the values of `computed` that are computed before it.

    The second product may have at least as many accumulators as there are scores. Then the computation of whole tiles that follows the
    reductions comes after the wait, with its users. Without a reduction no small value is available to wait for. Memory accesses have an
    order.
    """
    scores, sums = (dot.result.type.layout.num_registers for dot in (first, second))
    made = {value: op for op in early for value in op.results}
    leading = needed_for([second.args[0]], made)
    reduced = needed_for([op.results[0] for op in leading if op.name == "reduce"], made)
    if sums < scores or not reduced:
        return [], computed
    following = [op for op in early[early.index(first) + 1 :] if op not in reduced]
    whole = [op for op in following if op in leading and is_whole(op, second.args[0].type)]
    postponed, values = dependents(following, (), whole)
    known = [x for x in computed if x not in values]
    ordered = any(effects(op) != Effects() for op in postponed)
    if ordered or all(x.type.dtype.bits != 32 for x in known):  # a 32-bit value keeps the wait in its place
        return [], computed
    return postponed, known


def is_whole(op: Op, operand: Tile) -> bool:
    """Whether an op makes a tile as large as an operand."""
    return any(isinstance(x.type, Tile) and x.type.size >= operand.size for x in op.results)


def needed_for(values: Sequence[Value], made: Mapping[Value, Op]) -> set[Op]:
    """The ops of an iteration from which values are computed."""
    return set(backward_slice(values, made, operands=operands))


class OverlapRotation(LoopRotation[OverlapPlan]):
    """Starts the second product of an iteration in the next one."""

    def rotate(self, loop: Op, plan: OverlapPlan) -> Sequence[Value]:
        """Emits the rotated loop, in a branch if there may be no iteration."""
        b = self.builder
        if plan.certain:
            return self.rotated(loop, plan)
        some = b.value("cmp", loop.args[0], loop.args[1], pred="lt")
        with b.block() as then:
            b.op("yield", *self.rotated(loop, plan))
        with b.block() as otherwise:
            b.op("yield", *loop.args[3:])
        types = tuple(value.type for value in loop.results)
        return b.op("if", some, blocks=(then.done, otherwise.done), types=types).results

    def rotated(self, loop: Op, plan: OverlapPlan) -> list[Value]:
        """Emits the first iteration without its second product, the loop from the second iteration on, and the last second product."""
        body, (weights, _, total) = loop.blocks[0], plan.second.args
        end, late = body.terminator.args, {*plan.states, plan.total}
        early = [x for x in body.ops[:-1] if x not in plan.delayed]
        known = self.copies(early, dict(zip(body.args, (loop.args[0], *loop.args[3:]), strict=True)))
        init = [known.get(x, x) for x in end]
        init[plan.total] = known.get(total, total)
        for i in plan.states:
            init[i] = loop.args[3 + i]
        second = self.builder.value("add", loop.args[0], loop.args[2])
        rest = loop.replace(args=(second, *loop.args[1:3], *init))
        made = self.builder.append(
            self.carrying(rest, [known.get(weights, weights)], lambda carried: self.iteration(body, plan, carried[0]))
        )
        last = {body.args[1 + i]: made.results[i] for i in plan.states}
        final = self.copies(plan.delayed, {**last, weights: made.results[-1], total: made.results[plan.total]})
        return [final[end[i]] if i in late else value for i, value in enumerate(loop.results)]

    def iteration(self, body: Block, plan: OverlapPlan, weights: Value) -> Sequence[Value]:
        """Emits one iteration: it issues both products, computes the softmax and waits. `weights`: those of the iteration before."""
        total, at = body.args[1 + plan.total], plan.delayed.index(plan.second)
        # issue
        self.ops(plan.before)
        self.one(plan.first.replace(attrs={**plan.first.attrs, "in_flight": 1}))
        self.ops(plan.delayed[:at])
        with self.builder.at(plan.second):
            args = (weights, self.get(plan.second.args[1]), total)
            self.builder.append(plan.second.replace(args=args, attrs={**plan.second.attrs, "in_flight": 2}))
        # wait for the scores, and compute while the second product runs
        self.wait(plan.first, in_flight=1)
        self.ops(plan.overlapped)
        # wait for the second product, release its stage, and compute the rest
        self.wait(plan.second, *map(self.get, plan.computed))
        self.mapping[total] = self.get(plan.second.result)
        self.ops(plan.delayed[at + 1 :])
        self.ops(plan.after)
        self.mapping[plan.second.result] = self.get(plan.second.args[2])  # to which the next iteration adds
        return [self.get(plan.second.args[0])]

    def wait(self, product: Op, *computed: Value, **attrs: Any) -> None:
        """Emits the wait for a product. The `computed` values are computed before it."""
        with self.builder.at(product):
            done = self.builder.op("dot_wait", product.result, *computed, **attrs).results[0]
        done.name = product.result.name
        self.mapping[product.result] = done
