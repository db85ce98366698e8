"""Lowers matrix products without a tensor core: multiply-adds of operands in shared memory.

Each thread walks along K, reads its rows of A and columns of B, and adds their outer product to its accumulators. It reads several steps
of a row of A, and several neighbouring columns of B, in one access of up to 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blocknb.codegen.gpu.buffers import Buffers
from blocknb.codegen.gpu.casts import cast
from blocknb.codegen.gpu.context import KernelPart
from blocknb.codegen.gpu.element_types import ElementType, llvm_type, memory_bits
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts.linear import Layout
from blocknb.layouts.tables import steps_at_once

WIDEST = 16  # bytes of one access
PERIOD = 128  # bytes; see `layouts.shared.swizzled_rows`


class FmaDot(KernelPart):
    """Writes matrix products as multiply-adds: a short K in one piece, a long one as a loop."""

    def dot(self, op: Op) -> None:
        """Adds up outer products, several per iteration (`steps_at_once`). The accumulators are the phis of the loop, if there is one."""
        c, k = op.args[2], op.args[0].type.shape[1]
        steps, product = steps_at_once(c.type.layout.num_registers, k), OuterProducts(self.text, self.buffers, op)
        initial = self.registers.regs(c)
        if steps == k:
            self.registers.set(op.result, product.added(list(initial), steps))
            return
        text, kind = self.text, llvm_type(c.type.dtype)
        before, header, done = text.label, text.new_label("dot"), text.new_label("enddot")
        index, names = text.name(), [text.name() for _ in initial]
        text.do(f"br label %{header}")
        text.start(header)
        phis = text.open_chunk()
        text.open_chunk()
        following = product.added(list(names), steps, index)
        next_index = text.emit(f"add i32 {index}, {steps}")
        more = text.emit(f"icmp slt i32 {next_index}, {k}")
        text.do(f"br i1 {more}, label %{header}, label %{done}")
        phis.append(f"  {index} = phi i32 [ 0, %{before} ], [ {next_index}, %{header} ]")
        for name, first, last in zip(names, initial, following, strict=True):
            phis.append(f"  {name} = phi {kind} [ {first}, %{before} ], [ {last}, %{header} ]")
        text.open_chunk()
        text.start(done)
        self.registers.set(op.result, following)


class OuterProducts:
    """The multiply-adds of a dot for consecutive steps along K."""

    def __init__(self, text: TextWriter, buffers: Buffers, op: Op):
        self.text, (self.a, self.b, self.c) = text, op.args
        layout = self.c.type.layout
        self.rows, self.row_of = parts(layout, OperandPlaces(layout, 0))
        places = OperandPlaces(layout, 1, op.attrs.get("stacked", 1), math.prod(self.b.type.shape))
        self.columns, self.column_of = parts(layout, places)
        self.left = SharedOperand(buffers, self.a, layout, OperandPlaces(layout, 0))
        self.right = SharedOperand(buffers, self.b, layout, places)
        self.width = neighbours(layout, 1, self.columns, WIDEST // self.right.bytes)

    def added(self, sums: list[str], steps: int, index: str = "") -> list[str]:
        """The accumulators after `steps` steps, from 0 or from the value `index` on."""
        kind, xs = llvm_type(self.c.type.dtype), self.along_k(steps, index)
        for step in range(steps):
            ys = self.along_n(step, index)
            for r in range(len(sums)):
                x, y = xs[step][self.row_of[r]], ys[self.column_of[r]]
                sums[r] = fused(self.text, x, y, sums[r], self.c.type.dtype, kind)
        return sums

    def along_k(self, steps: int, index: str) -> list[list[str]]:
        """The elements of A by step and row."""
        width = min(steps, WIDEST // self.left.bytes)
        rows = [
            [x for at in range(0, steps, width) for x in self.left.vector(row, at, width, index)] for row in self.rows
        ]
        return [[self.cast(row[step], self.a) for row in rows] for step in range(steps)]

    def along_n(self, step: int, index: str) -> list[str]:
        """The elements of B at a step, by column."""
        found = [self.right.vector(c, step, self.width, index) for c in self.columns[:: self.width]]
        return [self.cast(x, self.b) for vector in found for x in vector]

    def cast(self, x: str, operand: Value) -> str:
        return cast(self.text, x, operand.type.dtype, self.c.type.dtype)


class OperandPlaces:
    """The row of A or column of B that an element of the result needs. B may have `stacked` matrices below each other, of `size` elements
    together. Then a coordinate of B is the distance of the column's first element in memory."""

    def __init__(self, layout: Layout, axis: int, stacked: int = 1, size: int = 0):
        self.axis, self.mask, self.low = axis, layout.dim_mask(axis), layout.dim_bits(axis).start
        # The bit of the result's index from which on it counts matrices.
        self.first = layout.index_bits - (stacked.bit_length() - 1)
        self.apart = size // stacked

    def coordinate(self, index: int) -> int:
        number = index >> self.first if self.axis == 1 else 0
        return ((index & self.mask) >> self.low) + number * self.apart


def parts(layout: Layout, places: OperandPlaces) -> tuple[list[int], list[int]]:
    """The distinct coordinates of a thread's registers, and for each register the number of its coordinate."""
    coordinates = [places.coordinate(index) for index in layout.register_indices]
    distinct = sorted(set(coordinates))
    return distinct, [distinct.index(x) for x in coordinates]


def neighbours(layout: Layout, axis: int, coordinates: Sequence[int], most: int) -> int:
    """How many neighbouring elements along an axis each thread reads together: a power of two, aligned in every thread."""
    low, mask, width = layout.dim_bits(axis).start, layout.dim_mask(axis), 1
    elsewhere = [(basis & mask) >> low for basis in (*layout.lane, *layout.warp)]
    while width < most and not any(basis & width for basis in elsewhere):
        wider = {c ^ width for c in coordinates}
        if wider != set(coordinates):
            break
        width *= 2
    return width


class SharedOperand:
    """Elements of A[row, k] or B[k, column] in shared memory. `bytes` are those of an element."""

    def __init__(self, buffers: Buffers, buffer: Value, layout: Layout, places: OperandPlaces):
        self.text, self.buffer, self.axis = buffers.text, buffer, places.axis
        self.extent = buffer.type.shape[1]  # elements from one row to the next
        self.bytes = memory_bits(buffer.type.dtype) // 8
        self.stride = self.extent if self.axis == 0 else 1

        def place(bases: Sequence[int]) -> tuple[int, ...]:
            return tuple(places.coordinate(basis) * self.stride for basis in bases)

        self.address = buffers.elements(buffer, place(layout.lane), place(layout.warp))

    def vector(self, coordinate: int, step: int, width: int, index: str) -> list[str]:
        """Loads `width` neighbours from a row (of A) or column (of B) of the thread, at a step along K; `index` names a value that is
        added to the step."""
        text, kind = self.text, llvm_type(self.buffer.type.dtype)
        along = 1 if self.axis == 0 else self.extent
        pointer = self.address.pointer(coordinate * self.stride + step * along)
        if index:
            pointer = self.advanced(pointer, text.emit(f"mul i32 {index}, {along * self.bytes}"))
        aligned = width * self.bytes
        if width == 1:
            return [text.emit(f"load {kind}, ptr addrspace(3) {pointer}, align {aligned}")]
        loaded = text.emit(f"load <{width} x {kind}>, ptr addrspace(3) {pointer}, align {aligned}")
        return [text.emit(f"extractelement <{width} x {kind}> {loaded}, i32 {i}") for i in range(width)]

    def advanced(self, pointer: str, distance: str) -> str:
        """A pointer that many bytes further. Along a row of A, the distance within 128 bytes, the period of the swizzle, is added by XOR.
        These bits of the row's address hold only the swizzle, because a buffer starts at a multiple of 128 bytes."""
        text = self.text
        if self.axis == 0:
            place = text.emit(f"ptrtoint ptr addrspace(3) {pointer} to i32")
            within = text.emit(f"and i32 {distance}, {PERIOD - 1}")
            pointer = text.emit(f"inttoptr i32 {text.emit(f'xor i32 {place}, {within}')} to ptr addrspace(3)")
            distance = text.emit(f"and i32 {distance}, {-PERIOD}")
        return text.emit(f"getelementptr i8, ptr addrspace(3) {pointer}, i32 {distance}")


def fused(text: TextWriter, x: str, y: str, accumulator: str, dtype: ElementType, kind: str) -> str:
    """x * y + accumulator."""
    if dtype.is_float and dtype.bits >= 32:
        return text.call(kind, f"llvm.fma.f{dtype.bits}", (kind, x), (kind, y), (kind, accumulator))
    if dtype.is_float:
        wide = [cast(text, v, dtype, t.float32) for v in (x, y, accumulator)]
        return cast(text, text.call("float", "llvm.fma.f32", *(("float", v) for v in wide)), t.float32, dtype)
    return text.emit(f"add {kind} {text.emit(f'mul {kind} {x}, {y}')}, {accumulator}")
