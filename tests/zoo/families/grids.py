"""Images, sparse matrices and fractals: convolution as a matrix product, transposed copies, products with sparse rows, segment sums, and a
loop with a data-dependent end."""

from itertools import pairwise

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.registry import integers, normal, specimen


@triton.jit
def _conv2d(
    X, W, Bias, Y, batch, channels, height, width, out_channels, out_height, out_width, stride_xn, stride_xc, stride_xh, stride_xw,
    stride_wo, stride_yn, stride_yc, stride_yh, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = m // (out_height * out_width)
    y = m // out_width % out_height
    x = m % out_width
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    depth = channels * KH * KW
    for start in range(0, depth, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c = k // (KH * KW)
        iy = (y * STRIDE - PAD)[:, None] + (k // KW % KH)[None, :]
        ix = (x * STRIDE - PAD)[:, None] + (k % KW)[None, :]
        inside = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width) & (image < batch)[:, None] & (k < depth)[None, :]
        at = image[:, None] * stride_xn + c[None, :] * stride_xc + iy * stride_xh + ix * stride_xw
        a = tl.load(X + at, mask=inside, other=0.0)
        w = tl.load(
            W + o[None, :] * stride_wo + k[:, None], mask=(o < out_channels)[None, :] & (k < depth)[:, None], other=0.0
        )
        acc = tl.dot(a, w, acc, input_precision="tf32x3")
    if Bias is not None:
        acc += tl.load(Bias + o, mask=o < out_channels, other=0.0)[None, :]
    out = image[:, None] * stride_yn + o[None, :] * stride_yc + y[:, None] * stride_yh + x[:, None]
    tl.store(Y + out, acc, mask=(image < batch)[:, None] & (o < out_channels)[None, :])


def conv2d(x, weight, bias, stride, padding):
    batch, channels, height, width = x.shape
    out_channels, _, kh, kw = weight.shape
    out_height, out_width = (height + 2 * padding - kh) // stride + 1, (width + 2 * padding - kw) // stride + 1
    y = empty(x, (batch, out_channels, out_height, out_width))
    grid = (triton.cdiv(batch * out_height * out_width, 32), triton.cdiv(out_channels, 16))
    _conv2d[grid](
        x, weight, bias, y, batch, channels, height, width, out_channels, out_height, out_width, *strides(x), strides(weight)[0],
        *strides(y)[:3], KH=kh, KW=kw, STRIDE=stride, PAD=padding, BLOCK_M=32, BLOCK_N=16, BLOCK_K=16,
    )  # fmt: skip
    return y


def conv2d_reference(x, weight, bias, stride, padding):
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, weight) + (0 if bias is None else bias[:, None, None])


def conv2d_inputs(rng, image, kernel, stride, padding, bias=True):
    x, weight, bias = normal(rng, *image), normal(rng, *kernel), normal(rng, kernel[0]) if bias else None
    return {"x": x, "weight": weight, "bias": bias, "stride": stride, "padding": padding}


specimen(
    "conv2d", conv2d, conv2d_reference, 1e-3, 1e-5,
    padded=lambda rng: conv2d_inputs(rng, (2, 3, 9, 11), (5, 3, 3, 3), 1, 1),
    strided=lambda rng: conv2d_inputs(rng, (1, 4, 10, 10), (18, 4, 5, 2), 2, 0, bias=False),
)  # fmt: skip


@triton.jit
def _transpose(X, Y, rows, cols, stride_xb, stride_xr, stride_xc, stride_yb, stride_yr, stride_yc, BLOCK: tl.constexpr):
    X += tl.program_id(2) * stride_xb
    Y += tl.program_id(2) * stride_yb
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(X + r[:, None] * stride_xr + c[None, :] * stride_xc, mask=(r < rows)[:, None] & (c < cols)[None, :])
    tl.store(
        Y + c[:, None] * stride_yr + r[None, :] * stride_yc,
        tl.trans(tile),
        mask=(c < cols)[:, None] & (r < rows)[None, :],
    )


def transpose(x):
    """Returns a contiguous copy with the last two axes exchanged."""
    batch, rows, cols = x.shape
    y = empty(x, (batch, cols, rows))
    _transpose[(triton.cdiv(rows, 32), triton.cdiv(cols, 32), batch)](
        x, y, rows, cols, *strides(x), *strides(y), BLOCK=32
    )
    return y


specimen(
    "transpose", transpose, lambda x: x.transpose(0, 2, 1),
    ragged=lambda rng: {"x": normal(rng, 3, 40, 70)},
    bytes=lambda rng: {"x": integers(rng, -128, 128, 2, 33, 65, dtype=np.int8)},
)  # fmt: skip


@triton.jit
def _spmv(row_ptr, col_idx, values, x, y, ROWS: tl.constexpr, n_rows, BLOCK: tl.constexpr):
    for local in range(ROWS):
        row = tl.program_id(0) * ROWS + local
        if row < n_rows:
            begin = tl.load(row_ptr + row)
            end = tl.load(row_ptr + row + 1)
            acc = tl.zeros([BLOCK], dtype=tl.float32)
            for start in range(begin, end, BLOCK):
                i = start + tl.arange(0, BLOCK)
                col = tl.load(col_idx + i, mask=i < end, other=0)
                acc += tl.load(values + i, mask=i < end, other=0.0) * tl.load(x + col, mask=i < end, other=0.0)
            tl.store(y + row, tl.sum(acc, axis=0))


def spmv(row_ptr, col_idx, values, x):
    rows = row_ptr.shape[0] - 1
    y = empty(x, rows)
    _spmv[(triton.cdiv(rows, 4),)](row_ptr, col_idx, values, x, y, ROWS=4, n_rows=rows, BLOCK=32)
    return y


def spmv_reference(row_ptr, col_idx, values, x):
    return np.array([values[a:b] @ x[col_idx[a:b]] for a, b in pairwise(row_ptr)])


def sparse_inputs(rng, rows, cols):
    counts = integers(rng, 0, 80, rows)
    counts[1] = 0
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    n = int(ends[-1])
    return {"row_ptr": ends, "col_idx": integers(rng, 0, cols, n), "values": normal(rng, n), "x": normal(rng, cols)}


specimen("spmv", spmv, spmv_reference, 1e-3, 1e-5, csr=lambda rng: sparse_inputs(rng, 13, 100))


@triton.jit
def _pair(value_a, flag_a, value_b, flag_b):
    return tl.where(flag_b != 0, value_b, value_a + value_b), flag_a | flag_b


@triton.jit
def _segment_sum(X, Segment, Sums, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    segment = tl.load(Segment + i, mask=mask, other=-1)
    before = tl.load(Segment + i - 1, mask=mask & (i > 0), other=-1)
    after = tl.load(Segment + i + 1, mask=i + 1 < n, other=-1)
    starts = (segment != before).to(tl.int32)
    x = tl.load(X + i, mask=mask, other=0.0)
    running, _ = tl.associative_scan((x, starts), 0, _pair)
    # The last element of a segment in this block holds the segment's sum; blocks that share a segment add atomically.
    last = mask & ((segment != after) | (i % BLOCK == BLOCK - 1))
    tl.atomic_add(Sums + segment, running, mask=last)


def segment_sum(x, segment, segments):
    sums = zeros(x, segments)
    _segment_sum[(triton.cdiv(x.shape[0], 64),)](x, segment, sums, x.shape[0], BLOCK=64)
    return sums


specimen(
    "segment_sum", segment_sum, lambda x, segment, segments: np.bincount(segment, x, segments), 1e-3, 1e-5,
    ragged=lambda rng: {"x": normal(rng, 500), "segment": np.sort(integers(rng, 0, 40, 500)), "segments": 40},
)  # fmt: skip


@triton.jit
def _mandelbrot(Out, width, height, limit, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cx = (i % width) * (3.0 / width) - 2.25
    cy = (i // width) * (2.5 / height) - 1.25
    zx = tl.zeros_like(cx)
    zy = tl.zeros_like(cy)
    count = tl.zeros([BLOCK], dtype=tl.int32)
    alive = i < width * height
    step = 0
    while (step < limit) & (tl.max(alive.to(tl.int32), axis=0) > 0):
        zx, zy = tl.where(alive, zx * zx - zy * zy + cx, zx), tl.where(alive, 2 * zx * zy + cy, zy)
        alive = alive & (zx * zx + zy * zy <= 4.0)
        count += alive.to(tl.int32)
        step += 1
    tl.store(Out + i, count, mask=i < width * height)


def mandelbrot(like, width, height, limit):
    """Returns the number of steps until the sequence of each point of the plane diverges."""
    out = empty(like, (height, width), "int32")
    _mandelbrot[(triton.cdiv(width * height, 128),)](out, width, height, limit, BLOCK=128)
    return out


def mandelbrot_reference(like, width, height, limit):
    i = np.arange(width * height)
    # Coordinates in float32, as in the kernel: the last bit decides when a point diverges.
    cx = (i % width).astype(np.float32) * np.float32(3.0 / width) - np.float32(2.25)
    cy = (i // width).astype(np.float32) * np.float32(2.5 / height) - np.float32(1.25)
    z, c = np.zeros(len(i), np.complex128), cx + 1j * cy.astype(np.float64)
    count = np.zeros(len(i), np.int32)
    alive = np.ones(len(i), bool)
    for _ in range(limit):
        z = np.where(alive, z * z + c, z)
        alive &= np.abs(z) <= 2
        count += alive
    return count.reshape(height, width)


specimen(
    "mandelbrot",
    mandelbrot,
    mandelbrot_reference,
    few_steps=lambda rng: {"like": normal(rng, 1), "width": 50, "height": 21, "limit": 6},
)
