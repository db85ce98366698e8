"""Operands A of wgmma in registers, and why they stay in their registers until the end of a loop.

ptxas before CUDA 13.1 loses track of an operand that is computed before a loop. This happens if the loop waits for an mbarrier after the
wgmma that reads the operand. The rest of the loop then overwrites its registers, and the next iteration multiplies other numbers. A use
after the loop prevents this. It is a store that never runs, because its condition never holds.
"""

from __future__ import annotations

from blocknb.codegen.gpu.casts import as_tf32
from blocknb.codegen.gpu.context import KernelContext, KernelPart
from blocknb.codegen.gpu.mma_state import MmaState
from blocknb.ir.core import Op, Value, blocks, within
from blocknb.language import types as t


class RegisterOperands(KernelPart):
    """Names the words of operands A in registers, and keeps those that a loop does not change."""

    def __init__(self, context: KernelContext, state: MmaState):
        super().__init__(context)
        self.state = state

    def words(self, dot: Op) -> list[str]:
        """The 32-bit words of operand A, in the order of the instructions that take them."""
        registers, value = self.registers, dot.args[0]
        count, per = value.type.layout.num_registers, 32 // value.type.dtype.bits
        if value in self.state.kept:
            return self.state.kept[value]
        if dot.attrs.get("permuted_rows"):  # the instruction truncates it to tf32, as it does B
            return [self.text.emit(f"bitcast float {name} to i32") for name in registers.regs(value)]
        if value.type.dtype == t.float32:
            return [as_tf32(self.text, name) for name in registers.regs(value)]
        return [registers.word(value, tuple(range(i, i + per))) for i in range(0, count, per)]

    def before(self, loop: Op) -> dict[Value, list[str]]:
        """The words of the operands that a loop multiplies and does not change, if no outer loop keeps them. The loop reads these words."""
        inside = {value for block in loop.blocks for x in blocks(block) for value in x.args}
        inside |= {value for x in within(loop) if x is not loop for value in x.results}
        dots = {x.args[0]: x for x in within(loop) if x.name == "dot" and x.attrs.get("registers")}
        found = {a: self.words(x) for a, x in dots.items() if a not in inside and a not in self.state.kept}
        self.state.kept |= found
        return found

    def after(self, loop: Op, found: dict[Value, list[str]]) -> None:
        """Writes the use of the words after the loop, or lets the wait for its products do so."""
        for value in found:
            del self.state.kept[value]
        self.state.unread += [word for words in found.values() for word in words]
        if not any(user.name == "dot_wait" for result in loop.results for user, _ in self.users.get(result, ())):
            self.use()

    def use(self) -> None:
        """Writes the use of the words that wait for one."""
        words, self.state.unread = self.state.unread, []
        if words:
            self.text.asm(never_stored(len(words)), ["r"] * len(words), [f"i32 {word}" for word in words])


def never_stored(count: int) -> str:
    """Inline PTX that stores its operands if the launch has no dynamic shared memory; wgmma reads B from there, so it has."""
    stores = [f"@never st.volatile.shared.v4.b32 [size], {{{quad(i)}}};" for i in range(0, count, 4)]
    lines = [".reg .pred never;", ".reg .b32 size;", "mov.u32 size, %dynamic_smem_size;", "setp.eq.u32 never, size, 0;"]
    return " ".join(["{", *lines, *stores, "}"])


def quad(first: int) -> str:
    """The four operands of an instruction's A, from that number on."""
    return ", ".join(f"${first + i}" for i in range(4))
