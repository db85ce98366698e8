"""Scans, flips and gathers: plain loops over tiles in scratch.

A tile in row-major order is a number of slabs. A slab is a number of rows along the axis, and a row is `inner` elements side by side. A
scan walks a slab row by row with vectors along `inner`, and reads the row before from its own result. A flip copies rows. A gather takes
single elements. Running sums of fp16 and bf16 are kept in fp32 and rounded at the end.
"""

from __future__ import annotations

import math

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.elementwise import combine
from blocknb.codegen.cpu.reduction_kinds import plain_combine
from blocknb.codegen.scalar_math import casts, narrow_floats
from blocknb.codegen.scalar_math.register_types import NARROW, SIZES
from blocknb.ir.core import Op
from blocknb.language import types as t


def _sizes(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(slabs, rows of a slab, elements of a row)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


class DataMovement(VersionPart):
    """Lowers scans, flips and gathers."""

    def __init__(self, context: VersionContext, copies: TileCopies):
        super().__init__(context)
        self.copies = copies

    def _buffers(self, op: Op) -> tuple[list[ScratchBuffer], list[ScratchBuffer]]:
        """The operands in row-major order, and new buffers for the results."""
        sources = [self.copies.row_major(x) for x in op.args]
        results = [self.tiles.allocate(r.type.shape, r.type.dtype) for r in op.results]
        for value, buffer in zip(op.results, results, strict=True):
            self.tiles.attach(value, buffer)
        return sources, results

    def _at(self, buffer: ScratchBuffer, *terms: tuple[str, int]) -> str:
        """The pointer to the element at the sum of counter times stride."""
        offset = "0"
        for counter, stride in terms:
            offset = self.code.add_scaled(offset, counter, stride)
        return self.tiles.element(buffer, offset)

    def _width(self, buffers: list[ScratchBuffer], inner: int) -> int:
        return min(inner, self.code.machine.vector_bytes // max(SIZES[b.element] for b in buffers))

    @lowers("scan")
    def scan(self, op: Op) -> None:
        """Combines the elements along an axis, and keeps all partial results."""
        sources, results = self._buffers(op)
        slabs, rows, inner = _sizes(op.args[0].type.shape, op.attrs["axis"])
        width, w = self._width(sources, inner), self.code.w
        reverse = bool(op.attrs.get("reverse"))
        plain = plain_combine(op)
        wide = plain is not None and plain.name == "add" and sources[0].dtype.name in NARROW
        with w.counted("0", str(slabs), 1) as slab:
            with w.counted("0", str(inner), width) as j:
                first = str(rows - 1 if reverse else 0)
                for source, result in zip(sources, results, strict=True):
                    terms = (slab, rows * inner), (first, inner), (j, 1)
                    place = self._at(result, *terms)
                    value = self.tiles.read(source, self._at(source, *terms), width)
                    self.tiles.write(result, place, value, width)
            with w.counted("1", str(rows), 1) as step, w.counted("0", str(inner), width) as j:
                row = self.code.i64("sub", str(rows - 1), step) if reverse else step
                previous = self.code.i64("add" if reverse else "sub", row, "1")
                terms = (slab, rows * inner), (row, inner), (j, 1)
                before = (slab, rows * inner), (previous, inner), (j, 1)
                left = [self.tiles.read(b, self._at(b, *before), width) for b in results]
                right = [self.tiles.read(b, self._at(b, *terms), width) for b in sources]
                if wide:
                    found = [self.code.binary("fadd", left[0], right[0], "float", width)]
                else:
                    found = combine(self.code, op.blocks[0], [*left, *right], width)
                for value, result in zip(found, results, strict=True):
                    self.tiles.write(result, self._at(result, *terms), value, width)
        if wide:
            self._round(results[0], slabs * rows * inner)

    def _round(self, buffer: ScratchBuffer, size: int) -> None:
        """Rounds the elements of a buffer to its dtype, in place."""
        width = self._width([buffer], size)
        with self.code.w.counted("0", str(size), width) as j:
            place = self._at(buffer, (j, 1))
            value = narrow_floats.rounded(self.code, self.tiles.read(buffer, place, width), buffer.dtype, width)
            self.tiles.write(buffer, place, value, width)

    @lowers("flip")
    def flip(self, op: Op) -> None:
        """Element i along the axis becomes element i ^ mask."""
        (source,), (result,) = self._buffers(op)
        slabs, rows, inner = _sizes(op.args[0].type.shape, op.attrs["axis"])
        width, w = self._width([source], inner), self.code.w
        with w.counted("0", str(slabs * rows), 1) as row:
            # The mask is less than the number of rows, so the other row is in the same slab.
            other = self.code.i64("xor", row, str(op.attrs["mask"]))
            with w.counted("0", str(inner), width) as j:
                value = self.tiles.read(source, self._at(source, (other, inner), (j, 1)), width)
                self.tiles.write(result, self._at(result, (row, inner), (j, 1)), value, width)

    @lowers("gather")
    def gather(self, op: Op) -> None:
        """Takes elements along the axis by their indices."""
        (source, index), (result,) = self._buffers(op)
        axis, c = op.attrs["axis"], self.code
        slabs, rows, inner = _sizes(op.result.type.shape, axis)
        size = op.args[0].type.shape[axis]
        with (
            c.w.counted("0", str(slabs), 1) as slab,
            c.w.counted("0", str(rows), 1) as row,
            c.w.counted("0", str(inner), 1) as j,
        ):
            terms = (slab, rows * inner), (row, inner), (j, 1)
            wanted = self.tiles.read(index, self._at(index, *terms), 1)
            wide = casts.cast(c, wanted, index.dtype, t.int64, 1)
            wide = c.i64("and", wide, str(size - 1))
            value = self.tiles.read(source, self._at(source, (slab, size * inner), (wide, inner), (j, 1)), 1)
            self.tiles.write(result, self._at(result, *terms), value, 1)
