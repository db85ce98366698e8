"""Movement within a warp: shuffles between layouts, and the exchanges of reductions and scans.

A value of any type travels as 32-bit words. `layouts.convert` plans the registers that each lane sends in a shuffle, and the lane from
which it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blocknb.codegen.gpu.context import KernelPart
from blocknb.codegen.gpu.element_types import ElementType, llvm_type, memory_bits
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op
from blocknb.language import types as t
from blocknb.layouts.convert import Select, Shuffle, plan_in_warps


class WarpShuffles(KernelPart):
    """Lowers layout conversions within each warp."""

    def shuffle(self, op: Op) -> None:
        """Moves the elements of a tile to another layout, as `layouts.convert` planned it."""
        source, dtype = op.args[0], op.result.type.dtype
        steps = plan_in_warps(source.type.layout, op.attrs["layout"], memory_bits(dtype)).shuffle
        assert steps is not None, "only shuffles come here"
        if not steps.packed:
            self.registers.set(op.result, self.moved(self.registers.regs(source), dtype, steps))
            return
        bits = memory_bits(dtype) << len(steps.packed)
        leaving = [self.registers.word(source, tuple(word)) for word in steps.words(source.type.layout, False)]
        if bits < 32:
            leaving = [self.text.emit(f"zext i{bits} {word} to i32") for word in leaving]
        arrived = self.moved(leaving, t.int32, steps)
        if bits < 32:
            arrived = [self.text.emit(f"trunc i32 {word} to i{bits}") for word in arrived]
        arriving = map(tuple, steps.words(op.attrs["layout"], True))
        self.registers.arrive(op, dict(zip(arriving, arrived, strict=True)))

    def moved(self, names: Sequence[str], dtype: ElementType, steps: Shuffle) -> list[str]:
        """The registers, or words, after the three steps of a shuffle."""
        published = self.select(names, dtype, steps.before)
        lane = self.threads.thread_index(steps.lane, steps.warp)
        arrived = []
        for step in steps.rounds:
            if not step.moves:
                arrived.append(published[step.source])
            elif steps.is_butterfly:
                arrived.append(butterfly(self.text, published[step.source], dtype, step.flip))
            else:
                source_lane = self.text.emit(f"xor i32 {lane}, {step.flip}") if step.flip else lane
                arrived.append(from_lane(self.text, published[step.source], dtype, source_lane))
        return self.select(arrived, dtype, steps.after)

    def select(self, names: Sequence[str], dtype: ElementType, stages: Sequence[Select]) -> list[str]:
        """Swaps registers r and r ^ flip in the threads that a stage names."""
        kind = llvm_type(dtype)
        for stage in stages:
            parity = self.threads.thread_index(
                [stage.lane_mask >> i & 1 for i in range(5)],
                [stage.warp_mask >> i & 1 for i in range((self.threads.num_warps - 1).bit_length())],
            )
            swap = self.text.emit(f"icmp ne i32 {parity}, 0")
            names = [
                self.text.emit(f"select i1 {swap}, {kind} {names[r ^ stage.flip]}, {kind} {names[r]}")
                for r in range(len(names))
            ]
        return list(names)


def shuffled(text: TextWriter, name: str, dtype: ElementType, exchange: Callable[[str], str]) -> str:
    """A value of any type through an exchange of 32-bit words."""
    kind, bits = llvm_type(dtype), dtype.bits
    if bits == 64:
        whole = text.as_integer(name, kind, 64)
        low = exchange(text.emit(f"trunc i64 {whole} to i32"))
        high = exchange(text.emit(f"trunc i64 {text.emit(f'lshr i64 {whole}, 32')} to i32"))
        wide = text.emit(f"shl i64 {text.emit(f'zext i32 {high} to i64')}, 32")
        joined = text.emit(f"or i64 {wide}, {text.emit(f'zext i32 {low} to i64')}")
        return text.from_integer(joined, kind, 64)
    whole = text.as_integer(name, kind, bits)
    moved = exchange(whole if bits == 32 else text.emit(f"zext i{bits} {whole} to i32"))
    narrow = moved if bits == 32 else text.emit(f"trunc i32 {moved} to i{bits}")
    return text.from_integer(narrow, kind, bits)


def butterfly(text: TextWriter, name: str, dtype: ElementType, mask: int) -> str:
    """The value of this name in the lane whose number differs by `mask`."""
    return shuffled(text, name, dtype, lambda word: exchanged(text, "bfly", word, str(mask)))


def from_lane(text: TextWriter, name: str, dtype: ElementType, lane: str) -> str:
    """The value of this name in the lane with that number."""
    return shuffled(text, name, dtype, lambda word: exchanged(text, "idx", word, lane))


def exchanged(text: TextWriter, mode: str, word: str, lane: str) -> str:
    """A 32-bit word of another lane (PTX ISA: shfl.sync)."""
    return text.call("i32", f"llvm.nvvm.shfl.sync.{mode}.i32", *(("i32", x) for x in ("-1", word, lane, "31")))
