"""TMA stores: a tile goes to a swizzled buffer, and TMA (the tensor memory accelerator) stores it while the program continues.

While the consumers store, no product runs. So TMA executes a store to a box of an array if the tile passes through shared memory anyway.
The warps write a buffer, one thread starts the store, and TMA clips elements out of bounds. Two buffers alternate. TMA must have read a
buffer before the warps write it again: the thread that started the store waits, and a barrier follows. This pass places the waits, and
`barriers` the barriers. TMA also adds fp32 numbers to memory if the kernel requests no memory order.

If each warp has 16 rows of a product, it stores them by itself. For larger tiles, all consumers store together. They do not if two groups
of consumers take turns, because then TMA copies for the other group meanwhile. Source: PTX ISA, cp.async.bulk.tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blocknb.analysis import affine, axis_info, tma_boxes
from blocknb.analysis.effects import global_operands, orders
from blocknb.analysis.linear_forms import Form
from blocknb.analysis.tma_boxes import TmaBox
from blocknb.ir.build import Rebuild
from blocknb.ir.core import Block, Func, Op, Value, blocks, definitions, uses, walk
from blocknb.ir.traversal import reachable
from blocknb.language import types as t
from blocknb.language.bulk import MOST_EXTENT, SWIZZLES, TensorMap
from blocknb.language.ops import ATOMICS, LOOPS, READS, WRITES
from blocknb.language.types import Buffer
from blocknb.layouts import gf2
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import swizzled
from blocknb.layouts.wgmma import ALIGNMENT
from blocknb.passes.memory.persistent_grid import depends
from blocknb.passes.memory.shared_memory_allocation import place
from blocknb.passes.pipelining.backward_slice import sources
from blocknb.passes.pipelining.warp_plan import HALF
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import at_line
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

BUFFERS = 2  # of each shape, if shared memory has room
WIDEST = 128  # bytes of a row under a swizzle
OWN_ROWS = 16  # of a product, an instruction and warp
LEAST_ROWS = 8  # of a warp's box: the pattern of a swizzle repeats after that


def applies(func: Func, target: Target) -> bool:
    """Where warps have roles (only the pass `warp_specialization` makes them, and only for targets with a copy engine)."""
    return any(op.name == "roles" for op in func.body.ops)


@gpu_pass(optional=True, applies=applies)
def tma_store(func: Func, target: Target, notes: Notes) -> Func:
    """Stores boxes of arrays by TMA while the warps continue

    When: warps have roles, and a store is a box of an array. It is stored by a tensor descriptor, or by pointers with a mask that is the
    array's bounds.

    What: the warps write the tile to a swizzled buffer, one of two if they fit, and TMA stores it from there. TMA also executes additions
    of fp32 that need no order.

    Why: the consumers start the next program while TMA stores, and no conversion for wide accesses is needed.

    Limits: stores by TMA have no order among each other. The warps execute a store themselves if the program may access its data again.
    They also do so if its rows are not a multiple of 16 bytes, or if shared memory has no room. Notes give the reason.

    Before:

        local_store %buffer, %tile
        %y = local_load %buffer : tile<64x64xf16, #b>
        store %p, %y, %mask

    After:

        %map = tensor_map %c, %rows, %columns, %stride : map<16x64xf16, 128>
        store_wait {in_flight=0}
        local_store %swizzled, %tile
        fence
        store_bulk %map, %swizzled, %row, %column {axes=(0, 1), layout=#e}
    """
    found = TmaStoreFinder(func, notes)
    before, made = place(func)[1], func
    most, count = HALF if before <= HALF else target.max_shared, BUFFERS
    while found.stores:
        made = tidy(TmaStoreLowering(func, found, count).run())
        if place(made)[1] <= most:
            break
        if count > 1 and most > HALF:  # a CTA that is alone on its SM gains even if each store waits for the one before
            count -= 1
            continue
        adds = {id: store for id, store in found.stores.items() if store.op.name == "atomic"}
        for id, store in found.stores.items():
            if id not in adds or len(adds) == len(found.stores):
                found.refuse(store.op, "shared memory has no room for its buffers")
        found.stores, count = adds if len(adds) < len(found.stores) else {}, BUFFERS
    if not found.stores:
        return func
    firsts = {store.op.attrs.get("split_of", store.op.id): store for store in reversed(found.stores.values())}
    for store in firsts.values():
        notes(store.op, store.text(count))
    return made


@dataclass(eq=False)
class TmaStore:
    """A store that TMA can do: its box and its value. It replaces the ops that now move the value through shared memory (`replaced`)."""

    op: Op
    box: TmaBox
    kind: TensorMap
    type: Buffer
    value: Value
    start: tuple[Form, ...]
    replaced: tuple[Op, ...]
    each_warp: bool = False

    @property
    def buffer_key(self) -> tuple:
        """The properties that stores must share to use the same buffers; the thread that starts a store also waits for it."""
        return self.type, self.value.type.layout if self.each_warp else None

    def extent(self, axis: int) -> int:
        """The number of elements that the store covers along an axis of the array."""
        return self.type.shape[self.box.axes.index(axis)] if axis in self.box.axes else 1

    def text(self, count: int) -> str:
        """The note for a store of a shape that has `count` buffers."""
        size = f"{self.type.bytes} bytes, {self.kind.swizzle}-byte swizzle"
        who = ", each warp its own rows" if self.each_warp else ""
        what, where = (
            ("sum", "a buffer")
            if self.op.name == "atomic"
            else ("store", f"one of {count} buffers" if count > 1 else "a buffer")
        )
        return f"{what}: by TMA from {where} of {size}{who}"


class TmaStoreFinder:
    """Finds the stores of a function that TMA can do, by op id."""

    def __init__(self, func: Func, notes: Notes):
        self.facts, self.defs, self.users, self.notes = affine.analyze(func), definitions(func), uses(func), notes
        self.num_warps = func.attrs["num_warps"]
        self.noted: set[int] = set()
        self.stores: dict[int, TmaStore] = {}
        (roles,) = (op for op in func.body.ops if op.name == "roles")
        self.consumer_groups = roles.attrs.get("consumer_groups", 1)
        for block in blocks(roles.blocks[0]):
            here = set(block.ops)
            for op in block.ops:
                if (op.name == "store" or self.is_unordered_add(op)) and (store := self.store(op, here)) is not None:
                    self.stores[op.id] = store
        self.order = {op: i for i, op in enumerate(walk(roles.blocks[0]))}
        self.persistent = bool(func.attrs.get("persistent"))
        while refused := [(store, why) for store in self.stores.values() if (why := self.why_order_matters(store))]:
            for store, why in refused:
                self.refuse(store.op, why)
                del self.stores[store.op.id]

    def is_unordered_add(self, op: Op) -> bool:
        """Whether an op is an unordered addition of fp32 numbers whose result is unused."""
        if op.name != "atomic" or op.attrs["kind"] != "add" or not op.results or self.users.get(op.result):
            return False
        plain = op.attrs["sem"] == "relaxed" and op.attrs["scope"] == "gpu"
        return plain and op.args[0].type.dtype.element == t.float32

    def store(self, op: Op, here: set[Op]) -> TmaStore | None:
        """The TMA store for an op, or None. A note explains a refusal that is due to the addresses."""
        found = self.conversion(op, here)
        if found is None:
            return None
        value, *replaced = found
        shape, dtype = op.args[0].type.shape, op.args[0].type.dtype.element
        if op.attrs.get("cache") or op.attrs.get("evict"):
            return self.refuse(op, "it has a cache modifier")
        whole, distance = self.whole_store(op)
        box = tma_boxes.box_of(self.facts, whole, op)
        if isinstance(box, str):
            return self.refuse(op, box)
        if len(shape) != 2 or box.rank - 1 not in box.axes:
            return self.refuse(op, "its tile is not two-dimensional")
        inner, bytes = box.axes.index(box.rank - 1), dtype.bytes
        length = box.dims[-1] if isinstance(box.dims[-1], Form) else Form.of(box.dims[-1])
        if axis_info.form_divisor(self.facts, length, None, 1) * bytes % tma_boxes.ALIGNMENT:
            # TMA on an H200 clips a row at the next multiple of 16 bytes and would store zeros after it.
            return self.refuse(
                op, f"its array's rows are not known to be a multiple of {tma_boxes.ALIGNMENT} bytes long"
            )
        width = min(WIDEST, shape[inner] * bytes)
        if width not in SWIZZLES:
            return self.refuse(op, f"its rows have {width} bytes")
        extents, start = [1] * box.rank, list(box.start)
        rows = min(MOST_EXTENT, self.rows(value.type.layout, inner, width // bytes, op.name == "atomic"))
        if self.consumer_groups > 1 and not rows:
            # On an H200 this saves 5 % of the time (4096 x 4096, K 512), more than two barriers of the consumer warps.
            return self.refuse(
                op, "TMA copies for the other group of warps meanwhile, and each warp stores its own rows"
            )
        for axis, to in enumerate(box.axes):
            extents[to] = width // bytes if axis == inner else rows or min(MOST_EXTENT, shape[axis])
            start[to] = start[to] + Form.of(distance[axis])
        layout = swizzled(shape, dtype.bits, (inner, 1 - inner), WIDEST)
        kind, type = TensorMap(dtype, tuple(extents), width), Buffer(dtype, shape, layout)
        return TmaStore(op, box, kind, type, value, tuple(start), tuple(replaced), bool(rows))

    # -- other accesses to the array

    def why_order_matters(self, store: TmaStore) -> str:
        """The reason why a program may access the stored data again, or signal another program that does; "" if there is none. TMA
        stores are not ordered among each other, and no thread waits until they are visible. Iterations of a loop that distributes work
        among programs count as different programs, which are not ordered either."""
        # Sums do not depend on the order, so other iterations may add to the same elements.
        added = store.op.name == "atomic"
        for loop in () if added else self.loops(store.op):
            if not self.advances_past(store, store, loop) and not self.distributes_work(store, loop):
                return f"several iterations of the {loop.name}{at_line(loop)} may store to the same elements"
        for op in self.order:
            if op is store.op or op.name not in READS | WRITES:
                continue
            if self.publishes(op, store.op):
                return f"the {op.name}{at_line(op)} ({op.attrs['sem']}) signals other programs that the store is done"
            if self.facts.root(global_operands(op)[0]) not in (None, store.box.root):
                continue
            if added or not self.cannot_conflict(store, op):
                return f"the {op.name}{at_line(op)} may access the same elements"
        return ""

    def cannot_conflict(self, store: TmaStore, op: Op) -> bool:
        """Whether an access to the same array precedes the store, goes to another place, or is in the other arm of an `if`."""
        if (op.name == "load" and self.precedes(op, store.op)) or (op.name == "store" and self.is_disjoint(store, op)):
            return True
        return self.are_exclusive(store.op, op)

    def publishes(self, op: Op, other: Op) -> bool:
        """Whether an op publishes (releases) earlier accesses of the program, which may include the other op."""
        return op.name in ATOMICS and orders(op)[1] and not self.precedes(op, other)

    def are_exclusive(self, op: Op, other: Op) -> bool:
        """Whether a program runs at most one of two ops: they are in different arms of an `if`, and in no loop."""
        if self.loops(op) or self.loops(other):
            return False
        arms = dict(self.arms(op))
        return any(x in arms and arms[x] is not arm for x, arm in self.arms(other))

    def arms(self, op: Op) -> Iterator[tuple[Op, Block]]:
        """Each `if` around an op, with the arm that holds it."""
        inner = op
        for parent in self.facts.around(op):
            if parent.name == "if":
                yield parent, next(block for block in parent.blocks if inner in block.ops)
            inner = parent

    def precedes(self, op: Op, other: Op) -> bool:
        """Whether a program runs one op before the other, and never afterwards."""
        return self.order[op] < self.order[other] and not {*self.loops(op)} & {*self.loops(other)}

    def advances_past(self, store: TmaStore, other: TmaStore, loop: Op) -> bool:
        """Whether a store touches other elements than another store (or itself) in every other iteration of a loop. Along some axis
        both advance by the same step, which exceeds their extents."""
        for axis, (form, other_form) in enumerate(zip(store.start, other.start, strict=True)):
            step, distance = self.step(form, loop), (form - other_form).constant
            if step is None or distance is None:
                continue
            if abs(step) >= abs(distance) + max(store.extent(axis), other.extent(axis)):
                return True
        return False

    def step(self, form: Form, loop: Op) -> int | None:
        """The step of a coordinate per iteration of a loop; None if it varies."""
        inside: set[Any] = {x for block in loop.blocks for op in walk(block) for x in (op, *op.results)}
        inside.update(x for block in loop.blocks for op in walk(block) for inner in op.blocks for x in inner.args)
        inside.update(loop.blocks[0].args[1:])
        index = loop.blocks[0].args[0] if loop.name == "for" else None
        own = {m: c for m, c in form.terms.items() if any(s.value in (loop, index) for s in m)}
        if len(own) != 1 or any(s.value in inside for s in form.symbols()):
            return None
        ((monomial, coefficient),) = own.items()
        if len(monomial) > 1:
            return None
        if monomial[0].value is loop:
            return coefficient
        step = self.facts.integer(loop.args[2]).constant
        return None if step is None else coefficient * step

    def distributes_work(self, store: TmaStore, loop: Op) -> bool:
        """Whether a loop distributes work among programs. It then starts at the program's number and advances by the number of programs,
        and the store depends on its index. Two iterations are then like two programs, unless the address depends on the number of programs.
        (A kernel is assumed to be correct on any grid.)"""
        if loop.name != "for" or not depends(self.facts, loop.args[0], on=("program_id",)):
            return False
        if depends(self.facts, loop.args[0], on=READS):
            return False
        step = self.facts.integer(loop.args[2])
        if any(depends(self.facts, x) for x in loop.args[1:3]) or step.constant == 1:
            return False
        ends, found = (loop, loop.blocks[0].args[0]), False

        def made_of(value: Any) -> Sequence[Value]:
            if value in ends:
                return ()
            return sources(self.facts, value) if isinstance(value, Value) else value.args[:3]

        for value in reachable([s.value for form in store.start for s in form.symbols()], made_of):
            if value in ends:
                found = True
            elif isinstance(value, Value) and self.facts.form(value) == step:
                return False
        return found

    def loops(self, op: Op) -> list[Op]:
        """The loops around an op within one program."""
        found = [parent for parent in self.facts.around(op) if parent.name in LOOPS]
        return found[:-1] if self.persistent else found  # the outermost loop runs over programs

    def is_disjoint(self, store: TmaStore, op: Op) -> bool:
        """Whether another store touches other elements, in all iterations."""
        other = self.stores.get(op.id)
        if other is None or (other.box.root, other.box.strides) != (store.box.root, store.box.strides):
            return False
        common = [loop for loop in self.loops(store.op) if loop in self.loops(op)]
        if not all(self.advances_past(store, other, loop) or self.distributes_work(store, loop) for loop in common):
            return False
        for axis in store.box.axes:
            distance = (store.start[axis] - other.start[axis]).constant
            if distance is not None and abs(distance) >= (other if distance > 0 else store).extent(axis):
                return True
        return False

    def rows(self, layout: Layout, inner: int, width: int, added: bool) -> int:
        """The rows of the boxes that each warp stores by itself in this layout; 0 if the consumer warps store together. On an H200 that
        is faster if a warp has rows of more than one instruction (two groups of 128 rows). Sums are added in a loop, where barriers of
        all warps cost more: there, each warp adds its own boxes."""
        whole = layout.shape[1 - inner] == OWN_ROWS * self.num_warps
        if layout.is_replicated or not (whole or added):
            return 0
        own, bits = gf2.Span((*layout.reg, *layout.lane)), layout.dim_bits(inner)
        if width > 1 << len(bits) or not all(
            1 << bit in own for bit in [*bits][: None if whole else width.bit_length() - 1]
        ):
            return 0
        low = layout.dim_bits(1 - inner)
        count = next((i for i, bit in enumerate(low) if 1 << bit not in own), len(low))
        return 1 << count if 1 << count >= LEAST_ROWS else 0

    def conversion(self, op: Op, here: set[Op]) -> tuple[Any, ...] | None:
        """The value of a store, and the ops that convert it to the store's layout, through a buffer or by shuffles."""
        if op.name == "atomic":
            return (op.args[1],)
        last = self.defs.get(op.args[1])
        if last is None or last not in here or len(self.users[op.args[1]]) > 1:
            return None
        if last.name == "convert":
            return last.args[0], last
        if last.name != "local_load":
            return None
        (buffer,) = last.args
        alloc, users = self.defs[buffer], [user for user, _ in self.users[buffer]]
        written = next((user for user in users if user.name == "local_store"), None)
        if alloc.name not in ("alloc", "stage") or written is None or len(users) != 2 or written not in here:
            return None
        return written.args[1], alloc, written, last

    def whole_store(self, op: Op) -> tuple[Op, list[int]]:
        """The whole store of which an op stores a part, and the offset of the part along each axis."""
        pointer, value, *mask = op.args
        distance = [0] * len(pointer.type.shape)
        part = self.defs.get(pointer)
        if part is None or part.name != "part":
            return op, distance
        at = {name: part.attrs[name] for name in ("axis", "index", "count")}
        wholes = []
        for x in mask:
            made = self.defs.get(x)
            if x.type.shape and (made is None or made.name != "part" or dict(made.attrs) != at):
                return op, distance
            wholes.append(made.args[0] if made is not None and x.type.shape else x)
        distance[at["axis"]] = at["index"] * pointer.type.shape[at["axis"]]
        return op.replace(args=(part.args[0], value, *wholes)), distance

    def refuse(self, op: Op, why: str) -> TmaStore | None:
        """Notes the reason once for all parts of a store."""
        whole = op.attrs.get("split_of", op.id)
        if whole not in self.noted:
            self.notes(op, f"store: not by TMA: {why}", "missed")
        self.noted.add(whole)
        return None


class TmaStoreLowering(Rebuild):
    """Rebuilds the function with TMA stores."""

    def __init__(self, func: Func, found: TmaStoreFinder, count: int):
        super().__init__(func, lambda op, _: self.visit_op(op))
        self.count = count  # buffers per shape
        self.found, self.stores = found, found.stores
        self.replaced = {op.id for store in found.stores.values() for op in store.replaced}
        self.maps: dict[tuple, Value] = {}
        self.buffers: dict[tuple, list[Value]] = {}
        self.run_of: list[list[TmaStore]] = []  # for each open block, the latest run of consecutive stores

    def visit_op(self, op: Op) -> Any:
        if op.name == "roles":
            self.prepare(op.attrs.get("consumer_groups", 1))
            return self.consumers(op)
        if op.id in self.replaced:
            return op.results
        if op.id in self.stores:
            self.emit(self.stores[op.id])
            return op.results  # the unused result of an atomic
        return NotImplemented

    def prepare(self, consumer_groups: int) -> None:
        """Emits, at the top of the function, a tensor map per array and two buffers per shape and group of consumer warps."""
        b, made, facts = self.builder, dict[Value, Value](), self.found.facts
        for store in self.stores.values():
            box, key = store.box, self.key(store)
            with b.at(store.op):
                if key not in self.maps:
                    self.maps[key] = tma_boxes.emit_map(b, facts, box, store.kind, made)
                if store.buffer_key not in self.buffers:
                    kind = replace(store.type, stages=consumer_groups)
                    same = [x for x in self.stores.values() if x.buffer_key == store.buffer_key]
                    count = self.count if any(x.op.name == "store" for x in same) else min(self.count, len(same))
                    two = [b.value("alloc", type=kind, align=ALIGNMENT) for _ in range(count)]
                    self.buffers[store.buffer_key] = two
                    for buffer in two:
                        buffer.name = box.root.name

    def key(self, store: TmaStore) -> tuple:
        return store.box.root, store.box.dims, store.box.strides, store.kind

    def block(self, block: Block, args: Sequence[Value] | None = None) -> Block:
        """Rebuilds a block. It waits in the block for stores outside of it, and outside for stores in the block."""
        if self.run_of:
            self.run_of[-1] = []
        self.run_of.append([])
        try:
            return super().block(block, args)
        finally:
            self.run_of.pop()

    def consumers(self, op: Op) -> tuple:
        """Emits a wait at the end, until TMA has read the buffers."""
        b, (block, producer) = self.builder, op.blocks
        self.run_of.append([])
        with b.block() as opened:
            if op.attrs.get("consumer_groups", 1) > 1:
                number = b.value("consumer_group_id")
                for key, buffers in self.buffers.items():
                    self.buffers[key] = [b.value("stage", buffer, number) for buffer in buffers]
            self.ops(block.ops[:-1])
            b.op("store_wait", in_flight=0)
            b.append(block.terminator)
        self.run_of.pop()
        b.append(op.replace(blocks=(opened.done, producer)))
        return ()

    def emit(self, store: TmaStore) -> None:
        b, run = self.builder, self.run_of[-1]
        if run and run[-1].each_warp is not store.each_warp:
            run.clear()  # each thread counts only the stores that it started
        if not run:
            b.op("store_wait", in_flight=0)
        elif len(run) >= self.count:
            b.op("store_wait", in_flight=self.count - 1)
        buffers = self.buffers[store.buffer_key]
        buffer = buffers[len(run) % len(buffers)]
        b.op("local_store", buffer, self.get(store.value))
        b.op("fence")
        start = [tma_boxes.emit(b, self.get, form, t.int32) for form in store.start]
        value = self.get(store.value)
        own: dict[str, Any] = {"layout": value.type.layout} if store.each_warp else {}
        if store.op.name == "atomic":
            own["adds"] = True
        b.op("store_bulk", self.maps[self.key(store)], buffer, *start, axes=store.box.axes, **own)
        run.append(store)
