"""Lowers pure ops on tiles lazily: it computes each register when a user first reads it."""

from __future__ import annotations

from collections.abc import Set

from blocknb.codegen.gpu.casts import convert_pair
from blocknb.codegen.gpu.context import KernelContext, KernelPart
from blocknb.codegen.gpu.element_types import constant, llvm_type, num_registers
from blocknb.codegen.gpu.math import ElementwiseMath
from blocknb.ir.core import Op, Value
from blocknb.language.ops import PRESERVING

RENAMING = PRESERVING | {"promise"}


class LazyOps(KernelPart):
    """Computes registers of pure ops. `moving` are addresses of asynchronous copies whose base pointer moves."""

    def __init__(self, context: KernelContext, math: ElementwiseMath, moving: Set[Value]):
        super().__init__(context)
        self.math, self.moving = math, moving

    def compute(self, op: Op, value: Value, index: int) -> str:
        """Writes one register from registers that are known, and returns its name."""
        match op.name:
            case "const":
                return constant(op.attrs["value"], value.type.dtype)
            case "arange":
                return self.arange(op, index)
            case "cast" if op.args[0].type.dtype.is_fp8() or value.type.dtype.is_fp8():
                return self.convert_pair(op, value, index)
            case "cast" | "add" | "sub" | "mul" if num_registers(value) > 1:
                first = index & ~1
                if (halves := self.registers.conversions.halves(value, first)) is not None:
                    self.registers.names[value].update(zip((first, first + 1), halves, strict=True))
                    return halves[index - first]
        names = self.registers.operand_names(op, value, index)
        if op.name in RENAMING:
            return names[0]
        if value in self.moving:
            names = self.hide_offset(*names)
        return self.inside(op, names[0]) if op.name == "inside" else self.math.apply(op, names)

    def arange(self, op: Op, index: int) -> str:
        """A register of the numbers along an axis."""
        text, layout = self.text, op.result.type.layout
        base = self.threads.thread_index(layout.lane, layout.warp)
        offset, reach = layout.register_indices[index], 0
        for basis in (*layout.lane, *layout.warp):
            reach |= basis
        if offset & reach:
            base, offset = text.emit(f"xor i32 {base}, {offset}"), 0
        if self.loops.piece_offset and op.result in self.registers.streamed:
            base = text.emit(f"add i32 {base}, {self.loops.piece_offset}")
        offset += op.attrs["start"]
        return text.emit(f"add i32 {base}, {offset}") if offset else base

    def convert_pair(self, op: Op, value: Value, index: int) -> str:
        """A register of a cast from or to an 8-bit float. The neighbouring register is computed with it."""
        (x,) = op.args
        reg, types = self.registers.reg, (x.type.dtype, value.type.dtype)
        if num_registers(value) == 1:
            return convert_pair(self.text, *types, (reg(x),) * 2)[0]
        first = index & ~1
        names = convert_pair(self.text, *types, (reg(x, first), reg(x, first + 1)))
        self.registers.names[value].update(zip((first, first + 1), names, strict=True))
        return names[index - first]

    def hide_offset(self, pointer: str, offset: str) -> tuple[str, str]:
        """Pointer and offset, in a form that hides from LLVM that the offset is loop-invariant. Otherwise LLVM would keep a 64-bit address
        for every copy and advance each with two instructions. A 32-bit offset is one register, and the address takes one instruction."""
        hidden = self.text.emit(f'call i32 asm "", "=r,0,l"(i32 {offset}, ptr addrspace(1) {pointer})')
        return pointer, hidden

    def inside(self, op: Op, address: str) -> str:
        """Whether an element of the array begins at the address: one comparison, since an address below the array wraps around."""
        argument = op.attrs["argument"]
        self.interface.extents[argument] = None
        number = self.text.emit(f"ptrtoint {llvm_type(op.args[0].type.dtype)} {address} to i64")
        return self.text.emit(f"icmp ult i64 {self.text.emit(f'sub i64 {number}, %low{argument}')}, %span{argument}")
