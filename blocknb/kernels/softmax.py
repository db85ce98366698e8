"""Softmax over rows: each is read once and written once. Short rows share a program."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import independent_rows, matrix, tile
from blocknb.kernels.strides import address, on_host, strides

LONG = 1024  # elements of a row that one tile may hold
CHUNK = 2048  # elements that a program stores of a row that several programs share
PROGRAMS = 128  # fewer than the multiprocessors of a large GPU
WARP = 32


@blocknb.kernel
def softmax_kernel(x, y, x_stride, y_stride, n, BLOCK: bl.constexpr):
    row = bl.program_id(0).to(bl.int64)
    columns = bl.arange(0, BLOCK)
    inside = columns < n
    values = bl.load(x + row * x_stride + columns, mask=inside, other=-float("inf")).to(bl.float32)
    powers = bl.exp(values - bl.max(values, axis=0))
    bl.store(y + row * y_stride + columns, powers / bl.sum(powers, axis=0), mask=inside)


@blocknb.kernel
def softmax_pieces_kernel(
    x, y, x_stride, y_stride, n, VECTOR: bl.constexpr, BLOCK: bl.constexpr, REST: bl.constexpr, CHUNK: bl.constexpr
):  # fmt: skip
    """Softmax of a row in two pieces, of which the first is whole: fewer elements are masked off than in one tile.

    With VECTOR, a row may begin anywhere in a vector of VECTOR elements, in x and y at the same place. The pieces then begin at a vector,
    and the elements before and after the row's whole vectors are loaded apart. With CHUNK, programs share a row: each reads all of it, and
    stores CHUNK elements."""
    row = bl.program_id(0).to(bl.int64)
    begin, out = row * x_stride, row * y_stride
    first, first_out = begin, out
    before, whole = 0, n
    if VECTOR:
        first = (begin + VECTOR - 1) // VECTOR * VECTOR
        first_out = (out + VECTOR - 1) // VECTOR * VECTOR
        before = (first - begin).to(bl.int32)
        whole = (n - before) // VECTOR * VECTOR
    columns = bl.arange(0, BLOCK)
    others = BLOCK + bl.arange(0, REST)
    values = bl.load(x + first + columns).to(bl.float32)
    rest = bl.load(x + first + others, mask=others < whole, other=-float("inf")).to(bl.float32)
    # All loads come before the first reduction, whose barrier they would otherwise wait for.
    if CHUNK:
        own = bl.program_id(1) * CHUNK + bl.arange(0, CHUNK)
        mine = bl.load(x + first + own, mask=own < whole, other=-float("inf")).to(bl.float32)
    if VECTOR:
        end = bl.arange(0, 2 * VECTOR)
        at = bl.where(end < VECTOR, end, before + whole + end - VECTOR)
        outside = (at < n) & ((end < before) | (end >= VECTOR))
        ends = bl.load(x + begin + at, mask=outside, other=-float("inf")).to(bl.float32)
    # Within a thread first, so that warps exchange one number per row for both pieces.
    folded = bl.max(bl.reshape(values, (BLOCK // REST, REST)), axis=0)
    top = bl.max(bl.maximum(folded, rest), axis=0)
    if VECTOR:
        top = bl.maximum(top, bl.max(ends, axis=0))
    powers, more = bl.exp(values - top), bl.exp(rest - top)
    total = bl.sum(bl.sum(bl.reshape(powers, (BLOCK // REST, REST)), axis=0) + more, axis=0)
    if VECTOR:
        ends = bl.exp(ends - top)
        total += bl.sum(ends, axis=0)
        bl.store(y + out + at, ends / total, mask=outside)
    if CHUNK:
        bl.store(y + first_out + own, bl.exp(mine - top) / total, mask=own < whole)
    else:
        bl.store(y + first_out + columns, powers / total)
        bl.store(y + first_out + others, more / total, mask=others < whole)


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
    if (cut := pieces(x, out, num_warps)) is not None:
        parts = blocknb.cdiv(n, cut["CHUNK"]) if cut["CHUNK"] else 1
        softmax_pieces_kernel[(m, parts)](x, out, strides(x)[0], strides(out)[0], n, **cut)
        return out
    shape = tile(x, num_warps, independent_rows)
    rows = shape.pop("ROWS")
    if rows == 1:
        softmax_kernel[(m,)](x, out, strides(x)[0], strides(out)[0], n, **shape)
    else:
        grid = (blocknb.cdiv(m, rows),)
        softmax_rows_kernel[grid](x, out, strides(x)[0], strides(out)[0], m, n, ROWS=rows, **shape)
    return out


def pieces(x: Any, out: Any, num_warps: int | None) -> dict[str, int] | None:
    """The constants of `softmax_pieces_kernel` for arrays for which it is faster than one tile per row, and None for others. It is faster
    on a GPU for long rows, in three cases. The rows do not begin at a whole vector, they leave much of a tile empty, or there are fewer
    rows than SMs."""
    (m, n), size = x.shape, int(x.dtype.itemsize)
    if n <= LONG or on_host(x):
        return None
    step, other, vector = strides(x)[0], strides(out)[0], 16 // size
    odd = vector if step % vector else 0
    if (step - other) % vector or min(step, other) <= 0:
        return None
    block = blocknb.next_power_of_2(n - 2 * odd + 1) // 2  # all of it is in the row, wherever the row begins
    few = m * blocknb.cdiv(n, CHUNK) <= PROGRAMS and n > 2 * CHUNK
    # No program may store to x while another one reads it.
    chunk = CHUNK if few and abs(address(x) - address(out)) >= m * max(step, other) * size else 0
    each = 2048 if odd and size == 2 and block >= 16384 else 1024  # elements per warp; both measured on an H200
    warps = num_warps or (16 if chunk else max(4, min(16, block // each)))
    rest = max(blocknb.next_power_of_2(max(1, n - block)), vector * WARP * warps)
    if rest > block or not (odd or chunk or block + rest <= 0.8 * blocknb.next_power_of_2(n)):
        return None
    return {"VECTOR": odd, "BLOCK": block, "REST": rest, "CHUNK": chunk, "num_warps": warps}
