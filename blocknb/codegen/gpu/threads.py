"""Emits the numbers of a thread (lane, warp, consumer group, program), the owners of replicated elements, and barriers.

`%tid`, `%lane` and `%warp` count within a program. A warp finds its role by its number, which is the same in all of its lanes, so the
branch is uniform. Barriers of a consumer group are named (PTX ISA: barrier): they count the threads of the group only.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu import warp_specialization
from blocknb.codegen.gpu.interface import GRID
from blocknb.codegen.gpu.text import TextWriter
from blocknb.errors import CompilerBug
from blocknb.ir.core import Func
from blocknb.layouts.linear import Layout
from blocknb.passes.support import program_order

CONSUMER_BARRIER = 1  # the number of the consumers' barrier; 0 is the CTA's
ARITHMETIC = {"add": "add i32", "sub": "sub i32", "mul": "mul i32", "div": "udiv i32", "rem": "urem i32"}


class Threads:
    """Writes the numbers of the thread. `programs` and `consumer_groups` are the numbers of each in a CTA. `in_consumer` and `alone`
    say whether the code belongs to the consumers, or to a role of a single thread."""

    def __init__(self, text: TextWriter, func: Func):
        self.text, self.order = text, func.attrs.get("order")
        self.num_warps = func.attrs.get("num_warps", 1)
        self.programs = func.attrs.get("programs", 1)
        self.persistent = bool(func.attrs.get("persistent"))
        self.consumer_groups = warp_specialization.consumer_groups(func)
        self.in_consumer = self.alone = False

    # -- programs

    def place(self, what: str, axis: int) -> str:
        """The "program_id" or the "num_programs" along an axis of the grid, an i32. A CTA has programs along its y axis."""
        if self.persistent:
            if what == "program_id":
                raise CompilerBug("a persistent kernel has no program id")
            return GRID[axis]
        if what == "program_id" and axis < 2 and self.order is not None:
            return self.swizzled_program_id(axis)
        return self.launched(what, axis)

    def launched(self, what: str, axis: int) -> str:
        """The program's place in the grid by the hardware's numbers."""
        found = self.special(f"{'ctaid' if what == 'program_id' else 'nctaid'}.{'xyz'[axis]}")
        if axis or self.programs == 1:
            return found
        found = self.text.emit(f"mul i32 {found}, {self.special('ntid.y')}")
        return self.text.emit(f"add i32 {found}, {self.special('tid.y')}") if what == "program_id" else found

    def special(self, register: str) -> str:
        """The value of a special register (PTX ISA), an i32."""
        return self.text.call("i32", f"llvm.nvvm.read.ptx.sreg.{register}")

    def swizzled_program_id(self, axis: int) -> str:
        """The program's place along x or y in the order that the pass `program_swizzle` chose, computed at the kernel's head."""
        text = self.text
        if ("place", axis) not in text.memo:
            with text.writing(text.entry, ""):
                text.memo.update({("place", i): found for i, found in enumerate(self.swizzled_places())})
        return text.memo["place", axis]

    def swizzled_places(self) -> tuple[str, str]:
        """The program's place along x and y. The hardware starts CTAs in the order of their numbers, x first, so the number says when a
        CTA begins. Numbers are unsigned and have 32 bits; where these may not suffice, each program keeps its place."""
        text = self.text

        def do(name: str, a: str, b: str) -> str:
            if name == "min":
                return text.call("i32", "llvm.umin.i32", ("i32", a), ("i32", b))
            return text.emit(f"{ARITHMETIC[name]} {a}, {b}")

        own, (across, down) = ([self.launched(what, i) for i in range(2)] for what in ("program_id", "num_programs"))
        number = do("add", own[0], do("mul", own[1], across))
        x, y = program_order.place(do, number, across, down, str(self.order))
        few = text.emit(f"icmp ule i32 {across}, {program_order.MOST_ALONG_X}")
        return text.emit(f"select i1 {few}, i32 {x}, i32 {own[0]}"), text.emit(
            f"select i1 {few}, i32 {y}, i32 {own[1]}"
        )

    # -- threads

    def thread_index(self, lane: Sequence[int], warp: Sequence[int]) -> str:
        """XOR of the given ints over the set bits of the thread's lane and warp: an i32, computed once in the entry block."""
        key = ("index", tuple(lane), tuple(warp))
        return self.text.once(key, lambda: self.text.xor_bits(("%lane", lane), ("%warp", warp)))

    def owner(self, layout: Layout | None) -> str:
        """An i1 that holds in exactly one of the threads with the same elements; "" when every thread owns its elements."""
        lanes, warps = (
            (31, self.num_warps - 1) if layout is None else (layout.replicated_lane_bits, layout.replicated_warp_bits)
        )
        if not lanes and not warps:
            return ""
        mask, text = warps << 5 | lanes, self.text
        return text.once(("owner", mask), lambda: text.emit(f"icmp eq i32 {text.emit(f'and i32 %tid, {mask}')}, 0"))

    def index_in_cta(self) -> str:
        """The number of the thread in its CTA. Where there are several consumer groups, `%tid` counts in the group."""
        return "%tid.raw" if self.consumer_groups > 1 else "%tid"

    def consumer_group(self) -> str:
        """The number of the thread's consumer group."""
        shift = self.num_warps.bit_length() - 1
        return self.text.once(
            ("consumer group",), lambda: self.text.emit(f"lshr i32 {self.uniform('%warp.raw')}, {shift}")
        )

    def uniform(self, name: str) -> str:
        """A number that all lanes of a warp share, in a form that tells ptxas so: it stays in a uniform register."""
        all_lanes = (("i32", "-1"), ("i32", name), ("i32", "0"), ("i32", "31"))
        return self.text.once(
            ("uniform", name), lambda: self.text.call("i32", "llvm.nvvm.shfl.sync.idx.i32", *all_lanes)
        )

    def of_warp(self, steps: Sequence[int]) -> str:
        """XOR of the steps over the set bits of the warp's number, a number that ptxas knows to be uniform."""
        warp = self.uniform("%warp.raw")
        return self.text.once(("of warp", tuple(steps)), lambda: self.text.xor_bits((warp, steps)))

    # -- barriers

    def warp_barrier(self) -> None:
        """All lanes of the warp wait for each other."""
        self.text.call("void", "llvm.nvvm.bar.warp.sync", ("i32", "-1"))

    def barrier(self) -> None:
        """All threads of the program wait for each other; in a CTA with roles, all threads of the consumer group."""
        if self.num_warps == 1:  # a CTA may have several such programs
            self.warp_barrier()
        elif self.in_consumer:
            count, number = str(32 * self.num_warps), str(CONSUMER_BARRIER)
            if self.consumer_groups > 1:
                number = self.text.once(
                    ("consumer barrier",),
                    lambda: self.text.emit(f"add i32 {self.consumer_group()}, {CONSUMER_BARRIER}"),
                )
            self.text.call("void", "llvm.nvvm.barrier.cta.sync.aligned.count", ("i32", number), ("i32", count))
        else:
            self.text.call("void", "llvm.nvvm.barrier.cta.sync.aligned.all", ("i32", "0"))
