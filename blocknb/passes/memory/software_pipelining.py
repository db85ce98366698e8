"""Software pipelining: asynchronous copies bring operands to shared memory several iterations before their product.

A loop over K loads two tiles, stores them to shared memory, waits and multiplies, while the tensor cores idle. After this pass the loads
run `num_stages - 1` iterations ahead as asynchronous copies (cp.async), each into the next stage of a circular buffer with `num_stages`
stages. An iteration waits for its own copies, then copies into the stage that the previous iteration read. One barrier between the two
suffices. It makes the copies visible to all warps, and it guarantees that all warps have read the old data.

wgmma is asynchronous. If only the next iteration's product uses a result, as its accumulator, that product may start while this one still
reads its stage. Such an iteration starts its own product, waits for the previous product, and passes a second barrier. Then it copies
into the previous product's stage.

Only views of the tile may stand between a load and its store to shared memory. A copy writes zeros where the mask is off or the iteration
does not exist. Source: Lam, "Software Pipelining" (PLDI 1988); Huang et al., "ALCOP: Automatic Load-Compute Pipelining" (MLSys 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from blocknb.analysis import ranges
from blocknb.analysis.accesses import COPY_BYTES, copy_width
from blocknb.ir.build import Rebuild
from blocknb.ir.core import Block, Func, Op, Value, definitions, uses, walk
from blocknb.ir.traversal import backward_slice
from blocknb.language import types as t
from blocknb.language.ops import STRUCTURED, named
from blocknb.passes.memory.shared_memory_allocation import place
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.mma_operands import from_shared, lasting
from blocknb.passes.support.pipelining_support import COPIES_FROM, LaterIterations, PipeliningObstacles, counted
from blocknb.passes.support.stages import VIEWS, multiplies, num_stages, views_between
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

SHAPES = named("shape")


def staged(func: Func, target: Target) -> list[Op]:
    """The loops with products that have more than one stage, if the target can copy asynchronously."""
    loops = [op for op in func.ops() if op.name == "for" and multiplies(op) and num_stages(func, op) > 1]
    return loops if target.capability >= COPIES_FROM else []


def applies(func: Func, target: Target) -> bool:
    return bool(staged(func, target))


def early_loads(func: Func, target: Target) -> set[Value]:
    """The tiles that become operands of products in another layout, and whose loops load them where an early load is legal."""
    users, found = uses(func), set()

    def only_for(value: Value, names: tuple[str, ...]) -> Value | None:
        """The value or a view of it, if all its users are ops of these names; else None."""
        while len(users[value]) == 1 and users[value][0][0].name in VIEWS:
            value = users[value][0][0].result
        return value if {op.name for op, _ in users[value]} <= set(names) else None

    for loop in staged(func, target):
        for op in loop.blocks[0].ops:
            tile = only_for(op.result, ("convert",)) if op.name == "load" and op.result.type.shape else None
            if tile is not None and all(only_for(user.result, ("dot",)) is not None for user, _ in users[tile]):
                found.add(tile)
    return found


@gpu_pass(optional=True, applies=applies)
def software_pipelining(func: Func, target: Target, notes: Notes) -> Func:
    """Copies operands to shared memory asynchronously, iterations ahead of their use

    When: a loop has products and more than one stage: `num_stages`, of the launch or of `tl.range`, or 3 by default. The
    target is sm_80 or later.

    What: loads that are stored to shared memory become asynchronous copies (cp.async) into a circular buffer of k stages, k - 1 iterations
    ahead.

    Why: tensor cores work while the operands of later iterations arrive.

    Limits: a load stays where it is if something is computed on its way to shared memory, if fewer than 4 bytes are contiguous, if
    `other` is not zero, if its address was loaded in the loop, or if the loop writes its array (two arguments are assumed to be two
    arrays). A buffer gets fewer stages where shared memory has no room.

    Before:

        for %k = 0 to %n step 32 iter(%acc = %zero) {
          %v = load %p, %mask : tile<64x32xf16, #a>
          local_store %buffer, %v
          %c = dot %buffer, %y, %acc : tile<64x64xf32, #b>
        }

    After:

        copy_async %stage0, %p0, %mask0 {vec=8}
        commit
        for %k = 0 to %n step 32 iter(%acc = %zero, %read = %0, %write = %1) {
          wait {in_flight=0}
          copy_async %stage, %later, %mask1 {vec=8}
          commit
          %tile = stage %buffers, %read : buffer<64x32xf16, #c>
          %c = dot %tile, %y, %acc : tile<64x64xf32, #b>
        }
    """
    planner = PipelinePlanner(func, target, notes)
    planner.block(func.body)
    plans = planner.plans
    while plans:
        made = tidy(PipelineRotation(func, planner).run())
        if place(made)[1] <= target.max_shared:
            planner.explain(plans)
            return made
        largest = max(plans.values(), key=lambda plan: plan.bytes)
        if largest.ahead > 1:
            plans[largest.loop.id] = replace(largest, ahead=largest.ahead - 1)
        else:
            planner.refuse(plans.pop(largest.loop.id).copies, "shared memory has no room for two of its tiles")
    return func


def least(func: Func, planner: PipelinePlanner) -> int:
    """The bytes of shared memory that a function takes if each planned circular buffer has two stages."""
    planner.plans = {id: replace(plan, ahead=1) for id, plan in planner.plans.items()}
    return place(tidy(PipelineRotation(func, planner).run()))[1]


@dataclass(frozen=True)
class AsyncCopy:
    """A load that becomes an asynchronous copy, its views, its buffer, and the number of elements per copy."""

    load: Op
    views: tuple[Op, ...]
    store: Op
    vec: int

    @property
    def buffer(self) -> Value:
        return self.store.args[0]


@dataclass(frozen=True)
class PipelinePlan:
    """The copies of one loop, their distance in iterations, the wanted distance, and the products that outlast an iteration."""

    loop: Op
    copies: tuple[AsyncCopy, ...]
    ahead: int
    wanted: int
    lasting: tuple[Op, ...] = ()

    @property
    def bytes(self) -> int:
        return (self.ahead + 1) * sum(copy.buffer.type.bytes for copy in self.copies)


class PipelinePlanner(PipeliningObstacles):
    """Plans the copies of all loops: `plans` by the id of the loop. It notes each decision."""

    def __init__(self, func: Func, target: Target, notes: Notes):
        super().__init__(func)
        self.func, self.notes, self.defs = func, notes, definitions(func)
        self.loops, self.plans = staged(func, target), dict[int, PipelinePlan]()

    def block(self, block: Block) -> None:
        for op in block.ops:
            for nested in op.blocks:
                self.block(nested)
            if op in self.loops:
                self.loop(op)

    def loop(self, loop: Op) -> None:
        stored = list(self.stored(loop))
        why = self.against_loop(loop) if stored else ""
        for load in sorted(self.computed(loop) - {load for load, _ in stored}, key=lambda op: op.id):
            self.notes(load, "not copied ahead: the stored tile is computed from it", "missed")
        copies = []
        for load, store in stored:
            if found := why or self.against(load, loop) or self.against_copy(load, store):
                self.notes(load, f"not copied ahead: {found}", "missed")
                continue
            views, vec = views_between(self.defs, load, store), copy_width(self.facts, load, *store.args)
            copies.append(AsyncCopy(load, views, store, vec))
        wanted = num_stages(self.func, loop) - 1
        if copies:
            ahead = min(wanted, max(1, ranges.iterations(self.facts, loop)[1] - 1))
            late = lasting(loop, [copy.buffer for copy in copies])
            self.plans[loop.id] = PipelinePlan(loop, tuple(copies), ahead, wanted, late)

    def stored(self, loop: Op) -> Iterator[tuple[Op, Op]]:
        """The loads of a loop's own block whose tiles reach shared memory, directly or through arithmetic; each with its store."""
        own, seen = set(loop.blocks[0].ops), set()
        steps = ("cast", "bitcast", "convert", *VIEWS)
        for store in loop.blocks[0].ops:
            if store.name != "local_store":
                continue
            for op in backward_slice([store.args[1]], self.defs, lambda op: op in own and op.name in steps):
                if op in own and op.name == "load" and op.id not in seen and op.result.type.shape:
                    seen.add(op.id)
                    yield op, store

    def computed(self, loop: Op) -> set[Op]:
        """The loads of a loop's own block from whose tiles the loop computes operands in shared memory."""
        own = set(loop.blocks[0].ops)

        def goes_on(op: Op) -> bool:
            return op in own and op.name not in ("load", "dot", *STRUCTURED)

        def tiles(op: Op) -> list[Value]:
            return [self.facts.stored(x) or x for x in op.args if x.type.shape]

        stored = [op.args[1] for op in own if op.name == "local_store" and self.defs[op.args[0]].attrs.get("align")]
        found = backward_slice(stored, self.defs, goes_on, tiles)
        return {op for op in found if op in own and op.name == "load" and op.result.type.shape}

    def against_copy(self, load: Op, store: Op) -> str:
        """The reason why a load cannot become a copy to the buffer of that store; "" if it can."""
        between = views_between(self.defs, load, store)
        if changed := next((op for op in between if op.name not in VIEWS), None):
            kind = changed.result.type.dtype
            return (
                f"it becomes {kind} on its way"
                if changed.name != "convert"
                else "its elements change threads on their way"
            )
        if any(len(self.users[value]) > 1 for value in (load.result, *(op.result for op in between))):
            return "it is used more than once"
        if len(load.args) > 2 and not self.is_zero(load.args[2]):
            return "its masked-off elements are not zero"
        if not copy_width(self.facts, load, *store.args):
            return f"fewer than {COPY_BYTES[0]} bytes are contiguous in memory and in the buffer"
        return ""

    def is_zero(self, value: Value) -> bool:
        op = self.defs.get(value)
        while op is not None and op.name in SHAPES:
            op = self.defs.get(op.args[0])
        return op is not None and op.name == "const" and op.attrs["value"] == 0

    def refuse(self, copies: tuple[AsyncCopy, ...], why: str) -> None:
        for copy in copies:
            self.notes(copy.load, f"not copied ahead: {why}", "missed")

    def explain(self, plans: dict[int, PipelinePlan]) -> None:
        for plan in plans.values():
            for copy in plan.copies:
                kind = copy.buffer.type
                text = f"copied to shared memory {counted(plan.ahead, 'iteration')} ahead, past the registers: {plan.ahead + 1} stages of "
                text += f"{kind.bytes} bytes, {copy.vec * kind.dtype.bytes} bytes per copy"
                text += "; truncated to tf32 by wgmma, not rounded" * bool(copy.store.attrs.get("tf32"))
                if plan.ahead < plan.wanted:
                    iterations = ranges.iterations(self.facts, plan.loop)[1]
                    reason = (
                        f"the loop makes {counted(iterations, 'iteration')} at most"
                        if iterations <= plan.wanted
                        else "for lack of shared memory"
                    )
                    text += f" (not {plan.wanted + 1}: {reason})"
                self.notes(copy.load, text)
            for op in plan.lasting:
                self.notes(op, "dot: still in flight when the next iteration starts; waited for after the loop")


# -- the rotation ----------------------------------------------------------------------------------------------------------


class PipelineRotation(Rebuild):
    """Rebuilds the function according to the plans."""

    def __init__(self, func: Func, planner: PipelinePlanner):
        super().__init__(func, lambda op, _: self.rotate(op))
        self.plans, self.facts, self.defs = planner.plans, planner.facts, planner.defs

    def rotate(self, op: Op) -> object:
        """Emits the copies of the first iterations, then the loop that copies for later iterations."""
        plan = self.plans.get(op.id)
        if plan is None:
            return NotImplemented
        builder, body, ahead = self.builder, op.blocks[0], plan.ahead
        buffers = [self.circular_buffer(copy, ahead + 1) for copy in plan.copies]
        before = LaterIterations(self, self.facts, plan.loop, op.args[0], op.args[3:])
        least = ranges.iterations(self.facts, plan.loop)[0]
        for iteration in range(ahead):
            self.group(plan, buffers, builder.const(iteration, t.int32), before, iteration, iteration < least)
        first, last = builder.const(0, t.int32), builder.const(ahead, t.int32)
        read, write = Value(first.type, "read"), Value(first.type, "write")
        with builder.block((*body.args, read, write)) as opened:
            builder.op("wait", in_flight=ahead - 1)
            if any(from_shared(x) for x in walk(body)):
                builder.op("fence")  # before the barrier that follows
            now = LaterIterations(self, self.facts, plan.loop, body.args[0], body.args[1:])
            if not plan.lasting:
                self.group(plan, buffers, write, now, ahead)
            gone: set[Op] = set()
            for copy, buffer in zip(plan.copies, buffers, strict=True):
                gone |= {copy.load, *copy.views, copy.store, self.defs[copy.buffer]}
                self.mapping[copy.buffer] = stage = builder.value("stage", buffer, read)
                stage.name = copy.buffer.name
            if not self.stores_operands(x for x in body.ops if x not in gone):
                gone.update(x for x in body.ops if x.name == "fence")
            for x in body.ops[:-1]:
                if (
                    x in plan.lasting
                ):  # the previous products are complete after this one starts, and the next copy overwrites their stage
                    self.one(x.replace(attrs={**x.attrs, "in_flight": len(plan.lasting)}))
                    if x is plan.lasting[-1]:
                        self.group(plan, buffers, write, now, ahead)
                elif x not in gone:
                    self.one(x)
            at_end = builder.value("cmp", read, last, pred="ge")
            following = builder.value("select", at_end, first, builder.value("add", read, builder.const(1, t.int32)))
            end = body.terminator
            builder.append(end.replace(args=(*map(self.get, end.args), following, read)))
        carried = (Value(first.type), Value(first.type))
        builder.append(op.replace(args=(*op.args, first, last), results=(*op.results, *carried), blocks=(opened.done,)))
        summed = [op.results[body.terminator.args.index(x.result)] for x in plan.lasting]
        waited = dict(zip(summed, builder.op("dot_wait", *summed).results, strict=True)) if summed else {}
        builder.op("wait", in_flight=0)
        return [waited.get(value, value) for value in op.results]

    def stores_operands(self, ops: Iterable[Op]) -> bool:
        """Whether any of these ops stores an operand of a product."""
        return any(x.name == "local_store" and self.defs[x.args[0]].attrs.get("align") for x in ops)

    def circular_buffer(self, copy: AsyncCopy, stages: int) -> Value:
        made = self.defs[copy.buffer]
        with self.builder.at(made):
            attrs = {**made.attrs, "type": replace(copy.buffer.type, stages=stages)}
            buffer = self.builder.value("alloc", **attrs)
        buffer.name = copy.buffer.name
        return buffer

    def group(
        self,
        plan: PipelinePlan,
        buffers: list[Value],
        number: Value,
        later: LaterIterations,
        iteration: int,
        exists: bool = False,
    ) -> None:
        """Emits the copies of one iteration into the stage of that number."""
        for copy, buffer in zip(plan.copies, buffers, strict=True):
            with self.builder.at(copy.load):
                operands = later.operands(copy.load, iteration, exists)[:2]
                for view in copy.views:
                    operands = [self.builder.value(view.name, x, **view.attrs) for x in operands]
                stage = self.builder.value("stage", buffer, number)
                stage.name = buffer.name
                self.builder.op("copy_async", stage, *operands, vec=copy.vec)
        self.builder.op("commit")
