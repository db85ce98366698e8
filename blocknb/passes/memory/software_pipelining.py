"""Software pipelining: asynchronous copies bring operands to shared memory several iterations before their product.

A loop over K loads two tiles, stores them to shared memory, waits and multiplies, while the tensor cores idle. After this pass the loads
run `num_stages - 1` iterations ahead as asynchronous copies (cp.async), each into the next stage of a circular buffer with `num_stages`
stages. An iteration waits for its own copies, then copies into the stage that the previous iteration read. One barrier between the two
suffices. It makes the copies visible to all warps, and it guarantees that all warps have read the old data.

wgmma is asynchronous. If only the next iteration's product uses a result, as its accumulator, that product may start while this one still
reads its stage. Such an iteration starts its own product, waits for the previous product, and passes a second barrier. Then it copies
into the previous product's stage.

Only views of the tile may stand between a load and its store to shared memory. A copy writes zeros where the mask is off or the iteration
does not exist. The indices of a gather, such as the page table of a paged cache, are loaded one iteration before their copies. So no copy
waits for them. Source: Lam, "Software Pipelining" (PLDI 1988); Huang et al., "ALCOP: Automatic Load-Compute Pipelining" (MLSys 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from blocknb.analysis import ranges
from blocknb.analysis.accesses import COPY_BYTES, copy_width
from blocknb.analysis.affine import Facts
from blocknb.analysis.residency import ctas_by_shared_memory, shared_rule
from blocknb.ir.core import Block, Func, Op, Value, uses, walk
from blocknb.language import types as t
from blocknb.language.ops import OPS, named
from blocknb.passes.memory.shared_memory_allocation import place
from blocknb.passes.pipelining.circular_buffer import CircularBuffer
from blocknb.passes.pipelining.later_iterations import LaterIterations
from blocknb.passes.pipelining.legality import (
    OUTLASTS,
    TRUNCATED,
    PipeliningLegality,
    accumulating_products,
    modifier_lost,
)
from blocknb.passes.pipelining.locks import may_pass_locks
from blocknb.passes.pipelining.loop_rotation import LoopRotation
from blocknb.passes.pipelining.staged_tiles import CHANGES, VIEWS, StagedTile, operand_source_loads, staged_tile
from blocknb.passes.pipelining.stages import COPIES_FROM, NO_POLICY_FROM, multiplies, num_stages
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.mma_operands import from_shared
from blocknb.passes.support.note_text import counted
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

SHAPES = named("shape")
ENOUGH_CTAS = 4  # per SM: with fewer, an SM without one of them idles longer than early copies save
FEW_WARPS = 4  # an SM always has enough registers for two CTAs of this size
#: The grid of a launch is not known here. A kernel with a loop over programs often has one CTA per SM.
TWO_CTAS = "so that an SM has room for two CTAs; num_stages={} keeps the stages, for a grid of one CTA per SM"
MODIFIERS = (".ca", ".cg")  # cache modifiers that cp.async has
STAGING = ("alloc", "local_store", "local_load", "fence")  # ops that bring a tile through shared memory


def product_loops(func: Func, target: Target) -> list[Op]:
    """The loops with products that have more than one stage, if the target can copy asynchronously."""
    loops = [op for op in func.ops() if op.name == "for" and multiplies(op) and num_stages(func, op) > 1]
    return loops if target.capability >= COPIES_FROM else []


def applies(func: Func, target: Target) -> bool:
    return bool(product_loops(func, target))


def tiles_to_stage(func: Func, target: Target) -> set[Value]:
    """The tiles that product loops load, convert and use only as operands."""
    users, found = uses(func), set()

    def only_for(value: Value, names: tuple[str, ...]) -> Value | None:
        """The value or a view of it, if all its users are ops of these names; else None."""
        while len(users[value]) == 1 and users[value][0][0].name in VIEWS:
            value = users[value][0][0].result
        return value if {op.name for op, _ in users[value]} <= set(names) else None

    for loop in product_loops(func, target):
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

    Limits: a load stays where it is if the tile is computed on before it is stored to shared memory. It also stays if fewer than 4 bytes
    are contiguous, or if `other` is not zero. It also stays if the loop writes its array or that of its indices. Two arguments are assumed
    to be two arrays. A buffer gets fewer stages where shared memory has no room.

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
    plans, room = planner.plans, planner.room(target)
    while plans:
        made, moved = planner.pipelined(early=True)
        if moved:  # early copies keep the buffers of staged operands apart from the circular ones
            late, _ = planner.pipelined()
            fitting, possible = (ctas_by_shared_memory(target, place(func)[1]) for func in (made, late))
            made = late if fitting < min(possible, ENOUGH_CTAS) else made
        if place(made)[1] <= room:
            planner.explain()
            return made
        largest = max(plans.values(), key=lambda plan: (planner.shares and plan.ahead > 1, plan.bytes))
        if largest.ahead > 1:
            plans[largest.loop.id] = replace(largest, ahead=largest.ahead - 1)
        else:
            copies = plans.pop(largest.loop.id).copies
            planner.refuse([copy.load for copy in copies], "shared memory has no room for two of its tiles")
    return func


@dataclass(frozen=True, eq=False)
class AsyncCopy(StagedTile):
    """A staged tile that an asynchronous copy brings to its buffer, and the number of elements per copy."""

    vec: int


@dataclass(frozen=True)
class PipelinePlan:
    """The copies of one loop, their distance in iterations, the wanted distance, and the products that outlast an iteration. `indices` are
    the loads of the loop from whose results addresses of copies are computed. `invariants` are the values from outside of the loop that the
    copies need."""

    loop: Op
    copies: tuple[AsyncCopy, ...]
    ahead: int
    wanted: int
    outlasting: tuple[Op, ...] = ()
    indices: tuple[Op, ...] = ()
    invariants: Set[Value] = frozenset()

    @property
    def bytes(self) -> int:
        """The bytes of all stages."""
        return (self.ahead + 1) * sum(copy.buffer.type.bytes for copy in self.copies)


class PipelinePlanner(PipeliningLegality):
    """Plans the copies of all loops: `plans` by the id of the loop. It notes each decision."""

    def __init__(self, func: Func, target: Target, notes: Notes):
        super().__init__(func, notes)
        self.loops, self.plans = product_loops(func, target), dict[int, PipelinePlan]()
        self.capability = target.capability
        self.shares = False  # whether stages are left out so that an SM has room for two CTAs

    def block(self, block: Block) -> None:
        """Plans the loops of a block, inner ones first."""
        for op in block.ops:
            for nested in op.blocks:
                self.block(nested)
            if op in self.loops:
                self.loop(op)

    def loop(self, loop: Op) -> None:
        """Plans the copies of a loop."""
        tiles = list(self.tiles(loop))
        why = self.why_no_load_of(loop) if tiles else ""
        sources, staged = operand_source_loads(loop, self.defs, self.users), {tile.load for tile in tiles}
        self.refuse([x for x in sources if x not in staged], "an operand is computed from it")
        copies = []
        for tile in tiles:
            ordered = "" if why == self.why_ordered(loop) and self.passes_locks(tile.load, loop) else why
            if found := ordered or self.why_not(tile.load, loop, indices=not why) or self.why_no_copy(tile):
                self.refuse([tile.load], found)
            else:
                vec = copy_width(self.facts, tile.load, *tile.store.args)
                copies.append(AsyncCopy(tile.load, tile.views, tile.store, vec))
        wanted = num_stages(self.func, loop) - 1
        if copies:
            ahead = min(wanted, max(1, ranges.iterations(self.facts, loop)[1] - 1))
            products = accumulating_products(loop, [copy.buffer for copy in copies])
            leading = self.copies_slice(loop, copies)
            indices = tuple(op for op in loop.blocks[0].ops if op.name == "load" and op.result in leading)
            invariants = self.invariants(loop, copies, leading)
            self.plans[loop.id] = PipelinePlan(loop, tuple(copies), ahead, wanted, products, indices, invariants)

    def passes_locks(self, load: Op, loop: Op) -> bool:
        """Whether a load may run before the locks at which its loop waits."""
        return may_pass_locks(self.func, self.facts, load, walk(loop.blocks[0]))

    def copies_slice(self, loop: Op, copies: Sequence[AsyncCopy]) -> set[Value]:
        """The values of a loop from which the operands of its copies are computed."""
        copies_slice = set[Value]()
        for value in (x for copy in copies for x in copy.load.args[:2]):
            found = self.backward_slice(value, loop, indices=True)
            assert not isinstance(found, str), "why_not has checked the operands"
            copies_slice |= found
        return copies_slice

    def invariants(self, loop: Op, copies: Sequence[AsyncCopy], copies_slice: set[Value]) -> set[Value]:
        """The values from outside of a loop from which its bounds, and the operands of its copies, are computed."""
        used = {*loop.args[:3], *(x for copy in copies for x in copy.load.args[:2])}
        for value in copies_slice:
            if value in self.facts.argument:
                used |= {*loop.args[2 + self.facts.argument[value][2] :][:1]}
            else:
                used |= {*self.facts.definition[value].args}
        return {x for x in used if not self.facts.inside(x, loop)}

    def tiles(self, loop: Op) -> Iterator[StagedTile]:
        """The tiles that a loop's own block loads and stores to shared memory, each with its first store."""
        own, seen = set(loop.blocks[0].ops), set()
        for store in loop.blocks[0].ops:
            tile = staged_tile(self.defs, store, (*CHANGES, *VIEWS)) if store.name == "local_store" else None
            if tile is not None and tile.load in own and tile.load not in seen and tile.load.result.type.shape:
                seen.add(tile.load)
                yield tile

    def why_no_copy(self, tile: StagedTile) -> str:
        """The reason why an asynchronous copy cannot bring a tile to its buffer."""
        load = tile.load
        if changed := next((op for op in tile.views if op.name not in VIEWS), None):
            kind = changed.result.type.dtype
            threads = "its elements change threads on their way"
            return threads if changed.name == "convert" else f"it becomes {kind} on its way"
        if any(len(self.users[value]) > 1 for value in (load.result, *(op.result for op in tile.views))):
            return "it is used more than once"
        if len(load.args) > 2 and not self.is_zero(load.args[2]):
            return "its masked-off elements are not zero"
        if not copy_width(self.facts, load, *tile.store.args):
            return f"fewer than {COPY_BYTES[0]} bytes are contiguous in memory and in the buffer"
        return ""

    def is_zero(self, value: Value) -> bool:
        """Whether a value is the constant zero, repeated."""
        op = self.defs.get(value)
        while op is not None and op.name in SHAPES:
            op = self.defs.get(op.args[0])
        return op is not None and op.name == "const" and op.attrs["value"] == 0

    def pipelined(self, early: bool = False) -> tuple[Func, bool]:
        """The function with the planned copies. The first of them start `early` if possible: before operands pass through shared memory;
        and whether that moved any of them."""
        rotation = PipelineRotation(self.func, self.plans, self.facts, early)
        return tidy(rotation.run()), rotation.moved

    def least_shared_bytes(self) -> int:
        """The bytes of shared memory that the function takes if each planned circular buffer has two stages."""
        self.plans.update({id: replace(plan, ahead=1) for id, plan in self.plans.items()})
        return place(self.pipelined()[0])[1]

    def room(self, target: Target) -> int:
        """The bytes of shared memory that the function may take. Programs of few warps leave room for a second CTA on the SM, if that is
        possible with two stages per loop. The warps of the other CTA hide more latency than a third stage. Stages that the user asks for
        stay."""
        asked = "num_stages" in self.func.attrs or any("num_stages" in loop.attrs for loop in self.loops)
        if asked or not self.plans or self.func.attrs["num_warps"] > FEW_WARPS:
            return target.max_shared
        reserved, unit = shared_rule(target)
        half = target.shared_per_sm // 2 // unit * unit - reserved
        planned = dict(self.plans)
        fits = self.least_shared_bytes() <= half
        self.plans.clear()
        self.plans.update(planned)
        self.shares = fits
        return half if fits else target.max_shared

    def explain(self) -> None:
        """Notes each copy with its stages."""
        for plan in self.plans.values():
            fewer = ""
            if plan.ahead < plan.wanted:
                most = ranges.iterations(self.facts, plan.loop)[1]
                few = most <= plan.wanted
                lack = TWO_CTAS.format(plan.wanted + 1) if self.shares else "for lack of shared memory"
                why = f"the loop makes {counted(most, 'iteration')} at most" if few else lack
                fewer = f" (not {plan.wanted + 1}: {why})"
            for copy in plan.copies:
                kind = copy.buffer.type
                text = (
                    f"pipelined: copied to shared memory {counted(plan.ahead, 'iteration')} ahead, past the registers: "
                )
                text += f"{plan.ahead + 1} stages of {kind.bytes} bytes, {copy.vec * kind.dtype.bytes} bytes per copy"
                text += TRUNCATED * bool(copy.store.attrs.get("tf32"))
                text += "; its indices are loaded one iteration earlier" * bool(plan.indices)
                text += modifier_lost(copy.load, MODIFIERS)
                if self.capability >= NO_POLICY_FROM and (policy := copy.load.attrs.get("evict")):
                    text += (
                        f"; its eviction policy {policy} has no effect: ptxas makes illegal instructions of such copies"
                    )
                self.notes(copy.load, text + fewer)
            for op in plan.outlasting:
                self.notes(op, OUTLASTS)


# -- the rotation ----------------------------------------------------------------------------------------------------------


class PipelineRotation(LoopRotation[PipelinePlan]):
    """Copies for later iterations before the loop and in it."""

    def __init__(self, func: Func, plans: Mapping[int, PipelinePlan], facts: Facts, early: bool):
        super().__init__(func, plans, facts)
        self.early, self.moved = early, False

    def rotate(self, loop: Op, plan: PipelinePlan) -> Sequence[Value]:
        """Emits the copies of the first iterations, then the loop that copies for later iterations."""
        b, body, ahead, products = self.builder, loop.blocks[0], plan.ahead, plan.outlasting
        defs = self.facts.definition
        ring = CircularBuffer(b, [defs[copy.buffer] for copy in plan.copies], ahead + 1)
        staging = self.take_staging(plan) if self.early else []
        self.moved = self.moved or bool(staging)
        before = LaterIterations(self, self.facts, plan.loop, loop.args[0], loop.args[3:])
        least = ranges.iterations(self.facts, plan.loop)[0]
        for i in range(ahead):
            self.copy(plan, ring, b.const(i, t.int32), before, i, i < least)
        early = [before.at(load.result, ahead) for load in plan.indices]
        for op in staging:
            b.append(op)
        replaced = {x for copy in plan.copies for x in (copy.load, *copy.views, copy.store, defs[copy.buffer])}
        kept = [x for x in body.ops[:-1] if x not in replaced]
        if not any(x.name == "local_store" and defs[x.args[0]].attrs.get("align") for x in kept):
            kept = [x for x in kept if x.name != "fence"]

        def iteration(stages: list[Value]) -> Sequence[Value]:
            read, write, *early = stages
            read.name, write.name = "read", "write"
            b.op("wait", in_flight=ahead - 1)
            if any(from_shared(x) for x in walk(body)):
                b.op("fence")  # before the barrier that follows
            now = LaterIterations(self, self.facts, plan.loop, body.args[0], body.args[1:])
            now.known |= {(load.result, ahead): value for load, value in zip(plan.indices, early, strict=True)}
            if not products:
                self.copy(plan, ring, write, now, ahead)
            for i, copy in enumerate(plan.copies):
                self.mapping[copy.buffer] = ring.view(i, read)
            for x in kept:
                if x not in products:
                    self.one(x)
                    continue
                # The previous products are complete after this one starts, and the next copy overwrites their stage.
                self.one(x.replace(attrs={**x.attrs, "in_flight": len(products)}))
                if x is products[-1]:
                    self.copy(plan, ring, write, now, ahead)
            # After the copies, which have read the current indices: so both can have the same registers.
            return ring.following(read), read, *(now.at(load.result, ahead + 1) for load in plan.indices)

        b.append(self.carrying(loop, [b.const(0, t.int32), b.const(ahead, t.int32), *early], iteration))
        results = self.after_products(loop, products)
        b.op("wait", in_flight=0)
        return results

    def take_staging(self, plan: PipelinePlan) -> list[Op]:
        """Takes off the ops that have brought invariant operands through shared memory, for the caller to append after the first copies.

        Such an op waits for a load, as of the queries of an attention. The copies do not depend on it, so they need not wait.
        """
        emitted = self.builder._open[-1]
        taken, values = list[Op](), set[Value]()
        for op in emitted:
            if op.blocks or not (OPS[op.name].pure or op.name in ("load", *STAGING)):
                taken, values = [], set()  # an op with an order of its own
            elif op.name == "local_store" or (taken and op.name == "fence") or not values.isdisjoint(op.args):
                taken.append(op)
                values.update(op.results, op.args[:1] if op.name == "local_store" else ())
        if not values.isdisjoint(map(self.get, plan.invariants)):
            return []
        self.builder._open[-1] = [op for op in emitted if op not in taken]
        return taken

    def copy(
        self,
        plan: PipelinePlan,
        ring: CircularBuffer,
        stage: Value,
        later: LaterIterations,
        iteration: int,
        exists: bool = False,
    ) -> None:
        """Emits the copies of one iteration into a stage."""
        for i, copy in enumerate(plan.copies):
            with self.builder.at(copy.load):
                operands = later.operands(copy.load, iteration, exists)[:2]
                for view in copy.views:
                    operands = [self.builder.value(view.name, x, **view.attrs) for x in operands]
                hints = {name: copy.load.attrs[name] for name in ("cache", "evict") if name in copy.load.attrs}
                self.builder.op("copy_async", ring.view(i, stage), *operands, **hints, vec=copy.vec)
        self.builder.op("commit")
