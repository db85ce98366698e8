"""Blocks and control flow: scalars in registers, tiles in scratch, one node of the graph after another.

A tile that a loop carries has one buffer for all iterations. Copies are the exception: a result takes the buffer of an operand
that nobody reads any more, so `acc += x` and `acc = dot(a, b, acc)` work in place, and the initial value of a carried tile
becomes its buffer if that was its last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.codegen import cpu_memory as memory
from blocknb.codegen import microkernel
from blocknb.codegen.cpu_elementwise import elementwise
from blocknb.codegen.cpu_graph import Graph, Node, Program, identity, squeezed
from blocknb.codegen.cpu_kinds import VARYING, Kinds, Progression
from blocknb.codegen.cpu_loops import Group
from blocknb.codegen.cpu_memory import Buffer, Checks, Scratch, Site, strides_along
from blocknb.codegen.cpu_ops import SIZES, Code, Machine, constant, register_type, scratch_type
from blocknb.codegen.text import DebugInfo, Writer
from blocknb.errors import Unsupported
from blocknb.ir.core import Block, Op, Value, walk
from blocknb.language import types as t
from blocknb.language.ops import OPS

POLL_ABOVE = 64  # loops of more trips than this look at the stop flag


class Scope:
    """One block while it is emitted: its nodes in order and when each value is read for the last time."""

    def __init__(self, emitter: Emitter, block: Block):
        e = emitter
        self.graph = Graph(e.program, block, e.contiguous, e.alias, e.assumptions)
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

    def last_use(self, program: Program, value: Value) -> int:
        return max((self.when.get(use.op, -1) for use in program.uses.get(value, ())), default=-1)


class Emitter:
    """Emits the body of a program. `bounds` has (address, lower, upper) of each pointer parameter, by index."""

    def __init__(self, program: Program, machine: Machine, helpers: dict[str, str], debug: DebugInfo | None, checked: bool, alias: bool):
        self.program, self.machine, self.debug, self.checked, self.alias = program, machine, debug, checked, alias
        self.code = Code(Writer(), machine, helpers)
        self.scalars: dict[Value, str] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.bounds: dict[int, tuple[str, str, str]] = {}
        self.scratch = Scratch()
        self.checks = Checks(self)
        self.sites: list[Site] = []
        self.first_site = 0
        self.assumptions: dict[tuple[Value, Value], bool] = {}
        self.scopes: list[Scope] = []
        self._contiguous: dict[Op, frozenset[int]] = {}
        self._temporaries: list[Buffer] = []

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
                code = Code(Writer(), self.machine, {})
                counters = {loop: "%counter" for loop in loops if loop != axis}
                kinds = Kinds(self.program, code, axis, 1, counters, self._name, lambda v, i: VARYING)
                kind = kinds.of(pointers, identity(pointers.type.shape))
                if isinstance(kind, Progression) and kind.step == pointers.type.dtype.element.bytes:
                    found.add(axis)
            self._contiguous[op] = frozenset(found)
        return self._contiguous[op]

    def _name(self, value: Value) -> str:
        op = self.program.definition.get(value)
        return self.scalar(value) if op is not None and op.name == "const" else self.scalars.get(value, "%unknown")

    def scratch_contiguous(self, value: Value, loop: int) -> int:
        """The bytes of an element if the stored tiles that a value is made of run along a loop."""
        total = 0
        if value.type.shape:
            for leaf, index in self.program.leaves(value, identity(value.type.shape)):
                if (buffer := self.buffers.get(leaf)) is not None and any(i == loop and s == 1 for i, s in zip(index, buffer.strides, strict=True)):
                    total += SIZES[buffer.element]
        return total

    # -- buffers ---------------------------------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: Any, axis: int | None = None, panel: tuple[int, int, int] | None = None) -> Buffer:
        """A buffer whose fastest axis is `axis` (default: row-major)."""
        size = SIZES[scratch_type(dtype)]
        for n in shape:
            size *= n
        return Buffer(self.scratch.allocate(size), size, dtype, shape, strides_along(shape, axis), panel)

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

    def take(self, value: Value, reader: Sequence[Op], same_index: bool = True) -> Buffer | None:
        """The buffer of a value that is read by `reader`, now, for the last time, and by them at the index they write; else None."""
        scope, buffer = self.scopes[-1], self.buffers.get(value)
        if buffer is None or value not in scope.local or buffer.panel is not None:
            return None
        if any(isinstance(h, Value) and h is not value for h in buffer.holders):
            return None
        for use in self.program.uses.get(value, ()):
            when = scope.when.get(use.op, -1)
            if when > scope.now or (when == scope.now and (use.op not in reader or use.index != identity(value.type.shape))):
                return None
        return buffer

    # -- blocks ----------------------------------------------------------------------------------------------------------

    def block(self, block: Block, targets: dict[Value, tuple[Buffer, Value]] | None = None) -> Scope:
        """Emits the ops of a block but not its terminator; its buffers stay held until `leave`. `targets`: see `_place`."""
        scope = Scope(self, block)
        scope.targets = targets or {}
        self.scopes.append(scope)
        for i, node in enumerate(scope.nodes):
            scope.now = i
            self._node(node)
            for buffer in self._temporaries:
                self.scratch.free(buffer.offset)
            self._temporaries = []
            self._release(scope)
        scope.now = len(scope.nodes)
        return scope

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
                    self._for(op)
                case "while":
                    self._while(op)
                case "if":
                    self._if(op)
                case "dot":
                    microkernel.dot(self, op)
                case "reshape":
                    self._reshape(op)
                case "barrier":
                    pass  # a program is one thread
                case "program_id":
                    self.scalars[op.result] = self.program_ids()[op.attrs["axis"]]
                case "num_programs":
                    self.scalars[op.result] = f"%grid{op.attrs['axis']}"
                case "load":
                    mask, other = ([self.scalar(a) for a in op.args[1:]] + [None, None])[:2]  # type: ignore[list-item]
                    self.scalars[op.result] = memory.scalar_load(self, op, self.scalar(op.args[0]), mask, other)
                case "store":
                    args = [self.scalar(a) for a in op.args]
                    memory.scalar_store(self, op, args[0], args[1], args[2] if len(args) > 2 else None)
                case name if OPS[name].kind == "elementwise":
                    self.scalars[op.result] = elementwise(self.code, op, [self.scalar(a) for a in op.args], 1)
                case name:
                    self._reinterpret_scalar(op, name)

    def _reinterpret_scalar(self, op: Op, name: str) -> None:
        if name in ("reshape", "broadcast", "splat", "trans") and not op.result.type.shape and not op.args[0].type.shape:
            self.scalars[op.result] = self.scalar(op.args[0])
        else:
            raise Unsupported(f"the CPU backend does not know the operation {name}", op.loc)

    # -- groups ----------------------------------------------------------------------------------------------------------

    def _group(self, node: Node) -> None:
        assert node.shape is not None
        outputs = [r for op in node.ops if op.name != "reduce" for r in op.results if self._needed_outside(r, node)]
        group = Group(self, node.ops, node.shape, outputs, lambda v, axis: self._place(v, axis, node))
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
        if value in scope.targets:
            home, argument = scope.targets[value]
            if home.strides == strides and self.free_home(home, argument, node.ops):
                return home
        if (panel := microkernel.panel_for(self, value)) is not None:
            return self.allocate(value.type.shape, microkernel.packed_dtype(value.type.dtype), axis, panel)
        for op in node.ops:
            for operand in op.args:
                buffer = self.take(operand, node.ops)
                if buffer is not None and (buffer.dtype, buffer.shape, buffer.strides) == (value.type.dtype, value.type.shape, strides):
                    return buffer
        return self.allocate(value.type.shape, value.type.dtype, axis)

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
        self.hold(op.result, Buffer(buffer.offset, buffer.bytes, buffer.dtype, shape, memory.row_major(shape), None, buffer.holders))

    # -- control flow ----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Leaves the kernel if somebody has raised the stop flag."""
        w = self.code.w
        on = w.fresh("on")
        flag = w.value("load volatile i64, ptr %status")
        w.branch(w.value(f"icmp eq i64 {flag}, 0"), on, "leave")
        w.place(on)

    def _carry(self, op: Op, inits: Sequence[Value], types: Sequence[Any]) -> list[Buffer | str]:
        """Where carried values live: a buffer for a tile, a stack slot for a scalar; filled with the initial values."""
        homes: list[Buffer | str] = []
        for init, type in zip(inits, types, strict=True):
            if type.shape:
                buffer = self.take(init, [op])
                taken = buffer is not None and buffer not in homes and inits.count(init) == 1 and buffer.dtype == type.dtype and buffer.row_major()
                if not taken:
                    buffer = self.allocate(type.shape, type.dtype)
                    self.copy(init, buffer)
                elif init in self.buffers:
                    self.buffers.pop(init).holders.discard(init)
                assert buffer is not None
                self.hold(op, buffer)
                homes.append(buffer)
            else:
                slot = self.code.w.slot(register_type(type.dtype), "carried")
                self.code.w.do(f"store {register_type(type.dtype)} {self.scalar(init)}, ptr {slot}")
                homes.append(slot)
        return homes

    def _enter(self, values: Sequence[Value], homes: Sequence[Buffer | str]) -> None:
        """Values as their homes hold them now."""
        for value, home in zip(values, homes, strict=True):
            if isinstance(home, Buffer):
                self.hold(value, home)
            else:
                self.scalars[value] = self.code.w.value(f"load {register_type(value.type.dtype)}, ptr {home}")

    def _assign(self, values: Sequence[Value], homes: Sequence[Buffer | str]) -> None:
        """Writes all values to their homes, at once: none is overwritten before it has been read."""
        overwritten = {home.offset for home in homes if isinstance(home, Buffer)}
        moves: list[tuple[Value | Buffer, Buffer]] = []
        for value, home in zip(values, homes, strict=True):
            if not isinstance(home, Buffer) or self.buffers.get(value) is home:
                continue
            sources = {self.buffers[leaf].offset for leaf, _ in self.program.leaves(value, identity(value.type.shape)) if leaf in self.buffers}
            if sources & overwritten:
                spare = self.temporary(value.type.shape, value.type.dtype)
                self.copy(value, spare)
                moves.append((spare, home))
            else:
                moves.append((value, home))
        for source, home in moves:
            if isinstance(source, Buffer):
                self._copy_bytes(source, home)
            else:
                self.copy(source, home)
        for value, home in zip(values, homes, strict=True):
            if not isinstance(home, Buffer):
                self.code.w.do(f"store {register_type(value.type.dtype)} {self.scalar(value)}, ptr {home}")

    def _copy_bytes(self, source: Buffer, target: Buffer) -> None:
        a, b = self.buffer_base(target), self.buffer_base(source)
        self.code.w.do(f"call void @llvm.memcpy.p0.p0.i64(ptr align 64 {a}, ptr align 64 {b}, i64 {source.bytes}, i1 false)")

    def _results(self, op: Op, homes: Sequence[Buffer | str]) -> None:
        self._enter(op.results, homes)
        for home in homes:
            if isinstance(home, Buffer):
                self.drop(op, home)

    def _targets(self, values: Sequence[Value], homes: Sequence[Buffer | str], arguments: Sequence[Value]) -> dict[Value, tuple[Buffer, Value]]:
        """For each tile that a block yields once: the buffer it should be made in and the argument that lives there now."""
        found = {}
        for value, home, argument in zip(values, homes, arguments, strict=True):
            if isinstance(home, Buffer) and values.count(value) == 1:
                found[value] = (home, argument)
        return found

    def _for(self, op: Op) -> None:
        w, c = self.code.w, self.code
        body = op.blocks[0]
        counter_type = op.args[0].type.dtype
        lower, upper, step = (c.cast(self.scalar(a), counter_type, t.int64, 1) if counter_type.bits < 64 else self.scalar(a) for a in op.args[:3])
        homes = self._carry(op, op.args[3:], [a.type for a in body.args[1:]])
        slot = w.slot("i64", "i")
        w.do(f"store i64 {lower}, ptr {slot}")
        head, inside, done = (w.fresh(s) for s in ("for", "for.body", "for.done"))
        w.place(head)
        counter = w.value(f"load i64, ptr {slot}")
        w.branch(self._goes_on(counter, upper, step), inside, done)
        w.place(inside)
        if not self._short(op):
            self.poll()
        self.scalars[body.args[0]] = c.cast(counter, t.int64, counter_type, 1)
        self._enter(body.args[1:], homes)
        yielded = body.terminator.args
        self.block(body, self._targets(yielded, homes, body.args[1:]))
        self._assign(yielded, homes)
        w.do(f"store i64 {w.value(f'add i64 {counter}, {step}')}, ptr {slot}")
        self.leave()
        w.jump(head)
        w.place(done)
        self._results(op, homes)

    def _goes_on(self, counter: str, upper: str, step: str) -> str:
        c = self.code
        if step.lstrip("-").isdigit():
            return c.w.value(f"icmp {'sgt' if step.startswith('-') else 'slt'} i64 {counter}, {upper}")
        up, below, above = (c.w.value(f"icmp {p}") for p in (f"sgt i64 {step}, 0", f"slt i64 {counter}, {upper}", f"sgt i64 {counter}, {upper}"))
        return c.select(up, below, above, "i1", 1)

    def _short(self, op: Op) -> bool:
        bounds = [self.program.definition.get(a) for a in op.args[:3]]
        if any(b is None or b.name != "const" for b in bounds):
            return False
        lower, upper, step = (int(b.attrs["value"]) for b in bounds if b is not None)
        return step != 0 and (upper - lower) // step <= POLL_ABOVE

    def _while(self, op: Op) -> None:
        """Both blocks see the same homes; a condition that passes a value on unchanged costs nothing."""
        w = self.code.w
        test, body = op.blocks
        homes = self._carry(op, op.args, [a.type for a in test.args])
        passed = test.terminator.args[1:]
        inner: list[Buffer | str] = []
        for value, type, i in zip(passed, [a.type for a in body.args], range(len(passed)), strict=True):
            if type.shape:
                same = i < len(test.args) and value is test.args[i]
                buffer = homes[i] if same else self.allocate(type.shape, type.dtype)
                assert isinstance(buffer, Buffer)
                self.hold((op, "inner"), buffer)
                inner.append(buffer)
            else:
                inner.append(w.slot(register_type(type.dtype), "carried"))
        head, inside, done = (w.fresh(s) for s in ("while", "while.body", "while.done"))
        w.place(head)
        self.poll()
        self._enter(test.args, homes)
        self.block(test)
        self._assign(passed, inner)
        condition = self.scalar(test.terminator.args[0])
        self.leave()
        w.branch(condition, inside, done)
        w.place(inside)
        self._enter(body.args, inner)
        targets = self._targets(body.terminator.args, homes, body.args) if len(body.args) == len(homes) else {}
        self.block(body, targets)
        self._assign(body.terminator.args, homes)
        self.leave()
        w.jump(head)
        w.place(done)
        for home in homes:
            if isinstance(home, Buffer) and home not in inner:
                self.drop(op, home)
        self._enter(op.results, inner)
        for home in inner:
            if isinstance(home, Buffer):
                home.holders.discard(op)
                self.drop((op, "inner"), home)

    def _if(self, op: Op) -> None:
        w = self.code.w
        homes: list[Buffer | str] = []
        for result in op.results:
            if result.type.shape:
                buffer = self.allocate(result.type.shape, result.type.dtype)
                self.hold(op, buffer)
                homes.append(buffer)
            else:
                homes.append(w.slot(register_type(result.type.dtype), "chosen"))
        yes, no, done = (w.fresh(s) for s in ("if", "else", "endif"))
        w.branch(self.scalar(op.args[0]), yes, no)
        for label, block in ((yes, op.blocks[0]), (no, op.blocks[1])):
            w.place(label)
            self.block(block)
            self._assign(block.terminator.args, homes)
            self.leave()
            w.jump(done)
        w.place(done)
        self._results(op, homes)


