"""Loads of a loop's iteration are issued together, before its arithmetic (memory-level parallelism).

ptxas schedules a basic block for few registers: it loads a vector, uses it, and loads the next one into the same registers. The thread
then waits for the latency of memory once per vector. A scheduling barrier after the last load keeps all loads of the iteration in flight.
The accumulators of such a loop leave enough registers for the loaded vectors. The same holds for a branch in a loop with products, whose
loads no asynchronous copy replaces, and for straight code after a product, which computes on one tile and then loads the next one.

Fewer vectors need no barrier. ptxas aims at the most warps per SM, and keeps more loads in flight if it may take more registers
(`.minnctapersm`).

Source: Volkov, "Better Performance at Lower Occupancy" (GTC 2010).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blocknb.analysis.liveness import Liveness, registers
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Block, Func, Op, Value, walk, within
from blocknb.language.ops import LOOPS, OPS
from blocknb.passes.pipelining.legality import PipeliningLegality, why_none_within
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import counted
from blocknb.passes.support.vector_obstacles import vector_limits
from blocknb.passes.tile.register_prefetch import ROOM
from blocknb.target import Target
from blocknb.trace import Notes

LEAST = 16  # registers per thread of the loads of an iteration, four vectors; fewer take no scheduling barrier
PAIR = 8  # registers per thread of two vectors, which take no scheduling barrier, but a budget of registers
MANY = 32  # registers per thread of a tile that is reduced at once, eight vectors
MOST = 64  # registers per thread for loads in flight
BUDGETS = (64, 128)  # registers per thread with which 32 and 16 warps are resident on an SM
MARGIN = 8  # registers for addresses: ptxas does not compute all elements of a tile at once, as the estimate assumes
MOST_REGISTERS = 255
VECTOR_BYTES = 16
FEW_THREADS = 512  # per SM: registers that the occupancy of a loop leaves free are used where no more are resident
REGISTERS, MOST_CTAS = 65536, 32  # per SM
#: Of 256 registers per thread, those for the loads of a branch in a loop with products: few warps hide their latency.
BRANCHES = 96
DURING = 16  # registers per thread for loads during a product outside of loops: for twice as many, kernels lost 6 to 14 % by occupancy
FEW_DURING = 8  # registers per thread of two vectors that arrive while a product runs
MOST_BETWEEN = 96  # the same after a product
SHARED_FILE = 128  # registers per thread for live tiles: three CTAs of four warps share the register file of an SM
SCALARS = 8  # registers per thread of short lines, which the estimate of live tiles counts
#: Ops whose time hides that of loads, if enough warps are resident: with fewer of them, cross entropy of fp32 lost 6 %.
COMPUTED = ("exp", "exp2", "log", "log2")


def applies(func: Func, target: Target) -> bool:
    """Whether tiles are loaded."""
    return any(op.name == "load" and op.result.type.shape for op in func.ops())


@gpu_pass(optional=True, applies=applies)
def early_loads(func: Func, target: Target, notes: Notes) -> Func:
    """Issues all loads of an iteration before its arithmetic

    When: a loop without products loads between 16 and 64 registers per thread and iteration, and no earlier pass prefetches them. Or a
    branch in a loop with products loads between 16 and 96, and the values that the loop carries leave them room. Or between 16 and 96 are
    loaded after a product that no loop contains. Or a kernel without loops reduces a tile of at least 32.

    What: the loads move to the head of the iteration or branch, or to the product, with their addresses and masks. Machine code issues all
    of them before it uses the first one. After a product, 16 registers at most are loaded before it, and arrive while it runs. For two
    vectors of a tile in a loop, for exponentials in a loop of few warps, and for tiles that a kernel without loops only reduces, ptxas may
    take more registers.

    Why: ptxas saves registers. It waits for a vector before it loads the next one into the same registers, and memory idles meanwhile.

    Limits: a load stays where it is if its address was loaded in the iteration, or if the loop stores to its array. The loop stays as it
    is if it waits for other programs, if it computes exponentials or logarithms and many warps are resident, or if the loads would take
    too many registers.

    Before:

        %sum = for %k = 0 to %n step 64 iter(%s = %zero, %t = %zero) {
          %v = load %p, %mask : tile<64xf32>
          %next = add %s, %v : tile<64xf32>
          %w = load %q, %mask : tile<64xf32>
          %other = add %t, %w : tile<64xf32>
          yield %next, %other
        }

    After:

        %sum = for %k = 0 to %n step 64 iter(%s = %zero, %t = %zero) {
          %v = load %p, %mask : tile<64xf32>
          %w = load %q, %mask {scheduling_barrier=True} : tile<64xf32>
          %next = add %s, %v : tile<64xf32>
          %other = add %t, %w : tile<64xf32>
          yield %next, %other
        }
    """
    planner = EarlyLoads(func, notes)
    for op in func.ops():
        if op.name == "for":
            planner.loop(op)
            planner.branches(op)
    planner.reduced_tiles()
    func = rebuild(func, moving(planner.moved)) if planner.moved else func
    return planner.straight(func.with_attrs(min_ctas=planner.min_ctas) if planner.min_ctas else func)


class EarlyLoads(PipeliningLegality):
    """Chooses the ops that move to the head of each loop's body, or of a branch: `moved`, in order, the last one a load. `min_ctas` is the
    number of CTAs per SM whose registers suffice for loads without a scheduling barrier; 0 if ptxas may choose."""

    def __init__(self, func: Func, notes: Notes):
        super().__init__(func, notes)
        self.threads = 32 * func.attrs["num_warps"]
        self.liveness = Liveness(func, self.threads)
        self.moved: dict[Block, list[Op]] = {}
        self.min_ctas = 0

    def loop(self, loop: Op) -> None:
        """Plans the loads of a loop, if they are worth it."""
        inside = list(walk(loop.blocks[0]))
        names = {op.name for op in inside}
        if (
            names & {"dot", *LOOPS}
            or why_none_within(inside)
            or any(op.attrs.get("scheduling_barrier") for op in inside)
        ):
            return
        first, needs = self.loads_of(loop.blocks[0])
        peak = self.liveness.peak(loop)
        if names & {*COMPUTED}:
            resident = REGISTERS // ((self.liveness.most() + ROOM // 2) * self.threads)
            if needs >= LEAST and 1 <= resident <= FEW_THREADS // self.threads:
                self.allow(first[-1], resident)
        elif LEAST <= needs <= min(MOST, min(256, REGISTERS // self.threads) - ROOM - peak):
            self.move(loop.blocks[0], first, needs, "an iteration", True)
        elif PAIR <= needs < LEAST and any(op.name == "load" and self.has_wide_vectors(op, PAIR) for op in first):
            budget = next((x for x in BUDGETS if self.liveness.most() + MARGIN <= x), MOST_REGISTERS)
            self.allow(first[-1], REGISTERS // (budget * self.threads))

    def branches(self, loop: Op) -> None:
        """Plans the loads of each branch of a loop with products, if they are worth it."""
        inside = list(walk(loop.blocks[0]))
        if not any(op.name == "dot" for op in inside) or why_none_within(inside):
            return
        all_registers = min(256, REGISTERS // self.threads)
        left = min(BRANCHES * all_registers // 256, all_registers - ROOM - self.held_throughout(loop))
        for block in (block for op in inside if op.name == "if" for block in op.blocks):
            first, needs = self.loads_of(block)
            has_barrier = any(op.attrs.get("scheduling_barrier") for op in block.ops)
            if LEAST <= needs <= left and not has_barrier and block not in self.moved:
                self.move(block, first, needs, "a branch", "clock")

    def held_throughout(self, loop: Op) -> int:
        """The registers per thread of the tiles that a loop carries, and of those that are live throughout it."""
        carried = [x for x in loop.blocks[0].args[1:] if x.type.shape]
        return self.liveness.weight((*carried, *self.liveness.across(loop)))

    def reduced_tiles(self) -> None:
        """Plans the loads of a kernel without loops that only reduces its tiles. A tile that is also stored has its registers anyway. A CTA
        of one warp has 64 registers per thread anyway, because an SM has room for 32 CTAs."""
        if self.threads <= 32 or any(op.name in (*LOOPS, "dot") for op in self.func.ops()):
            return
        tiles = [op for op in self.func.body.ops if op.name == "load" and self.size(op) >= PAIR]
        if any(self.has_wide_vectors(op, MANY) for op in tiles) and all(
            self.is_only_reduced(op.result) for op in tiles
        ):
            self.allow(tiles[-1], REGISTERS // ((sum(map(self.size, tiles)) + ROOM) * self.threads))

    def has_wide_vectors(self, load: Op, least: int) -> bool:
        """Whether a tile takes this number of registers per thread, in vectors of 16 bytes. Many narrow loads are in flight anyway."""
        width = vector_limits(self.facts, load, self.threads, masked=True).fact_width if self.size(load) >= least else 0
        return bool(width * load.result.type.dtype.bytes >= VECTOR_BYTES)

    def is_only_reduced(self, value: Value) -> bool:
        """Whether a tile only leads to reductions of no other tile, by elementwise operations."""
        return bool(self.users[value]) and all(
            len(op.args) == 1
            if op.name == "reduce"
            else OPS[op.name].kind == "elementwise" and self.is_only_reduced(op.result)
            for op, _ in self.users[value]
        )

    def allow(self, load: Op, resident: int) -> None:
        """Plans that machine code may take the registers which this number of resident CTAs leaves; a smaller number counts more."""
        resident = max(1, min(MOST_CTAS, resident))
        self.min_ctas = min(self.min_ctas or resident, resident)
        budget = min(MOST_REGISTERS, REGISTERS // (resident * self.threads))
        self.notes(load, f"machine code may take {budget} registers per thread, so that more loads are in flight")

    def size(self, load: Op) -> int:
        """The registers per thread that a load takes."""
        return registers(load.result, self.threads)

    def straight(self, func: Func) -> Func:
        """Issues the loads after a product together, in code without a loop, if the live tiles leave room for them."""
        if not any(op.name == "dot" for op in func.ops()) or why_none_within(func.ops()):
            return func
        noted = len(self.notes.list)
        body = self.grouped(func.body)
        if body is func.body:
            return func
        after = func.replace(body=body)
        before = self.liveness.most()
        if Liveness(after, self.threads).most() > max(before + SCALARS, SHARED_FILE):
            del self.notes.list[noted:]
            return func
        return after

    def grouped(self, block: Block) -> Block:
        """A block, and the blocks of its branches, with the loads that follow each product issued together."""
        segment: list[Op] = []
        ops: list[Op] = []
        multiplied = False
        for op in block.ops:
            if op.name != "dot" and not op.blocks and op is not block.ops[-1]:
                segment.append(op)
                continue
            ops = self.with_loads_together(ops, segment) if multiplied else ops + segment
            segment = []
            multiplied |= any(x.name == "dot" for x in within(op))
            inner = tuple(map(self.grouped, op.blocks)) if op.name == "if" else op.blocks
            ops.append(op.replace(blocks=inner) if inner != op.blocks else op)
        return block if tuple(ops) == block.ops else Block(block.args, tuple(ops))

    def with_loads_together(self, before: list[Op], segment: Sequence[Op]) -> list[Op]:
        """The ops of a block up to the end of a segment. Its loads move to its head, if they are worth it. Few loads move before the
        product that precedes the segment, and are in flight during it."""
        left = min(256, REGISTERS // self.threads) - ROOM - self.liveness.most()
        during = before[-1:] if before[-1].name == "dot" else []
        first, needs = self.loads_among([*during, *segment])
        if any(op in first for op in during) or needs > DURING:
            during = []
            first, needs = self.loads_among(segment)
        if not (FEW_DURING if during else LEAST) <= needs <= min(MOST_BETWEEN, left):
            return [*before, *segment]
        last = revised(first[-1], attrs={**first[-1].attrs, "scheduling_barrier": "straight"})
        where = "during a product" if during else "after a product"
        self.notes(last, f"all loads {where} are in flight at once, in {counted(needs, 'register')} per thread")
        rest = (op for op in segment if op not in first)
        return [*before[: len(before) - len(during)], *first[:-1], last, *during, *rest]

    def loads_of(self, block: Block) -> tuple[list[Op], int]:
        """The ops that can move to the head of a block, the last one a load, and the registers per thread that their loads take."""
        return self.loads_among(block.ops[:-1])

    def loads_among(self, body: Sequence[Op]) -> tuple[list[Op], int]:
        """The same for a sequence of ops."""
        first: list[Op] = []
        for position, op in enumerate(body):
            if op.name == "load" and op.result.type.shape and not op.attrs.get("volatile"):
                behind = self.behind(op, body)
                if behind is not None and not self.why_not_read_early(op, inside_of(body[:position])):
                    first += [x for x in (*behind, op) if x not in first]
        while first and first[-1].name != "load":
            first.pop()
        return first, sum(self.size(op) for op in first if op.name == "load")

    def move(self, block: Block, first: list[Op], needs: int, where: str, barrier: bool | str) -> None:
        """Plans that ops move to the head of a block, with a scheduling barrier. Nested branches need barriers on the `clock`, because
        LLVM knows the outcome of a second one on the same number."""
        last = revised(first[-1], attrs={**first[-1].attrs, "scheduling_barrier": barrier})
        self.moved[block] = [*first[:-1], last]
        self.notes(last, f"all loads of {where} are in flight at once, in {counted(needs, 'register')} per thread")

    def behind(self, load: Op, body: Sequence[Op]) -> list[Op] | None:
        """The ops of a body from which the operands of a load are computed, in order; None if they are not arithmetic alone."""
        wanted: set[Value] = set(load.args)
        found = []
        for op in reversed(body[: body.index(load)]):
            if wanted & set(op.results):
                if not OPS[op.name].pure or op.blocks or op.name == "load":
                    return None
                found.append(op)
                wanted |= set(op.args)
        return found[::-1]


def inside_of(ops: Sequence[Op]) -> list[Op]:
    """The ops and all that are nested in them."""
    return [inner for op in ops for inner in (op, *(x for block in op.blocks for x in walk(block)))]


def moving(moved: dict[Block, list[Op]]) -> Callable:
    """A visitor that puts ops at the heads of these bodies of loops and branches."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if not any(block in moved for block in op.blocks):
            return NotImplemented
        return rebuild.keep(op.replace(blocks=tuple(map(changed, op.blocks)))).results

    def changed(block: Block) -> Block:
        first = moved.get(block, [])
        ids = {op.id for op in first}
        return Block(block.args, (*first, *(x for x in block.ops if x.id not in ids)))

    return visit
