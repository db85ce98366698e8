"""Lowers flips and gathers.

A flip reads each element from a position that is known at compile time. That is another register, another lane by a butterfly shuffle, or
(across warps) a buffer in shared memory. A gather reads from a buffer at an index that is known only at run time.
"""

from __future__ import annotations

from blocknb.codegen.gpu.element_types import llvm_type, memory_bits
from blocknb.codegen.gpu.registers import Words
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.warp_shuffles import butterfly
from blocknb.ir.core import Op
from blocknb.language.types import Buffer
from blocknb.layouts import gf2


class Moves(OpLowering):
    """Lowers ops that move elements to other places of a tile."""

    @lowers("flip")
    def flip(self, op: Op) -> None:
        """Reads element i from the register and lane of element i ^ mask."""
        if isinstance(op.args[0].type, Buffer):
            self.flip_in_buffer(op)
        else:
            self.flip_in_warp(op)

    def flip_in_warp(self, op: Op) -> None:
        """Flips within a warp. The hardware bits that add up to the mask give the other register and the other lane."""
        x = op.args[0]
        layout = x.type.layout
        place = gf2.solve((*layout.reg, *layout.lane), op.attrs["mask"] << layout.dim_bits(op.attrs["axis"]).start)
        assert place is not None, "a flip across warps goes through shared memory"
        register, lane = place & layout.num_registers - 1, place >> len(layout.reg)
        names = self.registers.regs(x)
        names = [names[r ^ register] for r in range(len(names))]
        self.registers.set(
            op.result, [butterfly(self.text, name, x.type.dtype, lane) for name in names] if lane else names
        )

    def flip_in_buffer(self, op: Op) -> None:
        """Reads each register from the element of the buffer at index i ^ mask."""
        buffer, layout = op.args[0], op.result.type.layout
        bits = memory_bits(buffer.type.dtype)
        where = self.buffers.elements(buffer, layout.lane, layout.warp)
        mask = op.attrs["mask"] << layout.dim_bits(op.attrs["axis"]).start
        words: Words = {}
        for register, index in enumerate(layout.register_indices):
            words[(register,)] = self.text.load_words(where.pointer(index ^ mask), 3, 1, bits)[0]
        self.registers.arrive(op, words)

    @lowers("gather")
    def gather(self, op: Op) -> None:
        """Reads the elements of a row-major buffer that an index names along an axis."""
        buffer, index = op.args
        layout, axis, bits = index.type.layout, op.attrs["axis"], memory_bits(buffer.type.dtype)
        low, high = layout.dim_bits(axis).start, layout.dim_bits(axis).stop
        size = buffer.type.shape[axis]
        over = low + size.bit_length() - 1  # where the axes before this one begin in the buffer

        def without_axis(place: int) -> int:
            return place >> high << over | place & (1 << low) - 1

        thread = self.threads.thread_index(
            [without_axis(b) for b in layout.lane], [without_axis(b) for b in layout.warp]
        )
        kind = llvm_type(index.type.dtype)
        words: Words = {}
        for register, place in enumerate(layout.register_indices):
            wanted = self.registers.reg(index, register)
            if kind != "i32":
                wanted = self.text.emit(f"{'trunc' if kind == 'i64' else 'zext'} {kind} {wanted} to i32")
            at = self.text.emit(f"shl i32 {self.text.emit(f'and i32 {wanted}, {size - 1}')}, {low}")
            at = self.text.emit(f"or i32 {at}, {self.text.emit(f'xor i32 {thread}, {without_axis(place)}')}")
            pointer = self.buffers.start(buffer)
            pointer = self.text.emit(f"getelementptr i{bits}, ptr addrspace(3) {pointer}, i32 {at}")
            words[(register,)] = self.text.load_words(pointer, 3, 1, bits)[0]
        self.registers.arrive(op, words)
