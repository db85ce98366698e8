"""Kernels of the kinds that public projects write over rows and columns: scans and reductions of tuples, sorts, sums along columns.

`row_kinds` runs this source under both compilers, as it stands. No kernel is tuned for blocknb: tiles and warps are those that such
projects use under Triton.
"""

from __future__ import annotations

import blocknb
import blocknb.language as bl

# -- scans of complex numbers


@blocknb.kernel
def _product(a, b, c, d):
    return a * c - b * d, a * d + b * c


@blocknb.kernel
def complex_products_kernel(x, y, row_stride, n, BLOCK: bl.constexpr):
    """The running product of each row of complex numbers, stored as pairs (real, imaginary)."""
    at = bl.arange(0, BLOCK)
    inside = at < n
    x += bl.program_id(0) * row_stride
    y += bl.program_id(0) * row_stride
    real = bl.load(x + 2 * at, mask=inside, other=1.0)
    imaginary = bl.load(x + 2 * at + 1, mask=inside, other=0.0)
    real, imaginary = bl.associative_scan((real, imaginary), 0, _product)
    bl.store(y + 2 * at, real, mask=inside)
    bl.store(y + 2 * at + 1, imaginary, mask=inside)


@blocknb.kernel
def _recurrence(a, b, u, v, c, d, x, y):
    return c * a - d * b, c * b + d * a, c * u - d * v + x, c * v + d * u + y


@blocknb.kernel
def complex_recurrence_kernel(
    a_real, a_imaginary, x_real, x_imaginary, h_real, h_imaginary, m, n, ROWS: bl.constexpr, BLOCK: bl.constexpr
):
    """h[t] = a[t] h[t - 1] + x[t] along each row, of complex numbers in separate arrays (m, n)."""
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    at = rows[:, None] * n + columns[None, :]
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    a = bl.load(a_real + at, mask=inside, other=0.0)
    b = bl.load(a_imaginary + at, mask=inside, other=0.0)
    u = bl.load(x_real + at, mask=inside, other=0.0)
    v = bl.load(x_imaginary + at, mask=inside, other=0.0)
    a, b, u, v = bl.associative_scan((a, b, u, v), 1, _recurrence)
    bl.store(h_real + at, u, mask=inside)
    bl.store(h_imaginary + at, v, mask=inside)


# -- sums along columns


@blocknb.kernel
def column_sums_kernel(dw, db, sum_dw, sum_db, m, n, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr):
    """Sums of two arrays (m, n) along axis 0: the last step of layer norm's gradients of weight and bias."""
    columns = bl.program_id(0) * BLOCK_N + bl.arange(0, BLOCK_N)
    first = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    second = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    for start in range(0, m, BLOCK_M):
        rows = start + bl.arange(0, BLOCK_M)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        at = rows[:, None] * n + columns[None, :]
        first += bl.load(dw + at, mask=inside, other=0.0)
        second += bl.load(db + at, mask=inside, other=0.0)
    bl.store(sum_dw + columns, bl.sum(first, axis=0), mask=columns < n)
    bl.store(sum_db + columns, bl.sum(second, axis=0), mask=columns < n)


@blocknb.kernel
def norm_partials_kernel(x, dy, mean, rstd, dw, db, m, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """Each program sums dy * xhat and dy over its ROWS rows of (m, n), one row after the other, and stores row program_id of dw and db."""
    columns = bl.arange(0, BLOCK)
    inside = columns < n
    weight = bl.zeros((BLOCK,), dtype=bl.float32)
    bias = bl.zeros((BLOCK,), dtype=bl.float32)
    first = bl.program_id(0) * ROWS
    for row in range(first, min(first + ROWS, m)):
        value = bl.load(x + row * n + columns, mask=inside, other=0.0).to(bl.float32)
        gradient = bl.load(dy + row * n + columns, mask=inside, other=0.0).to(bl.float32)
        weight += gradient * (value - bl.load(mean + row)) * bl.load(rstd + row)
        bias += gradient
    bl.store(dw + bl.program_id(0) * n + columns, weight, mask=inside)
    bl.store(db + bl.program_id(0) * n + columns, bias, mask=inside)


# -- sorts


@blocknb.kernel
def sparsemax_kernel(x, y, x_stride, y_stride, n, BLOCK: bl.constexpr):
    """Sparsemax of each row: the threshold is that of the longest prefix of the sorted row which stays positive (Martins, 2016)."""
    columns = bl.arange(0, BLOCK)
    inside = columns < n
    row = bl.load(x + bl.program_id(0) * x_stride + columns, mask=inside, other=-float("inf")).to(bl.float32)
    z = row - bl.max(row, axis=0)
    ordered = bl.sort(z, descending=True)
    total = bl.cumsum(bl.where(inside, ordered, 0.0), axis=0) - 1.0
    kept = inside & (ordered * (columns + 1) > total)
    count = bl.sum(kept.to(bl.int32), axis=0)
    threshold = bl.sum(bl.where(columns == count - 1, total, 0.0), axis=0) / count
    result = bl.maximum(z - threshold, 0.0)
    bl.store(y + bl.program_id(0) * y_stride + columns, result.to(y.dtype.element_ty), mask=inside)


# -- reductions of tuples


@blocknb.kernel
def _merged(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    weight = weight_1 + weight_2
    share = bl.where(weight == 0.0, 0.0, weight_2 / weight)
    return mean_1 + delta * share, m2_1 + m2_2 + delta * delta * weight_1 * share, weight


@blocknb.kernel
def welford_rows_kernel(x, mean, variance, m, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """Mean and variance of each row of (m, n), which one program holds."""
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)[:, None]
    columns = bl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (columns < n)
    value = bl.load(x + rows * n + columns, mask=inside, other=0.0).to(bl.float32)
    zero = bl.zeros((ROWS, BLOCK), dtype=bl.float32)
    average, m2, _ = bl.reduce((value, zero, bl.where(inside, 1.0, 0.0)), 1, _merged)
    at = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    bl.store(mean + at, average, mask=at < m)
    bl.store(variance + at, m2 / n, mask=at < m)


@blocknb.kernel
def welford_loop_kernel(x, y, m, n, eps, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """Layer norm of rows of (m, n) without weights: Welford's update along a row in blocks, one merge, and a second pass."""
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)[:, None]
    lanes = bl.arange(0, BLOCK)[None, :]
    mean = bl.zeros((ROWS, BLOCK), dtype=bl.float32)
    m2 = bl.zeros((ROWS, BLOCK), dtype=bl.float32)
    weight = bl.zeros((ROWS, BLOCK), dtype=bl.float32)
    for start in range(0, n, BLOCK):
        columns = start + lanes
        inside = (rows < m) & (columns < n)
        value = bl.load(x + rows * n + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(bl.float32)
        delta = value - mean
        next_weight = weight + 1
        next_mean = mean + delta / next_weight
        m2 = bl.where(inside, m2 + delta * (value - next_mean), m2)
        mean = bl.where(inside, next_mean, mean)
        weight = bl.where(inside, next_weight, weight)
    average, squares, _ = bl.reduce((mean, m2, weight), 1, _merged)
    average, squares = average[:, None], squares[:, None]
    scale = bl.rsqrt(squares / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + lanes
        inside = (rows < m) & (columns < n)
        value = bl.load(x + rows * n + columns, mask=inside, other=0.0, eviction_policy="evict_first").to(bl.float32)
        bl.store(y + rows * n + columns, ((value - average) * scale).to(y.dtype.element_ty), mask=inside)


@blocknb.kernel
def welford_columns_kernel(x, mean, variance, m, n, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr):
    """Mean and variance of each column of (m, n): batch statistics."""
    columns = bl.program_id(0) * BLOCK_N + bl.arange(0, BLOCK_N)[None, :]
    average = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    m2 = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    weight = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    for start in range(0, m, BLOCK_M):
        rows = start + bl.arange(0, BLOCK_M)[:, None]
        inside = (rows < m) & (columns < n)
        value = bl.load(x + rows * n + columns, mask=inside, other=0.0).to(bl.float32)
        one = bl.where(inside, 1.0, 0.0)
        average, m2, weight = _merged(average, m2, weight, value, bl.zeros_like(value), one)
    average, m2, weight = bl.reduce((average, m2, weight), 0, _merged)
    at = bl.program_id(0) * BLOCK_N + bl.arange(0, BLOCK_N)
    bl.store(mean + at, average, mask=at < n)
    bl.store(variance + at, m2 / weight, mask=at < n)


@blocknb.kernel
def norm_columns_kernel(x, dy, mean, rstd, dw, db, m, n, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr):
    """The sums of dy * xhat and dy over the rows of (m, n), computed from the inputs of layer norm's backward pass."""
    columns = bl.program_id(0) * BLOCK_N + bl.arange(0, BLOCK_N)[None, :]
    weight = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    bias = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    for start in range(0, m, BLOCK_M):
        rows = start + bl.arange(0, BLOCK_M)[:, None]
        inside = (rows < m) & (columns < n)
        value = bl.load(x + rows * n + columns, mask=inside, other=0.0).to(bl.float32)
        gradient = bl.load(dy + rows * n + columns, mask=inside, other=0.0).to(bl.float32)
        average = bl.load(mean + rows, mask=rows < m, other=0.0).to(bl.float32)
        scale = bl.load(rstd + rows, mask=rows < m, other=0.0).to(bl.float32)
        weight += gradient * ((value - average) * scale)
        bias += gradient
    bl.store(dw + columns, bl.sum(weight, axis=0)[None, :], mask=columns < n)
    bl.store(db + columns, bl.sum(bias, axis=0)[None, :], mask=columns < n)
