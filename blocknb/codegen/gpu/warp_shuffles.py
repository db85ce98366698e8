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
from blocknb.layouts.convert import Select, Shuffle, plan


class WarpShuffles(KernelPart):
    """Lowers layout conversions within each warp."""

    def shuffle(self, op: Op) -> None:
        """Moves the elements of a tile to another layout, as `layouts.convert` planned it."""
        source, dtype = op.args[0], op.result.type.dtype
        steps = plan(source.type.layout, op.attrs["layout"], memory_bits(dtype)).shuffle
        assert steps is not None, "only shuffles come here"
        if steps.packed:
            words = self.packed(self.registers.regs(source), dtype, steps.words(source.type.layout, False))
            moved = self.moved(words, t.int32, steps)
            registers = self.unpacked(moved, dtype, steps.words(op.attrs["layout"], True))
        else:
            registers = self.moved(self.registers.regs(source), dtype, steps)
        self.registers.set(op.result, registers)

    def packed(self, names: Sequence[str], dtype: ElementType, words: Sequence[Sequence[int]]) -> list[str]:
        """Joins the elements of each word, low bits first, to an i32."""
        kind, bits, made = llvm_type(dtype), dtype.bits, []
        for word in words:
            value = ""
            for place, register in enumerate(word):
                part = self.text.emit(f"zext i{bits} {self.text.as_integer(names[register], kind, bits)} to i32")
                part = self.text.emit(f"shl i32 {part}, {place * memory_bits(dtype)}") if place else part
                value = self.text.emit(f"or i32 {value}, {part}") if value else part
            made.append(value)
        return made

    def unpacked(self, names: Sequence[str], dtype: ElementType, words: Sequence[Sequence[int]]) -> list[str]:
        """The elements of each word, by register: the inverse of `packed`."""
        kind, bits = llvm_type(dtype), dtype.bits
        made = [""] * sum(map(len, words))
        for name, word in zip(names, words, strict=True):
            for place, register in enumerate(word):
                part = self.text.emit(f"lshr i32 {name}, {place * memory_bits(dtype)}") if place else name
                part = self.text.emit(f"trunc i32 {part} to i{bits}")
                made[register] = self.text.from_integer(part, kind, bits)
        return made

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
