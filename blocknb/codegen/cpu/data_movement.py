"""Scans, flips and gathers on the CPU: plain loops over tiles in scratch.

A tile in row-major order is a number of slabs, each of which is a number of rows along the axis, each of which is `inner` elements
that lie side by side. A scan walks a slab row by row with vectors along `inner`, reading the row before from its own result; a flip
copies rows; a gather takes single elements. Running sums of fp16 and bf16 are kept in fp32 and rounded at the end, as sums are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blocknb.codegen.cpu import memory
from blocknb.codegen.cpu.elementwise import combine
from blocknb.codegen.cpu.memory import Buffer
from blocknb.codegen.cpu.reductions import plain_combine
from blocknb.codegen.scalar_math import casts, narrow_floats
from blocknb.codegen.scalar_math.register_types import NARROW, SIZES
from blocknb.codegen.scalar_math.structured import counted
from blocknb.ir.core import Op
from blocknb.language import types as t

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter


def emit(e: Emitter, op: Op) -> None:
    """A scan, flip or gather into new buffers."""
    sources = [e.row_major(x) for x in op.args]
    results = [e.allocate(r.type.shape, r.type.dtype) for r in op.results]
    match op.name:
        case "scan":
            _scan(e, op, sources, results)
        case "flip":
            _flip(e, op, sources[0], results[0])
        case "gather":
            _gather(e, op, sources[0], sources[1], results[0])
    for value, buffer in zip(op.results, results, strict=True):
        e.hold(value, buffer)


def _sizes(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(slabs, rows of a slab, elements of a row)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _at(e: Emitter, buffer: Buffer, *terms: tuple[str, int]) -> str:
    """The pointer to the element at the sum of counter times stride."""
    c, offset = e.code, "0"
    for counter, stride in terms:
        offset = c.binary("add", offset, c.binary("mul", counter, str(stride), "i64", 1), "i64", 1)
    return c.w.value(f"getelementptr inbounds {buffer.element}, ptr {e.buffer_base(buffer)}, i64 {offset}")


def _width(e: Emitter, buffers: list[Buffer], inner: int) -> int:
    return min(inner, e.machine.vector_bytes // max(SIZES[b.element] for b in buffers))


def _read(e: Emitter, buffer: Buffer, place: str, width: int) -> str:
    raw = memory.load_vector(e.code, place, buffer.element, width, SIZES[buffer.element])
    return casts.from_scratch(e.code, raw, buffer.dtype, width)


def _write(e: Emitter, buffer: Buffer, place: str, value: str, width: int) -> None:
    stored = casts.to_scratch(e.code, value, buffer.dtype, width)
    memory.store_vector(e.code, place, stored, buffer.element, width, SIZES[buffer.element])


def _scan(e: Emitter, op: Op, sources: list[Buffer], results: list[Buffer]) -> None:
    slabs, rows, inner = _sizes(op.args[0].type.shape, op.attrs["axis"])
    width, w = _width(e, sources, inner), e.code.w
    reverse = bool(op.attrs.get("reverse"))
    plain = plain_combine(op)
    wide = plain is not None and plain.name == "add" and sources[0].dtype.name in NARROW
    with counted(w, "0", str(slabs), 1) as slab:
        with counted(w, "0", str(inner), width) as j:
            first = str(rows - 1 if reverse else 0)
            for source, result in zip(sources, results, strict=True):
                terms = (slab, rows * inner), (first, inner), (j, 1)
                _write(e, result, _at(e, result, *terms), _read(e, source, _at(e, source, *terms), width), width)
        with counted(w, "1", str(rows), 1) as step, counted(w, "0", str(inner), width) as j:
            row = e.code.binary("sub", str(rows - 1), step, "i64", 1) if reverse else step
            previous = e.code.binary("add" if reverse else "sub", row, "1", "i64", 1)
            terms = (slab, rows * inner), (row, inner), (j, 1)
            before = (slab, rows * inner), (previous, inner), (j, 1)
            left = [_read(e, b, _at(e, b, *before), width) for b in results]
            right = [_read(e, b, _at(e, b, *terms), width) for b in sources]
            if wide:
                found = [e.code.binary("fadd", left[0], right[0], "float", width)]
            else:
                found = combine(e.code, op.blocks[0], [*left, *right], width)
            for value, result in zip(found, results, strict=True):
                _write(e, result, _at(e, result, *terms), value, width)
    if wide:
        _round(e, results[0], slabs * rows * inner)


def _round(e: Emitter, buffer: Buffer, size: int) -> None:
    """Rounds what a buffer holds to its dtype, in place."""
    width = _width(e, [buffer], size)
    with counted(e.code.w, "0", str(size), width) as j:
        place = _at(e, buffer, (j, 1))
        _write(
            e, buffer, place, narrow_floats.rounded(e.code, _read(e, buffer, place, width), buffer.dtype, width), width
        )


def _flip(e: Emitter, op: Op, source: Buffer, result: Buffer) -> None:
    slabs, rows, inner = _sizes(op.args[0].type.shape, op.attrs["axis"])
    width, w = _width(e, [source], inner), e.code.w
    with counted(w, "0", str(slabs * rows), 1) as row:  # a mask below the number of rows stays within the slab
        other = e.code.binary("xor", row, str(op.attrs["mask"]), "i64", 1)
        with counted(w, "0", str(inner), width) as j:
            value = _read(e, source, _at(e, source, (other, inner), (j, 1)), width)
            _write(e, result, _at(e, result, (row, inner), (j, 1)), value, width)


def _gather(e: Emitter, op: Op, source: Buffer, index: Buffer, result: Buffer) -> None:
    axis, c = op.attrs["axis"], e.code
    slabs, rows, inner = _sizes(op.result.type.shape, axis)
    size = op.args[0].type.shape[axis]
    with (
        counted(c.w, "0", str(slabs), 1) as slab,
        counted(c.w, "0", str(rows), 1) as row,
        counted(c.w, "0", str(inner), 1) as j,
    ):
        terms = (slab, rows * inner), (row, inner), (j, 1)
        wanted = _read(e, index, _at(e, index, *terms), 1)
        dtype = index.dtype
        wide = casts.cast(c, wanted, dtype, t.int64 if dtype.is_signed else t.uint64, 1) if dtype.bits < 64 else wanted
        wide = c.binary("and", wide, str(size - 1), "i64", 1)
        value = _read(e, source, _at(e, source, (slab, size * inner), (wide, inner), (j, 1)), 1)
        _write(e, result, _at(e, result, *terms), value, 1)
