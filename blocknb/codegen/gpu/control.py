"""Lowers loops and branches. Every register that they carry is a phi.

The phis of a loop come before its body, and the body determines their operands. So phis have a chunk of their own, which the lowering
fills at the end of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import llvm_type, memory_bits
from blocknb.codegen.gpu.loop_operands import RegisterOperands
from blocknb.codegen.gpu.loop_values import CarriedWords, UnsetSums, WordCarrying
from blocknb.codegen.gpu.mma_state import MmaState
from blocknb.codegen.gpu.phis import Phis
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.ir.core import Block, Op, Value


class ControlFlowLowering(OpLowering):
    """Lowers loops and branches. `lower_block` lowers the ops of a block."""

    def __init__(self, context: KernelContext, state: MmaState, lower_block: Callable[[Block], None]):
        super().__init__(context)
        self.state, self.lower_block, self.phis = state, lower_block, Phis(self.text, self.registers)
        self.carrying, self.unset = WordCarrying(context), UnsetSums(context)
        self.held = RegisterOperands(context, state)

    @lowers("yield", "condition")
    def terminator(self, op: Op) -> None:
        """Does nothing: the lowering of the enclosing op reads the operands of the terminator."""

    # -- counted loops

    @lowers("for")
    def counted_loop(self, op: Op) -> None:
        """Writes a loop over an index, and keeps the operands of its products until its end."""
        held = self.held.before(op)
        words, fresh = self.carried_words(op), self.unset.of(op, bool(self.loops.indices))
        if fresh and not words:
            self.loop_with_unset_sums(op, fresh)
        else:
            self.loop_tested_first(op, words)
        self.held.after(op, held)

    def loop_tested_first(self, op: Op, words: list[CarriedWords]) -> None:
        """Writes a loop that is tested before each iteration. It carries some values as words."""
        text, body = self.text, op.blocks[0]
        lower, upper, step = (self.registers.reg(v) for v in op.args[:3])
        kind, in_words = llvm_type(op.args[0].type.dtype), {x.number for x in words}
        plain = [i for i in range(len(op.results)) if i not in in_words]
        values = [body.args[0], *(body.args[1 + i] for i in plain)]
        initial, before = [[lower], *(self.registers.regs(op.args[3 + i]) for i in plain)], text.label
        header, inside, done = (text.new_label(x) for x in ("for", "body", "done"))
        carried = self.phis.names(values)
        first = [self.words_of(x, op.args[3 + x.number]) for x in words]
        text.do(f"br label %{header}")
        text.start(header)
        phi_sink = text.open_chunk()
        text.open_chunk()
        more = self.in_range(kind, carried[0][0], upper, step, op.args[2])
        text.do(f"br i1 {more}, label %{inside}, label %{done}")
        text.start(inside)
        self.phis.bind(values, carried)
        for x in words:
            self.bind_words(op, x)
        self.lower_body(body, kind, carried[0][0])
        last = [self.words_of(x, body.terminator.args[x.number]) for x in words]
        following = [
            [text.emit(f"add i{op.args[0].type.dtype.bits} {carried[0][0]}, {step}")],
            *(self.registers.regs(body.terminator.args[i]) for i in plain),
        ]
        latch = text.label
        text.do(f"br label %{header}")
        self.phis.write(phi_sink, values, carried, [(before, initial), (latch, following)])
        for x, starts, ends in zip(words, first, last, strict=True):
            for name, width, start, end in zip(x.names, x.kinds(), starts, ends, strict=True):
                phi_sink.append(f"  {name} = phi {width} [ {start}, %{before} ], [ {end}, %{latch} ]")
        text.open_chunk()
        text.start(done)
        self.phis.bind([op.results[i] for i in plain], carried[1:])
        for x in words:
            self.leave_words(op, x)

    def lower_body(self, body: Block, kind: str, index: str) -> None:
        """Lowers the body of a counted loop."""
        self.loops.indices.append((kind, index))
        self.lower_block(body)
        self.loops.indices.pop()

    def carried_words(self, op: Op) -> list[CarriedWords]:
        """The values that a loop carries as words, first the operands of wgmma."""
        found = []
        for loaded, numbers in ((False, self.carrying.multiplied(op)), (True, self.carrying.loaded(op))):
            for i, words in numbers.items():
                names = tuple(self.text.name() for _ in words)
                found.append(CarriedWords(i, words, names, memory_bits(op.results[i].type.dtype), loaded))
        return found

    def words_of(self, carried: CarriedWords, value: Value) -> list[str]:
        """The words of a value that enters an iteration."""
        return [self.registers.word(value, word) for word in carried.words]

    def bind_words(self, op: Op, carried: CarriedWords) -> None:
        """Sets the names of a carried value's words in the body."""
        inner, words = op.blocks[0].args[1 + carried.number], carried.named(carried.names)
        if carried.loaded:
            self.registers.arrive(self.defs[op.args[3 + carried.number]], words, inner)
        else:
            self.registers.words[inner] = self.registers.words[op.results[carried.number]] = words

    def leave_words(self, op: Op, carried: CarriedWords) -> None:
        """Sets the names of a carried load's words after the loop. They are new names, because elements that the body unpacked are not
        defined on every path."""
        result = op.results[carried.number]
        if carried.loaded and result in self.users:
            pairs = zip(carried.kinds(), carried.names, strict=True)
            again = [self.text.emit(f"bitcast {kind} {name} to {kind}") for kind, name in pairs]
            self.registers.arrive(self.defs[op.args[3 + carried.number]], carried.named(again), result)

    def loop_with_unset_sums(self, op: Op, fresh: set[int]) -> None:
        """Writes a loop that is tested after each iteration, and does not set the sums `fresh` to zero before it. If the loop has no
        iteration, a select makes them zero after it, and after the wait if wgmma is in flight."""
        text, body = self.text, op.blocks[0]
        lower, upper, step = (self.registers.reg(v) for v in op.args[:3])
        zeros = [self.registers.regs(value) for value in op.args[3:]]
        initial = [["undef"] * len(names) if i in fresh else names for i, names in enumerate(zeros)]
        inside, none, done = (text.new_label(x) for x in ("body", "none", "done"))
        carried, before = self.phis.names(body.args), text.label
        some = self.in_range("i32", lower, upper, step, op.args[2])
        text.do(f"br i1 {some}, label %{inside}, label %{none}")
        text.start(inside)
        phi_sink = text.open_chunk()
        text.open_chunk()
        self.phis.bind(body.args, carried)
        count = text.emit(f"sub i32 {carried[0][0]}, {lower}")
        self.state.unset_while_zero.update((body.args[1 + i], count) for i in fresh)
        self.lower_body(body, "i32", carried[0][0])
        index = text.emit(f"add i32 {carried[0][0]}, {step}")
        following = [self.registers.regs(v) for v in body.terminator.args]
        more = self.in_range("i32", index, upper, step, op.args[2])
        latch = text.label
        text.do(f"br i1 {more}, label %{inside}, label %{done}")
        edges = [(before, [[lower], *initial]), (latch, [[index], *following])]
        self.phis.write(phi_sink, body.args, carried, edges)
        text.open_chunk()
        text.start(none)
        late = {i for i in fresh if any(user.name == "dot_wait" for user, _ in self.users.get(op.results[i], ()))}
        self.state.unset_unless.update((op.results[i], some) for i in late)
        text.do(f"br label %{done}")
        text.start(done)
        ends = [initial[i] if i in late else names for i, names in enumerate(zeros)]
        self.phis.merge(op.results, [(latch, following), (none, ends)])

    def in_range(self, kind: str, index: str, upper: str, step: str, value: Value) -> str:
        """Whether a loop continues: below the bound for a positive step, above it for a negative one."""
        text, signed = self.text, "s" if value.type.dtype.kind == "int" else "u"
        op = self.defs.get(value)
        if op is not None and op.name == "const":
            return text.emit(f"icmp {signed}{'lt' if op.attrs['value'] > 0 else 'gt'} {kind} {index}, {upper}")
        up, down = (text.emit(f"icmp {signed}{pred} {kind} {index}, {upper}") for pred in ("lt", "gt"))
        rising = text.emit(f"icmp sgt {kind} {step}, 0")
        return text.emit(f"select i1 {rising}, i1 {up}, i1 {down}")

    # -- other control flow

    @lowers("while")
    def while_loop(self, op: Op) -> None:
        """Writes a loop whose first block decides whether it continues."""
        held = self.held.before(op)
        text, (test, body) = self.text, op.blocks
        initial, before = [self.registers.regs(v) for v in op.args], text.label
        header, inside, done = (text.new_label(x) for x in ("while", "body", "done"))
        carried = self.phis.names(test.args)
        text.do(f"br label %{header}")
        text.start(header)
        phi_sink = text.open_chunk()
        text.open_chunk()
        self.phis.bind(test.args, carried)
        self.lower_block(test)
        passed = [self.registers.regs(v) for v in test.terminator.args[1:]]
        text.do(f"br i1 {self.registers.reg(test.terminator.args[0])}, label %{inside}, label %{done}")
        text.start(inside)
        self.phis.bind(body.args, passed)
        self.lower_block(body)
        following, latch = [self.registers.regs(v) for v in body.terminator.args], text.label
        text.do(f"br label %{header}")
        self.phis.write(phi_sink, test.args, carried, [(before, initial), (latch, following)])
        text.open_chunk()
        text.start(done)
        self.phis.bind(op.results, passed)
        self.held.after(op, held)

    @lowers("if")
    def branch(self, op: Op) -> None:
        """Writes an `if` with its two blocks."""
        text = self.text
        labels = [text.new_label(x) for x in ("then", "else")]
        done = text.new_label("endif")
        text.do(f"br i1 {self.registers.reg(op.args[0])}, label %{labels[0]}, label %{labels[1]}")
        edges: list[tuple[str, Any]] = []
        for label, block in zip(labels, op.blocks, strict=True):
            text.open_chunk()
            text.start(label)
            self.lower_block(block)
            passed = [self.registers.regs(v) for v in block.terminator.args]
            edges.append((text.label, passed))
            text.do(f"br label %{done}")
        text.open_chunk()
        text.start(done)
        self.phis.merge(op.results, edges)
