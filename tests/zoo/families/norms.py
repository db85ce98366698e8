"""Normalization layers, forward and backward: layer norm (partial sums under locks), RMS norm (partial sums per program), and group norm. A
batch variance uses Welford's recurrence."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.registry import normal, specimen


@triton.jit
def _layer_norm_fwd(
    X, Y, W, B, Mean, Rstd, stride_x, stride_y, N, eps, HAS_BIAS: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    X += row * stride_x
    Y += row * stride_y
    acc = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        acc += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(acc, axis=0) / N
    acc = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        centred = tl.where(cols < N, x - mean, 0.0)
        acc += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(acc, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        mask = cols < N
        x = tl.load(X + cols, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = (x - mean) * rstd * tl.load(W + cols, mask=mask).to(tl.float32)
        if HAS_BIAS:
            y += tl.load(B + cols, mask=mask).to(tl.float32)
        tl.store(Y + cols, y.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def _layer_norm_bwd_dx(
    DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N, GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < N
    X += row.to(tl.int64) * stride
    DY += row.to(tl.int64) * stride
    DX += row.to(tl.int64) * stride
    x = tl.load(X + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    mean = tl.load(Mean + row)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(DX + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    # The programs of one group add to one partial sum, one after the other.
    group = row % GROUP_SIZE
    Lock += group
    Count = Lock + GROUP_SIZE
    DW = DW + group * N + cols
    DB = DB + group * N + cols
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def _layer_norm_bwd_dwdb(DW, DB, FINAL_DW, FINAL_DB, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    db = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(0, M, BLOCK_M):
        rows = i + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        offs = rows[:, None] * N + cols[None, :]
        dw += tl.load(DW + offs, mask=mask, other=0.0)
        db += tl.load(DB + offs, mask=mask, other=0.0)
    tl.store(FINAL_DW + cols, tl.sum(dw, axis=0), mask=cols < N)
    tl.store(FINAL_DB + cols, tl.sum(db, axis=0), mask=cols < N)


def layer_norm(x, weight, bias, dy, eps):
    """Returns y, dx, dweight and dbias."""
    M, N = x.shape
    y, dx = empty(x), empty(dy)
    mean, rstd = empty(x, M, "float32"), empty(x, M, "float32")
    _layer_norm_fwd[(M,)](
        x, y, weight, bias, mean, rstd, strides(x)[0], strides(y)[0], N, eps,
        HAS_BIAS=bias is not None, BLOCK_SIZE=min(triton.next_power_of_2(N), 128), num_warps=4,
    )  # fmt: skip
    group = 4
    locks = zeros(x, 2 * group, "int32")
    partial_dw, partial_db = zeros(x, (group, N), "float32"), zeros(x, (group, N), "float32")
    dw, db = empty(x, N, "float32"), empty(x, N, "float32")
    _layer_norm_bwd_dx[(M,)](
        dx, dy, partial_dw, partial_db, x, weight, mean, rstd, locks, strides(x)[0], N,
        GROUP_SIZE=group, BLOCK_SIZE=triton.next_power_of_2(N), num_warps=4,
    )  # fmt: skip

    def grid(meta):
        return (triton.cdiv(N, meta["BLOCK_N"]),)

    _layer_norm_bwd_dwdb[grid](partial_dw, partial_db, dw, db, group, N, BLOCK_M=4, BLOCK_N=64)
    return (y, dx, dw, db) if bias is not None else (y, dx, dw)


def layer_norm_reference(x, weight, bias, dy, eps):
    rstd = 1 / np.sqrt(x.var(1, keepdims=True) + eps)
    xhat = (x - x.mean(1, keepdims=True)) * rstd
    wdy = dy * weight
    dx = (wdy - xhat * (wdy * xhat).mean(1, keepdims=True) - wdy.mean(1, keepdims=True)) * rstd
    y = xhat * weight + (0 if bias is None else bias)
    return (y, dx, (dy * xhat).sum(0), dy.sum(0)) if bias is not None else (y, dx, (dy * xhat).sum(0))


def layer_norm_inputs(rng, rows, cols, dtype=np.float32, bias=True):
    x, dy = normal(rng, rows, cols, dtype=dtype), normal(rng, rows, cols, dtype=dtype)
    return {"x": x, "weight": normal(rng, cols), "bias": normal(rng, cols) if bias else None, "dy": dy, "eps": 1e-5}


specimen(
    "layer_norm", layer_norm, layer_norm_reference, 1e-4, 1e-5,
    ragged=lambda rng: layer_norm_inputs(rng, 13, 200),
    without_bias=lambda rng: layer_norm_inputs(rng, 5, 65, bias=False),
)  # fmt: skip
specimen(
    "layer_norm", layer_norm, layer_norm_reference, 5e-3, 5e-3,
    fp16=lambda rng: layer_norm_inputs(rng, 6, 256, np.float16),
)  # fmt: skip


@triton.jit
def _rms_norm_fwd(Y, stride_y, X, stride_x, W, RSTD, n_cols, eps, offset, GEMMA: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(X + pid * stride_x + cols, mask=mask, other=0)
    w = tl.load(W + cols, mask=mask, other=0)
    kind = x.dtype
    x = x.to(tl.float32)
    if GEMMA:
        w = w.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    tl.store(RSTD + pid, rstd)
    x = x * rstd
    if not GEMMA:
        x = x.to(kind)
    tl.store(Y + pid * stride_y + cols, (x * (offset + w)).to(kind), mask=mask)


@triton.jit
def _rms_norm_bwd(
    DY, stride_dy, DX, stride_dx, X, stride_x, W, RSTD, DW, stride_dw, n_rows, n_cols, offset, rows_per_program: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    first = pid * rows_per_program
    last = min((pid + 1) * rows_per_program, n_rows)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32) + offset
    DY += first * stride_dy
    X += first * stride_x
    DX += first * stride_dx
    RSTD += first
    for _ in range(first, last):
        dy = tl.load(DY + cols, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD)
        m = dy * w
        dx = rstd * m - rstd * rstd * rstd / n_cols * tl.sum(m * x, axis=0) * x
        total += dy * (x * rstd)
        tl.store(DX + cols, dx.to(DX.dtype.element_ty), mask=mask)
        DY += stride_dy
        X += stride_x
        DX += stride_dx
        RSTD += 1
    tl.store(DW + pid * stride_dw + cols, total, mask=mask)


def rms_norm(x, weight, dy, eps, offset):
    """Returns y, dx and dweight, for x with any number of axes."""
    shape, cols = x.shape, x.shape[-1]
    x, dy = x.reshape(-1, cols), dy.reshape(-1, cols)
    rows = x.shape[0]
    y, dx, rstd = empty(x), empty(x), empty(x, rows, "float32")
    block, gemma = triton.next_power_of_2(cols), offset != 0.0
    _rms_norm_fwd[(rows,)](
        y, strides(y)[0], x, strides(x)[0], weight, rstd, cols, eps, offset, GEMMA=gemma, BLOCK=block, num_warps=4
    )
    programs = 3
    partial = empty(x, (programs, cols), "float32")
    _rms_norm_bwd[(programs,)](
        dy, strides(dy)[0], dx, strides(dx)[0], x, strides(x)[0], weight, rstd, partial, strides(partial)[0], rows, cols,
        offset, rows_per_program=triton.cdiv(rows, programs), BLOCK=block,
    )  # fmt: skip
    return y.reshape(shape), dx.reshape(shape), partial.sum(0)


def rms_norm_reference(x, weight, dy, eps, offset):
    rstd = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    m = dy * (weight + offset)
    dx = rstd * m - rstd**3 * x * (m * x).mean(-1, keepdims=True)
    return x * rstd * (weight + offset), dx, (dy * x * rstd).reshape(-1, x.shape[-1]).sum(0)


specimen(
    "rms_norm", rms_norm, rms_norm_reference, 1e-4, 1e-5,
    llama=lambda rng: {"x": normal(rng, 2, 5, 100), "weight": normal(rng, 100), "dy": normal(rng, 2, 5, 100), "eps": 1e-6, "offset": 0.0},
    gemma=lambda rng: {"x": normal(rng, 7, 256), "weight": normal(rng, 256), "dy": normal(rng, 7, 256), "eps": 1e-6, "offset": 1.0},
)  # fmt: skip
specimen(
    "rms_norm", rms_norm, rms_norm_reference, 2e-2, 1e-2,
    bf16=lambda rng: {
        "x": normal(rng, 6, 130, dtype="bfloat16"), "weight": normal(rng, 130, dtype="bfloat16"),
        "dy": normal(rng, 6, 130, dtype="bfloat16"), "eps": 1e-6, "offset": 0.0,
    },
)  # fmt: skip


@triton.jit
def _group_norm(
    X, Y, W, B, Mean, RSTD, stride_b, stride_c, spatial, channels_per_group: tl.constexpr, groups, eps,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0)
    group = tl.program_id(1)
    X += batch * stride_b + group * channels_per_group * stride_c
    Y += batch * stride_b + group * channels_per_group * stride_c
    size = channels_per_group * spatial
    s = 0.0
    squares = 0.0
    for i in range(0, size, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        x = tl.load(X + offs, mask=offs < size, other=0.0).to(tl.float32)
        s += tl.sum(x)
        squares += tl.sum(x * x)
    mean = s / size
    rstd = tl.rsqrt(squares / size - mean * mean + eps)
    tl.store(Mean + batch * groups + group, mean)
    tl.store(RSTD + batch * groups + group, rstd)
    for c in tl.range(channels_per_group):
        channel = group * channels_per_group + c
        w = tl.load(W + channel)
        b = tl.load(B + channel)
        for i in range(0, spatial, BLOCK):
            offs = i + tl.arange(0, BLOCK)
            x = tl.load(X + c * stride_c + offs, mask=offs < spatial, other=mean)
            y = (x - mean) * rstd * w + b
            if ACTIVATION == "silu":
                y = y * tl.sigmoid(y)
            tl.store(Y + c * stride_c + offs, y, mask=offs < spatial)


def group_norm(x, weight, bias, groups, eps, activation):
    """Returns y, the means and the inverse standard deviations of (batch, channels, height, width)."""
    batches, channels, height, width = x.shape
    y = empty(x)
    mean, rstd = empty(x, (batches, groups), "float32"), empty(x, (batches, groups), "float32")
    _group_norm[(batches, groups)](
        x, y, weight, bias, mean, rstd, *strides(x)[:2], height * width, channels // groups, groups, eps,
        ACTIVATION=activation, BLOCK=64,
    )  # fmt: skip
    return y, mean, rstd


def group_norm_reference(x, weight, bias, groups, eps, activation):
    parts = x.reshape(x.shape[0], groups, -1)
    mean, rstd = parts.mean(2), 1 / np.sqrt(parts.var(2) + eps)
    y = ((parts - mean[..., None]) * rstd[..., None]).reshape(x.shape) * weight[:, None, None] + bias[:, None, None]
    return y / (1 + np.exp(-y)) if activation == "silu" else y, mean, rstd


def group_norm_inputs(rng, shape, groups, activation):
    channels = shape[1]
    x = normal(rng, *shape) + 0.5
    return {
        "x": x, "weight": normal(rng, channels), "bias": normal(rng, channels), "groups": groups, "eps": 1e-5, "activation": activation,
    }  # fmt: skip


specimen(
    "group_norm", group_norm, group_norm_reference, 1e-4, 1e-5,
    plain=lambda rng: group_norm_inputs(rng, (2, 12, 5, 7), 3, None),
    silu=lambda rng: group_norm_inputs(rng, (1, 8, 9, 9), 4, "silu"),
    one_channel=lambda rng: group_norm_inputs(rng, (2, 4, 3, 3), 4, None),
)  # fmt: skip


@triton.jit
def _welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    ratio = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


@triton.jit
def _column_variance(X, Mean, Var, M, N, stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mean = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    m2 = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    count = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)[:, None]
        mask = (rows < M) & (cols < N)
        x = tl.load(X + rows * stride + cols, mask=mask, other=0.0)
        one = mask.to(tl.float32)
        new_mean, new_m2, new_count = _welford(mean, m2, count, x, tl.zeros_like(x), one)
        mean = tl.where(mask, new_mean, mean)
        m2 = tl.where(mask, new_m2, m2)
        count = tl.where(mask, new_count, count)
    mean, m2, count = tl.reduce((mean, m2, count), axis=0, combine_fn=_welford)
    cols = tl.reshape(cols, (BLOCK_N,))
    tl.store(Mean + cols, mean, mask=cols < N)
    tl.store(Var + cols, m2 / count, mask=cols < N)


def column_variance(x):
    M, N = x.shape
    mean, var = empty(x, N), empty(x, N)
    _column_variance[(triton.cdiv(N, 16),)](x, mean, var, M, N, strides(x)[0], BLOCK_M=8, BLOCK_N=16)
    return mean, var


def variance_error(x):
    """The bound for a mean: five steps of eight rows and three halvings each round it by half an ulp. The error of a squared difference is
    twice the difference times that."""
    mean = 4 * np.spacing(np.abs(x).max().astype(np.float32)).astype(float)
    off = np.abs(x - x.mean(0)).mean(0)
    return np.full(off.shape, mean), 2 * mean * off + mean**2 + 1e-6 * x.var(0)


specimen(
    "welford", column_variance, lambda x: (x.mean(0), x.var(0)), error=variance_error,
    far_from_zero=lambda rng: {"x": normal(rng, 37, 20) + 1000},
    few_rows=lambda rng: {"x": normal(rng, 3, 16)},
)  # fmt: skip
