"""Software prefetching into registers: an iteration issues the loads of a later one before it computes.

A loop over rows loads, waits for memory and computes, and the memory system idles meanwhile. So the pass rotates the loop. The loads of
the first iterations run before the loop. Each iteration issues the loads of a later one and carries the results. The mask of an early
load includes whether that iteration exists, so the kernel loads nothing more than before.

`pipelining.legality` decides which loads may be issued early, and `pipelining.later_iterations` finds their addresses. In a loop with one
product, the pass prefetches only scalars and vectors, such as scales. The same holds for several products if the loop carries an operand of
them. Each iteration then waits for the last one, as in the recurrence of linear attention. A late load makes the whole program late.
`warp_specialization` and `software_pipelining` copy the tiles to shared memory. Source: Mowry, Lam and Gupta, "Design and Evaluation of a
Compiler Algorithm for Prefetching" (ASPLOS 1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blocknb.analysis import affine, ranges
from blocknb.analysis.accesses import COPY_BYTES
from blocknb.analysis.liveness import Liveness, registers
from blocknb.ir.build import emit_copy, revised
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.ir.traversal import forward_slice, reachable
from blocknb.language.ops import OPS
from blocknb.passes.pipelining.later_iterations import LaterIterations, direction
from blocknb.passes.pipelining.legality import ARITHMETIC, PipeliningLegality
from blocknb.passes.pipelining.loop_rotation import LoopRotation
from blocknb.passes.pipelining.stages import COPIES_FROM, num_stages
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import at_line, counted
from blocknb.passes.tile.simplify import tidy
from blocknb.passes.tile.unroll import grouped
from blocknb.target import Target
from blocknb.trace import Notes

REGISTERS = 64  # registers per thread for prefetched values; a quarter of all if a thread has fewer than 256
LEAST_WGMMA = 64  # rows
FEW = 8  # registers for scales of a loop with a product, also where no register is left: a spill costs less than the wait for memory
RECURRENT = 24  # the same for a loop that multiplies a tile that it carries, whose iterations never overlap
QUAD = 4  # threads that hold a row of a product's result between them; the other threads of its columns have copies
ROOM = 24  # registers for addresses, scalars and masks; most of a loop is below its peak


def applies(func: Func, target: Target) -> bool:
    """Whether a loop has more than one stage."""
    return any(op.name == "for" and num_stages(func, op) > 1 for op in func.ops())


@gpu_pass(optional=True, applies=applies)
def register_prefetch(func: Func, target: Target, notes: Notes) -> Func:
    """Issues the loads of a loop's later iterations before the current one computes

    When: a loop has `num_stages=k` above 1, from the launch or from `tl.range`. In a loop with one product only scalars and vectors, such
    as scales, are loaded ahead, by one iteration; `software_pipelining` copies the tiles. With several products the same happens only if
    the loop multiplies a tile that it carries, as the state of linear attention.

    What: a load is issued k - 1 iterations ahead into registers, and masked off where there is no such iteration.

    Why: the memory system works while an iteration computes.

    Limits: a load stays where it is if its address was loaded in the loop, or if every iteration reads the same address. It also stays if
    the loop stores to its array or waits for other programs, or if the carried values would take too many registers. Two arguments are
    assumed to be two arrays.

    Before:

        %sum = for %k = 0 to %n step 64 iter(%s = %zero) {
          %v = load %p, %mask : tile<64xf32>
          %next = add %s, %v : tile<64xf32>
          yield %next
        }

    After:

        %first = load %p0, %mask0 : tile<64xf32>
        %sum, %last = for %k = 0 to %n step 64 iter(%s = %zero, %v = %first) {
          %later = load %p1, %mask1 {scheduling_barrier=True} : tile<64xf32>
          %next = add %s, %v : tile<64xf32>
          yield %next, %later
        }
    """
    planner = PrefetchPlanner(func, target, notes)
    planner.plan(func.body, None)
    return tidy(PrefetchRotation(func, planner.plans, planner.facts).run()) if planner.plans else func


@dataclass(frozen=True)
class PrefetchPlan:
    """The loads of a loop that are issued early, and by how many iterations."""

    loop: Op
    loads: tuple[Op, ...]
    ahead: int


# -- which loads -----------------------------------------------------------------------------------------------------------


class PrefetchPlanner(PipeliningLegality):
    """Plans the early loads of all loops: `plans` by the id of the loop. It notes each decision."""

    def __init__(self, func: Func, target: Target, notes: Notes):
        super().__init__(func, notes)
        self.copies = target.capability >= COPIES_FROM
        self.threads = 32 * func.attrs["num_warps"]
        self.liveness = Liveness(func, self.threads)
        self.plans: dict[int, PrefetchPlan] = {}
        self.replicated = set[Op]()  # loads that several threads need: of a row or column of a product

    def plan(self, block: Block, inside: Op | None) -> int:
        """Plans the loops in a block; returns the most registers that any of them carries. `inside` is the loop around the block, if it
        is a `for` with stages; loads in a branch or a `while` there get a note."""
        most = 0
        for op in block.ops:
            if op.name == "for":
                most = max(most, self.loop(op))
            elif op.name in ("if", "while"):
                unknown = "how often a `while` runs is not known before"
                why = unknown if op.name == "while" else "an iteration may skip it"
                for nested in op.blocks:
                    self.refuse((x for x in nested.ops if x.name == "load" and inside), why)
                    most = max(most, self.plan(nested, inside))
        return most

    def loop(self, loop: Op) -> int:
        """Plans a loop after its nested loops, which run more often; returns the registers that are carried at once."""
        wanted = num_stages(self.func, loop) - 1
        within = self.plan(loop.blocks[0], loop if wanted > 0 else None)
        loads = [op for op in loop.blocks[0].ops if op.name == "load"]
        if wanted < 1 or not loads:
            return within
        if dot := next((op for op in walk(loop.blocks[0]) if op.name == "dot"), None):
            if not self.copies:
                copies = "whose operands are left for asynchronous copies, which sm_80 has"
                self.refuse(loads, f"the loop holds a product{at_line(dot)}, {copies}")
                return within
            loads, wanted = self.vector_loads(loop), 1
        if why := self.why_no_load_of(loop):
            self.refuse(loads, why)
            return within
        reasons = {load: self.why_not(load, loop) for load in loads}
        for load, why in reasons.items():
            if why:
                self.refuse([load], why)
        products = sum(op.name == "dot" for op in walk(loop.blocks[0]))
        least = 0 if not products else FEW if products == 1 else RECURRENT
        if products > 1:
            self.replicated.update(loads)
        return within + self.fit(
            loop, [x for x in loads if not reasons[x]], wanted, max(least, self.left(loop) - within)
        )

    def vector_loads(self, loop: Op) -> list[Op]:
        """The loads of scalars and vectors (scales) in a loop with products, which take few registers. Tiles are left for copies to shared
        memory. Loads of indices get no early load either."""
        if sum(op.name == "dot" for op in walk(loop.blocks[0])) > 1 and not self.multiplies_carried(loop):
            return []
        ops = (op for op in loop.blocks[0].ops if op.name == "load" and not self.is_staged(op, loop))
        return [op for op in ops if sum(n > 1 for n in op.result.type.shape) <= 1 and not self.is_index(op.result)]

    def multiplies_carried(self, loop: Op) -> bool:
        """Whether the loop carries an operand of its products, so that each iteration waits for the last one. In other loops with several
        products iterations overlap, and the gradients of attention spilled. On an H200 the states of delta-rule kernels of
        flash-linear-attention took 0.60 to 0.78 of the time with a row loaded ahead."""
        defs = self.facts.definition
        operands = [x for op in walk(loop.blocks[0]) if op.name == "dot" for x in op.args[:2]]
        behind = reachable(operands, lambda x: () if x not in defs or defs[x].name in ("dot", "load") else defs[x].args)
        return any(x in loop.blocks[0].args and len(x.type.shape) > 1 for x in behind)

    def is_staged(self, load: Op, loop: Op) -> bool:
        """Whether `operand_staging` brings a tile of one row to shared memory, more than one iteration ahead."""
        return num_stages(self.func, loop) > 2 and is_staged_row(self.facts, load, loop)

    def is_index(self, value: Value) -> bool:
        """Whether an address depends on a value."""
        found = forward_slice([value], self.users, lambda op: OPS[op.name].kind in ARITHMETIC)
        return any(op.name == "ptradd" for op in found)

    def fit(self, loop: Op, loads: Sequence[Op], wanted: int, budget: int) -> int:
        """Keeps as many loads, as far ahead, as the budget of registers allows; returns the registers that they take."""
        ahead, taken = max(1, min(wanted, budget // max(1, sum(map(self.registers, loads))))), 0
        kept: list[Op] = []
        for load in loads:
            needs = self.registers(load) * ahead
            if taken + needs > budget:
                left = max(0, budget - taken)
                self.refuse([load], f"it takes {counted(needs, 'register')} per thread, and {left} are left for that")
                continue
            kept.append(load)
            taken += needs
            self.explain(load, loop, ahead, wanted, needs)
        if kept:
            self.plans[loop.id] = PrefetchPlan(loop, tuple(kept), ahead)
        return taken

    def explain(self, load: Op, loop: Op, ahead: int, wanted: int, needs: int) -> None:
        text = f"pipelined: loaded {counted(ahead, 'iteration')} ahead, in {counted(needs, 'register')} per thread"
        if ahead < wanted:
            text += f" (not {wanted}, for lack of registers)"
        if passed := sorted({root.name for root, _ in self.writes(walk(loop.blocks[0])) if root is not None}):
            text += f"; before stores to {', '.join(passed)}, assumed to be other arrays"
        self.notes(load, text)

    def registers(self, load: Op) -> int:
        return registers(load.result, QUAD if load in self.replicated else self.threads)

    def left(self, loop: Op) -> int:
        """The registers per thread that are left for a loop's carried values."""
        limit = min(256, 65536 // self.threads)
        return min(REGISTERS, limit // 4, max(0, limit - ROOM - self.liveness.peak(loop)))


def is_staged_row(facts: affine.Facts, load: Op, loop: Op) -> bool:
    """Whether a tile has one row, from which a thread can copy four bytes, and the products of its loop are too small for wgmma."""
    shape, (pointer, *masks) = load.result.type.shape, load.args
    dots = [op for op in walk(loop.blocks[0]) if op.name == "dot"]
    if len(shape) != 2 or shape[0] > 1 or not dots or any(op.result.type.shape[0] >= LEAST_WGMMA for op in dots):
        return False
    bytes = load.result.type.dtype.bytes
    width = min(shape[1], facts.contiguity(pointer, 1), facts.divisibility(pointer, 1) // bytes)
    if masks:
        width = min(width, facts.constancy(masks[0], 1))
    return width * bytes >= COPY_BYTES[0] and shape[1] * bytes >= COPY_BYTES[-1]


# -- the rotation ----------------------------------------------------------------------------------------------------------


class PrefetchRotation(LoopRotation[PrefetchPlan]):
    """Loads for later iterations before the loop and in it."""

    def rotate(self, loop: Op, plan: PrefetchPlan) -> Sequence[Value]:
        """Emits the loads of the first iterations, then the loop, which loads for the iteration that is `ahead`."""
        body, facts, count = loop.blocks[0], self.facts, len(plan.loads)
        before = LaterIterations(self, facts, plan.loop, loop.args[0], loop.args[3:])
        least = ranges.iterations(facts, plan.loop)[0]
        first = [self.early(before, x, k, exists=k < least) for k in range(plan.ahead) for x in plan.loads]

        def iteration(arrived: list[Value]) -> Sequence[Value]:
            now = LaterIterations(self, facts, plan.loop, body.args[0], body.args[1:])
            last = [self.early(now, x, plan.ahead, itself=True, last=x is plan.loads[-1]) for x in plan.loads]
            self.mapping.update((x.result, value) for x, value in zip(plan.loads, arrived, strict=False))
            self.ops([x for x in body.ops[:-1] if x not in plan.loads])
            return *arrived[count:], *last

        rotated = self.carrying(loop, first, iteration)
        # A value that the loop only hands on would be copied to another register, and the copy waits for the load. In a loop over groups
        # of `ahead` iterations each load has its own register.
        if plan.ahead > 1:
            rotated = grouped(
                rotated, plan.ahead, direction(self.builder, facts, plan.loop, loop.args[2]), self.builder
            )
        self.builder.append(rotated)
        return loop.results

    def early(
        self,
        later: LaterIterations,
        load: Op,
        iteration: int,
        exists: bool = False,
        itself: bool = False,
        last: bool = False,
    ) -> Value:
        """The value of the load that many iterations later, if that iteration exists (`exists`: it surely does). `itself`: emit the op
        that replaces the load, not a copy. `last`: it is the last early load of its iteration."""
        with self.builder.at(load):
            args = tuple(later.operands(load, iteration, exists))
            if itself:
                value = Value(load.result.type, load.result.name)
                attrs = {**load.attrs, "scheduling_barrier": True} if last else load.attrs
                self.builder.append(revised(load, args=args, results=(value,), attrs=attrs))
                return value
            return emit_copy(load.replace(args=args), self.builder, {}).result
