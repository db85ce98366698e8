"""Barrier insertion: barriers separate conflicting accesses of different warps to the same bytes.

A forward walk (a data-flow analysis) keeps the accesses since the last barrier. An op gets a barrier before it if it touches the same bytes
as one of these and one of the two writes. A loop is walked until the accesses at its end agree with those assumed at its start. Shared
memory has its final addresses by now, so buffers that share bytes conflict, too. An asynchronous copy counts as a write at its wait, and no
access to its bytes may come in between. If each warp reads only what it has copied, a warp barrier can replace one of the CTA. It does so
where fewer of those are left. The same rules hold for global memory. There, the argument that a pointer comes from, and the distance of two
accesses if it is known, say whether they overlap. Two arguments are assumed to be two arrays.

If warps have roles, a barrier is for the consumers only. Mbarriers guard the producer's copies. A TMA store reads its buffer until its
wait. Triton calls this analysis Membar.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from blocknb.analysis import affine
from blocknb.analysis.effects import orders
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Op, Value, blocks
from blocknb.language.ops import ATOMICS, LOOPS, OPS, named
from blocknb.language.types import Buffer
from blocknb.layouts.convert import within_warps
from blocknb.layouts.linear import Layout
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.disjoint_accesses import AccessRange, range_of
from blocknb.passes.support.note_text import at_line
from blocknb.target import Target
from blocknb.trace import Notes

READERS = named("reads_buffers")


@gpu_pass()
def barriers(func: Func, target: Target, notes: Notes) -> Func:
    """Places the barriers that accesses to shared and global memory need, and no more

    When: always, on a GPU.

    What: the pass places a barrier before an access that touches the same bytes as an earlier one. One of them must write, with no barrier
    between them. If only lanes of one warp conflict, a `warp_barrier` suffices, also for asynchronous copies.

    Why: without it a warp could read data too early or overwrite data that another warp still reads.

    Limits: two arguments are assumed to be two arrays. The note names the hazard (read after write, write after read, write after write)
    and the line of the other access.

    Before:

        local_store %a, %x
        %y = local_load %a : tile<64x64xf16, #b>
        local_store %a, %z

    After:

        local_store %a, %x
        barrier
        %y = local_load %a : tile<64x64xf16, #b>
        barrier
        local_store %a, %z
    """
    placement = BarrierPlacement(func, notes)
    if placement.copied:
        # Each warp may read only what it copies. Then its own barrier suffices, if no other one is needed there.
        by_warps = BarrierPlacement(func, notes, by_warps=True)
        placement = min(placement, by_warps, key=BarrierPlacement.count)
    return placement.run()


ANYWHERE = Value(None, "behind a pointer of unknown origin")


@dataclass(frozen=True)
class MemoryAccess:
    """Bytes that an op touches: a range of shared memory, or with `root` the array of a pointer argument. `own` is the pointer tile if each
    element has its own address, which only one thread touches. `tile`: the layouts of tile and buffer, if the op moves all elements between
    them. `warp_synchronised`: the lanes of each warp have synchronised since. `store` is the store, in this iteration, to which the access
    belongs. `range` are the elements of the array that it touches, if they are known."""

    write: bool
    low: int
    high: int
    root: Value | None
    own: Value | None
    op: Op
    acquires: bool = False
    releases: bool = False
    tile: tuple[Buffer, Layout] | None = None
    warp_synchronised: bool = False
    store: int | None = None
    range: AccessRange | None = None

    def conflicts(self, other: MemoryAccess) -> bool:
        if self.op.name in ("wait", "dot_wait") or (other.op.name == "copy_async" and other.root is None):
            return False  # copies and products were checked when they began; a copy writes nothing before its wait
        if not (self.write or other.write) or (self.root is None) is not (other.root is None):
            return False
        if self.root is None:
            return self.low < other.high and other.low < self.high
        if self.releases or other.acquires:
            return True  # one thread orders accesses of all threads, so a barrier must separate them
        if commute(self.op, other.op) or self.op.name == other.op.name == "store_bulk":
            return False
        return (self.root is other.root or ANYWHERE in (self.root, other.root)) and not self.is_separate(other)

    def is_separate(self, other: MemoryAccess) -> bool:
        """Whether an earlier access to the same array is of other elements, or each thread accesses its own elements in both."""
        if self.store is not None and self.store == other.store:
            return True
        if self.range is not None and other.range is not None and other.range.is_disjoint(self.range):
            return True
        # Through one pointer tile every thread accesses its own elements again.
        return self.own is not None and self.own is other.own

    def within_warps(self, other: MemoryAccess) -> bool:
        """Whether all accesses of a warp to these bytes conflict only with its own accesses."""
        if self.tile is None or other.tile is None or self.low != other.low:
            return False
        (one, layout), (two, other_layout) = self.tile, other.tile
        same = (one.dtype.bits, one.layout) == (two.dtype.bits, two.layout)
        return same and within_warps(layout, other_layout)


def commute(a: Op, b: Op) -> bool:
    """Whether two accesses are atomics that commute."""
    return a.name == b.name == "atomic" and a.attrs["kind"] == b.attrs["kind"] != "xchg"


def in_next_iteration(access: MemoryAccess, loop: Op, made: Collection[Value]) -> MemoryAccess:
    """An access as the next iteration of a loop sees it. A pointer made in the loop has another value then, although its Value is the same;
    so has a store."""
    own, touched = None if access.own in made else access.own, access.range
    return replace(access, own=own, store=None, range=touched and touched.in_next_iteration(loop, made))


Pending = frozenset[MemoryAccess]


class BarrierPlacement:
    """Finds the ops that need a barrier before them, then rebuilds the function with the barriers."""

    def __init__(self, func: Func, notes: Notes, by_warps: bool = False):
        self.func, self.notes = func, notes
        self.facts = affine.analyze(func)
        self.offsets = {op.result: op for op in func.ops() if op.name == "alloc"}
        for op in func.ops():
            if op.name == "stage":
                self.offsets[op.result] = self.offsets[op.args[0]]  # the analysis does not distinguish the stages
        layouts = self.copied_layouts()
        self.copied = layouts if by_warps else dict.fromkeys(layouts)
        late = [op for op in func.ops() if op.name == "dot" and op.attrs.get("in_flight")]
        self.maps = {op.result: op.args[0] for op in func.ops() if op.name == "tensor_map"}
        self.bulk = {op.args[1]: op for op in func.ops() if op.name == "store_bulk"}
        self.multiplied = list(dict.fromkeys(x for op in late for x in op.args[:2] if x in self.offsets))
        self.ranges: dict[Value, AccessRange | None] = {}
        self.before: dict[int, tuple[MemoryAccess, MemoryAccess]] = {}
        self.in_warp: set[int] = set()  # the ops before which a warp barrier suffices
        self.builder = Builder(first_id=func.next_id)
        self.find()

    def count(self) -> int:
        """The number of barriers of all warps."""
        return len(self.before) - len(self.in_warp)

    def copied_layouts(self) -> dict[Value, Layout | None]:
        """The buffers of asynchronous copies. The layout in which threads copy, if each warp reads what it has copied, in all buffers."""
        found: dict[Value, Layout | None] = {}
        for op in self.func.ops():
            if op.name == "copy_async":
                buffer, layout = self.offsets[op.args[0]].result, op.args[1].type.layout
                found[buffer] = layout if found.get(buffer, layout) == layout else None
        for op in self.func.ops():
            for x in op.args if op.name not in ("stage", "copy_async") else ():
                buffer = self.offsets[x].result if x in self.offsets else x
                own, layout = found.get(buffer), op.attrs.get("layout")
                if own is not None and not (op.name == "local_load" and within_warps(own, layout)):
                    found[buffer] = None
        return found if None not in found.values() else dict.fromkeys(found)

    def find(self) -> None:
        """Finds the ops that need a barrier before them."""
        while True:  # each round knows the barriers of the previous one; a new barrier can only remove hazards
            known = frozenset(self.before), frozenset(self.in_warp)
            self.walk(self.func.body.ops, frozenset())
            if (frozenset(self.before), frozenset(self.in_warp)) == known:
                break

    def run(self) -> Func:
        """The function with the barriers."""
        if not self.before:
            return self.func
        return self.func.replace(body=self.insert(self.func.body))

    def accesses(self, op: Op) -> list[MemoryAccess]:
        match op.name:
            case "local_store" | "local_load":
                return [self.shared_access(op, op.args[0], op.name == "local_store")]
            case "copy_async":
                return [self.array_access(op, op.args[1]), self.shared_access(op, op.args[0], True)]
            case "wait":
                return [self.shared_access(op, x, True) for x in self.copied]
            case "dot_wait":
                return [self.shared_access(op, x, False) for x in self.read_until(op)]
            case "store_bulk":
                array = MemoryAccess(True, 0, 0, self.facts.root(self.maps[op.args[0]]) or ANYWHERE, None, op)
                return [array, self.shared_access(op, op.args[1], False)]
            case "store_wait":
                return [self.shared_access(op, x, False) for x in self.bulk]
            case name if name in READERS:
                return [self.shared_access(op, x, False) for x in op.args[:2] if x in self.offsets]
            case "load" | "store":
                return [self.array_access(op, op.args[0])]
            case name if name in ATOMICS:
                return self.atomic_accesses(op)
            case "asm":  # inline assembly may access anything through its pointers
                return [replace(self.array_access(op, x), own=None, range=None) for x in op.args if x.type.is_pointer]
        return []

    def atomic_accesses(self, op: Op) -> list[MemoryAccess]:
        """The array of an atomic, and the buffer in which it returns old values, if it has one."""
        buffers = op.args[:1] if op.args[0] in self.offsets else ()
        access = self.array_access(op, op.args[len(buffers)], *orders(op))
        return [access, *(self.shared_access(op, x, True) for x in buffers)]

    def read_until(self, wait: Op) -> Sequence[Value]:
        """The buffers that products read until a `dot_wait`: of the products that it names, or of all if it names loop-carried values."""
        products = [self.facts.definition.get(x) for x in wait.args]
        if any(op is None or op.name != "dot" for op in products):
            return self.multiplied
        return [x for op in products if op is not None for x in op.args[:2] if x in self.offsets]

    def array_access(self, op: Op, pointer: Value, acquires: bool = False, releases: bool = False) -> MemoryAccess:
        root = self.facts.root(pointer) or ANYWHERE
        while (made := self.facts.definition.get(pointer)) is not None and made.name == "part":
            pointer = made.args[0]  # each part has its own elements
        own = pointer if pointer.type.shape and self.has_distinct_addresses(pointer) else None
        whole = op.attrs.get("split_of") if op.name == "store" else None
        if pointer not in self.ranges:
            self.ranges[pointer] = range_of(self.facts, pointer)
        write, touched = op.name not in ("load", "copy_async"), self.ranges[pointer]
        return MemoryAccess(write, 0, 0, root, own, op, acquires, releases, store=whole, range=touched)

    def has_distinct_addresses(self, pointer: Value) -> bool:
        """Whether no two threads touch one element: one thread holds each element, and the strides make addresses distinct."""
        steps = []
        for axis, extent in enumerate(pointer.type.shape):
            stride = self.facts.stride(pointer, axis)
            if not isinstance(stride, int):
                return False
            steps += [(abs(stride), extent)] if extent > 1 else []
        reach = 0
        for stride, extent in sorted(steps):
            if stride <= reach:
                return False
            reach += stride * (extent - 1)
        return not pointer.type.layout.is_replicated

    def shared_access(self, op: Op, buffer: Value, write: bool) -> MemoryAccess:
        alloc = self.offsets[buffer]
        low, kind, tile = alloc.attrs["offset"], alloc.attrs["type"], None
        # Also in a circular buffer, because all stages have one layout.
        if op.name in ("local_store", "local_load", "store_bulk", "store_wait", "copy_async", "wait"):
            layout: Layout | None
            if op.name in ("copy_async", "wait"):
                layout = self.copied[alloc.result]
            else:
                by = self.bulk[buffer] if op.name == "store_wait" else op
                layout = by.args[1].type.layout if by.name == "local_store" else by.attrs.get("layout")
            tile = (kind.stage, layout) if layout is not None else None
        return MemoryAccess(write, low, low + kind.bytes, None, None, op, tile=tile)

    def walk(self, ops: Sequence[Op], pending: Pending) -> Pending:
        """The pending accesses after `ops`, given those before; records missing barriers."""
        for op in ops:
            if op.id in self.in_warp or op.name == "warp_barrier":
                pending = frozenset(replace(access, warp_synchronised=True) for access in pending)
            elif op.id in self.before or op.name == "barrier":
                pending = frozenset()
            match op.name:
                case name if name in LOOPS:
                    pending = self.walk_loop(op, pending)
                case "roles":
                    pending = self.walk(op.blocks[0].ops, pending)
                case "if":
                    pending = frozenset().union(*(self.walk(block.ops, pending) for block in op.blocks))
                case _:
                    for access in self.accesses(op):
                        if (hazard := self.hazard(access, pending)) is not None:
                            pending = self.after_barrier(hazard, access, pending)
                    pending |= frozenset(self.accesses(op))
        return pending

    def walk_loop(self, op: Op, pending: Pending) -> Pending:
        """The pending accesses after a loop, for any number of iterations including none. For a `while`, this includes the last test."""
        inside = [each for block in op.blocks for each in blocks(block)]
        made = {value for block in inside for value in block.args}
        made |= {value for block in inside for inner in block.ops for value in inner.results}
        entry = pending
        while True:
            end = entry
            for block in op.blocks:
                end = self.walk(block.ops, end)
            known = entry | frozenset(in_next_iteration(access, op, made) for access in end)
            if self.over_programs(op):  # programs have no order
                known = entry | {access for access in known if access.root is None}
            if known == entry:
                return self.walk(op.blocks[0].ops, entry) if op.name == "while" else entry
            entry = known

    def over_programs(self, loop: Op) -> bool:
        """Whether each iteration of a loop is another program: its step is the number of CTAs or of groups of consumer warps."""
        step = self.facts.definition.get(loop.args[2]) if loop.name == "for" else None
        makers = (step, *(self.facts.definition.get(x) for x in step.args)) if step is not None else ()
        return any(op is not None and op.name == "num_ctas" for op in makers)

    def hazard(self, access: MemoryAccess, pending: Pending) -> MemoryAccess | None:
        """A pending access that conflicts with this one, preferably one of another warp."""
        found = [(access.within_warps(other), other) for other in pending if access.conflicts(other)]
        found = [(within, other) for within, other in found if not (within and other.warp_synchronised)]
        return min(found, key=lambda pair: (pair[0], pair[1].op.id), default=(False, None))[1]

    def after_barrier(self, hazard: MemoryAccess, access: MemoryAccess, pending: Pending) -> Pending:
        """The pending accesses after a barrier, of all warps or of each warp, before an access."""
        self.before[access.op.id] = (hazard, access)
        if access.within_warps(hazard):
            self.in_warp.add(access.op.id)
            return frozenset(replace(other, warp_synchronised=True) for other in pending)
        self.in_warp.discard(access.op.id)
        return frozenset()

    def insert(self, block: Block) -> Block:
        with self.builder.block(block.args) as opened:
            for op in block.ops:
                if op.id in self.before:
                    self.place(op)
                if op.blocks and OPS[op.name].kind != "reduce":
                    op = op.replace(blocks=tuple(self.insert(b) for b in op.blocks))
                self.builder.append(op)
        return opened.done

    def place(self, op: Op) -> None:
        """Emits the barrier before an op, with a note."""
        name = "warp_barrier" if op.id in self.in_warp else "barrier"
        with self.builder.at(loc=op.loc):
            made = self.builder.op(name)
        self.notes(made, f"{name}: {self.reason(*self.before[op.id], op.id in self.in_warp)}")

    def reason(self, earlier: MemoryAccess, later: MemoryAccess, in_warp: bool) -> str:
        """The reason for a barrier between two accesses."""
        place = f"shared bytes {later.low} to {later.high}"
        if in_warp:
            return f"in {place} each warp accesses only its own data"
        if later.root is not None and earlier.acquires:
            return f"later accesses stay after the {earlier.op.name} ({earlier.op.attrs['sem']})"
        if later.root is not None and later.releases:
            return f"earlier accesses are visible before the {later.op.name} ({later.op.attrs['sem']})"
        if earlier.op.name == "wait":
            return f"copies to {place} become visible to all warps, and all warps have read the data that the next copies overwrite"
        hazard = f"{'write' if later.write else 'read'} after {'write' if earlier.write else 'read'}"
        where = place if later.root is None else f"the array {later.root.name}"
        return f"{hazard} of {where} (the other access: {earlier.op.name}{at_line(earlier.op)})"
