"""Blocks: scalars in registers, tiles in scratch, one node of the graph after another.

Copies are the exception: a result takes the buffer of an operand that nobody reads any more, so `acc += x` and
`acc = dot(a, b, acc)` work in place. Control flow is in `control_flow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.codegen.cpu import (
    atomics,
    control_flow,
    data_movement,
    memory,
    microkernel,
    redzones,
    reports,
    row_prefetch,
)
from blocknb.codegen.cpu.checks import Checks
from blocknb.codegen.cpu.elementwise import elementwise
from blocknb.codegen.cpu.fusion import Graph, Node, Program, identity, squeezed
from blocknb.codegen.cpu.loop_nests import Group
from blocknb.codegen.cpu.mask_bounds import Rest
from blocknb.codegen.cpu.memory import Buffer, Scratch, strides_along
from blocknb.codegen.cpu.outlining import Parts, Scalars
from blocknb.codegen.cpu.redzones import GuardedScratch
from blocknb.codegen.cpu.uniformity import VARYING, Kinds, Progression, Uniform
from blocknb.codegen.report import Site
from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures
from blocknb.codegen.scalar_math.register_types import SIZES, constant, scratch_type
from blocknb.codegen.text import DebugInfo, Writer
from blocknb.errors import Unsupported
from blocknb.ir.core import Block, Op, Value, walk
from blocknb.language.ops import OPS
from blocknb.trace import Notes

#: What the code generator can do without: where one of them fails, and in tests of what must not change a result.
OPTIMIZATIONS = (
    "row_prefetch",  # the next program's rows are fetched early (`row_prefetch`)
    "nontemporal_stores",  # large results go past the cache (`nontemporal_stores`)
    "mask_bounds",  # loops end where the masks do (`mask_bounds`)
    "loop_versioning",  # a second form of a loop for offsets that do not wrap around (`uniformity`)
    "unroll",  # several vectors an iteration
    "fusion",  # several operations in one loop nest (`fusion`)
)


class Scope:
    """One block while it is emitted: its nodes in order and when each value is read for the last time."""

    def __init__(self, emitter: Emitter, block: Block):
        e = emitter
        self.graph = Graph(e.program, block, e.contiguous, e.alias, e.assumptions, "fusion" not in e.off)
        self.nodes = self.graph.order()
        self.now = -1
        self.local = {*block.args, *(r for op in block.ops for r in op.results)}
        rank = {node: i for i, node in enumerate(self.nodes)}
        self.when: dict[Op, int] = {}
        for op in block.ops:
            at = rank.get(self.graph.node_of.get(op), len(self.nodes))  # type: ignore[arg-type]
            for inner in (op, *(o for b in op.blocks for o in walk(b))):
                self.when[inner] = at
        self.targets: dict[Value, tuple[Buffer, Value]] = {}
        self.ahead = row_prefetch.plan(e, self.nodes)
        self.again: dict[Value, int] = {}  # when the addresses of a load are worked out again
        for node, loads in self.ahead.items():
            for op in loads:
                for leaf, _ in e.program.leaves(op.args[0], identity(op.args[0].type.shape)):
                    self.again[leaf] = max(self.again.get(leaf, -1), rank[node])

    @property
    def at_hand(self) -> Op | None:
        """The op that is being emitted; the last one when the block ends, None if it has none."""
        nodes = self.nodes[: self.now + 1]
        return nodes[-1].ops[-1] if nodes else None

    def last_use(self, program: Program, value: Value) -> int:
        uses = program.uses.get(value, ())
        return max([self.again.get(value, -1), *(self.when.get(use.op, -1) for use in uses)])


@dataclass(frozen=True)
class Build:
    """How code is generated: for which machine, whether accesses to arguments are `checked`, without which of the OPTIMIZATIONS
    (`off`), and whether with `redzones` (see `redzones`)."""

    machine: TargetFeatures
    checked: bool
    off: frozenset[str]
    redzones: bool


class Emitter:
    """Emits the body of a program. `bounds` has (address, lower, upper) of each pointer parameter, by index."""

    def __init__(
        self,
        program: Program,
        build: Build,
        helpers: dict[str, str],
        debug: DebugInfo | None,
        alias: bool,
        first_site: int,
    ):
        self.program, self.build, self.debug, self.alias = program, build, debug, alias
        self.machine, self.checked, self.off = build.machine, build.checked, build.off
        self.code = InstructionBuilder(Writer(), build.machine, helpers)
        self.scalars = Scalars()
        self.parts = Parts(self, "run.overlapping" if alias else "run")
        self.buffers: dict[Value, Buffer] = {}
        self.bounds = self.code.bounds
        self.scratch = GuardedScratch() if build.redzones else Scratch()
        self.checks = Checks(self)
        self.sites: list[Site] = []
        self.first_site = first_site
        self.assumptions: dict[tuple[Value, Value], bool] = {}
        self.scopes: list[Scope] = []
        self.rests: dict[Value, Rest] = {}
        self.streams = False  # whether some stores go past the cache
        self.notes = Notes("codegen")
        self.uniform: set[tuple[Op, int]] = (
            set()
        )  # accesses of one element along a loop; known once `contiguous` was asked
        self._contiguous: dict[Op, frozenset[int]] = {}
        self._temporaries: list[Buffer] = []

    def guards(self) -> str:
        """LLVM text of the functions that poison scratch and verify it; the guarded bytes become sites."""
        assert isinstance(self.scratch, GuardedScratch)
        first = self.first_site + len(self.sites)
        self.sites += [zone.site for zone in self.scratch.zones]
        return redzones.functions(self.parts.name, self.scratch, first)

    # -- what others ask -------------------------------------------------------------------------------------------------

    def scalar(self, value: Value) -> str:
        op = self.program.definition.get(value)
        if op is not None and op.name == "const":
            return constant(op.attrs["value"], value.type.dtype)
        return self.scalars[value]

    def location(self, op: Op) -> str:
        return self.debug.location(op.loc) if self.debug else ""

    def program_ids(self) -> tuple[str, str, str]:
        return ("%pid0", "%pid1", "%pid2")

    def buffer_base(self, buffer: Buffer) -> str:
        return self.code.w.value(f"getelementptr inbounds i8, ptr %scratch, i64 {buffer.offset}")

    def contiguous(self, op: Op) -> frozenset[int]:
        """The loops along which a load or store runs through neighbouring addresses."""
        if op not in self._contiguous:
            pointers = op.args[0]
            loops = range(len(squeezed(pointers.type.shape)))
            found = set()
            for axis in loops:
                code = InstructionBuilder(Writer(), self.machine, {})
                counters = {loop: "%counter" for loop in loops if loop != axis}
                speculate = "loop_versioning" not in self.off
                kinds = Kinds(self.program, code, axis, 1, counters, self._name, lambda v, i: VARYING, speculate)
                kind = kinds.of(pointers, identity(pointers.type.shape))
                if isinstance(kind, Progression) and kind.step == pointers.type.dtype.element.bytes:
                    found.add(axis)
                if isinstance(kind, Uniform):
                    self.uniform.add((op, axis))
            self._contiguous[op] = frozenset(found)
        return self._contiguous[op]

    def _name(self, value: Value) -> str:
        op = self.program.definition.get(value)
        return self.scalar(value) if op is not None and op.name == "const" else self.scalars.get(value, "%unknown")

    def scratch_contiguous(self, value: Value, loop: int) -> int:
        """The bytes of an element if the stored tiles that a value is made of run along a loop. Of those that vary along one loop only
        nothing is counted: the others find one element for all of them."""
        total = 0
        if value.type.shape:
            for leaf, index in self.program.leaves(value, identity(value.type.shape)):
                if (buffer := self.buffers.get(leaf)) is None or sum(i is not None for i in index) < 2:
                    continue
                if any(i == loop and s == 1 for i, s in zip(index, buffer.strides, strict=True)):
                    total += SIZES[buffer.element]
        return total

    # -- buffers ---------------------------------------------------------------------------------------------------------

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        axis: int | None = None,
        panel: tuple[int, int, int] | None = None,
        value: Value | None = None,
    ) -> Buffer:
        """A buffer, for a value if it is the first in it, whose fastest axis is `axis` (default: row-major)."""
        size = SIZES[scratch_type(dtype)]
        for n in shape:
            size *= n
        maker = self.program.definition[value] if value else self.scopes[-1].at_hand
        return Buffer(self.scratch.allocate(size, maker), size, dtype, shape, strides_along(shape, axis), panel)

    def hold(self, value: Any, buffer: Buffer) -> None:
        buffer.holders.add(value)
        if isinstance(value, Value):
            self.buffers[value] = buffer

    def drop(self, value: Any, buffer: Buffer) -> None:
        buffer.holders.discard(value)
        if not buffer.holders:
            self.scratch.free(buffer.offset)

    def temporary(self, shape: tuple[int, ...], dtype: Any, panel: tuple[int, int, int] | None = None) -> Buffer:
        """A buffer for the node at hand only."""
        buffer = self.allocate(shape, dtype, None, panel)
        self._temporaries.append(buffer)
        return buffer

    def copy(self, value: Value, buffer: Buffer) -> None:
        """Writes a tile, whatever it is made of, to a buffer."""
        if self.buffers.get(value) is not buffer:
            Group(self, [], squeezed(value.type.shape), [value], lambda v, axis: buffer).emit()

    def row_major(self, value: Value) -> Buffer:
        """A buffer with the tile in row-major order, its own or a temporary copy."""
        buffer = self.buffers.get(value)
        if buffer is None or not buffer.row_major() or buffer.dtype != value.type.dtype:
            buffer = self.temporary(value.type.shape, value.type.dtype)
            self.copy(value, buffer)
        return buffer

    def take(self, value: Value, reader: Sequence[Op]) -> Buffer | None:
        """The buffer of a value that is read by `reader`, now, for the last time, and by them at the index they write; else None."""
        scope, buffer = self.scopes[-1], self.buffers.get(value)
        if buffer is None or value not in scope.local or buffer.panel is not None:
            return None
        if any(isinstance(h, Value) and h is not value for h in buffer.holders):
            return None
        for use in self.program.uses.get(value, ()):
            when = scope.when.get(use.op, -1)
            if when > scope.now or (
                when == scope.now and (use.op not in reader or use.at != identity(value.type.shape))
            ):
                return None
        return buffer

    # -- blocks ----------------------------------------------------------------------------------------------------------

    def block(self, block: Block, targets: dict[Value, tuple[Buffer, Value]] | None = None) -> Scope:
        """Emits the ops of a block but not its terminator; its buffers stay held until `leave`. `targets`: see `_place`."""
        scope = Scope(self, block)
        scope.targets = targets or {}
        self.scopes.append(scope)
        mark = self.parts.mark(0)
        for i, node in enumerate(scope.nodes):
            scope.now = i
            self._node(node)
            for buffer in self._temporaries:
                self.scratch.free(buffer.offset)
            self._temporaries = []
            self._release(scope)
            names = [self.scalars[value] for value in self._read_later(scope, mark.node)]
            rests = [self.rests[value] for value in self.buffers if value in self.rests]
            names += [name for rest in rests for name in (rest.end, rest.value)]
            mark = self.parts.cut(mark, i + 1, names)
        scope.now = len(scope.nodes)
        return scope

    def _read_later(self, scope: Scope, first: int) -> Iterator[Value]:
        """Scalars made by the nodes from `first` to the one at hand that nodes after it read, or the block's end."""
        for node in scope.nodes[first : scope.now + 1]:
            for op in node.ops:
                for result in op.results:
                    if result in self.scalars and scope.last_use(self.program, result) > scope.now:
                        yield result

    def leave(self) -> None:
        """Ends the innermost block and frees what it holds."""
        scope = self.scopes.pop()
        for value in list(self.buffers):
            if value in scope.local:
                self.drop(value, self.buffers.pop(value))
        for buffer in self._temporaries:
            self.scratch.free(buffer.offset)
        self._temporaries = []

    def _release(self, scope: Scope) -> None:
        for value in [v for v in self.buffers if v in scope.local]:
            if scope.last_use(self.program, value) <= scope.now:
                self.drop(value, self.buffers.pop(value))

    def _node(self, node: Node) -> None:
        if node.is_group:
            self._group(node)
            return
        (op,) = node.ops
        with self.code.w.at(self.location(op)):
            match op.name:
                case "for":
                    control_flow.for_loop(self, op)
                case "while":
                    control_flow.while_loop(self, op)
                case "if":
                    control_flow.conditional(self, op)
                case "dot":
                    microkernel.dot(self, op)
                case "reshape" | "broadcast" | "splat" | "trans" if not any(a.type.shape for a in op.args):
                    self.scalars[op.result] = self.scalar(*op.args)
                case "reshape":
                    self._reshape(op)
                case "scan" | "flip" | "gather":
                    data_movement.emit(self, op)
                case "print" | "assert":
                    reports.emit(self, op)
                case "barrier":
                    pass  # a program is one thread
                case "program_id":
                    self.scalars[op.result] = self.program_ids()[op.attrs["axis"]]
                case "num_programs":
                    self.scalars[op.result] = f"%grid{op.attrs['axis']}"
                case "load":
                    mask, other = ([self.scalar(a) for a in op.args[1:]] + [None, None])[:2]
                    self.scalars[op.result] = memory.scalar_load(self, op, self.scalar(op.args[0]), mask, other)
                case "store":
                    args = [self.scalar(a) for a in op.args]
                    memory.scalar_store(self, op, args[0], args[1], args[2] if len(args) > 2 else None)
                case "atomic" | "atomic_cas":
                    args = [self.scalar(a) for a in op.args]
                    count = 2 if op.name == "atomic" else 3
                    mask = args[count] if len(args) > count else None
                    self.scalars[op.result] = atomics.update(self, op, args[0], args[1:count], mask)
                case name if OPS[name].kind == "elementwise":
                    self.scalars[op.result] = elementwise(self.code, op, [self.scalar(a) for a in op.args], 1)
                case name:
                    raise Unsupported(f"the CPU backend does not know the operation {name}", op.loc)

    def poll(self) -> None:
        """Leaves the kernel if somebody has raised the stop flag."""
        w = self.code.w
        on = w.fresh("on")
        flag = w.value("load volatile i64, ptr %status")
        w.branch(w.value(f"icmp eq i64 {flag}, 0"), on, "leave")
        w.place(on)

    # -- groups ----------------------------------------------------------------------------------------------------------

    def _group(self, node: Node) -> None:
        assert node.shape is not None
        outputs = [r for op in node.ops if op.name != "reduce" for r in op.results if self._needed_outside(r, node)]
        ahead = self.scopes[-1].ahead.get(node, ())
        group = Group(self, node.ops, node.shape, outputs, lambda v, axis: self._place(v, axis, node), ahead)
        for op in group.reductions:
            for result in op.results:
                if result.type.shape:
                    self._place(result, self._reduced_axis(op, group.axis), node)
        group.emit()

    def _reduced_axis(self, op: Op, loop: int | None) -> int | None:
        """The loop of the group as an axis of the result of a reduction (as `_place` counts them), None if it is the reduced one."""
        axis = op.attrs["axis"]
        index = identity(op.args[0].type.shape)
        left = [i for i in index[:axis] + index[axis + 1 :] if i is not None]
        return left.index(loop) if loop in left else None

    def _needed_outside(self, value: Value, node: Node) -> bool:
        return any(use.op not in node.ops for use in self.program.uses.get(value, ()))

    def _place(self, value: Value, loop: int | None, node: Node) -> Buffer:
        """Gives a value made in a group its buffer."""
        buffer = self._choose(value, loop, node)
        self.hold(value, buffer)
        return buffer

    def _choose(self, value: Value, loop: int | None, node: Node) -> Buffer:
        """The buffer for a value made in a group whose vectors run along `loop`.

        The buffer that the loop around carries it in (`targets`), if the old value is not needed any more; a buffer in the
        microkernel's order if only dots read it; the buffer of an operand that is read here for the last time; or a new one.
        """
        scope = self.scopes[-1]
        index = identity(value.type.shape)
        axis = index.index(loop) if loop is not None and loop in index else None
        strides = strides_along(value.type.shape, axis)
        # A reduction writes as it goes, before ops after it have read: what this group reads may not be its place.
        reduced = self.program.definition[value].name == "reduce"
        reader: Sequence[Op] = () if reduced else node.ops
        if value in scope.targets:
            home, argument = scope.targets[value]
            if home.strides == strides and self.free_home(home, argument, reader):
                return home
        if not reduced and (panel := microkernel.panel_for(self, value, axis)) is not None:
            return self.allocate(value.type.shape, microkernel.packed_dtype(value.type.dtype), axis, panel, value)
        for op in node.ops:
            for operand in op.args:
                buffer = self.take(operand, reader)
                if buffer is not None and (buffer.dtype, buffer.shape, buffer.strides) == (
                    value.type.dtype,
                    value.type.shape,
                    strides,
                ):
                    return buffer
        return self.allocate(value.type.shape, value.type.dtype, axis, None, value)

    def free_home(self, home: Buffer, argument: Value, reader: Sequence[Op]) -> bool:
        """Whether the buffer of a carried tile may take its next value: nobody needs the old one (`argument`) any more."""
        if argument in self.buffers:
            return self.take(argument, reader) is home
        return not any(isinstance(h, Value) for h in home.holders)

    def _reshape(self, op: Op) -> None:
        """The same bytes under another shape."""
        (x,) = op.args
        buffer = self.row_major(x)
        if buffer in self._temporaries:
            self._temporaries.remove(buffer)
        shape = op.result.type.shape
        self.hold(
            op.result,
            Buffer(buffer.offset, buffer.bytes, buffer.dtype, shape, memory.row_major(shape), None, buffer.holders),
        )
