"""GPU code: memory-level IR to LLVM text for one thread.

Each tile is, for a thread, a handful of registers, one LLVM value apiece (scalars are uniform and have one). The trick is
laziness: arithmetic is not emitted where it stands but leaves a *chunk*, a list of lines at that place in the text, and each
register is written into its chunk when somebody asks for it. So of an address tile only the first address of every 16-byte
access is ever computed, registers that a broadcast makes equal are computed once, dead code costs nothing, and since a chunk
sits where its op stood, whatever is asked for later still dominates its use. LLVM gets a tenth of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from blocknb.analysis import affine
from blocknb.codegen import (
    gpu_again,
    gpu_assembly,
    gpu_async,
    gpu_atomics,
    gpu_bulk,
    gpu_control,
    gpu_dot,
    gpu_float8,
    gpu_late,
    gpu_math,
    gpu_memory,
    gpu_moves,
    gpu_order,
    gpu_report,
    gpu_roles,
    gpu_scan,
    gpu_stream,
    gpu_text,
    gpu_warp,
    gpu_wgmma,
)
from blocknb.codegen.gpu_math import constant
from blocknb.codegen.maps import MapSpec
from blocknb.codegen.module import Module
from blocknb.codegen.report import Site
from blocknb.codegen.text import DebugInfo
from blocknb.errors import CompilerBug
from blocknb.ir.core import Block, Func, Op, Value, definitions, uses
from blocknb.ir.report import REPORTS
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.layouts.convert import plan
from blocknb.layouts.linear import Layout
from blocknb.target import Target


def generate(func: Func, target: Target) -> Module:
    """LLVM text of a memory-level Func. Raises CompilerBug for IR that is not at that level."""
    if func.level != "memory":
        raise CompilerBug(f"GPU code is generated from memory IR, not {func.level} IR", func.loc)
    return Generator(func, target).module()


class Generator:
    """Writes one kernel. `sink` is the list of lines being written to, `dbg` the location suffix of each line."""

    def __init__(self, func: Func, target: Target):
        self.func, self.target = func, target
        self.facts = affine.analyze(func)
        self.defs, self.users = definitions(func), uses(func)
        self.programs = func.attrs.get("programs", 1)  # that a CTA may have
        self.streamed = gpu_stream.streamed(func, self.facts)
        self.defs_of_streamed = {value: self.defs[value] for value in self.streamed}
        late = gpu_late.Late(func, self.facts, self.users, self.streamed)
        self.late, self.masks = late.values, late.masks
        self.again = gpu_again.Again(func, self.facts, self.users, self.streamed)
        self.unplaced = self.late | self.again.values | self.again.after  # emitted where they are asked for
        self.offset = ""  # in a loop over pieces of a tile: what is added to every index
        self.debug = DebugInfo(func.name, func.loc, "DebugDirectivesOnly", None)
        self.declared: dict[str, None] = {}
        self.helpers: dict[str, str] = {}  # functions that the kernel calls
        self.count = 0
        self.entry: list[str] = []  # thread indices: dominates everything
        self.chunks: list[list[str]] = []
        self.sink: list[str] = []
        self.dbg = ""
        self.label = "entry"
        self.accesses = 0  # to global memory in the basic block at hand
        self.indices: list[tuple[str, str]] = []  # of the counted loops that are open: type and name
        self.registers: dict[Value, dict[int, str]] = {}
        self.words: dict[Value, dict[tuple[int, ...], str]] = {}
        self.deferred: dict[Value, Callable[[tuple[int, ...]], None]] = {}
        self.following: tuple[Sequence[Op], int] = (), 0
        self.lazy: dict[
            Value, tuple[Op, list[str] | None, str]
        ] = {}  # streamed: no chunk, it stands where it is asked for
        self.memo: dict[tuple, str] = {}
        self.equal: dict[Value, tuple[int, ...]] = {}  # masks: for each register the first that is equal to it
        self.scopes: list[list[tuple[dict, Any]]] = [[]]
        self.strides: dict[Value, dict[int, int]] = {}
        self.offsets: dict[Value, int] = {}
        self.postponed: list[Callable[[], None]] = []  # copies that the next product begins
        self.hurried = False  # whether copies are for the next trip
        self.flying: list[str] = []  # words of operands in registers of wgmma that are under way
        self.begun: dict[Value, str] = {}  # accumulators that are unset while this number of trips is 0
        self.unset: dict[Value, str] = {}  # sums of a loop, unless it had some trip
        self.moving = gpu_async.moving(func, self.defs)
        self.slots: dict[Value, str] = {}  # of slots of rings: what is added to the ring's offset
        self.maps: list[MapSpec] = []
        self.persistent = bool(func.attrs.get("persistent"))
        self.teams = gpu_roles.teams(func)
        self.in_team = self.alone = False  # in the role of the team; in one that a single thread has
        self.sites: list[Site] = []
        self.reports = False
        self.extents: dict[int, None] = {}  # arguments whose extents the code asks for
        self.open_chunk()

    # -- text

    def open_chunk(self) -> list[str]:
        """A new list of lines at the end of the text so far, which becomes the sink."""
        self.sink = []
        self.chunks.append(self.sink)
        return self.sink

    @contextmanager
    def writing(self, sink: list[str], dbg: str) -> Iterator[None]:
        """Lines written inside go to another chunk."""
        saved = self.sink, self.dbg
        self.sink, self.dbg = sink, dbg
        try:
            yield
        finally:
            self.sink, self.dbg = saved

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, instruction: str) -> str:
        """Writes an instruction and returns the name of its result."""
        name = self.name()
        self.sink.append(f"  {name} = {instruction}{self.dbg}")
        return name

    def do(self, instruction: str) -> None:
        """Writes an instruction without a result."""
        self.sink.append(f"  {instruction}{self.dbg}")

    def start(self, label: str) -> None:
        """Begins a basic block."""
        self.sink.append(f"{label}:")
        self.label, self.accesses = label, 0

    def call(self, result: str, function: str, *args: tuple[str, str]) -> str:
        """Calls an intrinsic, declaring it once. `args` are (type, name) pairs."""
        self.declared[f"declare {result} @{function}({', '.join(kind for kind, _ in args)})"] = None
        text = f"call {result} @{function}({', '.join(f'{kind} {name}' for kind, name in args)})"
        if result == "void":
            self.do(text)
            return ""
        return self.emit(text)

    def new_label(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    # -- threads

    def place(self, what: str, axis: int) -> str:
        """The "program_id" or the "num_programs" along an axis of the grid, an i32. A CTA has programs along its y axis."""
        if self.persistent:
            if what == "program_id":
                raise CompilerBug("a persistent kernel has no program id")
            return gpu_bulk.GRID[axis]
        if what == "program_id" and axis < 2 and "order" in self.func.attrs:
            return gpu_order.program_id(self, axis)
        return self.launched(what, axis)

    def launched(self, what: str, axis: int) -> str:
        """The same by the hardware's numbers."""
        found = self.special(f"{'ctaid' if what == 'program_id' else 'nctaid'}.{'xyz'[axis]}")
        if axis or self.programs == 1:
            return found
        found = self.emit(f"mul i32 {found}, {self.special('ntid.y')}")
        return self.emit(f"add i32 {found}, {self.special('tid.y')}") if what == "program_id" else found

    def special(self, register: str) -> str:
        """What a special register of the PTX ISA holds, an i32."""
        return self.call("i32", f"llvm.nvvm.read.ptx.sreg.{register}")

    def thread_index(self, lane: Sequence[int], warp: Sequence[int]) -> str:
        """XOR of the given ints over the set bits of the thread's lane and warp: an i32, computed once in the entry block."""
        key = ("index", tuple(lane), tuple(warp))
        return self.once(key, lambda: self.xor_bits(("%lane", lane), ("%warp", warp)))

    def once(self, key: tuple, make: Callable[[], str]) -> str:
        """What `make` writes at the head of the kernel, for everybody."""
        if key not in self.memo:
            with self.writing(self.entry, ""):
                self.memo[key] = make()
        return self.memo[key]

    def xor_bits(self, *sources: tuple[str, Sequence[int]]) -> str:
        """Groups bits that move by the same distance, so that a run of bits takes one mask and one shift."""
        result = ""
        for source, bases in sources:
            moves: dict[int, int] = {}
            for bit, basis in enumerate(bases):
                for place in range(basis.bit_length()):
                    if basis >> place & 1:
                        moves[place - bit] = moves.get(place - bit, 0) | 1 << bit
            for distance, mask in sorted(moves.items()):
                term = self.emit(f"and i32 {source}, {mask}")
                if distance:
                    term = self.emit(f"shl i32 {term}, {distance}" if distance > 0 else f"lshr i32 {term}, {-distance}")
                result = self.emit(f"xor i32 {result}, {term}") if result else term
        return result or "0"

    def owner(self, layout: Layout | None) -> str:
        """An i1 that holds in exactly one of the threads with the same elements; "" when every thread owns its own."""
        lanes, warps = (
            (31, self.func.attrs["num_warps"] - 1)
            if layout is None
            else (layout.replicated_lane_bits, layout.replicated_warp_bits)
        )
        if not lanes and not warps:
            return ""
        mask = warps << 5 | lanes
        return self.once(("owner", mask), lambda: self.emit(f"icmp eq i32 {self.emit(f'and i32 %tid, {mask}')}, 0"))

    # -- values

    def reg(self, value: Value, index: int = 0) -> str:
        """The LLVM value in a register of a tile (register 0 of a scalar), computed now if nobody asked before."""
        index = self.first_equal(value, index)
        known = self.registers.setdefault(value, {})
        if index not in known:
            self.fill(value, index)
        return known[index]

    def fill(self, value: Value, index: int) -> None:
        """Computes a register, the registers it is made from first: from a list, since expressions go deeper than Python's calls."""
        todo = [(value, index)]
        while todo:
            value, index = todo[-1]
            if index in self.registers.setdefault(value, {}):
                todo.pop()
                continue
            op, chunk, dbg = self.lazy[value]
            missing = [(v, i) for v, i in self.operands(op, value, index) if i not in self.registers.get(v, ())]
            if missing:
                todo += reversed(missing)
                continue
            with self.writing(self.sink if chunk is None else chunk, dbg):
                name = self.compute(op, value, index)
                if chunk is None:
                    self.remember(self.registers[value], index, name)
                self.registers[value][index] = name

    def regs(self, value: Value) -> list[str]:
        return [self.reg(value, r) for r in range(self.num_registers(value))]

    def num_registers(self, value: Value) -> int:
        return value.type.layout.num_registers if value.type.shape else 1

    def set(self, value: Value, names: Sequence[str]) -> None:
        self.registers[value] = dict(enumerate(names))

    def first_equal(self, value: Value, index: int) -> int:
        """The first register of a mask that holds what register `index` does, because the mask is constant over groups of elements."""
        if value not in self.equal:
            self.equal[value] = ()
            if value in self.lazy and value.type.shape and value.type.dtype == t.int1 and value not in self.streamed:
                self.equal[value] = self.equal_registers(value)
        return self.equal[value][index] if self.equal[value] else index

    def equal_registers(self, value: Value) -> tuple[int, ...]:
        layout, ignored = value.type.layout, 0
        for axis in range(len(layout.shape)):
            group = self.facts.constancy(value, axis)
            ignored |= (group - 1) << layout.dim_bits(axis).start
        first: dict[int, int] = {}
        return tuple(first.setdefault(place & ~ignored, r) for r, place in enumerate(layout.register_indices))

    def operands(self, op: Op, value: Value, index: int) -> list[tuple[Value, int]]:
        return [(v, self.first_equal(v, i)) for v, i in self.sources(op, value, index)]

    def sources(self, op: Op, value: Value, index: int) -> list[tuple[Value, int]]:
        """The registers that a register of a lazy op is made from."""
        match op.name:
            case "broadcast":
                return [(op.args[0], value.type.layout.broadcast_registers(op.args[0].type.shape)[index])]
            case "convert":
                renamed = plan(op.args[0].type.layout, value.type.layout, max(8, value.type.dtype.bits)).registers
                assert renamed is not None, "a conversion that moves data is not lazy"
                return [(op.args[0], renamed[index])]
            case "part":
                return [gpu_memory.whole(self, value, index)]
            case "load" | "local_load" | "flip" | "gather":
                return []
        return [(arg, index if arg.type.shape else 0) for arg in op.args]

    def compute(self, op: Op, value: Value, index: int) -> str:
        """One register of a lazy op, from registers that are there."""
        match op.name:
            case "const":
                return constant(op.attrs["value"], value.type.dtype)
            case "arange":
                return self.arange(op, value.type.layout, index)
            case "load" | "local_load" | "flip" | "gather":
                return gpu_memory.unpack(self, value, index)
            case "cast" if op.args[0].type.dtype.is_fp8() or value.type.dtype.is_fp8():
                return gpu_float8.convert(self, op, value, index)
        names = tuple(self.registers[v][i] for v, i in self.operands(op, value, index))
        if value in self.moving:
            names = gpu_async.unmoved(self, names)
        if op.name in ("splat", "broadcast", "expand_dims", "reshape", "trans", "promise", "convert", "part"):
            return names[0]
        return gpu_report.inside(self, op, names[0]) if op.name == "inside" else self.elementwise(op, names)

    def elementwise(self, op: Op, names: tuple[str, ...]) -> str:
        """An elementwise op on single values; equal operands give the same result again."""
        key = (op.id, names)
        if op.results[0] in self.streamed:
            return gpu_math.emit(self, op, names)
        if key not in self.memo:
            self.memo[key] = gpu_math.emit(self, op, names)
        return self.memo[key]

    def arange(self, op: Op, layout: Layout, index: int) -> str:
        base, offset, start = (
            self.thread_index(layout.lane, layout.warp),
            layout.register_indices[index],
            op.attrs["start"],
        )
        reach = 0
        for basis in (*layout.lane, *layout.warp):
            reach |= basis
        if offset & reach:
            base, offset = self.emit(f"xor i32 {base}, {offset}"), 0
        if self.offset and op.result in self.streamed:
            base = self.emit(f"add i32 {base}, {self.offset}")
        return self.emit(f"add i32 {base}, {offset + start}") if offset + start else base

    def remember(self, known: dict, key: Any, name: str) -> str:
        """Files what was written at the current place under `key`, until the block that it stands in ends."""
        known[key] = name
        self.scopes[-1].append((known, key))
        return name

    # -- ops

    def module(self) -> Module:
        for value, hint in zip(self.func.params, self.func.hints, strict=True):
            value.name = value.name or hint.name
        self.parameters()
        self.block(self.func.body)
        self.do("ret void")
        return gpu_text.module(self)

    def parameters(self) -> None:
        for i, value in enumerate(self.func.params):
            self.registers[value] = {0: self.emit(f"trunc i8 %p{i} to i1") if value.type.dtype == t.int1 else f"%p{i}"}

    def block(self, block: Block) -> None:
        self.scopes.append([])
        ops = gpu_wgmma.in_order(block.ops)
        for position, op in enumerate(ops):
            self.following = ops, position + 1
            self.dbg = f", !dbg {self.debug.location(op.loc)}"
            if self.accesses > gpu_control.MANY_ACCESSES:
                gpu_control.split(self)
            if (
                self.postponed
                and op.name not in ("dot", "local_load", "copy_async", "commit")
                and not OPS[op.name].pure
            ):
                gpu_async.begin(self, len(self.postponed))
            self.op(op)
            if op.attrs.get("ahead"):
                gpu_control.split(self, gpu_control.turn(self))
        self.forget()  # after this block these names are not defined on every path

    def forget(self) -> None:
        for known, key in self.scopes.pop():
            known.pop(key, None)

    def op(self, op: Op) -> None:
        if op.results and op.results[0] in self.streamed:
            self.lazy[op.result] = (op, None, self.dbg)
            if op.name == "load":
                gpu_memory.stream(self, op)
            return
        match op.name:
            case "yield" | "condition":
                pass
            case "for":
                gpu_control.loop_for(self, op)
            case "while":
                gpu_control.loop_while(self, op)
            case "if":
                gpu_control.branch(self, op)
            case "load" | "store" | "alloc" | "local_load" | "local_store" | "fence" | "barrier" | "warp_barrier":
                gpu_memory.emit(self, op)
            case "slot" | "copy_async" | "commit" | "wait":
                gpu_async.emit(self, op)
            case "roles":
                gpu_roles.emit(self, op)
            case name if name in gpu_bulk.OPS:
                gpu_bulk.emit(self, op)
            case "atomic" | "atomic_cas":
                gpu_atomics.emit(self, op)
            case name if name in REPORTS:
                gpu_report.emit(self, op)
            case "reduce":
                gpu_warp.reduce(self, op)
                if op in self.again.reductions:
                    self.again.renew(self)
            case "scan":
                gpu_scan.scan(self, op)
            case "flip" | "gather":
                gpu_moves.emit(self, op)
            case "dot" | "dot_wait":
                gpu_dot.dot(self, op)
            case "asm":
                gpu_assembly.emit(self, op)
            case "program_id" | "num_programs":
                self.set(op.result, [self.place(op.name, op.attrs["axis"])])
            case "convert" if (
                plan(op.args[0].type.layout, op.attrs["layout"], max(8, op.result.type.dtype.bits)).kind == "shuffle"
            ):
                gpu_warp.shuffle(self, op)
            case _ if op.results and op.results[0] in self.unplaced:
                self.lazy[op.result] = (op, None, self.dbg)
            case _ if OPS[op.name].pure:
                chunk = self.sink if self.sink is self.chunks[-1] and not self.sink else self.open_chunk()
                self.lazy[op.result] = (op, chunk, self.dbg)
                self.open_chunk()
            case _:
                raise CompilerBug(f"no GPU code for {op.name}", op.loc)

    def consumed_by_next_dot(self, op: Op) -> bool:
        """Whether a tensor-core dot is the only user of `op` and nothing but reads and arithmetic stand in between."""
        for later in islice(*self.following, None):
            if later.name == "dot":
                sole = self.users[op.result] == [(later, 0)] or self.users[op.result] == [(later, 1)]
                return sole and later.args[0].type.dtype.bits == 16 and "instr" in later.attrs
            if later.name != "local_load" and not OPS[later.name].pure:
                return False
        return False
