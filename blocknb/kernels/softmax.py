"""Softmax over rows: each is read once and written once. Short rows share a program."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import alone, matrix, tile
from blocknb.kernels.strides import on_host, strides

LONG = 1024  # elements of a row whose vectors pay for separate ends


@blocknb.kernel
def softmax_kernel(x, y, x_stride, y_stride, n, BLOCK: bl.constexpr):
    row = bl.program_id(0).to(bl.int64)
    columns = bl.arange(0, BLOCK)
    inside = columns < n
    values = bl.load(x + row * x_stride + columns, mask=inside, other=-float("inf")).to(bl.float32)
    powers = bl.exp(values - bl.max(values, axis=0))
    bl.store(y + row * y_stride + columns, powers / bl.sum(powers, axis=0), mask=inside)


@blocknb.kernel
def softmax_unaligned_kernel(x, y, x_stride, y_stride, n, VECTOR: bl.constexpr, BLOCK: bl.constexpr):
    """Rows that begin anywhere in a vector of VECTOR elements, in x and y at the same place: whole vectors, and the ends."""
    row = bl.program_id(0).to(bl.int64)
    begin, out = row * x_stride, row * y_stride
    first = (begin + VECTOR - 1) // VECTOR * VECTOR
    before = (first - begin).to(bl.int32)
    whole = (n - before) // VECTOR * VECTOR
    columns = bl.arange(0, BLOCK)
    inside = columns < whole
    values = bl.load(x + first + columns, mask=inside, other=-float("inf")).to(bl.float32)
    end = bl.arange(0, 2 * VECTOR)
    at = bl.where(end < VECTOR, end, before + whole + end - VECTOR)
    outside = (at < n) & ((end < before) | (end >= VECTOR))
    ends = bl.load(x + begin + at, mask=outside, other=-float("inf")).to(bl.float32)
    top = bl.maximum(bl.max(values, axis=0), bl.max(ends, axis=0))
    powers, others = bl.exp(values - top), bl.exp(ends - top)
    total = bl.sum(powers, axis=0) + bl.sum(others, axis=0)
    aligned = y + (out + VECTOR - 1) // VECTOR * VECTOR
    bl.store(aligned + columns, powers / total, mask=inside)
    bl.store(y + out + at, others / total, mask=outside)


@blocknb.kernel
def softmax_rows_kernel(x, y, x_stride, y_stride, m, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    at = rows[:, None].to(bl.int64)
    values = bl.load(x + at * x_stride + columns[None, :], mask=inside, other=-float("inf")).to(bl.float32)
    powers = bl.exp(values - bl.max(values, axis=1)[:, None])
    bl.store(y + at * y_stride + columns[None, :], powers / bl.sum(powers, axis=1)[:, None], mask=inside)


def softmax(x: Any, out: Any, *, num_warps: int | None = None) -> Any:
    """Softmax along the last axis of a matrix (M, N), in fp32 arithmetic; rows may have any stride, and columns must be contiguous.

    Returns `out`, of the same shape. Raises ValueError for other shapes, and for rows that are not contiguous or longer than 65536.
    """
    m, n = matrix(x, "x")
    matrix(out, "out", like=x)
    shape = tile(x, num_warps, alone)
    rows = shape.pop("ROWS")
    if rows == 1 and (vector := unaligned(x, out)):
        softmax_unaligned_kernel[(m,)](x, out, strides(x)[0], strides(out)[0], n, VECTOR=vector, **shape)
    elif rows == 1:
        softmax_kernel[(m,)](x, out, strides(x)[0], strides(out)[0], n, **shape)
    else:
        grid = (blocknb.cdiv(m, rows),)
        softmax_rows_kernel[grid](x, out, strides(x)[0], strides(out)[0], m, n, ROWS=rows, **shape)
    return out


def unaligned(x: Any, out: Any) -> int:
    """The elements of a vector of 16 bytes, if long rows on a GPU begin at odd places of vectors, the same ones in x and out; else 0."""
    vector, (step, other) = 16 // int(x.dtype.itemsize), (strides(x)[0], strides(out)[0])
    odd = step % vector and (step - other) % vector == 0 and min(step, other) > 0
    return vector if odd and x.shape[1] > LONG and not on_host(x) else 0
