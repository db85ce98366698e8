"""The microkernel of a product: loops over panels of B, over register tiles, and over k.

A tile of MR x NR accumulators stays in vector registers while k runs. At each k, the code loads one row of a panel of B as vectors. It
broadcasts each of the MR elements of A's column, and multiplies it with the row. If the last panel has at most half of its columns, the
code computes half of it. Meanwhile it prefetches the tiles of the loop's next iteration to the L2 cache, and the next register tile of a
large result to the L1 cache. Source: Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from blocknb.codegen.cpu.buffers import LINE, ScratchBuffer
from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.tile_prefetch import NextTile, PrefetchSchedule
from blocknb.codegen.scalar_math import casts, narrow_floats
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import SIZES, constant, register_type
from blocknb.codegen.text import Writer, vector_type
from blocknb.language.types import DType

L1 = 1 << 15  # bytes: a smaller result stays in the L1 cache


class MicrokernelShape(NamedTuple):
    """The sizes of a product, of its register tile, and of a vector, in elements."""

    m: int
    n: int
    k: int
    mr: int
    nr: int
    lanes: int

    @property
    def vectors(self) -> int:
        """The vectors in a row of the register tile."""
        return self.nr // self.lanes


class MicrokernelLoops:
    """The function that multiplies two operands of a dot and adds the result.

    `strides` are A's along m and k, in elements. The code prefetches the tiles `fetched`. The extents along m, n and k that are `bounded`
    are arguments of the function. `zero`: the accumulators start at zero.
    """

    def __init__(
        self,
        outer: KernelBuilder,
        shape: MicrokernelShape,
        accumulator: DType,
        a: ScratchBuffer,
        strides: tuple[int, int],
        fetched: Sequence[NextTile],
        bounded: Sequence[bool],
        zero: bool,
    ):
        self.code = InstructionBuilder(Writer(), outer.machine, outer.helpers)
        self.shape, self.accumulator, self.a, self.strides, self.bounded, self.zero = (
            shape, accumulator, a, strides, bounded, zero
        )  # fmt: skip
        self.element = register_type(accumulator)
        self.vector = vector_type(self.element, shape.lanes)
        # The accumulators are stack slots, which LLVM (SROA) promotes to vector registers.
        self.sums = [[self.code.w.slot(self.vector, "c") for _ in range(shape.vectors)] for _ in range(shape.mr)]
        self.schedule = PrefetchSchedule(self.code, fetched, shape.m // shape.mr * (shape.n // shape.nr), shape.k)

    def function(self, name: str) -> str:
        """The text of the function."""
        c, shape, columns = self.code, self.shape, self._end(1)
        whole = columns
        if self.bounded[1] and shape.vectors == 2:
            columns = c.i64_most(columns, "0")
            whole = c.i64("and", c.i64("add", columns, str(shape.lanes - 1)), str(-shape.nr))
        with c.w.counted("0", whole, shape.nr, "n") as column:
            self._panel(column, shape.vectors)
        if whole != columns:  # the last panel has at most half of its columns
            with c.w.counted(whole, columns, shape.nr, "half") as column:
                self._panel(column, 1)
        signature = f"ptr noalias %c, ptr noalias readonly %a, ptr noalias readonly %b{self.schedule.parameters}"
        signature += "".join(f", i64 %{x}" for x, bounded in zip("mnk", self.bounded, strict=True) if bounded)
        return c.w.function(f"internal void @{name}({signature}) noinline nounwind", "ret void")

    def _end(self, axis: int) -> str:
        """The end of the loop along m, n or k."""
        return f"%{'mnk'[axis]}" if self.bounded[axis] else str(self.shape[axis])

    @property
    def _aligned(self) -> str:
        return f"align {min(self.shape.lanes * SIZES[self.element], LINE)}"

    def _at(self, base: str, index: str, unit: str) -> str:
        return self.code.w.value(f"getelementptr inbounds {unit}, ptr {base}, i64 {index}")

    def _panel(self, column: str, vectors: int) -> None:
        """Multiplies all rows of A with the first `vectors` vectors of the panel that begins at a column."""
        c, shape = self.code, self.shape
        panel = self._at("%b", c.i64("mul", column, str(shape.k)), self.element)
        with self.code.w.counted("0", self._end(0), shape.mr, "m") as row:
            corner = self._at("%c", c.i64("add", c.i64("mul", row, str(shape.n)), column), self.element)
            self._register_tile(row, column, panel, corner, vectors)

    def _register_tile(self, row: str, column: str, panel: str, corner: str, vectors: int) -> None:
        """Adds the product of MR rows of A and a panel to the part of the result at `corner`."""
        c, w, shape = self.code, self.code.w, self.shape
        places = [
            [self._at(corner, str(i * shape.n + j * shape.lanes), self.element) for j in range(vectors)]
            for i in range(shape.mr)
        ]
        first = self._at("%a", c.i64("mul", row, str(self.strides[0])), self.a.element)
        for i in range(shape.mr):
            for j in range(vectors):
                start = constant(0, self.accumulator, shape.lanes)
                if not self.zero:
                    start = w.value(f"load {self.vector}, ptr {places[i][j]}, {self._aligned}")
                w.do(f"store {self.vector} {start}, ptr {self.sums[i][j]}")
        with w.counted("0", str(self.schedule.parts), 1, "part") as part:
            self._fetch(row, column, corner, part)
            begin = c.i64("mul", part, str(shape.k // self.schedule.parts))
            end = c.i64("add", begin, str(shape.k // self.schedule.parts))
            end = c.i64_least(end, self._end(2)) if self.bounded[2] else end
            with w.counted(begin, end, 1, "k") as depth:
                self._step(panel, first, depth, vectors)
        for i in range(shape.mr):
            for j in range(vectors):
                total = w.value(f"load {self.vector}, ptr {self.sums[i][j]}")
                total = narrow_floats.rounded(c, total, self.accumulator, shape.lanes)
                w.do(f"store {self.vector} {total}, ptr {places[i][j]}, {self._aligned}")

    def _step(self, panel: str, first: str, depth: str, vectors: int) -> None:
        """One step of k for all accumulators."""
        c, w, shape = self.code, self.code.w, self.shape
        line = self._at(panel, c.i64("mul", depth, str(shape.nr)), self.element)
        starts = (self._at(line, str(j * shape.lanes), self.element) for j in range(vectors))
        bs = [w.value(f"load {self.vector}, ptr {start}, {self._aligned}") for start in starts]
        along = self._at(first, c.i64("mul", depth, str(self.strides[1])), self.a.element)
        for i in range(shape.mr):
            x = w.value(f"load {self.a.element}, ptr {self._at(along, str(i * self.strides[0]), self.a.element)}")
            x = c.splat(_widen(c, x, self.a.dtype, self.accumulator), self.element, shape.lanes)
            for j, y in enumerate(bs):
                old = w.value(f"load {self.vector}, ptr {self.sums[i][j]}")
                new = _multiply_add(c, x, y, old, self.accumulator, shape.lanes)
                w.do(f"store {self.vector} {new}, ptr {self.sums[i][j]}")

    def _fetch(self, row: str, column: str, corner: str, part: str) -> None:
        """The prefetches of one part of the steps of a register tile."""
        c, shape = self.code, self.shape
        if self.schedule.fetched:
            number = c.i64("mul", c.i64("udiv", column, str(shape.nr)), str(shape.m // shape.mr))
            self.schedule.fetch(c.i64("add", number, c.i64("udiv", row, str(shape.mr))), part)
        if shape.m * shape.n * SIZES[self.element] > L1:
            self._fetch_accumulators(corner, part)

    def _fetch_accumulators(self, corner: str, part: str) -> None:
        """Prefetches a part of the register tile below the one at `corner`. Otherwise its loads would wait for the L2 cache."""
        c, shape, size, parts = self.code, self.shape, SIZES[self.element], self.schedule.parts
        per_row = max(1, shape.nr * size // LINE)
        each, repeats = max(1, shape.mr * per_row // parts), max(1, parts // (shape.mr * per_row))
        for more in range(each):
            line = c.i64("add", c.i64("mul", c.i64("udiv", part, str(repeats)), str(each)), str(more))
            row = c.i64("add", c.i64("udiv", line, str(per_row)), str(shape.mr))
            column = c.i64("mul", c.i64("urem", line, str(per_row)), str(LINE // size))
            place = c.i64("add", c.i64("mul", row, str(shape.n)), column)
            pointer = self.code.w.value(f"getelementptr {self.element}, ptr {corner}, i64 {place}")
            self.code.w.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 1, i32 3, i32 1)")


def _widen(code: InstructionBuilder, x: str, dtype: Any, accumulator: DType) -> str:
    if dtype.is_float and accumulator.is_float:
        have, want = register_type(dtype), register_type(accumulator)
        return x if have == want else code.convert("fpext", x, have, want, 1)
    return casts.cast(code, x, dtype, accumulator, 1)


def _multiply_add(code: InstructionBuilder, x: str, y: str, total: str, dtype: DType, lanes: int) -> str:
    element = register_type(dtype)
    if dtype.is_float:
        return code.fma(x, y, total, element, lanes)
    return code.binary("add", total, code.binary("mul", x, y, element, lanes), element, lanes)
