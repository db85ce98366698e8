"""The attention of Triton's tutorial: the forward pass with descriptors in stages, causal or not, and the gradients."""

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from zoo.arrays import POISON, empty, full, strides
from zoo.references import attention_gradients, causal_scores, softmax
from zoo.registry import normal, specimen

HALF = np.float16


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
        s = causal_scores(s)
    m = np.log2(np.exp(s - s.max(-1, keepdims=True)).sum(-1)) + s.max(-1) / np.log(2)
    # The tutorial's sums begin at 1 with m = -inf; the first rescaling removes the 1.
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
    """Returns dq, dk and dv; m holds the forward kernel's logarithms to base 2."""
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
    return attention_gradients(p, q, k, v, do, (o * do).sum(-1), 0.3)


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
