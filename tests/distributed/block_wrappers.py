"""Kernels and wrappers on blocks, which the tests of this folder pass to workers. Each worker imports this module by its name."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as tl

BINS = 16


@blocknb.kernel
def scale_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) * 2 + tl.load(y + at, mask=inside), mask=inside)


def scale(x, y, out):
    scale_kernel[blocknb.cdiv(out.size, 64),](np.ascontiguousarray(x), np.ascontiguousarray(y), out, out.size, BLOCK=64)


@blocknb.kernel
def softmax_kernel(x, out, columns, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * row_stride + at * column_stride, mask=inside, other=float("-inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, (powers / tl.sum(powers, 0)).to(out.dtype.element_ty), mask=inside)


def softmax(x, out):
    """Softmax over the last axis of a block of two axes, with the strides of the block."""
    strides = [s // x.itemsize for s in x.strides]
    softmax_kernel[len(x),](x, out, x.shape[1], *strides, BLOCK=blocknb.next_power_of_2(x.shape[1]))


@blocknb.kernel
def stencil_kernel(x, out, rows, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        middle = x + (row + 1) * stride + at + 1
        total = tl.load(middle - 1, mask=inside) + tl.load(middle + 1, mask=inside)
        total += tl.load(middle - stride, mask=inside) + tl.load(middle + stride, mask=inside)
        tl.store(out + row * columns + at, total - 4 * tl.load(middle, mask=inside), mask=inside)


def stencil(x, out):
    """The five-point Laplacian of a block with a halo of one element."""
    rows, columns = out.shape
    stencil_kernel[rows,](x, out, rows, columns, x.strides[0] // x.itemsize, BLOCK=32)


@blocknb.kernel
def histogram_kernel(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        which = tl.minimum((tl.load(x + at, mask=inside, other=0.0) * BINS).to(tl.int32), BINS - 1)
        counts += tl.sum(((which[:, None] == bins[None, :]) & inside[:, None]).to(tl.int32), 0)
    tl.store(out + bins, counts)


def histogram(x, out):
    """The counts of values from 0 to 1 in BINS bins of one width."""
    histogram_kernel[1,](np.ascontiguousarray(x), out, x.size, BINS=BINS, BLOCK=64)


@blocknb.kernel
def add_partials_kernel(x, out, count, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside)
    for k in range(1, count):
        total += tl.load(x + k * n + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def add_partials(partials, out):
    """The sum of partial results, in their order."""
    add_partials_kernel[blocknb.cdiv(out.size, 32),](
        np.ascontiguousarray(partials), out, len(partials), out.size, BLOCK=32
    )


@blocknb.kernel
def sum_rows_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    tl.store(out + row, tl.sum(total, 0))


def sum_rows(x, out):
    """The sums of the rows of a block."""
    sum_rows_kernel[len(x),](np.ascontiguousarray(x), out, x.shape[1], BLOCK=32)


@blocknb.kernel
def product_kernel(a, b, out, m, n, k, a_row, a_column, b_row, b_column, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    at = out + rows[:, None] * n + columns[None, :]
    total = tl.load(at, mask=inside, other=0.0)
    for start in range(0, k, BLOCK):
        ks = start + tl.arange(0, BLOCK)
        left = tl.load(
            a + rows[:, None] * a_row + ks[None, :] * a_column, mask=(rows < m)[:, None] & (ks < k)[None, :], other=0.0
        )
        right = tl.load(
            b + ks[:, None] * b_row + columns[None, :] * b_column,
            mask=(ks < k)[:, None] & (columns < n)[None, :],
            other=0.0,
        )
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(at, total, mask=inside)


def product(a, b, out):
    """Adds the product of two blocks to `out`."""
    (m, k), n = a.shape, b.shape[1]
    strides = [s // x.itemsize for x in (a, b) for s in x.strides]
    product_kernel[blocknb.cdiv(m, 16), blocknb.cdiv(n, 16)](a, b, out, m, n, k, *strides, BLOCK=16)


def gram(a, b, out):
    """Adds the product of the transpose of a block with another block."""
    product(a.T, b, out)
