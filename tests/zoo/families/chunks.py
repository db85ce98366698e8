"""Recurrent sequence models in chunks, on block pointers. They are linear attention with decay over sequences of different lengths, and the
gated delta rule, which inverts a triangular matrix per chunk."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, vector
from zoo.registry import normal, specimen

exp = tl.exp


@triton.heuristics({"IS_VARLEN": lambda args: args["cu_seqlens"] is not None})
@triton.jit(do_not_specialize=["T"])
def _chunk_cumsum(s, o, cu_seqlens, chunk_indices, T, H: tl.constexpr, BT: tl.constexpr, IS_VARLEN: tl.constexpr):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    if IS_VARLEN:
        i_n, i_t = tl.load(chunk_indices + i_t * 2).to(tl.int32), tl.load(chunk_indices + i_t * 2 + 1).to(tl.int32)
        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int32), tl.load(cu_seqlens + i_n + 1).to(tl.int32)
        T = eos - bos
    else:
        bos, eos = i_b * T, i_b * T + T
    p_s = tl.make_block_ptr(s + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_o = tl.make_block_ptr(o + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_s = tl.load(p_s, boundary_check=(0,)).to(tl.float32)
    tl.store(p_o, tl.cumsum(b_s, axis=0).to(p_o.dtype.element_ty), boundary_check=(0,))


@triton.heuristics({
    "USE_INITIAL_STATE": lambda args: args["h0"] is not None,
    "STORE_FINAL_STATE": lambda args: args["ht"] is not None,
    "IS_VARLEN": lambda args: args["cu_seqlens"] is not None,
    "DELTA": lambda args: args["w"] is not None,
})  # fmt: skip
@triton.jit(do_not_specialize=["T"])
def _chunk_states(
    k, v, w, v_new, g, h, h0, ht, cu_seqlens, chunk_offsets, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, USE_INITIAL_STATE: tl.constexpr, STORE_FINAL_STATE: tl.constexpr, IS_VARLEN: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    """Computes the state at the start of each chunk; with the delta rule also the corrected values v_new."""
    i_k, i_v, i_nh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_n, i_h = i_nh // H, i_nh % H
    if IS_VARLEN:
        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int32), tl.load(cu_seqlens + i_n + 1).to(tl.int32)
        T = eos - bos
        NT = tl.cdiv(T, BT)
        boh = tl.load(chunk_offsets + i_n).to(tl.int32)
    else:
        bos = i_n * T
        NT = tl.cdiv(T, BT)
        boh = i_n * NT
    h += (boh * H + i_h).to(tl.int64) * K * V
    k += (bos * H + i_h) * K
    v += (bos * H + i_h) * V
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if USE_INITIAL_STATE:
        p_h0 = tl.make_block_ptr(h0 + i_nh * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0))
        b_h += tl.load(p_h0, boundary_check=(0, 1)).to(tl.float32)
    for i_t in range(NT):
        p_h = tl.make_block_ptr(h + i_t * H * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0))
        tl.store(p_h, b_h.to(p_h.dtype.element_ty), boundary_check=(0, 1))
        p_k = tl.make_block_ptr(k, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1))
        p_v = tl.make_block_ptr(v, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        if DELTA:
            p_w = tl.make_block_ptr(w + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
            p_n = tl.make_block_ptr(
                v_new + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
            )
            b_w = tl.load(p_w, boundary_check=(0, 1))
            b_v = b_v - tl.dot(b_w, b_h.to(b_w.dtype), input_precision="tf32x3")
            tl.store(p_n, b_v.to(p_n.dtype.element_ty), boundary_check=(0, 1))
        last = min((i_t + 1) * BT, T) - 1
        if g is not None:
            b_last = tl.load(g + (bos + last) * H + i_h)
            p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
            b_g = tl.load(p_g, boundary_check=(0,))
            m_t = (i_t * BT + tl.arange(0, BT)) < T
            b_v = b_v * tl.where(m_t, exp(b_last - b_g), 0)[:, None]
            b_h *= exp(b_last)
        b_h += tl.dot(b_k, b_v.to(b_k.dtype), input_precision="tf32x3")
    if STORE_FINAL_STATE:
        p_ht = tl.make_block_ptr(ht + i_nh * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0))
        tl.store(p_ht, b_h.to(p_ht.dtype.element_ty), boundary_check=(0, 1))


@triton.heuristics({"IS_VARLEN": lambda args: args["cu_seqlens"] is not None})
@triton.jit(do_not_specialize=["T"])
def _chunk_outputs(
    q, k, v, h, g, o, cu_seqlens, chunk_indices, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, IS_VARLEN: tl.constexpr,
):  # fmt: skip
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    if IS_VARLEN:
        i_tg = i_t
        i_n, i_t = tl.load(chunk_indices + i_t * 2).to(tl.int32), tl.load(chunk_indices + i_t * 2 + 1).to(tl.int32)
        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int32), tl.load(cu_seqlens + i_n + 1).to(tl.int32)
        T = eos - bos
    else:
        i_tg = i_b * tl.cdiv(T, BT) + i_t
        bos, eos = i_b * T, i_b * T + T
    q += (bos * H + i_h) * K
    k += (bos * H + i_h) * K
    v += (bos * H + i_h) * V
    o += (bos * H + i_h) * V
    h += (i_tg * H + i_h).to(tl.int64) * K * V
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    b_A = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        p_q = tl.make_block_ptr(q, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        p_k = tl.make_block_ptr(k, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1))
        p_h = tl.make_block_ptr(h, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0))
        b_q = tl.load(p_q, boundary_check=(0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_h = tl.load(p_h, boundary_check=(0, 1))
        b_o += tl.dot(b_q, b_h.to(b_q.dtype), input_precision="tf32x3")
        b_A += tl.dot(b_q, b_k, input_precision="tf32x3")
    if g is not None:
        p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
        b_g = tl.load(p_g, boundary_check=(0,))
        b_o = b_o * exp(b_g)[:, None]
        b_A = b_A * exp(tl.minimum(b_g[:, None] - b_g[None, :], 0))
    o_t = i_t * BT + tl.arange(0, BT)
    m_A = (o_t[:, None] >= o_t[None, :]) & ((o_t < T)[:, None] & (o_t < T)[None, :])
    b_A = tl.where(m_A, b_A, 0)
    p_v = tl.make_block_ptr(v, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    p_o = tl.make_block_ptr(o, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    b_v = tl.load(p_v, boundary_check=(0, 1))
    b_o = b_o * scale + tl.dot(b_A.to(b_v.dtype), b_v, input_precision="tf32x3") * scale
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))


def chunks_of(like, lengths, BT):
    """The starts of sequences, the (sequence, chunk) of every chunk, and the number of chunks before each sequence."""
    counts = [triton.cdiv(n, BT) for n in lengths]
    pairs = [number for i, n in enumerate(counts) for j in range(n) for number in (i, j)]
    before = np.cumsum([0, *counts]).tolist()
    return vector(like, np.cumsum([0, *lengths]).tolist()), vector(like, pairs), vector(like, before), sum(counts)


def chunked(q, k, v, w, g, h0, lengths, BT):
    """Returns o and the final states; g holds running sums within chunks."""
    B, T, H, K = q.shape
    V = v.shape[-1]
    cu, indices, offsets, chunks = chunks_of(q, lengths, BT) if lengths else (None, None, None, B * triton.cdiv(T, BT))
    N = len(lengths) if lengths else B
    h, ht, o = empty(q, (chunks, H, K, V)), empty(q, (N, H, K, V), "float32"), empty(v)
    new = empty(v) if w is not None else None
    _chunk_states[(1, triton.cdiv(V, 16), N * H)](
        k, v, w, new, g, h, h0, ht, cu, offsets, T=T, H=H, K=K, V=V, BT=BT, BK=triton.next_power_of_2(K), BV=16
    )
    _chunk_outputs[(triton.cdiv(V, 32), chunks // (1 if lengths else B), (1 if lengths else B) * H)](
        q, k, v if w is None else new, h, g, o, cu, indices, K**-0.5, T=T, H=H, K=K, V=V, BT=BT, BK=16, BV=32
    )
    return o, ht


def local_sums(g, lengths, BT):
    B, T, H = g.shape
    cu, indices, _, chunks = chunks_of(g, lengths, BT) if lengths else (None, None, None, triton.cdiv(T, BT))
    total = empty(g, g.shape, "float32")
    _chunk_cumsum[(chunks, (1 if lengths else B) * H)](g, total, cu, indices, T, H=H, BT=BT, num_warps=1)
    return total


def chunked_linear_attention(q, k, v, g, h0, lengths):
    return chunked(q, k, v, None, None if g is None else local_sums(g, lengths, 32), h0, lengths, 32)


def recurrence(q, k, v, g, beta, h0, lengths):
    """The recurrent form: S = exp(g) S; S += k (beta (v - k S) or v); o = scale q S."""
    B, T, H, K = q.shape
    parts = (
        [(0, s) for s in np.split(np.arange(T), np.cumsum(lengths)[:-1])] if lengths else [(b, np.arange(T)) for b in range(B)]
    )  # fmt: skip
    o, finals = np.zeros(v.shape), []
    for i, (b, steps) in enumerate(parts):
        s = np.zeros((H, K, v.shape[-1])) if h0 is None else h0[i].copy()
        for t in steps:
            s = s if g is None else s * np.exp(g[b, t])[:, None, None]
            value = v[b, t]
            if beta is not None:
                value = beta[b, t][:, None] * (value - np.einsum("hk,hkv->hv", k[b, t], s))
            s = s + k[b, t][:, :, None] * value[:, None, :]
            o[b, t] = np.einsum("hk,hkv->hv", q[b, t] * K**-0.5, s)
        finals.append(s)
    return o, np.stack(finals)


def chunk_inputs(rng, B, T, H, K, V, lengths=None, gated=True, dtype=np.float32):
    N = len(lengths) if lengths else B
    return {
        "q": normal(rng, B, T, H, K, dtype=dtype), "k": normal(rng, B, T, H, K, dtype=dtype), "v": normal(rng, B, T, H, V, dtype=dtype),
        "g": -rng.random((B, T, H)).astype(np.float32) if gated else None, "h0": normal(rng, N, H, K, V) if gated else None,
        "lengths": lengths,
    }  # fmt: skip


specimen(
    "chunked_linear_attention",
    chunked_linear_attention,
    lambda q, k, v, g, h0, lengths: recurrence(q, k, v, g, None, h0, lengths),
    1e-4, 1e-5,
    lengths=lambda rng: chunk_inputs(rng, 1, 90, 2, 24, 40, [33, 7, 50]),
    batch=lambda rng: chunk_inputs(rng, 2, 64, 2, 16, 32, gated=False),
)  # fmt: skip
specimen(
    "chunked_linear_attention",
    chunked_linear_attention,
    lambda q, k, v, g, h0, lengths: recurrence(q, k, v, g, None, h0, lengths),
    3e-2, 1e-2,
    fp16=lambda rng: chunk_inputs(rng, 2, 45, 2, 32, 16, dtype=np.float16),
)  # fmt: skip


@triton.jit(do_not_specialize=["T"])
def _scaled_kkt(k, g, beta, A, T, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """A = tril(beta_i (k_i . k_j) exp(g_i - g_j), -1), one chunk per program."""
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    bos = i_b * T
    o_t = tl.arange(0, BT)
    p_beta = tl.make_block_ptr(beta + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_beta = tl.load(p_beta, boundary_check=(0,))
    b_A = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        p_k = tl.make_block_ptr(k + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_kb = b_k * b_beta[:, None]
        b_A += tl.dot(b_kb.to(b_k.dtype), tl.trans(b_k), input_precision="tf32x3")
    p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_g = tl.load(p_g, boundary_check=(0,))
    b_A = b_A * exp(tl.where(o_t[:, None] > o_t[None, :], b_g[:, None] - b_g[None, :], float("-inf")))
    p_A = tl.make_block_ptr(A + (bos * H + i_h) * BT, (T, BT), (BT * H, 1), (i_t * BT, 0), (BT, BT), (1, 0))
    tl.store(p_A, b_A.to(p_A.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def _inverse_16(A, H: tl.constexpr, BT: tl.constexpr, T, first):
    """Computes (1 + A)^-1 of blocks of 16 rows, row by row."""
    o_i = tl.arange(0, 16)
    p_A = tl.make_block_ptr(A, (T, BT), (H * BT, 1), (first, first % BT), (16, 16), (1, 0))
    b_A = -tl.where(o_i[:, None] > o_i[None, :], tl.load(p_A, boundary_check=(0, 1)).to(tl.float32), 0)
    for i in range(2, min(16, T - first)):
        b_a = -tl.load(A + (first + i) * H * BT + first % BT + o_i)
        b_a = tl.where(o_i < i, b_a, 0.0)
        b_a = b_a + tl.sum(b_a[:, None] * b_A, 0)
        b_A = tl.where((o_i == i)[:, None], b_a, b_A)
    return b_A + (o_i[:, None] == o_i[None, :])


@triton.jit(do_not_specialize=["T"])
def _invert_triangles(A, Ai, T, H: tl.constexpr, BT: tl.constexpr):
    """Computes (1 + A)^-1 for chunks of 32 from the inverses of the two diagonal blocks of 16."""
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    A += (i_b * T * H + i_h) * BT
    Ai += (i_b * T * H + i_h) * BT
    first = i_t * BT
    b_11 = _inverse_16(A, H, BT, T, first)
    b_22 = _inverse_16(A, H, BT, T, first + 16)
    p_21 = tl.make_block_ptr(A, (T, BT), (H * BT, 1), (first + 16, 0), (16, 16), (1, 0))
    b_21 = tl.load(p_21, boundary_check=(0, 1)).to(tl.float32)
    b_21 = -tl.dot(tl.dot(b_22, b_21, input_precision="ieee"), b_11, input_precision="ieee")
    p_11 = tl.make_block_ptr(Ai, (T, BT), (H * BT, 1), (first, 0), (16, 16), (1, 0))
    p_12 = tl.make_block_ptr(Ai, (T, BT), (H * BT, 1), (first, 16), (16, 16), (1, 0))
    p_21 = tl.make_block_ptr(Ai, (T, BT), (H * BT, 1), (first + 16, 0), (16, 16), (1, 0))
    p_22 = tl.make_block_ptr(Ai, (T, BT), (H * BT, 1), (first + 16, 16), (16, 16), (1, 0))
    tl.store(p_11, b_11, boundary_check=(0, 1))
    tl.store(p_12, tl.zeros_like(b_11), boundary_check=(0, 1))
    tl.store(p_21, b_21, boundary_check=(0, 1))
    tl.store(p_22, b_22, boundary_check=(0, 1))


@triton.jit(do_not_specialize=["T"])
def _recompute_w_u(
    k,
    v,
    beta,
    g,
    w,
    u,
    A,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    bos = i_b * T
    p_beta = tl.make_block_ptr(beta + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_A = tl.make_block_ptr(A + (bos * H + i_h) * BT, (T, BT), (H * BT, 1), (i_t * BT, 0), (BT, BT), (1, 0))
    b_beta = tl.load(p_beta, boundary_check=(0,))
    b_g = exp(tl.load(p_g, boundary_check=(0,)))
    b_A = tl.load(p_A, boundary_check=(0, 1))
    for i_v in range(tl.cdiv(V, BV)):
        p_v = tl.make_block_ptr(v + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        p_u = tl.make_block_ptr(u + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        b_vb = (tl.load(p_v, boundary_check=(0, 1)) * b_beta[:, None]).to(v.dtype.element_ty)
        b_u = tl.dot(b_A.to(b_vb.dtype), b_vb, allow_tf32=False)
        tl.store(p_u, b_u.to(p_u.dtype.element_ty), boundary_check=(0, 1))
    for i_k in range(tl.cdiv(K, BK)):
        p_k = tl.make_block_ptr(k + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        p_w = tl.make_block_ptr(w + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        b_kb = (tl.load(p_k, boundary_check=(0, 1)) * b_beta[:, None] * b_g[:, None]).to(k.dtype.element_ty)
        b_w = tl.dot(b_A.to(b_kb.dtype), b_kb, allow_tf32=False)
        tl.store(p_w, b_w.to(p_w.dtype.element_ty), boundary_check=(0, 1))


def chunked_delta_rule(q, k, v, g, beta, h0):
    """Returns o and the final states of S = exp(g) S + k beta (v - k exp(g) S)."""
    B, T, H, K = q.shape
    V, BT = v.shape[-1], 32
    grid = (triton.cdiv(T, BT), B * H)
    sums = local_sums(g, None, BT)
    A, inverse, w, u = empty(q, (B, T, H, BT), "float32"), empty(q, (B, T, H, BT), "float32"), empty(k), empty(v)
    _scaled_kkt[grid](k, sums, beta, A, T, H=H, K=K, BT=BT, BK=16)
    _invert_triangles[grid](A, inverse, T, H=H, BT=BT)
    _recompute_w_u[grid](k, v, beta, sums, w, u, inverse, T, H=H, K=K, V=V, BT=BT, BK=16, BV=16)
    return chunked(q, k, u, w, sums, h0, None, BT)


def delta_inputs(rng, B, T, H, K, V, dtype=np.float32):
    made = chunk_inputs(rng, B, T, H, K, V, dtype=dtype)
    made["k"] = (made["k"] / np.linalg.norm(made["k"].astype(np.float32), axis=-1, keepdims=True)).astype(dtype)
    del made["lengths"]
    return made | {"beta": rng.random((B, T, H)).astype(np.float32)}


specimen(
    "chunked_delta_rule", chunked_delta_rule, lambda q, k, v, g, beta, h0: recurrence(q, k, v, g, beta, h0, None), 1e-3, 1e-4,
    ragged=lambda rng: delta_inputs(rng, 2, 75, 2, 24, 40),
)  # fmt: skip
specimen(
    "chunked_delta_rule", chunked_delta_rule, lambda q, k, v, g, beta, h0: recurrence(q, k, v, g, beta, h0, None), 5e-2, 2e-2,
    fp16=lambda rng: delta_inputs(rng, 1, 64, 1, 32, 32, np.float16),
)  # fmt: skip
