"""Asynchronous copies (cp.async) from global to shared memory past the registers, and the stages of circular buffers.

An instruction copies 4, 8 or 16 bytes per thread. If its predicate is off, it writes zeros instead, so a mask costs nothing. The entry
block computes once the offset that a thread adds to a buffer's base, swizzle included. A stage of a circular buffer adds one number to it.

The generator *postpones* copies for a later iteration. In the IR they come before the MMA reads its first fragments; in the LLVM text they
come after. So the tensor cores start right after the barrier, and they hide the copies and the address arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import mask_of
from blocknb.codegen.gpu.cache_hints import CacheHint
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.lookahead import Lookahead, may_precede_mma
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Func, Op, Value
from blocknb.language import types as t


def moving_addresses(func: Func, defs: Mapping[Value, Op]) -> set[Value]:
    """The addresses of copies that are a scalar pointer, which advances in each iteration, plus constant 32-bit offsets."""
    found = set()
    for op in func.ops():
        made = defs.get(op.args[1]) if op.name == "copy_async" else None
        if made is not None and made.name == "ptradd" and made.args[1].type.dtype == t.int32:
            base = defs.get(made.args[0])
            found |= {made.result} if base is not None and base.name == "splat" else set()
    return found


class PostponedCopies:
    """The postponed copies, in order. The next MMA begins them. They are `urgent` if the next iteration already reads their data."""

    def __init__(self, text: TextWriter, lookahead: Lookahead):
        self.text, self.lookahead = text, lookahead
        self.steps: list[Callable[[], None]] = []
        self.urgent = False

    def postpone(self, step: Callable[[], object]) -> None:
        """Postpones a step until the next mma.sync. Does it now if no mma.sync follows, or if the step is urgent."""
        if self.urgent or not self.lookahead.mma_follows():
            step()
            return
        dbg = self.text.dbg

        def later() -> None:
            with self.text.writing(self.text.sink, dbg):
                step()

        self.steps.append(later)

    def begin(self, count: int) -> None:
        """Does the first `count` steps."""
        for _ in range(count):
            self.steps.pop(0)()

    def flush_before(self, op: Op) -> None:
        """Does all steps before an op, unless they may move past it to the next MMA."""
        if self.steps and not may_precede_mma(op):
            self.begin(len(self.steps))


ANY_ADDRESS = 0xFFFFFFFE  # in shared memory: no aligned address is larger


class AsyncCopies(OpLowering):
    """Lowers cp.async and the choice of a stage of a circular buffer."""

    def __init__(self, context: KernelContext, postponed: PostponedCopies):
        super().__init__(context)
        self.postponed = postponed

    @lowers("stage")
    def stage(self, op: Op) -> None:
        """Computes the bytes from the start of a circular buffer to a stage."""
        buffer, index = op.args
        self.postponed.urgent = buffer.type.stages < 3
        self.buffers.offsets[op.result] = self.buffers.offsets[buffer]
        distance = f"mul nuw nsw i32 {self.registers.reg(index)}, {buffer.type.stage.bytes}"
        self.buffers.stages[op.result] = self.text.emit(distance)

    @lowers("commit")
    def commit(self, op: Op) -> None:
        """Commits the copies so far as a group."""
        self.postponed.postpone(lambda: self.text.call("void", "llvm.nvvm.cp.async.commit.group"))

    @lowers("wait")
    def wait(self, op: Op) -> None:
        """Waits until at most `in_flight` groups are in flight."""
        self.text.call("void", "llvm.nvvm.cp.async.wait.group", ("i32", str(op.attrs["in_flight"])))

    @lowers("copy_async")
    def copy(self, op: Op) -> None:
        """Copies a tile access by access."""
        buffer, pointer = op.args[:2]
        layout, mask, owner = pointer.type.layout, mask_of(op), self.threads.owner(pointer.type.layout)
        size = buffer.type.dtype.bytes * op.attrs["vec"]
        where, keep = self.buffers.elements(buffer, layout.lane, layout.warp), CacheHint.of(op, self.target)
        cache = "cg" if size == 16 and op.attrs.get("cache") != ".ca" else "ca"

        def one(registers: tuple[int, ...]) -> None:
            self.text.accesses += 1
            target = where.place(layout.register_indices[registers[0]])
            source = self.addresses.of(pointer, registers[0])
            on = "true" if mask is None else self.registers.reg(mask, registers[0])
            self.issue(cache, target, source, size, on, owner, keep)

        for registers in accesses(self.facts, op):
            self.postponed.postpone(partial(one, registers))

    def in_one_register(self, address: str) -> str:
        """The same address in shared memory, which ptxas does not split into a register of the thread and one of the warp. It writes wrong
        code for a copy with an eviction policy and a split address: the policy is in an odd register, and the GPU refuses the instruction
        (ptxas 12.9 and 13.0)."""
        number = self.text.emit(f"ptrtoint ptr addrspace(3) {address} to i32")
        least = self.text.call("i32", "llvm.umin.i32", ("i32", number), ("i32", str(ANY_ADDRESS)))
        return self.text.emit(f"inttoptr i32 {least} to ptr addrspace(3)")

    def issue(
        self, cache: str, target: tuple[str, int], source: tuple[str, int], size: int, mask: str, owner: str,
        keep: CacheHint,
    ) -> None:  # fmt: skip
        """One instruction with a cache operator, from and to an address with a constant. It writes zeros where the mask is off. With an
        `owner`, one of the threads that hold the same elements copies them. The mask is a predicate operand (ignore-src). For a size
        operand, ptxas would first compute a predicate. `keep` is the eviction policy of the load."""
        text = self.text
        if keep.policy:
            target = text.in_block(("whole", target[0]), lambda: self.in_one_register(target[0])), target[1]
        operands, constraints = [f"ptr addrspace(3) {target[0]}", f"ptr addrspace(1) {source[0]}"], ["l", "l"]
        ignored = ""
        if mask != "true":
            off = text.in_block(("off", mask), lambda: text.emit(f"xor i1 {mask}, true"))
            ignored = f", ${len(operands)}"
            operands.append(f"i1 {off}")
            constraints.append("b")
        to, come = (f"[${i}+{distance}]" if distance else f"[${i}]" for i, (_, distance) in enumerate((target, source)))
        last, kept = keep.last(len(operands)), keep.operands
        ptx = f"cp.async.{cache}.shared.global{keep.suffix} {to}, {come}, {size}{ignored}{last};"
        text.asm(ptx, [*constraints, *["l"] * len(kept)], [*operands, *kept], on=owner)
