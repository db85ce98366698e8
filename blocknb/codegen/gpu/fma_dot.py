"""Lowers matrix products without a tensor core: multiply-adds of operands in shared memory.

Each thread walks along K, reads its rows of A and columns of B, and adds their outer product to its accumulators.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.gpu.buffers import Buffers
from blocknb.codegen.gpu.casts import cast
from blocknb.codegen.gpu.context import KernelPart
from blocknb.codegen.gpu.element_types import ElementType, llvm_type, memory_bits
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts.linear import Layout

UNROLL = 4  # steps along K in one iteration


class FmaDot(KernelPart):
    """Writes matrix products as loops of multiply-adds."""

    def dot(self, op: Op) -> None:
        """Writes a loop along K with UNROLL outer products per iteration. The accumulators are its phis."""
        text = self.text
        a, b, c = op.args
        layout, k = c.type.layout, a.type.shape[1]
        kind = llvm_type(c.type.dtype)
        rows, row_of = parts(layout, 0)
        columns, column_of = parts(layout, 1)
        unroll = min(UNROLL, k)
        initial, before = self.registers.regs(c), text.label
        header, done = text.new_label("dot"), text.new_label("enddot")
        index, names = text.name(), [text.name() for _ in initial]
        left, right = SharedOperand(self.buffers, a, layout, 0), SharedOperand(self.buffers, b, layout, 1)
        text.do(f"br label %{header}")
        text.start(header)
        phis = text.open_chunk()
        text.open_chunk()
        following = list(names)
        for step in range(unroll):
            at = text.emit(f"add i32 {index}, {step}") if step else index
            xs = [cast(text, left.element(row, at), a.type.dtype, c.type.dtype) for row in rows]
            ys = [cast(text, right.element(column, at), b.type.dtype, c.type.dtype) for column in columns]
            for r in range(len(following)):
                following[r] = fused(text, xs[row_of[r]], ys[column_of[r]], following[r], c.type.dtype, kind)
        next_index = text.emit(f"add i32 {index}, {unroll}")
        more = text.emit(f"icmp slt i32 {next_index}, {k}")
        text.do(f"br i1 {more}, label %{header}, label %{done}")
        phis.append(f"  {index} = phi i32 [ 0, %{before} ], [ {next_index}, %{header} ]")
        for name, first, last in zip(names, initial, following, strict=True):
            phis.append(f"  {name} = phi {kind} [ {first}, %{before} ], [ {last}, %{header} ]")
        text.open_chunk()
        text.start(done)
        self.registers.set(op.result, following)


def parts(layout: Layout, axis: int) -> tuple[list[int], list[int]]:
    """The distinct coordinates of a thread's registers along an axis, and for each register the number of its coordinate."""
    low = layout.dim_bits(axis).start
    coordinates = [(index & layout.dim_mask(axis)) >> low for index in layout.register_indices]
    distinct = sorted(set(coordinates))
    return distinct, [distinct.index(x) for x in coordinates]


class SharedOperand:
    """Elements of A[row, k] or B[k, column] in shared memory. An address is the thread's part, a constant and a multiple of k."""

    def __init__(self, buffers: Buffers, buffer: Value, layout: Layout, axis: int):
        self.text, self.buffer, self.axis = buffers.text, buffer, axis
        self.extent = buffer.type.shape[1]  # row-major: elements from one row to the next
        self.low, self.mask = layout.dim_bits(axis).start, layout.dim_mask(axis)
        self.bytes = memory_bits(buffer.type.dtype) // 8
        stride = self.extent if axis == 0 else 1

        def place(bases: Sequence[int]) -> tuple[int, ...]:
            return tuple(((basis & self.mask) >> self.low) * stride for basis in bases)

        self.address = buffers.elements(buffer, place(layout.lane), place(layout.warp))
        self.stride = stride

    def element(self, coordinate: int, k: str) -> str:
        """Loads the element at a row or column of the thread and a step along K."""
        text, dtype = self.text, self.buffer.type.dtype
        base = self.address.pointer(coordinate * self.stride)
        step = 1 if self.axis == 0 else self.extent
        moved = text.emit(f"mul i32 {k}, {step * self.bytes}")
        pointer = text.emit(f"getelementptr i8, ptr addrspace(3) {base}, i32 {moved}")
        return text.emit(f"load {llvm_type(dtype)}, ptr addrspace(3) {pointer}, align {self.bytes}")


def fused(text: TextWriter, x: str, y: str, accumulator: str, dtype: ElementType, kind: str) -> str:
    """x * y + accumulator."""
    if dtype.is_float and dtype.bits >= 32:
        return text.call(kind, f"llvm.fma.f{dtype.bits}", (kind, x), (kind, y), (kind, accumulator))
    if dtype.is_float:
        wide = [cast(text, v, dtype, t.float32) for v in (x, y, accumulator)]
        return cast(text, text.call("float", "llvm.fma.f32", *(("float", v) for v in wide)), t.float32, dtype)
    return text.emit(f"add {kind} {text.emit(f'mul {kind} {x}, {y}')}, {accumulator}")
