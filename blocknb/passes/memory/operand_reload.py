"""Operands that do not change in a loop are read from shared memory again, where a thread lacks registers to keep them.

The queries of an attention kernel are fragments of each product of the loop. They stand in shared memory, from which each thread has read
its fragments before the loop. If accumulators, scores and queries together exceed 255 registers, ptxas spills some of them. Each spill is a
store and a load of local memory per register. Reading the fragments again takes one `ldmatrix` for four registers. This is
rematerialization for register pressure (Briggs et al., "Rematerialization", PLDI 1992). FlashAttention-2 reads its queries again, too.
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis.liveness import Liveness, registers
from blocknb.analysis.residency import MOST_REGISTERS
from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Func, Op, Value, blocks, definitions, uses
from blocknb.passes.memory.shared_memory_allocation import place
from blocknb.passes.registry import gpu_pass
from blocknb.passes.tile.register_prefetch import ROOM
from blocknb.target import Target
from blocknb.trace import Notes

LEAST = 16  # registers of an operand: fewer are not worth the loads


def product_loops(func: Func) -> list[Op]:
    """The loops whose own ops are products by mma.sync."""
    return [op for op in func.ops() if op.name == "for" and any(is_mma(x) for x in op.blocks[0].ops)]


def is_mma(op: Op) -> bool:
    """Whether an op is a product whose operands are in registers."""
    return op.name == "dot" and str(op.attrs.get("instr", "")).startswith("m")


def applies(func: Func, target: Target) -> bool:
    return bool(product_loops(func))


@gpu_pass(optional=True, applies=applies)
def operand_reload(func: Func, target: Target, notes: Notes) -> Func:
    """Reads invariant operands from shared memory in each iteration

    When: a loop multiplies by an operand that was read from shared memory before it, and its values take more registers than a thread has.

    What: the read moves into the loop, to the product.

    Why: ptxas would spill. A spilled register costs a store and a load, and an `ldmatrix` brings four registers.

    Limits: the buffer keeps its shared memory until the loop ends. The pass does nothing where shared memory has no room for that. The
    estimate of registers leaves out addresses and masks.

    Before:

        %q = local_load %b0 : tile<128x64xf16, #a>
        for %k = 0 to %n step 32 iter(%acc = %zero) {
          %s = dot %q, %keys, %z {instr="m16n8k16"} : tile<128x32xf32, #b>
        }

    After:

        for %k = 0 to %n step 32 iter(%acc = %zero) {
          %q = local_load %b0 : tile<128x64xf16, #a>
          %s = dot %q, %keys, %z {instr="m16n8k16"} : tile<128x32xf32, #b>
        }
    """
    plan = ReloadPlan(func)
    if not plan.moved:
        return func
    made = rebuilt(func, plan.moved)
    if place(made)[1] > target.max_shared:
        notes(None, "operands stay in registers: shared memory has no room for them throughout the loop", "missed")
        return func
    for load, text in plan.texts:
        notes(load, text)
    return made


class ReloadPlan:
    """The loads that move, by their result (`moved`), and a note for each."""

    def __init__(self, func: Func):
        self.defs, self.users = definitions(func), uses(func)
        self.threads = 32 * func.attrs["num_warps"]
        self.block_of = {op: block for block in blocks(func.body) for op in block.ops}
        self.moved: dict[Value, Op] = {}
        self.texts: list[tuple[Op, str]] = []
        liveness = Liveness(func, self.threads)
        room = min(MOST_REGISTERS, 65536 // self.threads) - ROOM
        self.bodies = [loop.blocks[0] for loop in product_loops(func)]
        for loop in product_loops(func):
            peak = liveness.peak(loop)
            excess = peak - room
            for load in self.candidates(loop):
                if excess <= 0:
                    break
                held = registers(load.result, self.threads)
                self.moved[load.result] = load
                why = f"the loop's values take {peak} registers per thread, {room} are free for them, and this operand takes {held}"
                self.texts.append((load, f"read from shared memory in each iteration: {why}"))
                excess -= held

    def candidates(self, loop: Op) -> list[Op]:
        """The reads before a loop that only its products use, the largest ones first."""
        found = []
        for product in filter(is_mma, loop.blocks[0].ops):
            for value in product.args[:2]:
                load = self.defs.get(value)
                if load is not None and load not in found and value not in self.moved and self.can_move(load):
                    found.append(load)
        return sorted(found, key=lambda load: -registers(load.result, self.threads))

    def can_move(self, load: Op) -> bool:
        """Whether a read may move to the products of loops: nothing else writes its buffer, and nothing else needs its tile."""
        if load.name != "local_load" or registers(load.result, self.threads) < LEAST:
            return False
        users = [user for user, _ in self.users[load.result]]
        if self.block_of[load] in self.bodies or any(
            not is_mma(x) or self.block_of[x] not in self.bodies for x in users
        ):
            return False
        buffer = self.defs.get(load.args[0])
        if buffer is None or buffer.name != "alloc":
            return False
        names = [user.name for user, _ in self.users[buffer.result]]
        return set(names) <= {"local_store", "local_load"} and names.count("local_store") == 1


def rebuilt(func: Func, moved: dict[Value, Op]) -> Func:
    """The function in which the reads stand before each product that uses them."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.results and op.results[0] in moved:
            return op.results  # emitted at the products
        if not is_mma(op) or not any(x in moved for x in op.args[:2]):
            return NotImplemented
        args = [emit_copy(moved[x], rebuild.builder, {}).result if x in moved else x for x in op.args]
        return rebuild.keep(op.replace(args=tuple(args))).results

    return Rebuild(func, visit).run()
