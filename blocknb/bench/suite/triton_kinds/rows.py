"""Kernels over rows and columns: scans and reductions of tuples, sorts, sums along columns."""

import triton
import triton.language as tl

# -- scans of complex numbers


@triton.jit
def _product(a, b, c, d):
    return a * c - b * d, a * d + b * c


@triton.jit
def complex_products_kernel(x, y, row_stride, n, BLOCK: tl.constexpr):
    """The running product of each row of complex numbers, stored as pairs (real, imaginary)."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    x += tl.program_id(0) * row_stride
    y += tl.program_id(0) * row_stride
    real = tl.load(x + 2 * at, mask=inside, other=1.0)
    imaginary = tl.load(x + 2 * at + 1, mask=inside, other=0.0)
    real, imaginary = tl.associative_scan((real, imaginary), 0, _product)
    tl.store(y + 2 * at, real, mask=inside)
    tl.store(y + 2 * at + 1, imaginary, mask=inside)


@triton.jit
def _recurrence(a, b, u, v, c, d, x, y):
    return c * a - d * b, c * b + d * a, c * u - d * v + x, c * v + d * u + y


@triton.jit
def complex_recurrence_kernel(
    a_real,
    a_imaginary,
    x_real,
    x_imaginary,
    h_real,
    h_imaginary,
    m,
    n,
    REVERSE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """h[t] = a[t] h[t - 1] + x[t] along each row, or from its end, of complex numbers in separate arrays (m, n)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    at = rows[:, None] * n + columns[None, :]
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    a = tl.load(a_real + at, mask=inside, other=0.0)
    b = tl.load(a_imaginary + at, mask=inside, other=0.0)
    u = tl.load(x_real + at, mask=inside, other=0.0)
    v = tl.load(x_imaginary + at, mask=inside, other=0.0)
    a, b, u, v = tl.associative_scan((a, b, u, v), 1, _recurrence, reverse=REVERSE)
    tl.store(h_real + at, u, mask=inside)
    tl.store(h_imaginary + at, v, mask=inside)


# -- sums along columns


@triton.jit
def column_sums_kernel(dw, db, sum_dw, sum_db, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Sums of two arrays (m, n) along axis 0: the last step of layer norm's gradients of weight and bias."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, m, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        at = rows[:, None] * n + columns[None, :]
        first += tl.load(dw + at, mask=inside, other=0.0)
        second += tl.load(db + at, mask=inside, other=0.0)
    tl.store(sum_dw + columns, tl.sum(first, axis=0), mask=columns < n)
    tl.store(sum_db + columns, tl.sum(second, axis=0), mask=columns < n)


@triton.jit
def norm_partials_kernel(x, dy, mean, rstd, dw, db, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program sums `dy * xhat` and dy over its ROWS rows of (m, n), one row after the other. It stores row program_id of dw and db."""
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    weight = tl.zeros((BLOCK,), dtype=tl.float32)
    bias = tl.zeros((BLOCK,), dtype=tl.float32)
    first = tl.program_id(0) * ROWS
    for row in range(first, min(first + ROWS, m)):
        value = tl.load(x + row * n + columns, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(dy + row * n + columns, mask=inside, other=0.0).to(tl.float32)
        weight += gradient * (value - tl.load(mean + row)) * tl.load(rstd + row)
        bias += gradient
    tl.store(dw + tl.program_id(0) * n + columns, weight, mask=inside)
    tl.store(db + tl.program_id(0) * n + columns, bias, mask=inside)


# -- sorts


@triton.jit
def sparsemax_kernel(x, y, x_stride, y_stride, n, BLOCK: tl.constexpr):
    """Sparsemax of each row: the threshold is that of the longest prefix of the sorted row which stays positive (Martins, 2016)."""
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    row = tl.load(x + tl.program_id(0) * x_stride + columns, mask=inside, other=-float("inf")).to(tl.float32)
    z = row - tl.max(row, axis=0)
    ordered = tl.sort(z, descending=True)
    total = tl.cumsum(tl.where(inside, ordered, 0.0), axis=0) - 1.0
    kept = inside & (ordered * (columns + 1) > total)
    count = tl.sum(kept.to(tl.int32), axis=0)
    threshold = tl.sum(tl.where(columns == count - 1, total, 0.0), axis=0) / count
    result = tl.maximum(z - threshold, 0.0)
    tl.store(y + tl.program_id(0) * y_stride + columns, result.to(y.dtype.element_ty), mask=inside)


# -- reductions of tuples


@triton.jit
def _merged(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    weight = weight_1 + weight_2
    share = tl.where(weight == 0.0, 0.0, weight_2 / weight)
    return mean_1 + delta * share, m2_1 + m2_2 + delta * delta * weight_1 * share, weight


@triton.jit
def welford_rows_kernel(x, mean, variance, m, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and variance of each row of (m, n), which one program holds."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (columns < n)
    value = tl.load(x + rows * n + columns, mask=inside, other=0.0).to(tl.float32)
    zero = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    average, m2, _ = tl.reduce((value, zero, tl.where(inside, 1.0, 0.0)), 1, _merged)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(mean + at, average, mask=at < m)
    tl.store(variance + at, m2 / n, mask=at < m)


@triton.jit
def welford_loop_kernel(x, y, m, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Layer norm of rows of (m, n) without weights: Welford's update along a row in blocks, one merge, and a second pass."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    mean = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    m2 = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    weight = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + lanes
        inside = (rows < m) & (columns < n)
        value = tl.load(x + rows * n + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        delta = value - mean
        next_weight = weight + 1
        next_mean = mean + delta / next_weight
        m2 = tl.where(inside, m2 + delta * (value - next_mean), m2)
        mean = tl.where(inside, next_mean, mean)
        weight = tl.where(inside, next_weight, weight)
    average, squares, _ = tl.reduce((mean, m2, weight), 1, _merged)
    average, squares = average[:, None], squares[:, None]
    scale = tl.rsqrt(squares / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + lanes
        inside = (rows < m) & (columns < n)
        value = tl.load(x + rows * n + columns, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        tl.store(y + rows * n + columns, ((value - average) * scale).to(y.dtype.element_ty), mask=inside)


@triton.jit
def welford_columns_kernel(x, mean, variance, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Mean and variance of each column of (m, n): batch statistics."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    average = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    m2 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, m, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)[:, None]
        inside = (rows < m) & (columns < n)
        value = tl.load(x + rows * n + columns, mask=inside, other=0.0).to(tl.float32)
        one = tl.where(inside, 1.0, 0.0)
        average, m2, weight = _merged(average, m2, weight, value, tl.zeros_like(value), one)
    average, m2, weight = tl.reduce((average, m2, weight), 0, _merged)
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(mean + at, average, mask=at < n)
    tl.store(variance + at, m2 / weight, mask=at < n)


@triton.jit
def norm_columns_kernel(x, dy, mean, rstd, dw, db, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sums of dy * xhat and dy over the rows of (m, n), computed from the inputs of layer norm's backward pass."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    weight = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    bias = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, m, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)[:, None]
        inside = (rows < m) & (columns < n)
        value = tl.load(x + rows * n + columns, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(dy + rows * n + columns, mask=inside, other=0.0).to(tl.float32)
        average = tl.load(mean + rows, mask=rows < m, other=0.0).to(tl.float32)
        scale = tl.load(rstd + rows, mask=rows < m, other=0.0).to(tl.float32)
        weight += gradient * ((value - average) * scale)
        bias += gradient
    tl.store(dw + columns, tl.sum(weight, axis=0)[None, :], mask=columns < n)
    tl.store(db + columns, tl.sum(bias, axis=0)[None, :], mask=columns < n)
