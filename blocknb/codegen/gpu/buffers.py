"""Buffers in shared memory: their offsets, and the addresses of their elements.

An address is a constant of the instruction plus a part that all accesses with the same part share.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu.element_types import memory_bits
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.threads import Threads
from blocknb.ir.core import Value


class Buffers:
    """The offsets of buffers and mbarriers. `stages`: for a stage of a circular buffer, the bytes from the buffer's start."""

    def __init__(self, text: TextWriter, threads: Threads):
        self.text, self.threads = text, threads
        self.offsets: dict[Value, int] = {}
        self.stages: dict[Value, str] = {}

    def base(self) -> str:
        """The address of shared memory, an i32."""
        return self.text.once(("shared memory",), lambda: self.text.emit("ptrtoint ptr addrspace(3) @shared to i32"))

    def start(self, buffer: Value) -> str:
        """A pointer to the first byte of a buffer that is no stage of another one."""
        return self.text.emit(f"getelementptr i8, ptr addrspace(3) @shared, i32 {self.offsets[buffer]}")

    def place(self, buffer: Value) -> tuple[str, int]:
        """The address of a buffer, or of a stage of a circular buffer, as an i32 and a constant."""
        start, stage = self.base(), self.stages.get(buffer)
        if stage:
            key, text = ("stage", start, stage), f"add i32 {start}, {stage}"
            start = self.text.in_block(key, lambda: self.text.emit(text))
        return start, self.offsets[buffer]

    def elements(self, buffer: Value, lane: Sequence[int], warp: Sequence[int]) -> SharedAddress:
        """The addresses of a buffer's elements for the lanes and warps of a layout."""
        return SharedAddress(self, buffer, lane, warp)


class SharedAddress:
    """The addresses of a buffer's elements for one layout: (the thread's part XOR a constant) plus a constant. The XOR combines only the
    bits that both parts may have."""

    def __init__(self, buffers: Buffers, buffer: Value, lane: Sequence[int], warp: Sequence[int]):
        self.text, self.base, self.stage = buffers.text, buffers.offsets[buffer], buffers.stages.get(buffer, "")
        self.shared, self.bytes = buffer.type.layout, memory_bits(buffer.type.dtype) // 8
        lane, warp = ([self.shared.offset(b) * self.bytes for b in bases] for bases in (lane, warp))
        self.reach = 0
        for basis in (*lane, *warp):
            self.reach |= basis
        self.thread = buffers.threads.thread_index(lane, warp)

    def pointer(self, index: int) -> str:
        """A pointer to the element whose flat index is the thread's part XOR `index`."""
        return self.text.advanced(*self.place(index), 3)

    def place(self, index: int) -> tuple[str, int]:
        """The address as a name, and a constant number of bytes after it."""
        text, offset = self.text, self.shared.offset(index) * self.bytes
        meet = offset & self.reach
        base = text.once(("shared", self.thread, meet), lambda: self.thread_part(meet))
        if stage := self.stage:
            moved = f"getelementptr i8, ptr addrspace(3) {base}, i32 {stage}"
            base = text.in_block(("stage", base, stage), lambda: text.emit(moved))
        return base, self.base + (offset & ~self.reach)

    def thread_part(self, meet: int) -> str:
        """Writes the part of the address that depends on the thread."""
        name = self.text.emit(f"xor i32 {self.thread}, {meet}") if meet else self.thread
        return self.text.emit(f"getelementptr i8, ptr addrspace(3) @shared, i32 {name}")
