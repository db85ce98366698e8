"""Attention on tensor cores, in the forms that tutorials and inference servers have: by descriptors in stages, backward, with windows,
biases and sinks, over pages, for one token split over the keys, latent, in 8-bit integers, by chosen blocks, and without a softmax."""

import itertools

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from zoo.arrays import POISON, empty, full, strides, vector
from zoo.registry import integers, normal, specimen

HALF = np.float16


def softmax(s):
    p = np.exp(s - np.where(np.isfinite(s.max(-1, keepdims=True)), s.max(-1, keepdims=True), 0))
    return p / np.maximum(p.sum(-1, keepdims=True), 1e-30)


# -- the tutorial's


@triton.jit
def _inner(
    acc, l_i, m_i, q, desc_k, desc_v, offset_y, dtype: tl.constexpr, start_m, qk_scale, BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr, offs_m: tl.constexpr, offs_n: tl.constexpr,
    N_CTX: tl.constexpr, warp_specialize: tl.constexpr,
):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    offsetk_y = offset_y + lo
    offsetv_y = offset_y + lo
    for start_n in tl.range(lo, hi, BLOCK_N, warp_specialize=warp_specialize):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = desc_k.load([offsetk_y, 0]).T
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = desc_v.load([offsetv_y, 0])
        p = p.to(dtype)
        acc = tl.dot(p, v, acc)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
        offsetk_y += BLOCK_N
        offsetv_y += BLOCK_N
    return acc, l_i, m_i


@triton.jit
def _described(desc_or_ptr, shape, strides, block_shape):
    if isinstance(desc_or_ptr, tl.tensor_descriptor):
        return desc_or_ptr
    else:
        return tl.make_tensor_descriptor(desc_or_ptr, shape, strides, block_shape)


@triton.jit
def _stages(
    sm_scale, M, Z, H, desc_q, desc_k, desc_v, desc_o, N_CTX, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGE: tl.constexpr, warp_specialize: tl.constexpr,
):  # fmt: skip
    dtype = tl.float16
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    y_dim = Z * H * N_CTX
    desc_q = _described(desc_q, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_M, HEAD_DIM])
    desc_v = _described(desc_v, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_N, HEAD_DIM])
    desc_k = _described(desc_k, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_N, HEAD_DIM])
    desc_o = _described(desc_o, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_M, HEAD_DIM])
    offset_y = off_z * (N_CTX * H) + off_h * N_CTX
    qo_offset_y = offset_y + start_m * BLOCK_M
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = desc_q.load([qo_offset_y, 0])
    if STAGE & 1:
        acc, l_i, m_i = _inner(
            acc, l_i, m_i, q, desc_k, desc_v, offset_y, dtype, start_m, qk_scale, BLOCK_M, HEAD_DIM, BLOCK_N, 4 - STAGE, offs_m,
            offs_n, N_CTX, warp_specialize,
        )  # fmt: skip
    if STAGE & 2:
        acc, l_i, m_i = _inner(
            acc, l_i, m_i, q, desc_k, desc_v, offset_y, dtype, start_m, qk_scale, BLOCK_M, HEAD_DIM, BLOCK_N, 2, offs_m, offs_n,
            N_CTX, warp_specialize,
        )  # fmt: skip
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    m_ptrs = M + off_hz * N_CTX + offs_m
    tl.store(m_ptrs, m_i)
    desc_o.store([qo_offset_y, 0], acc.to(dtype))


def staged(q, k, v, causal, on_host):
    Z, H, N, D = q.shape
    o, m = empty(q), empty(q, (Z, H, N), "float32")
    block_m, block_n = 128, 64
    if on_host:
        flat = (Z * H * N, D)
        given = [
            TensorDescriptor(x.reshape(flat), list(flat), [D, 1], [rows, D])
            for x, rows in ((q, block_m), (k, block_n), (v, block_n), (o, block_m))
        ]
    else:
        triton.set_allocator(lambda size, align, stream: full(q, size, POISON, "int8"))
        given = [q, k, v, o]
    _stages[(triton.cdiv(N, block_m), Z * H, 1)](
        0.3, m, Z, H, *given, N, HEAD_DIM=D, BLOCK_M=block_m, BLOCK_N=block_n, STAGE=3 if causal else 1,
        warp_specialize=not causal, num_warps=8, num_stages=3,
    )  # fmt: skip
    return o, m


def staged_reference(q, k, v, causal, on_host):
    s = q @ k.swapaxes(2, 3) * 0.3
    if causal:
        s = np.where(np.tri(s.shape[-1], dtype=bool), s, -np.inf)
    m = np.log2(np.exp(s - s.max(-1, keepdims=True)).sum(-1)) + s.max(-1) / np.log(2)
    # The tutorial's sums begin with one where nothing has been seen: it vanishes at the first rescaling, as m begins at -inf.
    return softmax(s) @ v, m


def heads(rng, B, H, N, D, dtype=HALF, kv=0):
    return {
        "q": normal(rng, B, H, N, D, dtype=dtype), "k": normal(rng, B, kv or H, N, D, dtype=dtype),
        "v": normal(rng, B, kv or H, N, D, dtype=dtype),
    }  # fmt: skip


specimen(
    "staged_attention", staged, staged_reference, 2e-2, 4e-3,
    causal=lambda rng: heads(rng, 1, 1, 256, 64) | {"causal": True, "on_host": True},
    whole=lambda rng: heads(rng, 1, 2, 128, 64) | {"causal": False, "on_host": False},
)  # fmt: skip


@triton.jit
def _bwd_preprocess(O, DO, Delta, N_CTX, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    off_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    off_hz = tl.program_id(1)
    off_n = tl.arange(0, HEAD_DIM)
    o = tl.load(O + off_hz * HEAD_DIM * N_CTX + off_m[:, None] * HEAD_DIM + off_n[None, :])
    do = tl.load(DO + off_hz * HEAD_DIM * N_CTX + off_m[:, None] * HEAD_DIM + off_n[None, :]).to(tl.float32)
    delta = tl.sum(o * do, axis=1)
    tl.store(Delta + off_hz * N_CTX + off_m, delta)


@triton.jit
def _bwd_dkdv(
    dk, dv, Q, k, v, sm_scale, DO, M, D, stride_tok, stride_d, BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr,
    HEAD_DIM: tl.constexpr, start_n, start_m, num_steps, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M1)
    offs_n = start_n + tl.arange(0, BLOCK_N1)
    offs_k = tl.arange(0, HEAD_DIM)
    qT_ptrs = Q + offs_m[None, :] * stride_tok + offs_k[:, None] * stride_d
    do_ptrs = DO + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d
    tl.static_assert(BLOCK_N1 % BLOCK_M1 == 0)
    curr_m = start_m
    step_m = BLOCK_M1
    for blk_idx in range(num_steps):
        qT = tl.load(qT_ptrs)
        offs_m = curr_m + tl.arange(0, BLOCK_M1)
        m = tl.load(M + offs_m)
        qkT = tl.dot(k, qT)
        pT = tl.math.exp2(qkT - m[None, :])
        if MASK:
            mask = offs_m[None, :] >= offs_n[:, None]
            pT = tl.where(mask, pT, 0.0)
        do = tl.load(do_ptrs)
        ppT = pT
        ppT = ppT.to(tl.float16)
        dv += tl.dot(ppT, do)
        Di = tl.load(D + offs_m)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = pT * (dpT - Di[None, :])
        dsT = dsT.to(tl.float16)
        dk += tl.dot(dsT, tl.trans(qT))
        curr_m += step_m
        qT_ptrs += step_m * stride_tok
        do_ptrs += step_m * stride_tok
    return dk, dv


@triton.jit
def _bwd_dq(
    dq, q, K, V, do, m, D, stride_tok, stride_d, BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr, HEAD_DIM: tl.constexpr,
    start_m, start_n, num_steps, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M2)
    offs_n = start_n + tl.arange(0, BLOCK_N2)
    offs_k = tl.arange(0, HEAD_DIM)
    kT_ptrs = K + offs_n[None, :] * stride_tok + offs_k[:, None] * stride_d
    vT_ptrs = V + offs_n[None, :] * stride_tok + offs_k[:, None] * stride_d
    Di = tl.load(D + offs_m)
    tl.static_assert(BLOCK_M2 % BLOCK_N2 == 0)
    curr_n = start_n
    step_n = BLOCK_N2
    for blk_idx in range(num_steps):
        kT = tl.load(kT_ptrs)
        vT = tl.load(vT_ptrs)
        qk = tl.dot(q, kT)
        p = tl.math.exp2(qk - m)
        if MASK:
            offs_n = curr_n + tl.arange(0, BLOCK_N2)
            mask = offs_m[:, None] >= offs_n[None, :]
            p = tl.where(mask, p, 0.0)
        dp = tl.dot(do, vT).to(tl.float32)
        ds = p * (dp - Di[:, None])
        ds = ds.to(tl.float16)
        dq += tl.dot(ds, tl.trans(kT))
        curr_n += step_n
        kT_ptrs += step_n * stride_tok
        vT_ptrs += step_n * stride_tok
    return dq


@triton.jit
def _bwd(
    Q, K, V, sm_scale, DO, DQ, DK, DV, M, D, stride_z, stride_h, stride_tok, stride_d, H, N_CTX, BLOCK_M1: tl.constexpr,
    BLOCK_N1: tl.constexpr, BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr, BLK_SLICE_FACTOR: tl.constexpr,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    LN2: tl.constexpr = 0.6931471824645996
    bhid = tl.program_id(2)
    off_chz = (bhid * N_CTX).to(tl.int64)
    adj = (stride_h * (bhid % H) + stride_z * (bhid // H)).to(tl.int64)
    pid = tl.program_id(0)
    Q += adj
    K += adj
    V += adj
    DO += adj
    DQ += adj
    DK += adj
    DV += adj
    M += off_chz
    D += off_chz
    offs_k = tl.arange(0, HEAD_DIM)
    start_n = pid * BLOCK_N1
    start_m = 0
    MASK_BLOCK_M1: tl.constexpr = BLOCK_M1 // BLK_SLICE_FACTOR
    offs_n = start_n + tl.arange(0, BLOCK_N1)
    dv = tl.zeros([BLOCK_N1, HEAD_DIM], dtype=tl.float32)
    dk = tl.zeros([BLOCK_N1, HEAD_DIM], dtype=tl.float32)
    k = tl.load(K + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d)
    v = tl.load(V + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d)
    if CAUSAL:
        start_m = start_n
        num_steps = BLOCK_N1 // MASK_BLOCK_M1
        dk, dv = _bwd_dkdv(
            dk, dv, Q, k, v, sm_scale, DO, M, D, stride_tok, stride_d, MASK_BLOCK_M1, BLOCK_N1, HEAD_DIM, start_n, start_m,
            num_steps, MASK=True,
        )  # fmt: skip
        start_m += num_steps * MASK_BLOCK_M1
    num_steps = (N_CTX - start_m) // BLOCK_M1
    dk, dv = _bwd_dkdv(
        dk, dv, Q, k, v, sm_scale, DO, M, D, stride_tok, stride_d, BLOCK_M1, BLOCK_N1, HEAD_DIM, start_n, start_m, num_steps,
        MASK=False,
    )  # fmt: skip
    tl.store(DV + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d, dv)
    dk *= sm_scale
    tl.store(DK + offs_n[:, None] * stride_tok + offs_k[None, :] * stride_d, dk)
    start_m = pid * BLOCK_M2
    start_n = 0
    num_steps = N_CTX // BLOCK_N2
    MASK_BLOCK_N2: tl.constexpr = BLOCK_N2 // BLK_SLICE_FACTOR
    offs_m = start_m + tl.arange(0, BLOCK_M2)
    q = tl.load(Q + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d)
    dq = tl.zeros([BLOCK_M2, HEAD_DIM], dtype=tl.float32)
    do = tl.load(DO + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d)
    m = tl.load(M + offs_m)
    m = m[:, None]
    if CAUSAL:
        end_n = start_m + BLOCK_M2
        num_steps = BLOCK_M2 // MASK_BLOCK_N2
        dq = _bwd_dq(
            dq, q, K, V, do, m, D, stride_tok, stride_d, BLOCK_M2, MASK_BLOCK_N2, HEAD_DIM, start_m,
            end_n - num_steps * MASK_BLOCK_N2, num_steps, MASK=True,
        )  # fmt: skip
        end_n -= num_steps * MASK_BLOCK_N2
        num_steps = end_n // BLOCK_N2
        start_n = end_n - num_steps * BLOCK_N2
    dq = _bwd_dq(
        dq,
        q,
        K,
        V,
        do,
        m,
        D,
        stride_tok,
        stride_d,
        BLOCK_M2,
        BLOCK_N2,
        HEAD_DIM,
        start_m,
        start_n,
        num_steps,
        MASK=False,
    )
    dq *= LN2
    tl.store(DQ + offs_m[:, None] * stride_tok + offs_k[None, :] * stride_d, dq)


def gradients(q, k, v, o, do, m, causal):
    """dq, dk and dv; m holds logarithms to base 2, as the forward kernel leaves them."""
    Z, H, N, D = q.shape
    dq, dk, dv, delta = empty(q), empty(k), empty(v), empty(m)
    _bwd_preprocess[(N // 64, Z * H)](o, do, delta, N, BLOCK_M=64, HEAD_DIM=D)
    scale = 0.3
    scaled = (
        (k * np.float32(scale * 1.4426950408889634)).astype(k.dtype)
        if isinstance(k, np.ndarray)
        else k * (scale * 1.4426950408889634)
    )
    _bwd[(N // 128, 1, Z * H)](
        q, scaled, v, scale, do, dq, dk, dv, m, delta, *strides(q), H, N, BLOCK_M1=64, BLOCK_N1=128, BLOCK_M2=128, BLOCK_N2=64,
        BLK_SLICE_FACTOR=2, HEAD_DIM=D, CAUSAL=causal, num_warps=8, num_stages=3,
    )  # fmt: skip
    return dq, dk, dv


def gradients_reference(q, k, v, o, do, m, causal):
    s = q @ k.swapaxes(2, 3) * 0.3
    p = np.exp2(s / np.log(2) - m[..., None])
    if causal:
        p = p * np.tri(p.shape[-1])
    ds = p * (do @ v.swapaxes(2, 3) - (o * do).sum(-1, keepdims=True))
    return ds @ k * 0.3, ds.swapaxes(2, 3) @ q * 0.3, p.swapaxes(2, 3) @ do


def gradients_inputs(rng, B, H, N, D, causal):
    made = heads(rng, B, H, N, D)
    o, m = staged_reference(*(x.astype(float) for x in made.values()), causal, False)
    return made | {
        "o": o.astype(HALF),
        "do": normal(rng, B, H, N, D, dtype=HALF),
        "m": m.astype(np.float32),
        "causal": causal,
    }


specimen(
    "staged_gradients", gradients, gradients_reference, 3e-2, 6e-3,
    causal=lambda rng: gradients_inputs(rng, 1, 1, 256, 64, True), whole=lambda rng: gradients_inputs(rng, 1, 2, 128, 64, False),
)  # fmt: skip


# -- variants of the softmax's scores


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
    if Sinks is not None:  # a key of each head that has no value
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
    """Scores of int8, a scale for each block of queries and keys; the second product adds up in fp16."""
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
    """Softmax to base 2 of scaled scores."""
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
    """silu(q k) v / n, causal, for sequences one after another: no softmax, so nothing is carried but the sum."""
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
