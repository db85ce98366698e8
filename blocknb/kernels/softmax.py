"""Softmax over rows: each is read once and written once. Short rows share a program."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import alone, matrix, tile
from blocknb.kernels.strides import strides


@blocknb.kernel
def softmax_kernel(x, y, x_stride, y_stride, n, BLOCK: bl.constexpr):
    row = bl.program_id(0).to(bl.int64)
    columns = bl.arange(0, BLOCK)
    inside = columns < n
    values = bl.load(x + row * x_stride + columns, mask=inside, other=-float("inf")).to(bl.float32)
    powers = bl.exp(values - bl.max(values, axis=0))
    bl.store(y + row * y_stride + columns, powers / bl.sum(powers, axis=0), mask=inside)


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
    if rows == 1:
        softmax_kernel[(m,)](x, out, strides(x)[0], strides(out)[0], n, **shape)
    else:
        grid = (blocknb.cdiv(m, rows),)
        softmax_rows_kernel[grid](x, out, strides(x)[0], strides(out)[0], m, n, ROWS=rows, **shape)
    return out
