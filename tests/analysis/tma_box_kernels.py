"""Kernels whose accesses are TMA boxes: descriptors, batches, persistent programs, attention."""

from __future__ import annotations

import blocknb
import blocknb.language as bl


@blocknb.kernel
def described(a_desc, b_desc, c_desc, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """Descriptors of the host; b is stored row by row of its columns."""
    row, column = bl.program_id(0) * BM, bl.program_id(1) * BN
    total = bl.zeros((BM, BN), dtype=bl.float32)
    for step in bl.range(0, bl.cdiv(k, BK)):
        x = a_desc.load([row, step * BK])
        y = b_desc.load([column, step * BK])
        total = bl.dot(x, y.T, total)
    c_desc.store([row, column], total.to(c_desc.dtype))


@blocknb.kernel
def persistent(
    a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, GROUP: bl.constexpr, CTAS: bl.constexpr
):
    """Triton's persistent product: descriptors of the device, one loop over tiles of the result, in groups of rows."""
    a_desc = bl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    b_desc = bl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    c_desc = bl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    start = bl.program_id(axis=0)
    down, across = bl.cdiv(m, BM), bl.cdiv(n, BN)
    width = GROUP * across
    for tile in bl.range(start, down * across, CTAS, flatten=True):
        first = tile // width * GROUP
        size = min(down - first, GROUP)
        row, column = (first + tile % size) * BM, (tile % width) // size * BN
        total = bl.zeros((BM, BN), dtype=bl.float32)
        for step in range(bl.cdiv(k, BK)):
            total = bl.dot(a_desc.load([row, step * BK]), b_desc.load([column, step * BK]).T, total)
        c_desc.store([row, column], total.to(bl.float16))


@blocknb.kernel
def batched_blocks(a_desc, b_desc, c_desc, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """Descriptors of three axes, a matrix of the batch at a time."""
    z, row, column = bl.program_id(2), bl.program_id(0) * BM, bl.program_id(1) * BN
    total = bl.zeros((BM, BN), dtype=bl.float32)
    for at in range(0, k, BK):
        x = a_desc.load([z, row, at]).reshape(BM, BK)
        y = b_desc.load([z, at, column]).reshape(BK, BN)
        total = bl.dot(x, y, total)
    c_desc.store([z, row, column], total.to(bl.float16)[None, :, :])


@blocknb.kernel
def batched(
    a, b, c, m, n, k, a_batch, a_row, b_batch, b_row, c_batch, c_row,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, BACKWARDS: bl.constexpr,
):  # fmt: skip
    """A batch of products through pointers; BACKWARDS counts the remaining columns, as Triton's split of K does."""
    z = bl.program_id(2).to(bl.int64)
    rows = bl.program_id(0) * BM + bl.arange(0, BM)
    columns = bl.program_id(1) * BN + bl.arange(0, BN)
    inner = bl.arange(0, BK)
    a_tile = a + z * a_batch + rows[:, None] * a_row + inner[None, :]
    b_tile = b + z * b_batch + inner[:, None] * b_row + columns[None, :]
    total = bl.zeros((BM, BN), dtype=bl.float32)
    if BACKWARDS:
        for left in range(k, 0, -BK):
            x = bl.load(a_tile, mask=(rows < m)[:, None] & (inner < left)[None, :], other=0.0)
            y = bl.load(b_tile, mask=(inner < left)[:, None] & (columns < n)[None, :], other=0.0)
            total = bl.dot(x, y, total)
            a_tile += BK
            b_tile += BK * b_row
    else:
        for at in range(0, k, BK):
            x = bl.load(a_tile, mask=(rows < m)[:, None] & (at + inner < k)[None, :], other=0.0)
            y = bl.load(b_tile, mask=(at + inner < k)[:, None] & (columns < n)[None, :], other=0.0)
            total = bl.dot(x, y, total)
            a_tile += BK
            b_tile += BK * b_row
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    bl.store(c + z * c_batch + rows[:, None] * c_row + columns[None, :], total, mask=inside)


@blocknb.kernel
def attention(
    q, k, v, out, batches, heads, tokens, BM: bl.constexpr, BN: bl.constexpr, D: bl.constexpr, CAUSAL: bl.constexpr
):
    """Forward attention as in Triton's tutorial: all heads of all batches in one array of rows of D."""
    rows = batches * heads * tokens
    q_desc = bl.make_tensor_descriptor(q, shape=[rows, D], strides=[D, 1], block_shape=[BM, D])
    k_desc = bl.make_tensor_descriptor(k, shape=[rows, D], strides=[D, 1], block_shape=[BN, D])
    v_desc = bl.make_tensor_descriptor(v, shape=[rows, D], strides=[D, 1], block_shape=[BN, D])
    o_desc = bl.make_tensor_descriptor(out, shape=[rows, D], strides=[D, 1], block_shape=[BM, D])
    attend(q_desc, k_desc, v_desc, o_desc, heads, tokens, BM, BN, D, CAUSAL)


@blocknb.kernel
def attend(q_desc, k_desc, v_desc, o_desc, heads, tokens, BM: bl.constexpr, BN: bl.constexpr, D: bl.constexpr, CAUSAL):
    pid, head = bl.program_id(0), bl.program_id(1)
    first = head // heads * (tokens * heads) + head % heads * tokens
    query = first + pid * BM
    x = q_desc.load([query, 0])
    total = bl.zeros((BM, D), dtype=bl.float32)
    if CAUSAL:
        total = part(total, x, k_desc, v_desc, first, 0, pid * BM, BN)
        total = part(total, x, k_desc, v_desc, first, bl.multiple_of(pid * BM, BM), (pid + 1) * BM, BN)
    else:
        total = part(total, x, k_desc, v_desc, first, 0, tokens, BN)
    o_desc.store([query, 0], total.to(bl.float16))


@blocknb.kernel
def part(total, x, k_desc, v_desc, first, low, high, BN: bl.constexpr):
    at = first + low
    for start in bl.range(low, high, BN):
        start = bl.multiple_of(start, BN)
        scores = bl.dot(x, k_desc.load([at, 0]).T)
        total = bl.dot(scores.to(bl.float16), v_desc.load([at, 0]), total)
        at += BN
    return total


@blocknb.kernel
def attention_pointers(
    q, k, v, out, stride_z, stride_h, stride_m, heads, tokens, BM: bl.constexpr, BN: bl.constexpr, D: bl.constexpr,
):  # fmt: skip
    """Forward attention through pointers: a batch and a head are strides."""
    z, h = bl.program_id(1) // heads, bl.program_id(1) % heads
    base = z.to(bl.int64) * stride_z + h.to(bl.int64) * stride_h
    rows = bl.program_id(0) * BM + bl.arange(0, BM)
    depth = bl.arange(0, D)
    x = bl.load(q + base + rows[:, None] * stride_m + depth[None, :], mask=rows[:, None] < tokens, other=0.0)
    k += base
    v += base
    total = bl.zeros((BM, D), dtype=bl.float32)
    for start in range(0, tokens, BN):
        columns = start + bl.arange(0, BN)
        y = bl.load(k + columns[None, :] * stride_m + depth[:, None], mask=columns[None, :] < tokens, other=0.0)
        w = bl.load(v + columns[:, None] * stride_m + depth[None, :], mask=columns[:, None] < tokens, other=0.0)
        total = bl.dot(bl.dot(x, y).to(bl.float16), w, total)
    bl.store(out + base + rows[:, None] * stride_m + depth[None, :], total, mask=rows[:, None] < tokens)


@blocknb.kernel
def split(
    a, b, parts, m, n, k, length, a_row, b_row, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr,
):  # fmt: skip
    """A product split along K: the start of a part is not negative, because the loop has iterations only if `length` is positive."""
    rows, columns = bl.program_id(0) * BM + bl.arange(0, BM), bl.program_id(1) * BN + bl.arange(0, BN)
    first = bl.program_id(2) * length
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(first, min(first + length, k), BK):
        at = start + bl.arange(0, BK)
        x = bl.load(a + rows[:, None] * a_row + at[None, :], mask=(rows < m)[:, None] & (at < k)[None, :], other=0.0)
        y = bl.load(b + at[:, None] * b_row + columns[None, :], mask=(at < k)[:, None] & (columns < n)[None, :])
        total = bl.dot(x, y, total)
    part = parts + bl.program_id(2) * (bl.cdiv(m, BM) * BM * 64)
    bl.store(part + rows[:, None] * 64 + columns[None, :], total)


@blocknb.kernel
def block_pointers(a, b, c, m, n, k, a_row, b_row, c_row, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """A product through block pointers, which a loop advances."""
    i, j = bl.program_id(0) * BM, bl.program_id(1) * BN
    a_block = bl.make_block_ptr(a, (m, k), (a_row, 1), (i, 0), (BM, BK), (1, 0))
    b_block = bl.make_block_ptr(b, (k, n), (b_row, 1), (0, j), (BK, BN), (1, 0))
    total = bl.zeros((BM, BN), bl.float32)
    for _ in range(0, k, BK):
        total = bl.dot(bl.load(a_block, boundary_check=(0, 1)), bl.load(b_block, boundary_check=(0, 1)), total)
        a_block, b_block = bl.advance(a_block, (0, BK)), bl.advance(b_block, (BK, 0))
    c_block = bl.make_block_ptr(c, (m, n), (c_row, 1), (i, j), (BM, BN), (1, 0))
    bl.store(c_block, total.to(bl.float16), boundary_check=(0, 1))
