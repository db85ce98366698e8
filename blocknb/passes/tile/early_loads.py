"""Loads of a loop's iteration are issued together, before its arithmetic (memory-level parallelism).

ptxas schedules a basic block for few registers: it loads a vector, uses it, and loads the next one into the same registers. The thread then
waits for the latency of memory once per vector. A scheduling barrier after the last load keeps all loads of the iteration in flight. The
accumulators of such a loop leave enough registers for the loaded vectors. The same holds for a branch in a loop with products, if no
asynchronous copy replaces its loads. It also holds for straight code after a product, which computes on one tile and then loads the next
one.

A `while` loop has no induction variable, and a loop that waits for other programs must not load before a wait. Their loads are grouped
after each wait, without a scheduling barrier. Fewer vectors need no barrier, either. ptxas aims at the most warps per SM, and keeps more
loads in flight if it may take more registers (`.minnctapersm`).

Source: Volkov, "Better Performance at Lower Occupancy" (GTC 2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from blocknb.analysis.liveness import Liveness, registers
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Block, Func, Op, Value, is_volatile, walk, within
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
#: The registers, of 256 per thread, for the loads of a branch in a loop with products. Few warps hide their latency.
BRANCHES = 96
DURING = 16  # registers per thread for loads during a product outside of loops: for twice as many, kernels lost 6 to 14 % by occupancy
OF_COLUMNS = 16  # bytes of a row, such as a bias, per register of a thread
SHORT = 4  # registers per thread of a load that moves before a loop and is used after it
FEW_DURING = 8  # registers per thread of two vectors that arrive while a product runs
MOST_BETWEEN = 96  # registers per thread for loads after a product
SHARED_FILE = 128  # registers per thread for live tiles: three CTAs of four warps share the register file of an SM
SCALARS = 8  # registers per thread of short rows, which the estimate of live tiles counts
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
    loaded after a product that no loop contains. Or a `while` loop, or a loop that waits for other programs, loads between 16 and 64
    registers between two waits. Or a kernel without loops reduces a tile of at least 32. Or it reduces a row to one number, and has loaded
    up to 16 before that for later. Or rows such as a bias or scales are loaded after a loop with products. Or a kernel without loops loads
    them after an op that waits for a tile.

    What: the loads move to the head of the iteration or branch, or to the product, with their addresses, masks and indices. Machine code
    issues all of them before it uses the first one. After a product, 16 registers at most are loaded before it, and arrive while it runs.
    In four cases ptxas may take more registers instead. They are two vectors of a tile in a loop, and loads of a `while` loop or between
    waits. The others are exponentials in a loop of few warps, and tiles that a kernel without loops only reduces. Rows for the end of a
    product are loaded before its loop, if the live tiles leave room for them. Scalars and rows of a kernel without loops are loaded right
    after its first tile. Loads before the barrier of a reduction stay before it.

    Why: ptxas saves registers. It waits for a vector before it loads the next one into the same registers, and memory idles meanwhile.

    Limits: a load stays where it is if the loop stores to its array, or to that of its index. It also does if each of its elements has a
    loaded index of its own. No load passes a wait, a barrier, or the condition of its loop. The loop stays as it is if the loads would take
    too many registers. It also stays if it computes exponentials or logarithms and either many warps are resident or tiles are stored.

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
        if op.name in LOOPS:
            planner.ordered(op)
    planner.reduced_tiles()
    func = rebuild(func, moving(planner.moved)) if planner.moved else func
    func = planner.straight(func.with_attrs(min_ctas=planner.min_ctas) if planner.min_ctas else func)
    return planner.before_barriers(func)


class EarlyLoads(PipeliningLegality):
    """Chooses a new order for the ops of loops' bodies and of branches: `moved`, by block. `min_ctas` is the number of CTAs per SM whose
    registers suffice for loads without a scheduling barrier; 0 if ptxas may choose."""

    def __init__(self, func: Func, notes: Notes):
        super().__init__(func, notes)
        self.threads = 32 * func.attrs["num_warps"]
        self.liveness = Liveness(func, self.threads)
        self.moved: dict[Block, tuple[Op, ...]] = {}
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
            if any(op.name == "store" and op.args[0].type.shape for op in inside):
                return  # the results take registers, too: twice as many warps were faster than more loads in flight
            resident = REGISTERS // ((self.liveness.most() + ROOM // 2) * self.threads)
            if needs >= LEAST and 1 <= resident <= FEW_THREADS // self.threads:
                self.allow(first[-1], resident)
        elif LEAST <= needs <= min(MOST, min(256, REGISTERS // self.threads) - ROOM - peak):
            self.move(loop.blocks[0], first, needs, "an iteration", True)
        elif PAIR <= needs < LEAST and any(op.name == "load" and self.has_wide_vectors(op, PAIR) for op in first):
            self.allow(first[-1], REGISTERS // (budget(self.liveness.most() + MARGIN) * self.threads))

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

    def ordered(self, loop: Op) -> None:
        """Plans the loads of a `while`, or of a loop that waits for other programs: those between two ops which order accesses. The body
        of a `while` runs after its condition, and no load leaves the body."""
        inside = [op for block in loop.blocks for op in walk(block)]
        if {op.name for op in inside} & {"dot", *COMPUTED} or (loop.name == "for" and not why_none_within(inside)):
            return
        body = loop.blocks[-1]
        left = min(MOST, min(256, REGISTERS // self.threads) - ROOM - self.liveness.peak(loop))
        ops: list[Op] = []
        for segment in segments(body.ops):
            first, needs = self.loads_among(segment)
            if LEAST <= needs <= left:
                self.allow(first[-1], REGISTERS // (budget(self.liveness.most() + needs + ROOM) * self.threads))
            else:
                first = []
            ops += [*first, *without(segment, first)]
        if any(old is not new for old, new in zip(body.ops, ops, strict=True)):
            self.moved[body] = tuple(ops)

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
        most = min(MOST_REGISTERS, REGISTERS // (resident * self.threads))
        self.notes(load, f"machine code may take {most} registers per thread, so that more loads are in flight")

    def size(self, load: Op) -> int:
        """The registers per thread that a load takes."""
        return registers(load.result, self.threads)

    def before_barriers(self, func: Func) -> Func:
        """Issues the loads before the first reduction of straight code to one number, if there are some that it does not reduce. All warps
        take part in it, and ptxas would issue those loads after the others have arrived, shortly before its barrier."""
        ops = func.body.ops
        first = next(
            (i for i, op in enumerate(ops) if op.name == "reduce" and math.prod(op.results[0].type.shape) == 1), 0
        )
        loads = [op for op in ops[:first] if op.name == "load" and op.result.type.shape]
        if len(loads) < 2 or self.threads <= 32 or any(op.name in (*LOOPS, "dot") for op in func.ops()):
            return func
        reduced = set(ops[first].args)
        for op in reversed(ops[:first]):
            reduced |= set(op.args) if reduced & set(op.results) else set()
        needs = sum(self.size(op) for op in loads if op.result not in reduced)
        if not 0 < needs <= DURING or any(op.attrs.get("scheduling_barrier") for op in func.ops()):
            return func
        last = revised(loads[-1], attrs={**loads[-1].attrs, "scheduling_barrier": "straight"})
        self.notes(
            last, f"all loads before a barrier are in flight at once, {counted(needs, 'register')} per thread for later"
        )
        return func.replace(body=Block(func.body.args, tuple(last if op is loads[-1] else op for op in ops)))

    def straight(self, func: Func) -> Func:
        """Issues the loads after a product together, in code without a loop, if the live tiles leave room for them."""
        if why_none_within(func.ops()):
            return func
        if not any(op.name in (*LOOPS, "dot") for op in func.ops()):
            return self.beside_tiles(func)
        if not any(op.name == "dot" for op in func.ops()):
            return func
        func = self.before_loops(func)
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

    def beside_tiles(self, func: Func) -> Func:
        """Issues short loads right after the first load of a tile, if another op waits for that tile before them."""
        ops = func.body.ops
        segment = list(takewhile(lambda op: not op.blocks, ops))
        start = next((i for i, op in enumerate(segment) if op.name == "load" and self.size(op) > SHORT), len(segment))
        moved: list[Op] = []
        loaded: set[Value] = set()
        waits = False
        for position, op in enumerate(segment[start:], start):
            if op.name == "load" and waits and self.size(op) <= SHORT and not op.attrs.get("volatile"):
                operand_slice = self.operand_slice(op, segment[start:])
                if operand_slice is not None and not self.why_not_read_early(op, segment[start:position]):
                    moved += [x for x in (*operand_slice, op) if x not in moved]
            waits = waits or not loaded.isdisjoint(op.args)
            loaded |= set(op.results) if op.name == "load" else set()
        if not moved:
            return func
        self.notes(moved[-1], "issued right after the first load of a tile, so that the kernel waits once for both")
        rest = (op for op in ops[start + 1 :] if op not in moved)
        return func.replace(body=Block(func.body.args, (*ops[: start + 1], *moved, *rest)))

    def before_loops(self, func: Func) -> Func:
        """Issues the loads of short rows and columns that follow a loop with products before it, such as a bias or scales."""
        ops = list(func.body.ops)
        for loop in [op for op in ops if op.name == "for" and any(x.name == "dot" for x in within(op))]:
            after = ops[ops.index(loop) + 1 :]
            segment = list(takewhile(lambda op: not op.blocks, after))
            moved, needs = self.short_loads(loop, segment)
            if moved and self.liveness.most() + needs + ROOM <= SHARED_FILE:
                start = ops.index(loop)
                ops = [*ops[:start], *moved, *(x for x in ops[start:] if x not in moved)]
                self.notes(
                    moved[-1], f"rows or columns are loaded before the loop, in {counted(needs, 'register')} per thread"
                )
        return func.replace(body=Block(func.body.args, tuple(ops))) if ops != list(func.body.ops) else func

    def short_loads(self, loop: Op, segment: Sequence[Op]) -> tuple[list[Op], int]:
        """The loads of short rows after a loop that may move before it, with the arithmetic that leads to them. The number is their
        registers per thread, which holds two of eight columns of a product."""
        moved: list[Op] = []
        needs = 0
        for position, op in enumerate(segment):
            if op.name != "load" or op.attrs.get("volatile") or self.size(op) > SHORT:
                continue
            operand_slice = self.operand_slice(op, segment)
            if operand_slice is None or any(set(x.args) & set(loop.results) for x in (*operand_slice, op)):
                continue
            loads = [op, *(x for x in operand_slice if x.name == "load")]
            if not any(self.why_not_read_early(x, inside_of([loop, *segment[:position]])) for x in loads):
                rows = op.result.type.shape[-1:] == (1,)
                needs += (
                    self.size(op) if rows else max(1, op.result.type.size * op.result.type.dtype.bytes // OF_COLUMNS)
                )
                moved += [x for x in (*operand_slice, op) if x not in moved]
        return moved, needs

    def grouped(self, block: Block) -> Block:
        """A block, and the blocks of its branches, with the loads that follow each product issued together."""
        segment: list[Op] = []
        ops: list[Op] = []
        multiplied = False
        for op in block.ops:
            if op.name != "dot" and not op.blocks and op is not block.ops[-1]:
                segment.append(op)
                continue
            ops = self.with_grouped_loads(ops, segment) if multiplied else ops + segment
            segment = []
            multiplied |= any(x.name == "dot" for x in within(op))
            inner = tuple(map(self.grouped, op.blocks)) if op.name == "if" else op.blocks
            ops.append(op.replace(blocks=inner) if inner != op.blocks else op)
        return block if tuple(ops) == block.ops else Block(block.args, tuple(ops))

    def with_grouped_loads(self, before: list[Op], segment: Sequence[Op]) -> list[Op]:
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
        return [*before[: len(before) - len(during)], *first[:-1], last, *during, *without(segment, first)]

    def loads_of(self, block: Block) -> tuple[list[Op], int]:
        """The ops that can move to the head of a block, the last one a load, and the registers per thread that their loads take."""
        return self.loads_among(block.ops[:-1])

    def loads_among(self, body: Sequence[Op]) -> tuple[list[Op], int]:
        """The same for a sequence of ops."""
        first: list[Op] = []
        for position, op in enumerate(body):
            if op.name == "load" and op.result.type.shape and self.is_movable(op, body[:position]):
                operand_slice = self.operand_slice(op, body)
                if operand_slice is not None:
                    first += [x for x in (*operand_slice, op) if x not in first]
        while first and first[-1].name != "load":
            first.pop()
        return first, sum(self.size(op) for op in first if op.name == "load" and op.result.type.shape)

    def move(self, block: Block, first: list[Op], needs: int, where: str, barrier: bool | str) -> None:
        """Plans that ops move to the head of a block, with a scheduling barrier."""
        first = self.with_barrier(first, needs, where, barrier)
        self.moved[block] = (*first, *without(block.ops, first))

    def with_barrier(self, first: list[Op], needs: int, where: str, barrier: bool | str) -> list[Op]:
        """Ops that end with a load, with a scheduling barrier after it. Nested branches need barriers on the `clock`, because LLVM knows
        the outcome of a second one on the same number."""
        last = revised(first[-1], attrs={**first[-1].attrs, "scheduling_barrier": barrier})
        self.notes(last, f"all loads of {where} are in flight at once, in {counted(needs, 'register')} per thread")
        return [*first[:-1], last]

    def operand_slice(self, load: Op, body: Sequence[Op]) -> list[Op] | None:
        """The ops of a body from which the operands of a load are computed, in order; None if one of them cannot move to its head. They are
        arithmetic, and loads of indices of several elements. Gathers of single elements are narrow loads, which are in flight anyway."""
        wanted: set[Value] = set(load.args)
        found = []
        for position in range(body.index(load) - 1, -1, -1):
            op = body[position]
            if wanted & set(op.results):
                if not self.is_movable(op, body[:position]) or (op.name == "load" and self.size(op) >= self.size(load)):
                    return None
                found.append(op)
                wanted |= set(op.args)
        return found[::-1]

    def is_movable(self, op: Op, before: Sequence[Op]) -> bool:
        """Whether an op is arithmetic, or a load that may run before these ops."""
        if op.name == "load":
            return not is_volatile(op) and not self.why_not_read_early(op, inside_of(before))
        return OPS[op.name].pure and not op.blocks


def budget(needs: int) -> int:
    """The registers per thread that a kernel may take if it needs this number: the least of `BUDGETS`, or all."""
    return next((x for x in BUDGETS if needs <= x), MOST_REGISTERS)


def inside_of(ops: Sequence[Op]) -> list[Op]:
    """The ops and all that are nested in them."""
    return [inner for op in ops for inner in (op, *(x for block in op.blocks for x in walk(block)))]


def without(ops: Iterable[Op], moved: Iterable[Op]) -> list[Op]:
    """The ops that did not move. A moved op with a new attribute has its old id."""
    ids = {op.id for op in moved}
    return [op for op in ops if op.id not in ids]


def segments(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """The ops of a block, cut after each op with an order of its own, each loop and each branch."""
    segment: list[Op] = []
    for op in ops:
        segment.append(op)
        if why_none_within([op]) or op.name in (*LOOPS, "if"):
            yield segment
            segment = []
    yield segment


def moving(moved: dict[Block, tuple[Op, ...]]) -> Callable:
    """A visitor that puts the ops of these bodies of loops and branches in their new order."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if not any(block in moved for block in op.blocks):
            return NotImplemented
        return rebuild.keep(op.replace(blocks=tuple(map(changed, op.blocks)))).results

    def changed(block: Block) -> Block:
        return Block(block.args, moved.get(block, block.ops))

    return visit
