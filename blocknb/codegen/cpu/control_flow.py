"""Control flow: loops and branches, and the values that they carry.

A carried scalar has a stack slot. A carried tile has one buffer for all iterations, its *home*. The initial value of a tile becomes its
home if the loop is its last reader. The body writes a new value to the home directly if no later op reads the old value; otherwise it
copies the new value there. Loops of many iterations test the stop flag in each iteration.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from blocknb.codegen.cpu.blocks import BlockEmitter
from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.cpu.status import poll
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t

POLL_ABOVE = 64  # loops of more iterations than this test the stop flag
Home = ScratchBuffer | str


def _targets(
    values: Sequence[Value], homes: Sequence[Home], arguments: Sequence[Value]
) -> dict[Value, tuple[ScratchBuffer, Value]]:
    """For each tile that a block yields once: its preferred buffer, and the argument that the buffer holds now."""
    found = {}
    for value, home, argument in zip(values, homes, arguments, strict=True):
        if isinstance(home, ScratchBuffer) and values.count(value) == 1:
            found[value] = (home, argument)
    return found


class ControlFlow(VersionPart):
    """Lowers loops and branches; `blocks` emits their bodies."""

    def __init__(self, context: VersionContext, copies: TileCopies, blocks: BlockEmitter):
        super().__init__(context)
        self.copies, self.blocks = copies, blocks

    def _carry(self, op: Op, inits: Sequence[Value], types: Sequence[Any]) -> list[Home]:
        """The homes of carried values, with the initial values: a buffer for a tile, a stack slot for a scalar."""
        homes: list[Home] = []
        moved: list[Value] = []
        for init, type in zip(inits, types, strict=True):
            if type.shape:
                buffer = self.tiles.reusable_buffer(init, [op])
                free = buffer is not None and buffer not in homes and inits.count(init) == 1
                if buffer is None or not free or buffer.dtype != type.dtype or not buffer.row_major():
                    buffer = self.tiles.allocate(type.shape, type.dtype)
                    self.copies.copy(init, buffer)
                else:
                    moved.append(init)
                self.tiles.attach(op, buffer)
                homes.append(buffer)
            else:
                slot = self.code.w.slot(register_type(type.dtype), "carried")
                self.code.w.do(f"store {register_type(type.dtype)} {self.scalars.of(init)}, ptr {slot}")
                homes.append(slot)
        for init in moved:  # in the end, because another initial value may be a view of it
            self.tiles.buffers.pop(init).holders.discard(init)
        return homes

    def _new_home(self, type: Any, hint: str) -> Home:
        """A buffer for a tile, or a stack slot for a scalar."""
        if type.shape:
            return self.tiles.allocate(type.shape, type.dtype)
        return self.code.w.slot(register_type(type.dtype), hint)

    def _hold(self, holder: Hashable, homes: Sequence[Home]) -> None:
        for home in homes:
            if isinstance(home, ScratchBuffer):
                self.tiles.attach(holder, home)

    def _load(self, values: Sequence[Value], homes: Sequence[Home]) -> None:
        """Binds values to the current contents of their homes."""
        for value, home in zip(values, homes, strict=True):
            if isinstance(home, ScratchBuffer):
                self.tiles.attach(value, home)
            else:
                self.scalars[value] = self.code.w.value(f"load {register_type(value.type.dtype)}, ptr {home}")

    def _assign(self, values: Sequence[Value], homes: Sequence[Home]) -> None:
        """Writes all values to their homes. It reads the old value of each home before it overwrites the home."""
        overwritten = {home.offset for home in homes if isinstance(home, ScratchBuffer)}
        moves: list[tuple[Value | ScratchBuffer, ScratchBuffer]] = []
        for value, home in zip(values, homes, strict=True):
            if not isinstance(home, ScratchBuffer) or self.tiles.buffers.get(value) is home:
                continue
            sources = {
                self.tiles.buffers[leaf].offset
                for leaf, _ in self.program.leaves(value, identity(value.type.shape))
                if leaf in self.tiles.buffers
            }
            if sources & overwritten:
                spare = self.tiles.temporary(value.type.shape, value.type.dtype)
                self.copies.copy(value, spare)
                moves.append((spare, home))
            else:
                moves.append((value, home))
        for source, home in moves:
            if isinstance(source, ScratchBuffer):
                self._copy_bytes(source, home)
            else:
                self.copies.copy(source, home)
        for value, home in zip(values, homes, strict=True):
            if not isinstance(home, ScratchBuffer):
                self.code.w.do(f"store {register_type(value.type.dtype)} {self.scalars.of(value)}, ptr {home}")

    def _copy_bytes(self, source: ScratchBuffer, target: ScratchBuffer) -> None:
        a, b = self.tiles.base(target), self.tiles.base(source)
        operands = f"ptr align 64 {a}, ptr align 64 {b}, i64 {source.bytes}, i1 false"
        self.code.w.do(f"call void @llvm.memcpy.p0.p0.i64({operands})")

    def _results(self, op: Op, homes: Sequence[Home]) -> None:
        self._load(op.results, homes)
        for home in homes:
            if isinstance(home, ScratchBuffer):
                self.tiles.drop(op, home)

    @lowers("for")
    def for_loop(self, op: Op) -> None:
        """A counted loop."""
        w, c = self.code.w, self.code
        body = op.blocks[0]
        counter_type = op.args[0].type.dtype
        lower, upper, step = (casts.cast(c, self.scalars.of(a), counter_type, t.int64, 1) for a in op.args[:3])
        homes = self._carry(op, op.args[3:], [a.type for a in body.args[1:]])
        slot = w.slot("i64", "i")
        w.do(f"store i64 {lower}, ptr {slot}")
        head, inside, done = (w.fresh(s) for s in ("for", "for.body", "for.done"))
        w.place(head)
        counter = w.value(f"load i64, ptr {slot}")
        w.branch(self._loop_condition(counter, upper, step), inside, done)
        w.place(inside)
        if not self._has_few_iterations(op):
            poll(w)
        self.scalars[body.args[0]] = casts.cast(c, counter, t.int64, counter_type, 1)
        self._load(body.args[1:], homes)
        yielded = body.terminator.args
        self.blocks.enter(body, _targets(yielded, homes, body.args[1:]))
        self._assign(yielded, homes)
        w.do(f"store i64 {w.value(f'add i64 {counter}, {step}')}, ptr {slot}")
        self.blocks.leave()
        w.jump(head)
        w.place(done)
        self._results(op, homes)

    def _loop_condition(self, counter: str, upper: str, step: str) -> str:
        c = self.code
        if step.lstrip("-").isdigit():
            return c.w.value(f"icmp {'sgt' if step.startswith('-') else 'slt'} i64 {counter}, {upper}")
        up = c.w.value(f"icmp sgt i64 {step}, 0")
        below, above = (c.w.value(f"icmp {p} i64 {counter}, {upper}") for p in ("slt", "sgt"))
        return c.select(up, below, above, "i1", 1)

    def _has_few_iterations(self, op: Op) -> bool:
        bounds = [self.program.definition.get(a) for a in op.args[:3]]
        if any(b is None or b.name != "const" for b in bounds):
            return False
        lower, upper, step = (int(b.attrs["value"]) for b in bounds if b is not None)
        return step != 0 and (upper - lower) // step <= POLL_ABOVE

    @lowers("while")
    def while_loop(self, op: Op) -> None:
        """A while loop. Both blocks use the same homes, so a condition that passes a value on unchanged costs nothing."""
        w = self.code.w
        test, body = op.blocks
        homes = self._carry(op, op.args, [a.type for a in test.args])
        passed = test.terminator.args[1:]
        inner: list[Home] = []
        for value, type, i in zip(passed, [a.type for a in body.args], range(len(passed)), strict=True):
            same = type.shape and i < len(test.args) and value is test.args[i]
            inner.append(homes[i] if same else self._new_home(type, "carried"))
            self._hold((op, "inner"), inner[-1:])
        head, inside, done = (w.fresh(s) for s in ("while", "while.body", "while.done"))
        w.place(head)
        poll(w)
        self._load(test.args, homes)
        self.blocks.enter(test)
        self._assign(passed, inner)
        condition = self.scalars.of(test.terminator.args[0])
        self.blocks.leave()
        w.branch(condition, inside, done)
        w.place(inside)
        self._load(body.args, inner)
        targets = _targets(body.terminator.args, homes, body.args) if len(body.args) == len(homes) else {}
        self.blocks.enter(body, targets)
        self._assign(body.terminator.args, homes)
        self.blocks.leave()
        w.jump(head)
        w.place(done)
        for home in homes:
            if isinstance(home, ScratchBuffer) and home not in inner:
                self.tiles.drop(op, home)
        self._load(op.results, inner)
        for home in inner:
            if isinstance(home, ScratchBuffer):
                home.holders.discard(op)
                self.tiles.drop((op, "inner"), home)

    @lowers("if")
    def conditional(self, op: Op) -> None:
        """A branch with two blocks."""
        w = self.code.w
        homes = [self._new_home(result.type, "chosen") for result in op.results]
        self._hold(op, homes)
        yes, no, done = (w.fresh(s) for s in ("if", "else", "endif"))
        w.branch(self.scalars.of(op.args[0]), yes, no)
        for label, block in ((yes, op.blocks[0]), (no, op.blocks[1])):
            w.place(label)
            self.blocks.enter(block)
            self._assign(block.terminator.args, homes)
            self.blocks.leave()
            w.jump(done)
        w.place(done)
        self._results(op, homes)
