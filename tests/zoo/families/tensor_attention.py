"""Attention on tensor cores: with windows, biases and sinks, with 8-bit integer scores, and without a softmax."""

import itertools

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, vector
from zoo.references import softmax
from zoo.registry import integers, normal, specimen

HALF = np.float16


@triton.jit
def _varied(
    Q, K, V, Out, Bias, Sinks, Slopes, stride_h, stride_m, stride_b, length, scale, window, softcap, seed, dropout,
    BIASED: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ALIBI: tl.constexpr, DROP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    rm = start_m + tl.arange(0, BLOCK_M)
    rd = tl.arange(0, BLOCK_D)
    q = tl.load(
        Q + head * stride_h + rm[:, None] * stride_m + rd[None, :],
        mask=(rm[:, None] < length) & (rd[None, :] < D),
        other=0.0,
    )
    if Sinks is not None:  # the sink: a key of each head without a value
        m_i = tl.full([BLOCK_M], 1.0, tl.float32) * tl.load(Sinks + head)
        l_i = tl.full([BLOCK_M], 1.0, tl.float32)
    else:
        m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    low = 0
    high = min(start_m + BLOCK_M, length)
    if WINDOW:
        low = max(0, (start_m - window + 1) // BLOCK_N * BLOCK_N)
    for start_n in range(low, high, BLOCK_N):
        rn = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(
            K + head * stride_h + rn[None, :] * stride_m + rd[:, None],
            mask=(rn[None, :] < length) & (rd[:, None] < D),
            other=0.0,
        )
        s = tl.dot(q, k) * scale
        if CAPPED:
            s = softcap * (2 * tl.sigmoid(2 * s / softcap) - 1)
        if ALIBI:
            s -= tl.load(Slopes + head) * (rm[:, None] - rn[None, :]).to(tl.float32)
        if BIASED:
            s += tl.load(
                Bias + rm[:, None] * stride_b + rn[None, :],
                mask=(rm[:, None] < length) & (rn[None, :] < length),
                other=0.0,
            ).to(tl.float32)
        keep = (rm[:, None] >= rn[None, :]) & (rn[None, :] < length)
        if WINDOW:
            keep = keep & (rm[:, None] - rn[None, :] < window)
        s = tl.where(keep, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp(s - safe[:, None])
        alpha = tl.exp(m_i - safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if DROP:
            kept = tl.rand(seed + head, rm[:, None] * length + rn[None, :]) > dropout
            p = tl.where(kept, p / (1 - dropout), 0.0)
        v = tl.load(
            V + head * stride_h + rn[:, None] * stride_m + rd[None, :],
            mask=(rn[:, None] < length) & (rd[None, :] < D),
            other=0.0,
        )
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
    acc = acc / l_i[:, None]
    out = Out + head * stride_h + rm[:, None] * stride_m + rd[None, :]
    tl.store(out, acc.to(Out.dtype.element_ty), mask=(rm[:, None] < length) & (rd[None, :] < D))


def varied(q, k, v, bias, sinks, slopes, window, softcap):
    H, N, D = q.shape
    out = empty(q)
    _varied[(triton.cdiv(N, 64), H)](
        q, k, v, out, bias, sinks, slopes, *strides(q)[:2], N if bias is None else strides(bias)[0], N, D**-0.5, window, softcap, 7,
        0.0, BIASED=bias is not None, WINDOW=window > 0, CAPPED=softcap > 0, ALIBI=slopes is not None, DROP=False, BLOCK_M=64,
        BLOCK_N=64, D=D, BLOCK_D=max(16, triton.next_power_of_2(D)), num_warps=4,
    )  # fmt: skip
    return out


def varied_reference(q, k, v, bias, sinks, slopes, window, softcap):
    N = q.shape[1]
    s = q @ k.swapaxes(1, 2) * q.shape[2] ** -0.5
    i, j = np.ogrid[:N, :N]
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if slopes is not None:
        s = s - slopes[:, None, None] * (i - j)
    if bias is not None:
        s = s + bias
    s = np.where((i >= j) & ((i - j < window) if window else True), s, -np.inf)
    if sinks is None:
        return softmax(s) @ v
    with_sinks = np.concatenate([np.broadcast_to(sinks[:, None, None], (*s.shape[:2], 1)), s], -1)
    return softmax(with_sinks)[..., 1:] @ v


def varied_inputs(rng, H, N, D, bias=False, sinks=False, slopes=False, window=0, softcap=0.0):
    made = {name: normal(rng, H, N, D, dtype=HALF) for name in "qkv"}
    return made | {
        "bias": normal(rng, N, N, dtype=HALF) if bias else None, "sinks": normal(rng, H) if sinks else None,
        "slopes": rng.random(H).astype(np.float32) if slopes else None, "window": window, "softcap": softcap,
    }  # fmt: skip


specimen(
    "varied_attention", varied, varied_reference, 2e-2, 4e-3,
    window=lambda rng: varied_inputs(rng, 2, 200, 64, sinks=True, window=70),
    bias=lambda rng: varied_inputs(rng, 1, 144, 64, bias=True), capped=lambda rng: varied_inputs(rng, 1, 100, 80, slopes=True, softcap=5.0),
    plain=lambda rng: varied_inputs(rng, 1, 128, 128),
)  # fmt: skip


@triton.jit
def _by_hand(
    q_ptr, k_ptr, v_ptr, q_scale_ptr, k_scale_ptr, out_ptr, stride_h, stride_n, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Attention with int8 scores and one scale per block of queries and keys. The second product accumulates in fp16."""
    pid, head = tl.program_id(0), tl.program_id(1)
    rm = pid * BLOCK_M + tl.arange(0, BLOCK_M)
    rd = tl.arange(0, D)
    rn = tl.arange(0, BLOCK_N)
    q = tl.load(q_ptr + head * stride_h + rm[:, None] * stride_n + rd[None, :], mask=rm[:, None] < N, other=0)
    q_scale = tl.load(q_scale_ptr + head * tl.num_programs(0) + pid)
    k_ptrs = k_ptr + head * stride_h + rn[None, :] * stride_n + rd[:, None]
    v_ptrs = v_ptr + head * stride_h + rn[:, None] * stride_n + rd[None, :]
    k_scales = k_scale_ptr + head * tl.cdiv(N, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for start_n in range(0, N, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = tl.load(k_ptrs, mask=rn[None, :] < (N - start_n), other=0)
        qk = tl.dot(q, k).to(tl.float32) * q_scale * tl.load(k_scales)
        qk = tl.where(rn[None, :] < (N - start_n), qk, -1.0e6)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_ptrs, mask=rn[:, None] < (N - start_n), other=0.0)
        acc += tl.dot(p.to(tl.float16), v, out_dtype=tl.float16)
        m_i = m_ij
        k_ptrs += BLOCK_N * stride_n
        k_scales += 1
        v_ptrs += BLOCK_N * stride_n
    acc = acc / l_i[:, None]
    tl.store(out_ptr + head * stride_h + rm[:, None] * stride_n + rd[None, :], acc.to(tl.float16), mask=rm[:, None] < N)


def int8_scores(q, k, v, q_scale, k_scale):
    """The softmax to base 2 of scaled scores."""
    H, N, D = q.shape
    out = empty(v)
    _by_hand[(triton.cdiv(N, 64), H)](q, k, v, q_scale, k_scale, out, *strides(q)[:2], N, 64, 64, D, num_warps=4)
    return out


def int8_scores_reference(q, k, v, q_scale, k_scale):
    N = q.shape[1]
    q, k = (x * np.repeat(s, 64, 1)[:, :N, None] for x, s in ((q.astype(float), q_scale), (k.astype(float), k_scale)))
    return softmax(q @ k.swapaxes(1, 2) * np.log(2)) @ v


specimen(
    "int8_scores", int8_scores, int8_scores_reference, 2e-2, 6e-3,
    ragged=lambda rng: {
        "q": integers(rng, -128, 128, 2, 100, 64, dtype=np.int8), "k": integers(rng, -128, 128, 2, 100, 64, dtype=np.int8),
        "v": normal(rng, 2, 100, 64, dtype=HALF), "q_scale": (rng.random((2, 2)) / 60).astype(np.float32),
        "k_scale": (rng.random((2, 2)) / 60).astype(np.float32),
    },
)  # fmt: skip


@triton.jit
def _pointwise(
    Q, K, V, Out, Lengths, stride_b, stride_n, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    """Computes silu(q k) v / n, causal, for packed sequences. Without a softmax, the loop carries only the sum."""
    batch = tl.program_id(1)
    first = tl.load(Lengths + batch)
    length = tl.load(Lengths + batch + 1) - first
    start = tl.program_id(0) * BLOCK_M
    if start < length:
        rm = start + tl.arange(0, BLOCK_M)
        rd = tl.arange(0, D)
        base = first.to(tl.int64) * stride_n
        q = tl.load(Q + base + rm[:, None] * stride_n + rd[None, :], mask=rm[:, None] < length, other=0.0)
        acc = tl.zeros([BLOCK_M, D], tl.float32)
        for n in range(0, min(start + BLOCK_M, length), BLOCK_N):
            rn = n + tl.arange(0, BLOCK_N)
            k = tl.load(K + base + rn[:, None] * stride_n + rd[None, :], mask=rn[:, None] < length, other=0.0)
            v = tl.load(V + base + rn[:, None] * stride_n + rd[None, :], mask=rn[:, None] < length, other=0.0)
            s = tl.dot(q, tl.trans(k), allow_tf32=False) * scale
            s = s / (1.0 + tl.exp(-s))
            s = tl.where(rm[:, None] >= rn[None, :], s, 0.0)
            acc += tl.dot(s.to(v.dtype), v)
        acc = acc / length
        tl.store(
            Out + base + rm[:, None] * stride_n + rd[None, :], acc.to(Out.dtype.element_ty), mask=rm[:, None] < length
        )


def pointwise_attention(q, k, v, starts):
    D = q.shape[1]
    out = empty(q)
    longest = max(b - a for a, b in itertools.pairwise(starts))
    _pointwise[(triton.cdiv(longest, 64), len(starts) - 1)](
        q, k, v, out, vector(q, starts), 0, strides(q)[0], D**-0.5, BLOCK_M=64, BLOCK_N=64, D=D
    )
    return out


def pointwise_reference(q, k, v, starts):
    out = np.zeros_like(q)
    for a, b in itertools.pairwise(starts):
        s = q[a:b] @ k[a:b].T * q.shape[1] ** -0.5
        out[a:b] = (s / (1 + np.exp(-s)) * np.tri(b - a)) @ v[a:b] / (b - a)
    return out


specimen(
    "pointwise_attention", pointwise_attention, pointwise_reference, 2e-2, 4e-3,
    ragged=lambda rng: {name: normal(rng, 230, 64, dtype=HALF) for name in "qkv"} | {"starts": [0, 100, 130, 230]},
)  # fmt: skip
