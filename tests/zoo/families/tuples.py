"""Scans and reductions of tuples along rows and columns: running products and a recurrence of complex numbers, and sparsemax by a sort and
a scan. There are also column sums of layer norm's backward pass, and variances of rows by Welford merges."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides
from zoo.registry import normal, specimen

from blocknb.bench.suite.kinds import loaded

ROWS = loaded("rows", "blocknb")


def cumprod_pairs(x):
    rows, n, _ = x.shape
    y = empty(x)
    ROWS.complex_products_kernel[(rows,)](x, y, strides(x)[0], n, BLOCK=triton.next_power_of_2(n))
    return y


def cumprod_reference(x):
    y = np.cumprod(x[..., 0] + 1j * x[..., 1], 1)
    return np.stack([y.real, y.imag], 2)


def on_the_circle(rng, *shape):
    turns = rng.random(shape) * 2 * np.pi
    return np.stack([np.cos(turns), np.sin(turns)], -1).astype(np.float32)


specimen(
    "complex_cumprod", cumprod_pairs, cumprod_reference, 1e-4, 1e-5,
    long=lambda rng: {"x": on_the_circle(rng, 3, 700)},
    short=lambda rng: {"x": on_the_circle(rng, 2, 50)},
)  # fmt: skip


def complex_recurrence(ar, ai, xr, xi, reverse, together):
    """h[t] = a[t] h[t - 1] + x[t] along each row, or from the end. Returns the real and the imaginary parts."""
    rows, n = ar.shape
    hr, hi = empty(ar), empty(ar)
    ROWS.complex_recurrence_kernel[(triton.cdiv(rows, together),)](
        ar, ai, xr, xi, hr, hi, rows, n, REVERSE=reverse, ROWS=together, BLOCK=triton.next_power_of_2(n)
    )
    return hr, hi


def recurrence_reference(ar, ai, xr, xi, reverse, together):
    step = -1 if reverse else 1
    a, x = (ar + 1j * ai)[:, ::step], (xr + 1j * xi)[:, ::step]
    h = np.zeros_like(x)
    for t in range(a.shape[1]):
        h[:, t] = a[:, t] * h[:, t - 1] + x[:, t] if t else x[:, t]
    return h[:, ::step].real, h[:, ::step].imag


def recurrence_inputs(rng, rows, n, **more):
    a = 0.95 * on_the_circle(rng, rows, n)
    return {
        "ar": a[..., 0].copy(),
        "ai": a[..., 1].copy(),
        "xr": normal(rng, rows, n),
        "xi": normal(rng, rows, n),
    } | more


specimen(
    "complex_recurrence", complex_recurrence, recurrence_reference, 1e-4, 1e-5,
    rows=lambda rng: recurrence_inputs(rng, 3, 300, reverse=False, together=1),
    backwards=lambda rng: recurrence_inputs(rng, 5, 100, reverse=True, together=4),
)  # fmt: skip


def sparsemax(x):
    rows, n = x.shape
    y = empty(x)
    ROWS.sparsemax_kernel[(rows,)](x, y, strides(x)[0], strides(y)[0], n, BLOCK=triton.next_power_of_2(n))
    return y


def sparsemax_reference(x):
    z = x - x.max(1, keepdims=True)
    ordered = -np.sort(-z, 1)
    total = np.cumsum(ordered, 1) - 1
    k = (ordered * np.arange(1, x.shape[1] + 1) > total).sum(1, keepdims=True)
    return np.maximum(z - np.take_along_axis(total, k - 1, 1) / k, 0)


specimen(
    "sparsemax", sparsemax, sparsemax_reference, 1e-5, 2e-6,
    ragged=lambda rng: {"x": normal(rng, 4, 200)},
    short=lambda rng: {"x": normal(rng, 3, 20)},
)  # fmt: skip


def norm_columns(x, dy, mean, rstd):
    """The gradients of layer norm's weight and bias, from the inputs of its backward pass."""
    M, N = x.shape
    dw, db = empty(mean, N), empty(mean, N)
    ROWS.norm_columns_kernel[(triton.cdiv(N, 64),)](x, dy, mean, rstd, dw, db, M, N, BLOCK_M=32, BLOCK_N=64)
    return dw, db


def norm_columns_inputs(rng, M, N, dtype=np.float32):
    return {
        "x": normal(rng, M, N, dtype=dtype),
        "dy": normal(rng, M, N, dtype=dtype),
        "mean": normal(rng, M),
        "rstd": normal(rng, M),
    }


specimen(
    "norm_columns", norm_columns, lambda x, dy, mean, rstd: ((dy * (x - mean[:, None]) * rstd[:, None]).sum(0), dy.sum(0)), 1e-4, 1e-5,
    ragged=lambda rng: norm_columns_inputs(rng, 70, 100),
    fp16=lambda rng: norm_columns_inputs(rng, 33, 64, np.float16),
)  # fmt: skip


@triton.jit
def _merged(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    weight = weight_1 + weight_2
    share = tl.where(weight == 0.0, 0.0, weight_2 / weight)
    return mean_1 + delta * share, m2_1 + m2_2 + delta * delta * weight_1 * share, weight


@triton.jit
def _welford_rows(X, Mean, Var, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    mean = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    m2 = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    weight = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        mask = (rows < M) & (start + lanes < N)
        x = tl.load(X + rows * N + start + lanes, mask=mask, other=0.0).to(tl.float32)
        delta = x - mean
        new_weight = weight + 1
        new_mean = mean + delta / new_weight
        m2 = tl.where(mask, m2 + delta * (x - new_mean), m2)
        mean = tl.where(mask, new_mean, mean)
        weight = tl.where(mask, new_weight, weight)
    mean, m2, weight = tl.reduce((mean, m2, weight), 1, _merged)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(Mean + at, mean, mask=at < M)
    tl.store(Var + at, m2 / weight, mask=at < M)


def welford_rows(x, rows, block):
    M, N = x.shape
    mean, var = empty(x, M, "float32"), empty(x, M, "float32")
    _welford_rows[(triton.cdiv(M, rows),)](x, mean, var, M, N, ROWS=rows, BLOCK=block)
    return mean, var


specimen(
    "welford_rows", welford_rows, lambda x, rows, block: (x.mean(1), x.var(1)), 1e-5, 1e-5,
    one=lambda rng: {"x": normal(rng, 3, 700), "rows": 1, "block": 256},
    several=lambda rng: {"x": normal(rng, 9, 50), "rows": 4, "block": 32},
)  # fmt: skip
