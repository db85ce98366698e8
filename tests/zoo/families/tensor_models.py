"""Variants of attention on tensor cores: pair biases, decaying sums over chunks, and gradients by atomics."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.references import attention_gradients, causal_scores, softmax
from zoo.registry import integers, normal, specimen

HALF = np.float16


@triton.jit
def _pair_bias(
    Q, K, V, Mask, Pair, Gate, Out, stride_b, stride_h, stride_n, N, H, scale, BLOCK: tl.constexpr, D: tl.constexpr
):
    """Triangle attention: a bias per pair that all rows share, a mask for keys, and a gate after the softmax."""
    pid, bh = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    rm = pid * BLOCK + tl.arange(0, BLOCK)
    rd = tl.arange(0, D)
    at = b * stride_b + h * stride_h
    inside = rm[:, None] < N
    q = tl.load(Q + at + rm[:, None] * stride_n + rd[None, :], mask=inside, other=0.0)
    m = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, D], tl.float32)
    for n in tl.range(0, N, BLOCK):
        rn = n + tl.arange(0, BLOCK)
        k = tl.load(K + at + rn[:, None] * stride_n + rd[None, :], mask=rn[:, None] < N, other=0.0)
        keep = tl.load(Mask + b * N + rn, mask=rn < N, other=0)
        pair = tl.load(Pair + (h * N + rm[:, None]) * N + rn[None, :], mask=inside & (rn[None, :] < N), other=0.0)
        s = tl.dot(q, k.T, input_precision="tf32") * scale + pair
        s = tl.where((keep != 0)[None, :] & (rn < N)[None, :], s, -1e9)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(V + at + rn[:, None] * stride_n + rd[None, :], mask=rn[:, None] < N, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="tf32")
        m = m_new
    gate = tl.load(Gate + at + rm[:, None] * stride_n + rd[None, :], mask=inside, other=0.0)
    tl.store(Out + at + rm[:, None] * stride_n + rd[None, :], acc / total[:, None] * tl.sigmoid(gate), mask=inside)


def pair_bias(q, k, v, mask, pair, gate):
    B, H, N, D = q.shape
    out = empty(q)
    _pair_bias[(triton.cdiv(N, 64), B * H)](
        q, k, v, mask, pair, gate, out, *strides(q)[:3], N, H, D**-0.5, BLOCK=64, D=D, num_warps=4
    )
    return out


def pair_bias_reference(q, k, v, mask, pair, gate):
    s = np.where(mask[:, None, None, :] != 0, q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5 + pair, -1e9)
    return softmax(s) @ v / (1 + np.exp(-gate))


specimen(
    "pair_bias", pair_bias, pair_bias_reference, 1e-2, 4e-3,
    ragged=lambda rng: {name: normal(rng, 2, 2, 80, 32) for name in ("q", "k", "v", "gate")}
    | {"mask": integers(rng, 0, 2, 2, 80, dtype=np.int8), "pair": normal(rng, 2, 80, 80)},
)  # fmt: skip


@triton.jit
def _retention(Q, K, V, Out, Decay, stride_h, stride_n, N, BLOCK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr):
    """Linear attention with a decay per head: a state matrix holds the contribution of earlier blocks."""
    head, part = tl.program_id(0), tl.program_id(1)
    r = tl.arange(0, BLOCK)
    rd = tl.arange(0, D)
    rv = part * DV + tl.arange(0, DV)
    rate = tl.load(Decay + head)
    inner = tl.exp(-rate * r)
    left = tl.exp(-rate * (BLOCK - r - 1))
    distance = r[:, None] - r[None, :]
    within = tl.exp(tl.where(distance >= 0, -rate * distance, float("-inf")))
    state = tl.zeros([D, DV], dtype=tl.float32)
    for n in range(tl.cdiv(N, BLOCK)):
        rows = n * BLOCK + r
        seen = rows[:, None] < N
        at = head * stride_h + rows[:, None] * stride_n
        q = tl.load(Q + at + rd[None, :], mask=seen, other=0.0).to(tl.float32)
        k_t = tl.load(
            K + head * stride_h + rows[None, :] * stride_n + rd[:, None], mask=rows[None, :] < N, other=0.0
        ).to(tl.float32)
        v = tl.load(V + at + rv[None, :], mask=seen, other=0.0).to(tl.float32)
        scores = tl.dot(q, k_t) * within
        out = tl.dot(scores, v) + tl.dot(q, state) * (inner * tl.exp(-rate))[:, None]
        tl.store(Out + at + rv[None, :], out.to(Out.dtype.element_ty), mask=seen)
        state = tl.exp(-rate * BLOCK) * state + tl.dot(k_t * left[None, :], v)


def retention(q, k, v, decay):
    H, N, D = q.shape
    out = empty(v)
    _retention[(H, D // 32)](q, k, v, out, decay, *strides(q)[:2], N, BLOCK=64, D=D, DV=32)
    return out


def retention_reference(q, k, v, decay):
    N = q.shape[1]
    i, j = np.ogrid[:N, :N]
    weights = np.where(i >= j, np.exp(-decay[:, None, None] * (i - j)), 0)
    return (q @ k.swapaxes(1, 2) * weights) @ v


specimen(
    "retention", retention, retention_reference, 2e-2, 4e-3,
    ragged=lambda rng: {name: normal(rng, 2, 150, 64, dtype=HALF) for name in "qkv"}
    | {"decay": np.array([0.02, 0.3], np.float32)},
)  # fmt: skip


@triton.jit
def _gradients_at_once(
    Q,
    K,
    V,
    DO,
    LSE,
    Delta,
    DQ,
    DK,
    DV,
    stride_h,
    stride_n,
    N,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):
    """A program has a block of keys, and adds its part of the queries' gradients to memory."""
    start_n, head = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    rn = start_n + tl.arange(0, BLOCK_N)
    rd = tl.arange(0, D)
    base = head * stride_h
    k = tl.load(K + base + rn[:, None] * stride_n + rd[None, :], mask=rn[:, None] < N, other=0.0)
    v = tl.load(V + base + rn[:, None] * stride_n + rd[None, :], mask=rn[:, None] < N, other=0.0)
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    for start_m in range(start_n, N, BLOCK_M):
        rm = start_m + tl.arange(0, BLOCK_M)
        inside = rm[:, None] < N
        at = base + rm[:, None] * stride_n + rd[None, :]
        q = tl.load(Q + at, mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k))
        s = tl.where((rm[:, None] >= rn[None, :]) & (rn[None, :] < N), s, float("-inf"))
        lse = tl.load(LSE + head * N + rm, mask=rm < N, other=0.0)
        p = tl.exp(s * scale - lse[:, None])
        do = tl.load(DO + at, mask=inside, other=0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do)
        delta = tl.load(Delta + head * N + rm, mask=rm < N, other=0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = (p * (dp - delta[:, None]) * scale).to(q.dtype)
        dk += tl.dot(tl.trans(ds), q)
        tl.atomic_add(DQ + at, tl.dot(ds, k), mask=inside, sem="relaxed")
    tl.store(DV + base + rn[:, None] * stride_n + rd[None, :], dv, mask=rn[:, None] < N)
    tl.store(DK + base + rn[:, None] * stride_n + rd[None, :], dk, mask=rn[:, None] < N)


def gradients_at_once(q, k, v, do, lse, delta):
    H, N, D = q.shape
    dq, dk, dv = zeros(q, q.shape, "float32"), empty(k), empty(v)
    _gradients_at_once[(triton.cdiv(N, 64), H)](
        q, k, v, do, lse, delta, dq, dk, dv, *strides(q)[:2], N, D**-0.5, 64, 64, D, num_warps=4
    )
    return dq, dk, dv


def scores(q, k):
    return causal_scores(q @ k.swapaxes(1, 2) * q.shape[2] ** -0.5)


def gradients_at_once_reference(q, k, v, do, lse, delta):
    p = np.exp(scores(q, k) - lse[..., None])
    return attention_gradients(p, q, k, v, do, delta, q.shape[2] ** -0.5)


def gradients_at_once_inputs(rng, H, N, D):
    made = {name: normal(rng, H, N, D, dtype=HALF) for name in ("q", "k", "v", "do")}
    q, k, v, do = (x.astype(np.float64) for x in made.values())
    s = scores(q, k)
    lse = np.log(np.exp(s).sum(-1))
    return made | {"lse": lse.astype(np.float32), "delta": (softmax(s) @ v * do).sum(-1).astype(np.float32)}


specimen(
    "gradients_at_once", gradients_at_once, gradients_at_once_reference, 2e-2, 4e-3,
    ragged=lambda rng: gradients_at_once_inputs(rng, 1, 150, 64),
)  # fmt: skip
