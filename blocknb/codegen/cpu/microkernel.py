"""`dot` as a register microkernel over tiles in scratch (see `microkernel_loops`).

B is stored in panels of NR columns, so its rows are contiguous; the loop that makes B writes the panels. A may have any strides, because
its elements are read one at a time. Tiles are powers of two, so NR is too. Two vectors and 8 rows take 16 of the 32 registers of AVX-512 or
NEON; two vectors and 4 rows take 8 of the 16 of AVX2. Both have more accumulators than the latency of a fused multiply-add in cycles.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.dataflow import Dataflow, Index, identity
from blocknb.codegen.cpu.microkernel_loops import MicrokernelLoops, MicrokernelShape
from blocknb.codegen.cpu.product_bounds import ProductBounds
from blocknb.codegen.cpu.tile_prefetch import TilePrefetch
from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures
from blocknb.codegen.scalar_math.register_types import SIZES, register_type
from blocknb.codegen.text import Writer, vector_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.ops import PRESERVING
from blocknb.language.types import DType

Panel = tuple[int, int, int]  # axis of k, axis of n, width


def packed_dtype(dtype: DType) -> DType:
    """The dtype in which B is packed, which is the accumulators'."""
    return t.int32 if dtype.is_integer else dtype


def register_tile(machine: TargetFeatures, op: Op) -> tuple[int, int, int]:
    """(MR, NR, lanes of a vector) for a dot."""
    m, n = op.results[0].type.shape
    lanes = machine.vector_bytes // SIZES[register_type(op.results[0].type.dtype)]
    lanes = min(lanes, n)
    nr = min(n, 2 * lanes)
    return min(m, machine.vector_registers // 4), nr, lanes


def panel_for(program: Dataflow, machine: TargetFeatures, value: Value, axis: int | None) -> Panel | None:
    """The panels in which to store a tile that only dots read, as their B, and that is made in vectors along `axis`; else None.

    Vectors along k would have to be scattered. Such a tile is stored in row-major order and transposed in registers afterwards.
    """
    uses = program.uses.get(value, ())
    wanted = {_panel(machine, use.op, use.at) if use.op.name == "dot" and use.operand == 1 else None for use in uses}
    panel = wanted.pop() if len(wanted) == 1 else None
    return panel if panel is None or panel[0] != axis else None


def _panel(machine: TargetFeatures, op: Op, index: Index) -> Panel | None:
    if sorted(index, key=str) != [0, 1]:
        return None
    return index.index(0), index.index(1), register_tile(machine, op)[1]


class Dots(VersionPart):
    """Lowers dots: packs the operands and calls a microkernel for their shapes."""

    def __init__(self, context: VersionContext, copies: TileCopies):
        super().__init__(context)
        self.copies, self.prefetch, self.bounds = copies, TilePrefetch(context), ProductBounds(context)

    @lowers("dot")
    def dot(self, op: Op) -> None:
        """Packs the operands if they are not packed yet, and calls the microkernel for their shapes."""
        a, strides_m, strides_k = self._operand_a(op.args[0])
        b = self._operand_b(op, op.args[1])
        c = self._destination(op)
        m, n = op.results[0].type.shape
        k = op.args[0].type.shape[1]
        zero = self._is_zero(op.args[2])
        mr, nr, lanes = register_tile(self.code.machine, op)
        self.notes(op, f"{mr} x {nr} accumulators in {mr * nr // lanes} registers; the operands are in scratch memory")
        accumulator = op.results[0].type.dtype
        fetched, ends = self.prefetch.tiles_of(op), self.bounds.of(op)
        name = f"blocknb.dot.{op.args[0].type.dtype.name}.{accumulator.name}.{m}x{n}x{k}.{strides_m}.{strides_k}{'.zero' if zero else ''}"
        name += "".join(f".{tile.rows}x{tile.lines}" for tile in fetched)
        bounded = tuple(end != str(size) for end, size in zip(ends, (m, n, k), strict=True))
        name += "".join(f".{letter}" for letter, is_bounded in zip("mnk", bounded, strict=True) if is_bounded)
        if name not in self.code.helpers:
            self.code.helpers[name] = ""
            shape = MicrokernelShape(m, n, k, mr, nr, lanes)
            loops = MicrokernelLoops(self.code, shape, accumulator, a, (strides_m, strides_k), fetched, bounded, zero)
            self.code.helpers[name] = loops.function(name)
        places = ", ".join(f"ptr {self.tiles.base(x)}" for x in (c, a, b))
        places += "".join(f", i64 {tile.address}, i64 {tile.stride}" for tile in fetched)
        places += "".join(f", i64 {end}" for end, is_bounded in zip(ends, bounded, strict=True) if is_bounded)
        self.code.w.do(f"call void @{name}({places})")
        self.tiles.attach(op.results[0], c)

    def _stored(self, value: Value) -> tuple[ScratchBuffer, Index] | None:
        """The buffer of a tile that is stored, or is a view of one, and the index of the buffer's axes by the tile's."""
        index = identity(value.type.shape)
        while value not in self.tiles.buffers:
            if self.program.view_of(value) is None:
                return None
            index = self.program.operand_index(value, index)
            value = self.program.definition[value].args[0]
        return self.tiles.buffers[value], index

    def _operand_a(self, value: Value) -> tuple[ScratchBuffer, int, int]:
        """A's buffer and its strides along m and k, in elements."""
        found = self._stored(value)
        if found is None or found[0].panel is not None:
            buffer = self.tiles.temporary(value.type.shape, value.type.dtype)
            self.copies.copy(value, buffer)
            return buffer, buffer.strides[0], buffer.strides[1]
        buffer, index = found
        pairs = [(i, stride) for i, stride in zip(index, buffer.strides, strict=True) if i is not None]
        m, k = (sum(stride for i, stride in pairs if i == loop) for loop in identity(value.type.shape))
        return buffer, m, k

    def _operand_b(self, op: Op, value: Value) -> ScratchBuffer:
        """B in panels."""
        _, nr, _ = register_tile(self.code.machine, op)
        found = self._stored(value)
        if found and found[0].panel and found[0].panel == _panel(self.code.machine, op, found[1]):
            return found[0]
        buffer = self.tiles.temporary(value.type.shape, packed_dtype(value.type.dtype), (0, 1, nr))
        if found and _runs_along_k(found) and found[0].dtype == buffer.dtype:
            self._transpose(found[0], found[1], buffer)
        else:
            self.copies.copy(value, buffer)
        return buffer

    def _transpose(self, source: ScratchBuffer, index: Index, panels: ScratchBuffer) -> None:
        """Packs a B whose columns are contiguous: transposes squares of vectors in registers, by halves."""
        k, n = panels.shape
        stride = source.strides[index.index(1)]
        assert panels.panel is not None
        name = f"blocknb.pack.{source.element}.{k}x{n}.{stride}.{panels.panel[2]}"
        if name not in self.code.helpers:
            self.code.helpers[name] = _transpose_function(self.code, name, (k, n), stride, panels)
        self.code.w.do(f"call void @{name}(ptr {self.tiles.base(panels)}, ptr {self.tiles.base(source)})")

    def _is_zero(self, value: Value) -> bool:
        while (op := self.program.definition.get(value)) is not None:
            if op.name == "const":
                return op.attrs["value"] == 0
            if op.name not in PRESERVING:
                return False
            value = op.args[0]
        return False

    def _destination(self, op: Op) -> ScratchBuffer:
        """The buffer of the result, which holds the accumulator's values (or anything, if they are zero)."""
        a, b, c = op.args
        scope, result = self.tiles.scope, op.results[0]
        read = {leaf for x in (a, b) for leaf, _ in self.program.leaves(x, identity(x.type.shape))}
        if result in scope.targets:
            home, argument = scope.targets[result]
            starts = (argument is c or self._is_zero(c)) and argument not in read
            if starts and self.tiles.free_home(home, argument, [op]):
                return home
        buffer = self.tiles.reusable_buffer(c, [op]) if c not in read else None
        if buffer is not None and buffer.row_major() and buffer.dtype == c.type.dtype:
            return buffer
        buffer = self.tiles.allocate(c.type.shape, c.type.dtype)
        if not self._is_zero(c):
            self.copies.copy(c, buffer)
        return buffer


def _runs_along_k(found: tuple[ScratchBuffer, Index]) -> bool:
    """Whether the columns of a stored B are contiguous."""
    buffer, index = found
    return buffer.panel is None and sorted(index, key=str) == [0, 1] and buffer.strides[index.index(0)] == 1


def _transpose_function(
    outer: KernelBuilder, name: str, sizes: tuple[int, int], stride: int, panels: ScratchBuffer
) -> str:
    """Writes the function that packs a B with contiguous columns, by transposing squares of vectors in registers."""
    (k, n), element, width = sizes, panels.element, panels.panel[2]  # type: ignore[index]
    lanes = min(outer.machine.vector_bytes // SIZES[element], k, width)
    code, ty = InstructionBuilder(Writer(), outer.machine, outer.helpers), vector_type(element, lanes)
    w = code.w

    def shuffle(a: str, b: str, lane: Callable[[int], int]) -> str:
        chosen = ", ".join(f"i32 {lane(i)}" for i in range(lanes))
        return w.value(f"shufflevector {ty} {a}, {ty} {b}, <{lanes} x i32> <{chosen}>")

    with w.counted("0", str(n), lanes, "n") as column, w.counted("0", str(k), lanes, "k") as depth:
        corner = code.i64("add", code.i64("mul", column, str(stride)), depth)
        first = w.value(f"getelementptr inbounds {element}, ptr %from, i64 {corner}")
        rows = []
        for i in range(lanes):
            at = w.value(f"getelementptr inbounds {element}, ptr {first}, i64 {i * stride}")
            rows.append(w.value(f"load {ty}, ptr {at}, align {SIZES[element]}"))
        # Row and lane exchange one bit of their numbers in each round.
        bit = 1
        while bit < lanes:
            for i in range(lanes):
                if not i & bit:
                    a, b = rows[i], rows[i + bit]
                    rows[i] = shuffle(a, b, lambda x, bit=bit: x + lanes - bit if x & bit else x)  # type: ignore[misc]
                    rows[i + bit] = shuffle(a, b, lambda x, bit=bit: x + lanes if x & bit else x + bit)  # type: ignore[misc]
            bit *= 2
        panel = code.i64("mul", code.i64("and", column, str(-width)), str(k))
        inside = code.i64("and", column, str(width - 1))
        for i, row in enumerate(rows):
            line = code.i64("mul", code.i64("add", depth, str(i)), str(width))
            offset = code.i64("add", code.i64("add", panel, line), inside)
            at = w.value(f"getelementptr inbounds {element}, ptr %to, i64 {offset}")
            w.do(f"store {ty} {row}, ptr {at}, align {SIZES[element]}")
    signature = "ptr noalias %to, ptr noalias readonly %from"
    return w.function(f"internal void @{name}({signature}) noinline nounwind", "ret void")
