"""Flash attention, forward and backward: causal or not, with shared heads of keys and values, and for sequences of unequal length."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, vector
from zoo.references import attention_with_gradients
from zoo.registry import normal, specimen


@triton.jit
def _attend(
    acc, l_i, m_i, q, K, V, stride_kn, stride_vn, seqlen_k, offset, scale, low, high, offs_m, offs_d, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    for start in tl.range(low, high, BLOCK_N, num_stages=2):
        start = tl.multiple_of(start, BLOCK_N)
        offs_n = start + tl.arange(0, BLOCK_N)
        if MASKED:
            k = tl.load(
                K + offs_n[None, :] * stride_kn + offs_d[:, None],
                mask=(offs_n[None, :] < seqlen_k) & (offs_d[:, None] < HEAD_DIM),
                other=0.0,
            )
            v = tl.load(
                V + offs_n[:, None] * stride_vn + offs_d[None, :],
                mask=(offs_n[:, None] < seqlen_k) & (offs_d[None, :] < HEAD_DIM),
                other=0.0,
            )
        else:
            k = tl.load(K + offs_n[None, :] * stride_kn + offs_d[:, None], mask=offs_d[:, None] < HEAD_DIM, other=0.0)
            v = tl.load(V + offs_n[:, None] * stride_vn + offs_d[None, :], mask=offs_d[None, :] < HEAD_DIM, other=0.0)
        qk = tl.dot(q, k) * scale
        if MASKED:
            seen = offs_n[None, :] < seqlen_k
            if CAUSAL:
                seen = seen & (offs_m[:, None] + offset >= offs_n[None, :])
            qk = tl.where(seen, qk, -1.0e6)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _attention_fwd(
    Q, K, V, Out, LSE, cu_seqlens_q, cu_seqlens_k, sm_scale, stride_qm, stride_qh, stride_kn, stride_kh, stride_vn, stride_vh,
    stride_om, stride_oh, stride_lh, HEADS_PER_KV: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    batch = tl.program_id(2)
    first_q = tl.load(cu_seqlens_q + batch)
    first_k = tl.load(cu_seqlens_k + batch)
    seqlen_q = tl.load(cu_seqlens_q + batch + 1) - first_q
    seqlen_k = tl.load(cu_seqlens_k + batch + 1) - first_k
    start_m = tl.program_id(0) * BLOCK_M
    if start_m >= seqlen_q:
        return
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    Q += first_q.to(tl.int64) * stride_qm + head * stride_qh
    K += first_k.to(tl.int64) * stride_kn + head // HEADS_PER_KV * stride_kh
    V += first_k.to(tl.int64) * stride_vn + head // HEADS_PER_KV * stride_vh
    mask_q = (offs_m[:, None] < seqlen_q) & (offs_d[None, :] < HEAD_DIM)
    q = tl.load(Q + offs_m[:, None] * stride_qm + offs_d[None, :], mask=mask_q, other=0.0)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    scale = sm_scale * 1.44269504
    offset = seqlen_k - seqlen_q
    if CAUSAL:
        last = min(start_m + BLOCK_M + offset, seqlen_k)
        whole = max(start_m + offset + 1, 0) // BLOCK_N * BLOCK_N
    else:
        last = seqlen_k
        whole = seqlen_k // BLOCK_N * BLOCK_N
    acc, l_i, m_i = _attend(
        acc,
        l_i,
        m_i,
        q,
        K,
        V,
        stride_kn,
        stride_vn,
        seqlen_k,
        offset,
        scale,
        0,
        whole,
        offs_m,
        offs_d,
        False,
        CAUSAL,
        BLOCK_N,
        HEAD_DIM,
    )
    acc, l_i, m_i = _attend(
        acc,
        l_i,
        m_i,
        q,
        K,
        V,
        stride_kn,
        stride_vn,
        seqlen_k,
        offset,
        scale,
        whole,
        last,
        offs_m,
        offs_d,
        True,
        CAUSAL,
        BLOCK_N,
        HEAD_DIM,
    )
    acc = acc / l_i[:, None]
    rows = first_q + offs_m
    tl.store(LSE + head * stride_lh + rows, m_i + tl.math.log2(l_i), mask=offs_m < seqlen_q)
    out = Out + rows[:, None] * stride_om + head * stride_oh + offs_d[None, :]
    tl.store(out, acc.to(Out.type.element_ty), mask=mask_q)


@triton.jit
def _attention_delta(
    Out,
    DO,
    Delta,
    stride_m,
    stride_h,
    stride_lh,
    rows,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_d = tl.arange(0, BLOCK_D)
    at = offs_m[:, None] * stride_m + tl.program_id(1) * stride_h + offs_d[None, :]
    mask = (offs_m[:, None] < rows) & (offs_d[None, :] < HEAD_DIM)
    o = tl.load(Out + at, mask=mask, other=0.0).to(tl.float32)
    do = tl.load(DO + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(Delta + tl.program_id(1) * stride_lh + offs_m, tl.sum(o * do, axis=1), mask=offs_m < rows)


@triton.jit
def _attention_dkdv(
    Q, K, V, DO, DK, DV, LSE, Delta, sm_scale, stride_m, stride_h, stride_kn, stride_kh, stride_lh, rows, keys,
    HEADS_PER_KV: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_kv = (offs_n[:, None] < keys) & (offs_d[None, :] < HEAD_DIM)
    at = offs_n[:, None] * stride_kn + kv_head * stride_kh + offs_d[None, :]
    k = tl.load(K + at, mask=mask_kv, other=0.0)
    v = tl.load(V + at, mask=mask_kv, other=0.0)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    for h in tl.static_range(HEADS_PER_KV):
        head = kv_head * HEADS_PER_KV + h
        first = tl.program_id(0) * BLOCK_N // BLOCK_M * BLOCK_M if CAUSAL else 0
        for start in range(first, rows, BLOCK_M):
            offs_m = start + tl.arange(0, BLOCK_M)
            mask_m = (offs_m[:, None] < rows) & (offs_d[None, :] < HEAD_DIM)
            q_at = offs_m[:, None] * stride_m + head * stride_h + offs_d[None, :]
            q = tl.load(Q + q_at, mask=mask_m, other=0.0)
            do = tl.load(DO + q_at, mask=mask_m, other=0.0)
            lse = tl.load(LSE + head * stride_lh + offs_m, mask=offs_m < rows, other=0.0)
            delta = tl.load(Delta + head * stride_lh + offs_m, mask=offs_m < rows, other=0.0)
            qk_t = tl.dot(k, tl.trans(q))
            p_t = tl.math.exp2(qk_t * (sm_scale * 1.44269504) - lse[None, :])
            keep = (offs_m[None, :] < rows) & (offs_n[:, None] < keys)
            if CAUSAL:
                keep = keep & (offs_m[None, :] >= offs_n[:, None])
            p_t = tl.where(keep, p_t, 0.0)
            dv += tl.dot(p_t.to(do.dtype), do)
            dp_t = tl.dot(v, tl.trans(do))
            ds_t = p_t * (dp_t - delta[None, :])
            dk += tl.dot(ds_t.to(q.dtype), q)
    tl.store(DV + at, dv.to(DV.dtype.element_ty), mask=mask_kv)
    tl.store(DK + at, (dk * sm_scale).to(DK.dtype.element_ty), mask=mask_kv)


@triton.jit
def _attention_dq(
    Q, K, V, DO, DQ, LSE, Delta, sm_scale, stride_m, stride_h, stride_kn, stride_kh, stride_lh, rows, keys,
    HEADS_PER_KV: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = (offs_m[:, None] < rows) & (offs_d[None, :] < HEAD_DIM)
    at = offs_m[:, None] * stride_m + head * stride_h + offs_d[None, :]
    q = tl.load(Q + at, mask=mask_m, other=0.0)
    do = tl.load(DO + at, mask=mask_m, other=0.0)
    lse = tl.load(LSE + head * stride_lh + offs_m, mask=offs_m < rows, other=0.0)
    delta = tl.load(Delta + head * stride_lh + offs_m, mask=offs_m < rows, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    last = min((tl.program_id(0) + 1) * BLOCK_M, keys) if CAUSAL else keys
    k_ptrs = K + head // HEADS_PER_KV * stride_kh + tl.arange(0, BLOCK_N)[None, :] * stride_kn + offs_d[:, None]
    v_ptrs = V + head // HEADS_PER_KV * stride_kh + tl.arange(0, BLOCK_N)[None, :] * stride_kn + offs_d[:, None]
    for start in range(0, last, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask = (offs_n[None, :] < keys) & (offs_d[:, None] < HEAD_DIM)
        k_t = tl.load(k_ptrs, mask=mask, other=0.0)
        v_t = tl.load(v_ptrs, mask=mask, other=0.0)
        p = tl.math.exp2(tl.dot(q, k_t) * (sm_scale * 1.44269504) - lse[:, None])
        keep = offs_n[None, :] < keys
        if CAUSAL:
            keep = keep & (offs_m[:, None] >= offs_n[None, :])
        p = tl.where(keep, p, 0.0)
        dp = tl.dot(do, v_t)
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k_t.dtype), tl.trans(k_t))
        k_ptrs += BLOCK_N * stride_kn
        v_ptrs += BLOCK_N * stride_kn
    tl.store(DQ + at, (dq * sm_scale).to(DQ.dtype.element_ty), mask=mask_m)


def attention_forward(q, k, v, lengths_q, lengths_k, causal, scale):
    """Returns out and log2-sum-exp2 (heads, tokens) of packed sequences: q is (tokens, heads, dim), k and v have fewer heads."""
    cu_q, cu_k = vector(q, np.cumsum([0, *lengths_q]).tolist()), vector(q, np.cumsum([0, *lengths_k]).tolist())
    out, lse = empty(q), empty(q, (q.shape[1], q.shape[0]), "float32")
    heads, dim = q.shape[1:]
    grid = lambda args: (triton.cdiv(max(lengths_q), args["BLOCK_M"]), heads, len(lengths_q))  # noqa: E731
    _attention_fwd[grid](
        q, k, v, out, lse, cu_q, cu_k, scale, *strides(q)[:2], *strides(k)[:2], *strides(v)[:2], *strides(out)[:2], strides(lse)[0],
        HEADS_PER_KV=heads // k.shape[1], CAUSAL=causal, BLOCK_M=32, BLOCK_N=16, HEAD_DIM=dim, BLOCK_D=max(triton.next_power_of_2(dim), 16),
    )  # fmt: skip
    return out, lse


def attention(q, k, v, dout, causal, scale):
    """Returns out, dq, dk and dv of one sequence."""
    rows, heads, dim = q.shape
    out, lse = attention_forward(q, k, v, [rows], [k.shape[0]], causal, scale)
    delta, dq, dk, dv = empty(lse), empty(q), empty(k), empty(v)
    block_d = max(triton.next_power_of_2(dim), 16)
    _attention_delta[(triton.cdiv(rows, 32), heads)](
        out, dout, delta, *strides(out)[:2], strides(lse)[0], rows, BLOCK=32, BLOCK_D=block_d, HEAD_DIM=dim
    )
    sizes = {"HEADS_PER_KV": heads // k.shape[1], "CAUSAL": causal, "HEAD_DIM": dim, "BLOCK_D": block_d}
    shared = (*strides(q)[:2], *strides(k)[:2], strides(lse)[0], rows, k.shape[0])
    _attention_dkdv[(triton.cdiv(k.shape[0], 32), k.shape[1])](
        q, k, v, dout, dk, dv, lse, delta, scale, *shared, BLOCK_M=16, BLOCK_N=32, **sizes
    )
    _attention_dq[(triton.cdiv(rows, 32), heads)](
        q, k, v, dout, dq, lse, delta, scale, *shared, BLOCK_M=32, BLOCK_N=16, **sizes
    )
    return out, dq, dk, dv


def attention_reference(q, k, v, dout, causal, scale):
    heads = attention_with_gradients(*(x.swapaxes(0, 1) for x in (q, k, v, dout)), causal, scale)
    return tuple(x.swapaxes(0, 1) for x in heads)


def attention_inputs(rng, rows, heads, kv_heads, dim, causal, dtype=np.float16):
    q, dout = normal(rng, rows, heads, dim, dtype=dtype), normal(rng, rows, heads, dim, dtype=dtype)
    k, v = (normal(rng, rows, kv_heads, dim, dtype=dtype) for _ in range(2))
    return {"q": q, "k": k, "v": v, "dout": dout, "causal": causal, "scale": dim**-0.5}


specimen(
    "flash_attention", attention, attention_reference, 2e-2, 5e-3,
    causal=lambda rng: attention_inputs(rng, 70, 4, 2, 32, True),
    whole=lambda rng: attention_inputs(rng, 48, 2, 2, 40, False),
)  # fmt: skip


def ragged_attention(q, k, v, lengths_q, lengths_k, causal):
    return attention_forward(q, k, v, lengths_q, lengths_k, causal, 0.2)[0]


def ragged_reference(q, k, v, lengths_q, lengths_k, causal):
    at_q, at_k, parts = 0, 0, []
    for m, n in zip(lengths_q, lengths_k, strict=True):
        rows = q[at_q : at_q + m]
        parts.append(attention_reference(rows, k[at_k : at_k + n], v[at_k : at_k + n], rows, causal, 0.2)[0])
        at_q, at_k = at_q + m, at_k + n
    return np.concatenate(parts)


def ragged_inputs(rng, lengths_q, lengths_k):
    q = normal(rng, sum(lengths_q), 4, 16, dtype=np.float16)
    k, v = (normal(rng, sum(lengths_k), 1, 16, dtype=np.float16) for _ in range(2))
    return {"q": q, "k": k, "v": v, "lengths_q": lengths_q, "lengths_k": lengths_k, "causal": True}


specimen(
    "ragged_attention", ragged_attention, ragged_reference, 2e-2, 5e-3,
    causal=lambda rng: ragged_inputs(rng, [1, 37, 12], [20, 37, 23]),
)  # fmt: skip
