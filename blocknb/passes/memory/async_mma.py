"""Asynchronous MMA scheduling: several wgmma are in flight, and each is waited for where its result is needed.

The warps that issue wgmma may go on. They wait before they use its result or overwrite its operands. By default each dot waits at once.
In a block of several products, this pass starts those that need no other one's result first. A dot says in `in_flight` how many products
may be in flight after it, and a `dot_wait` how many remain. Other passes handle products that only accumulate from iteration to iteration
(`pipelining.legality.accumulating_products`), and two products of which one needs the other (`mma_softmax_overlap`). Source: PTX ISA,
wgmma.wait_group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blocknb.ir.build import Rebuild
from blocknb.ir.core import Func, Op, Value, operands, within
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer, Tile
from blocknb.layouts import wgmma
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import at_line
from blocknb.target import Target
from blocknb.trace import Notes

MANY = 3  # products per block
MOST_HELD = 224  # registers per thread for all their results: with more, the products run one after another
#: Registers per thread for results and operands of the products in flight. With more, ptxas makes all products of the kernel synchronous.
MOST_IN_FLIGHT = 180
#: Ops with effects that may still move, past each other and past ops without effects, unless a value or a buffer orders them.
MOVABLE = ("load", "alloc", "local_store", "fence", "dot", "reduce", "yield")
#: Ops that may run during products, besides those without effects. They write nothing that a product reads, except for stores
#: to their own buffers.
HARMLESS = ("load", "store", "alloc", "local_store", "local_load", "fence", "barrier", "reduce", "stage", "yield")


def is_product(op: Op) -> bool:
    return op.name == "dot" and wgmma.is_name(op.attrs.get("instr", ""))


def applies(func: Func, target: Target) -> bool:
    return target.arch == "sm_90a" and any(is_product(op) for op in func.ops())


@gpu_pass(optional=True, applies=applies)
def async_mma(func: Func, target: Target, notes: Notes) -> Func:
    """Starts independent wgmma together and waits for each where its result is needed

    When: a block holds three or more products by wgmma, as the loops of attention's gradients do.

    What: the products that need no other one's result move to the start of the block. Each is waited for where its result is used.

    Why: wgmma is asynchronous. One product runs while the warps work on the result of another.

    Limits: nothing moves if effects of the block must keep their place, such as a store to a buffer that an earlier product reads. Nothing
    moves either if the results would take more than 224 registers per thread. A product waits for earlier ones if it would exceed 180
    registers for results and operands in flight.

    Before:

        %s = dot %q, %k, %zero {instr="wgmma.m64n64k16"} : tile<64x64xf32>
        %p = exp %s : tile<64x64xf32>
        %d = dot %g, %v, %zero {instr="wgmma.m64n64k16"} : tile<64x64xf32>
        %r = dot %p, %g, %sum {instr="wgmma.m64n64k16"} : tile<64x64xf32>

    After:

        %s = dot %q, %k, %zero {instr="wgmma.m64n64k16", in_flight=1} : tile<64x64xf32>
        %d = dot %g, %v, %zero {instr="wgmma.m64n64k16", in_flight=2} : tile<64x64xf32>
        %t = dot_wait %s {in_flight=1} : tile<64x64xf32>
        %p = exp %t : tile<64x64xf32>
        %e = dot_wait %d {in_flight=0} : tile<64x64xf32>
        %r = dot %p, %g, %sum {instr="wgmma.m64n64k16"} : tile<64x64xf32>
    """
    return AsyncMmaScheduler(func, notes).run()


class AsyncMmaScheduler(Rebuild):
    """Rebuilds each block and keeps track of the products in flight."""

    def __init__(self, func: Func, notes: Notes):
        super().__init__(func, lambda op, _: NotImplemented)
        self.notes = notes
        self.running: list[Op] = []

    def ops(self, ops: Sequence[Op]) -> None:
        outer, self.running = self.running, []
        products = [op for op in ops if is_product(op)]
        held = sum(op.result.type.layout.num_registers for op in products)
        late = overwriting(ops)
        fixed = [op for op in ops if op in late or not may_move(op)]
        many = len(products) >= MANY and held <= MOST_HELD
        if len(products) >= MANY and not many:
            why = f"the results of {len(products)} products take {held} registers per thread, more than {MOST_HELD}"
            self.notes(products[0], f"dot: waited for at once: {why}", "missed")
        elif many and fixed:
            self.notes(products[0], f"dot: not moved: the {fixed[0].name}{at_line(fixed[0])} keeps its place", "missed")
        moved = independent_first(ops) if many and not fixed else list(ops)
        asynchronous = {op.id for op in asynchronous_products(moved)} if many else set()
        for op in moved if moved == list(ops) else self.fenced(moved):
            self.wait_for_first(number_awaited(op, self.running, asynchronous))
            if op.id in asynchronous:
                self.start(op)
            else:
                self.one(op)
        self.running = outer

    def fenced(self, ops: Sequence[Op]) -> Iterator[Op]:
        """Moved ops with new fences: one before each product that may read data stored since the last fence."""
        read = {value for op in ops if is_product(op) for value in op.args[:2]}
        stored = False
        for op in ops:
            if is_product(op) and stored:
                with self.builder.at(op):
                    self.builder.op("fence")
                stored = False
            if op.name != "fence":
                yield op
            stored |= any(x.name == "local_store" and x.args[0] in read for x in within(op))

    def start(self, op: Op) -> None:
        while self.running and sum(map(registers_of, [*self.running, op])) > MOST_IN_FLIGHT:
            self.wait_for_first(1)
        self.running.append(op)
        made = op.replace(args=tuple(map(self.get, op.args)), attrs={**op.attrs, "in_flight": len(self.running)})
        self.builder.append(made)
        self.notes(made, "dot: runs asynchronously until its result is needed")

    def wait_for_first(self, count: int) -> None:
        """Waits for the first products in flight."""
        done, self.running = self.running[:count], self.running[count:]
        if not done:
            return
        with self.builder.at(done[-1]):
            waiting = self.builder.op("dot_wait", *(op.result for op in done), in_flight=len(self.running))
        for op, value in zip(done, waiting.results, strict=True):
            self.mapping[op.result] = value
            value.name = op.result.name


def independent_first(ops: Sequence[Op]) -> list[Op]:
    """The ops of a block, reordered so that all independent products come first."""
    makers = {value: op for op in ops for value in op.results}
    stores: dict[Value, list[Op]] = {}
    for op in ops:
        for x in within(op):
            if x.name == "local_store":
                stores.setdefault(x.args[0], []).append(op)
    made: dict[Op, None] = {}
    for product in filter(is_product, ops):
        found = leading_to(product, makers, stores)
        if any(is_product(op) for op in found if op is not product):
            continue
        made.update(dict.fromkeys(op for op in ops if op in found and op is not product))
        made[product] = None
    return [*made, *(op for op in ops if op not in made)]


def may_move(op: Op) -> bool:
    """Whether an op may move past others of its block."""
    if OPS[op.name].pure or op.name in MOVABLE:
        return True
    return op.name == "if" and all(x is op or harmless(x) for x in within(op))


def overwriting(ops: Sequence[Op]) -> set[Op]:
    """The ops of a block that store to a buffer which an earlier product of the block reads."""
    read: set[Value] = set()
    found = set()
    for op in ops:
        if any(x.name == "local_store" and x.args[0] in read for x in within(op)):
            found.add(op)
        if is_product(op):
            read.update(op.args[:2])
    return found


def leading_to(product: Op, makers: Mapping[Value, Op], stores: Mapping[Value, Sequence[Op]]) -> set[Op]:
    """A product and the ops of its block from which its operands come, through values and through stores to its buffers."""

    def needed(op: Op) -> list[Op]:
        written = op.args if op.name == "dot" else ()
        return [makers[x] for x in operands(op) if x in makers] + [s for x in written for s in stores.get(x, ())]

    return set(reachable([product], needed))


def harmless(op: Op) -> bool:
    return OPS[op.name].pure or op.name == "yield"


def asynchronous_products(ops: Sequence[Op]) -> list[Op]:
    """The products of a block for which a separate wait pays."""
    found = [op for op in ops if is_product(op)]
    used = {value for op in ops[:-1] for value in operands(op)}
    if not any(op.result in used for op in found):
        return []  # the next iteration accumulates onto all of them
    while True:
        kept = [op for op in found if keeps_busy(ops, op, {x.id for x in found})]
        if len(kept) == len(found):
            return kept
        found = kept


def keeps_busy(ops: Sequence[Op], product: Op, asynchronous: set[int]) -> bool:
    """Whether enough work lies between a product and its wait."""
    running: list[Op] = []
    for op in ops:
        if product in running:
            if number_awaited(op, running, asynchronous) > running.index(product):
                return False
            if is_product(op) or computes(op):
                return True
        running = running[number_awaited(op, running, asynchronous) :] + [op] * (op.id in asynchronous)
        if op is product and len(running) > 1:
            return True  # otherwise the products before it would need a wait first
    return False


def number_awaited(op: Op, running: Sequence[Op], asynchronous: set[int]) -> int:
    """The number of products, from the first in flight on, for which an op has to wait."""
    if not running:
        return 0
    inside = list(within(op))
    if any(requires_no_mma_in_flight(x) for x in inside if x is not op) or (
        requires_no_mma_in_flight(op) and op.id not in asynchronous
    ):
        return len(running)
    used = set(operands(op))
    stored = {x.args[0] for x in inside if x.name == "local_store"}
    needed = [i for i, x in enumerate(running) if x.result in used or stored & set(x.args[:2])]
    return max(needed, default=-1) + 1


def registers_of(product: Op) -> int:
    """The registers per thread for the result of a product, and for an A in registers."""
    a = product.args[0].type
    operand = a.layout.num_registers * a.dtype.bytes // 4 if isinstance(a, Tile) else 0
    return product.result.type.layout.num_registers + operand


def requires_no_mma_in_flight(op: Op) -> bool:
    """Whether an op requires that no product is in flight."""
    if op.name == "atomic" and op.attrs["sem"] == "relaxed" and not isinstance(op.args[0].type, Buffer):
        return False  # it accesses arrays only
    return is_product(op) or not (OPS[op.name].pure or op.name in HARMLESS or (op.name == "if" and op.blocks))


def computes(op: Op) -> bool:
    """Whether an op keeps a warp busy: arithmetic on a tile."""
    return OPS[op.name].kind in ("elementwise", "reduce") and bool(op.results[0].type.shape)
