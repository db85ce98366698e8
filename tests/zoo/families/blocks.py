"""Attention on block pointers, forward and backward: causal or not, with fewer heads of keys than of queries."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.references import attention_with_gradients
from zoo.registry import normal, specimen


def keep_small(config):
    return config.kwargs["BLOCK_M"] * config.kwargs["BLOCK_N"] <= 32 * 32


@triton.jit
def _inner(
    acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, N_CTX, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
    offs_m: tl.constexpr, offs_n: tl.constexpr,
):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, tl.minimum((start_m + 1) * BLOCK_M, N_CTX)
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    k_block = tl.advance(k_block, (0, lo))
    v_block = tl.advance(v_block, (lo, 0))
    for start_n in range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = tl.load(k_block, boundary_check=(1,), padding_option="zero")
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            qk = tl.where((start_n + offs_n < N_CTX)[None, :], qk * qk_scale, float("-inf"))
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk = qk - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        acc = acc * alpha[:, None]
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_ij
        v_block = tl.advance(v_block, (BLOCK_N, 0))
        k_block = tl.advance(k_block, (0, BLOCK_N))
    return acc, l_i, m_i


@triton.autotune(
    [c for c in [triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=2) for m in (32, 64) for n in (16, 32)][1:] if keep_small(c)],
    key=["N_CTX", "HEAD_DIM"], warmup=1, rep=2,
)  # fmt: skip
@triton.jit
def _block_attention(
    Q, K, V, sm_scale, M, Out, stride_qz, stride_qh, stride_qm, stride_qk, stride_kz, stride_kh, stride_kn, stride_kk, stride_vz,
    stride_vh, stride_vn, stride_vk, stride_oz, stride_oh, stride_om, stride_on, Z, H, N_CTX, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    q_offset = off_z.to(tl.int64) * stride_qz + off_h.to(tl.int64) * stride_qh
    k_offset = off_z.to(tl.int64) * stride_kz + (off_h // GROUP).to(tl.int64) * stride_kh
    v_offset = off_z.to(tl.int64) * stride_vz + (off_h // GROUP).to(tl.int64) * stride_vh
    q_block = tl.make_block_ptr(
        base=Q + q_offset, shape=(N_CTX, HEAD_DIM), strides=(stride_qm, stride_qk), offsets=(start_m * BLOCK_M, 0),
        block_shape=(BLOCK_M, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    v_block = tl.make_block_ptr(
        base=V + v_offset, shape=(N_CTX, HEAD_DIM), strides=(stride_vn, stride_vk), offsets=(0, 0),
        block_shape=(BLOCK_N, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    k_block = tl.make_block_ptr(
        base=K + k_offset, shape=(HEAD_DIM, N_CTX), strides=(stride_kk, stride_kn), offsets=(0, 0),
        block_shape=(HEAD_DIM, BLOCK_N), order=(0, 1),
    )  # fmt: skip
    o_block = tl.make_block_ptr(
        base=Out + off_z.to(tl.int64) * stride_oz + off_h * stride_oh, shape=(N_CTX, HEAD_DIM), strides=(stride_om, stride_on),
        offsets=(start_m * BLOCK_M, 0), block_shape=(BLOCK_M, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = tl.load(q_block, boundary_check=(0,))
    # Stage 3 is causal: blocks left of the diagonal, then those on it. Stage 1: all blocks.
    if STAGE & 1:
        acc, l_i, m_i = _inner(
            acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, N_CTX, BLOCK_M, BLOCK_N, 4 - STAGE, offs_m, offs_n
        )
    if STAGE & 2:
        acc, l_i, m_i = _inner(
            acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, N_CTX, BLOCK_M, BLOCK_N, 2, offs_m, offs_n
        )
    # The sum starts at 1 with a maximum of -inf; the first rescaling removes the 1.
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    tl.store(M + off_hz * N_CTX + offs_m, m_i, mask=offs_m < N_CTX)
    tl.store(o_block, acc.to(Out.type.element_ty), boundary_check=(0,))


@triton.jit
def _block_delta(O, DO, Delta, N_CTX, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    off_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    off_hz = tl.program_id(1)
    off_n = tl.arange(0, HEAD_DIM)
    at = off_hz * HEAD_DIM * N_CTX + off_m[:, None] * HEAD_DIM + off_n[None, :]
    o = tl.load(O + at, mask=(off_m < N_CTX)[:, None], other=0)
    do = tl.load(DO + at, mask=(off_m < N_CTX)[:, None], other=0).to(tl.float32)
    tl.store(Delta + off_hz * N_CTX + off_m, tl.sum(o * do, axis=1), mask=off_m < N_CTX)


@triton.jit
def _block_backward(
    Q, K, V, sm_scale, DO, DQ, DK, DV, M, D, Z, H, N_CTX, GROUP: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Computes dk and dv for a block of keys, and adds its part of dq to fp32 sums."""
    start_n = tl.program_id(0) * BLOCK_N
    kv = tl.program_id(1)
    kv_heads = H // GROUP
    size = N_CTX * HEAD_DIM
    kv_offset = kv.to(tl.int64) * size
    k = tl.load(
        tl.make_block_ptr(K + kv_offset, (N_CTX, HEAD_DIM), (HEAD_DIM, 1), (start_n, 0), (BLOCK_N, HEAD_DIM), (1, 0)),
        boundary_check=(0,), padding_option="zero",
    )  # fmt: skip
    v = tl.load(
        tl.make_block_ptr(V + kv_offset, (N_CTX, HEAD_DIM), (HEAD_DIM, 1), (start_n, 0), (BLOCK_N, HEAD_DIM), (1, 0)),
        boundary_check=(0,), padding_option="zero",
    )  # fmt: skip
    dk = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    first = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    for g in range(GROUP):
        off_hz = kv // kv_heads * H + kv % kv_heads * GROUP + g
        base = off_hz.to(tl.int64) * size
        q_block = tl.make_block_ptr(Q + base, (N_CTX, HEAD_DIM), (HEAD_DIM, 1), (first, 0), (BLOCK_M, HEAD_DIM), (1, 0))
        do_block = tl.make_block_ptr(
            DO + base, (N_CTX, HEAD_DIM), (HEAD_DIM, 1), (first, 0), (BLOCK_M, HEAD_DIM), (1, 0)
        )
        for start_m in range(first, N_CTX, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            q = tl.load(q_block, boundary_check=(0,), padding_option="zero")
            do = tl.load(do_block, boundary_check=(0,), padding_option="zero")
            m = tl.load(M + off_hz * N_CTX + offs_m, mask=offs_m < N_CTX, other=0.0)
            delta = tl.load(D + off_hz * N_CTX + offs_m, mask=offs_m < N_CTX, other=0.0)
            p = tl.math.exp2(tl.dot(k, tl.trans(q)) * (sm_scale * 1.44269504) - m[None, :])
            keep = (offs_m < N_CTX)[None, :] & (offs_n < N_CTX)[:, None]
            if CAUSAL:
                keep = keep & (offs_m[None, :] >= offs_n[:, None])
            p = tl.where(keep, p, 0.0)
            dv = tl.dot(p.to(do.dtype), do, dv)
            dp = tl.dot(v, tl.trans(do)).to(tl.float32)
            ds = (p * (dp - delta[None, :]) * sm_scale).to(q.dtype)
            dk = tl.dot(ds, q, dk)
            dq_ptrs = DQ + base + offs_m[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
            tl.atomic_add(dq_ptrs, tl.dot(tl.trans(ds), k), mask=(offs_m < N_CTX)[:, None], sem="relaxed")
            q_block = tl.advance(q_block, (BLOCK_M, 0))
            do_block = tl.advance(do_block, (BLOCK_M, 0))
    dk_block = tl.make_block_ptr(
        DK + kv_offset, (N_CTX, HEAD_DIM), (HEAD_DIM, 1), (start_n, 0), (BLOCK_N, HEAD_DIM), (1, 0)
    )
    dv_block = tl.make_block_ptr(
        DV + kv_offset, (N_CTX, HEAD_DIM), (HEAD_DIM, 1), (start_n, 0), (BLOCK_N, HEAD_DIM), (1, 0)
    )
    tl.store(dk_block, dk.to(DK.dtype.element_ty), boundary_check=(0,))
    tl.store(dv_block, dv.to(DV.dtype.element_ty), boundary_check=(0,))


def block_attention(q, k, v, dout, causal):
    """Arrays are (batch, heads, length, dim); k and v may have fewer heads. Returns out, dq (fp32), dk, dv."""
    batch, heads, length, dim = q.shape
    group, scale = heads // k.shape[1], dim**-0.5
    out, lse, delta = empty(q), empty(q, (batch, heads, length), "float32"), empty(q, (batch, heads, length), "float32")
    _block_attention[lambda args: (triton.cdiv(length, args["BLOCK_M"]), batch * heads, 1)](
        q, k, v, scale, lse, out, *strides(q), *strides(k), *strides(v), *strides(out), batch, heads, N_CTX=length, GROUP=group,
        HEAD_DIM=dim, STAGE=3 if causal else 1,
    )  # fmt: skip
    dq, dk, dv = zeros(q, q.shape, "float32"), empty(k), empty(v)
    _block_delta[(triton.cdiv(length, 32), batch * heads)](out, dout, delta, length, BLOCK_M=32, HEAD_DIM=dim)
    _block_backward[(triton.cdiv(length, 32), batch * k.shape[1])](
        q, k, v, scale, dout, dq, dk, dv, lse, delta, batch, heads, length, GROUP=group, CAUSAL=causal, HEAD_DIM=dim, BLOCK_M=16,
        BLOCK_N=32,
    )  # fmt: skip
    return out, dq, dk, dv


def block_attention_reference(q, k, v, dout, causal):
    return attention_with_gradients(q, k, v, dout, causal, q.shape[-1] ** -0.5)


def block_attention_inputs(rng, batch, heads, kv_heads, length, dim, causal, dtype=np.float16):
    q, dout = (normal(rng, batch, heads, length, dim, dtype=dtype) for _ in range(2))
    k, v = (normal(rng, batch, kv_heads, length, dim, dtype=dtype) for _ in range(2))
    return {"q": q, "k": k, "v": v, "dout": dout, "causal": causal}


specimen(
    "block_attention", block_attention, block_attention_reference, 2e-2, 5e-3,
    causal=lambda rng: block_attention_inputs(rng, 2, 2, 1, 75, 64, True),
    whole=lambda rng: block_attention_inputs(rng, 1, 2, 2, 40, 128, False),
)  # fmt: skip
specimen(
    "block_attention", block_attention, block_attention_reference, 8e-2, 2e-2,
    bf16=lambda rng: block_attention_inputs(rng, 1, 4, 2, 64, 64, True, dtype="bfloat16"),
)  # fmt: skip
