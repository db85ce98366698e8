"""Scheduling barriers: ends of basic blocks that keep LLVM and ptxas from moving code."""

from __future__ import annotations

from blocknb.codegen.gpu.text import TextWriter

#: Accesses to global memory in one basic block above which it is split: ptxas compares each access with all before it.
MANY_ACCESSES = 256


def split(text: TextWriter, number: str = "") -> None:
    """Ends a basic block with a branch that is never taken. Neither LLVM nor ptxas can prove that: n * (n + 1) is even.

    Within a block, ptxas moves a load down to its first use. A load for the next iteration has no use in this one, so ptxas would issue it
    at the end. It does not move a load past the end of a block. `number` is n; the clock is the default and takes longer to read.
    """
    odd = text.emit(f"icmp ne i32 {opaque_zero(text, number)}, 0")
    never, on = text.new_label("never"), text.new_label("on")
    text.do(f"br i1 {odd}, label %{never}, label %{on}")
    text.start(never)
    text.do("ret void")
    text.start(on)


def split_in_flight(text: TextWriter, rarely_true: str) -> None:
    """Ends a basic block while wgmma is in flight. ptxas would insert a wait before the `ret` of `split`. So here the branch, on a
    `rarely_true` condition, goes to a harmless instruction that has no result."""
    seldom, on = text.new_label("seldom"), text.new_label("on")
    text.do(f"br i1 {rarely_true}, label %{seldom}, label %{on}")
    text.start(seldom)
    text.do('call void asm sideeffect "pmevent 1;", ""()')
    text.do(f"br label %{on}")
    text.start(on)


def opaque_zero(text: TextWriter, number: str = "") -> str:
    """A zero that neither LLVM nor ptxas knows to be one: the last bit of n * (n + 1)."""
    n = number or text.call("i32", "llvm.nvvm.read.ptx.sreg.clock")
    product = text.emit(f"mul i32 {n}, {text.emit(f'add i32 {n}, 1')}")
    return text.emit(f"and i32 {product}, 1")
