"""Recurrent sequence models: linear attention in chunks, the selective scan of a state-space model, and the gated delta rule. There are
also causal convolution with its state, and running sums of long rows whose programs pass on the carry."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.registry import integers, normal, specimen


@triton.jit
def _chunk_linear_attention(
    q, k, v, o, h0, ht, scale, T, s_t, s_h, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, USE_INITIAL_STATE: tl.constexpr, STORE_FINAL_STATE: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    bos = (i_b * T).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    log_decay = tl.math.log2(1 - tl.math.exp2(-3.0 - i_h)) if DECAY else 0.0
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if USE_INITIAL_STATE:
        b_h += tl.load(
            h0 + i_bh * K * V + o_k[:, None] * V + o_v[None, :], mask=m_k[:, None] & m_v[None, :], other=0.0
        ).to(tl.float32)
    o_i = tl.arange(0, BT)
    for i_t in range(tl.cdiv(T, BT)):
        o_t = i_t * BT + o_i
        m_t = o_t < T
        base = (bos + o_t) * s_t + i_h * s_h
        b_q = tl.load(q + base[:, None] + o_k[None, :], mask=m_t[:, None] & m_k[None, :], other=0.0)
        b_k = tl.load(k + base[:, None] + o_k[None, :], mask=m_t[:, None] & m_k[None, :], other=0.0)
        v_base = ((bos + o_t) * H + i_h) * V
        b_v = tl.load(v + v_base[:, None] + o_v[None, :], mask=m_t[:, None] & m_v[None, :], other=0.0)
        b_q = (b_q * scale).to(b_k.dtype)
        b_s = tl.dot(b_q, tl.trans(b_k))
        distance = o_i[:, None] - o_i[None, :]
        b_s = tl.where(distance >= 0, b_s * tl.math.exp2(distance * log_decay), 0.0)
        b_o = tl.dot(b_s.to(b_v.dtype), b_v)
        b_o += tl.dot(b_q, b_h.to(b_q.dtype)) * tl.math.exp2((o_i + 1) * log_decay)[:, None]
        tl.store(o + v_base[:, None] + o_v[None, :], b_o.to(o.dtype.element_ty), mask=m_t[:, None] & m_v[None, :])
        length = min(BT, T - i_t * BT)
        b_w = tl.math.exp2((length - 1 - o_i) * log_decay)
        b_k = (b_k * tl.where(m_t, b_w, 0.0)[:, None]).to(b_v.dtype)
        b_h = b_h * tl.math.exp2(length * log_decay) + tl.dot(tl.trans(b_k), b_v)
    if STORE_FINAL_STATE:
        tl.store(ht + i_bh * K * V + o_k[:, None] * V + o_v[None, :], b_h, mask=m_k[:, None] & m_v[None, :])


def linear_attention(q, k, v, state, decay):
    """o_t = q_t S_t with S_t = g S_(t-1) + k_t v_t; (batch, time, heads, dim). Returns o and the last state."""
    B, T, H, K = q.shape
    V = v.shape[-1]
    o, final = empty(v), empty(q, (B, H, K, V), "float32")
    BV = 16
    _chunk_linear_attention[(triton.cdiv(V, BV), B * H)](
        q, k, v, o, state, final, K**-0.5, T, *strides(q)[1:3], H=H, K=K, V=V, BT=16, BK=max(16, triton.next_power_of_2(K)), BV=BV,
        USE_INITIAL_STATE=state is not None, STORE_FINAL_STATE=True, DECAY=decay,
    )  # fmt: skip
    return o, final


def linear_attention_reference(q, k, v, state, decay):
    B, T, H, K = q.shape
    s = np.zeros((B, H, K, v.shape[-1])) if state is None else state.copy()
    g = (1 - 2.0 ** (-3 - np.arange(H)) if decay else np.ones(H))[:, None, None]
    o = np.zeros(v.shape)
    for t in range(T):
        s = g * s + k[:, t, :, :, None] * v[:, t, :, None, :]
        o[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t] * K**-0.5, s)
    return o, s


def linear_attention_inputs(rng, T, K, V, decay, state=True, dtype=np.float32):
    q, k = normal(rng, 2, T, 3, K, dtype=dtype), normal(rng, 2, T, 3, K, dtype=dtype)
    return {
        "q": q,
        "k": k,
        "v": normal(rng, 2, T, 3, V, dtype=dtype),
        "state": normal(rng, 2, 3, K, V) if state else None,
        "decay": decay,
    }


specimen(
    "linear_attention", linear_attention, linear_attention_reference, 2e-2, 2e-3,
    retention=lambda rng: linear_attention_inputs(rng, 45, 32, 24, True),
    fp16=lambda rng: linear_attention_inputs(rng, 32, 16, 32, False, state=False, dtype=np.float16),
)  # fmt: skip


@triton.jit
def _first_order(a_left, b_left, a_right, b_right):
    return a_left * a_right, b_left * a_right + b_right


@triton.jit
def _selective_scan(
    U, Delta, A, B, C, D, Z, Y, State, T, dim, stride_ub, stride_ud, stride_bb, stride_bn, N: tl.constexpr, BLOCK_T: tl.constexpr,
    HAS_Z: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(0)
    b = tl.program_id(1)
    U += b * stride_ub + d * stride_ud
    Delta += b * stride_ub + d * stride_ud
    Y += b * stride_ub + d * stride_ud
    n = tl.arange(0, N)
    a = tl.load(A + d * N + n)
    skip = tl.load(D + d)
    state = tl.zeros([N], dtype=tl.float32)
    for start in range(0, T, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        mask = t < T
        u = tl.load(U + t, mask=mask, other=0.0)
        delta = tl.load(Delta + t, mask=mask, other=0.0)
        delta = tl.where(delta <= 20.0, tl.log(1 + tl.exp(delta)), delta)
        delta = tl.where(mask, delta, 0.0)
        at = b * stride_bb + n[:, None] * stride_bn + t[None, :]
        bt = tl.load(B + at, mask=mask[None, :], other=0.0)
        ct = tl.load(C + at, mask=mask[None, :], other=0.0)
        decay = tl.exp(delta[None, :] * a[:, None])
        drive = delta[None, :] * bt * u[None, :]
        whole, h = tl.associative_scan((decay, drive), 1, _first_order)
        h += whole * state[:, None]
        y = tl.sum(h * ct, axis=0) + skip * u
        if HAS_Z:
            z = tl.load(Z + b * stride_ub + d * stride_ud + t, mask=mask, other=0.0)
            y *= z * tl.sigmoid(z)
        tl.store(Y + t, y, mask=mask)
        state = tl.sum(tl.where(tl.arange(0, BLOCK_T)[None, :] == BLOCK_T - 1, h, 0.0), axis=1)
    tl.store(State + (b * dim + d) * N + n, state)


def selective_scan(u, delta, A, B, C, D, z):
    """u, delta and z are (batch, dim, time), A is (dim, N), B and C (batch, N, time). Returns y and the last state."""
    batch, dim, T = u.shape
    y, state = empty(u), empty(u, (batch, dim, A.shape[1]))
    _selective_scan[(dim, batch)](
        u,
        delta,
        A,
        B,
        C,
        D,
        z,
        y,
        state,
        T,
        dim,
        *strides(u)[:2],
        *strides(B)[:2],
        N=A.shape[1],
        BLOCK_T=16,
        HAS_Z=z is not None,
    )
    return y, state


def selective_scan_reference(u, delta, A, B, C, D, z):
    delta = np.log1p(np.exp(delta))
    h, y = np.zeros((*u.shape[:2], A.shape[1])), np.zeros_like(u)
    for t in range(u.shape[2]):
        h = np.exp(delta[:, :, t, None] * A) * h + (delta[:, :, t] * u[:, :, t])[..., None] * B[:, None, :, t]
        y[:, :, t] = (h * C[:, None, :, t]).sum(-1) + D * u[:, :, t]
    return (y if z is None else y * z / (1 + np.exp(-z))), h


def scan_inputs(rng, batch, dim, T, N, gated):
    x = {name: normal(rng, batch, dim, T) for name in ("u", "delta", "z")}
    x = x if gated else {**x, "z": None}
    return {
        **x,
        "A": -np.exp(normal(rng, dim, N)),
        "B": normal(rng, batch, N, T),
        "C": normal(rng, batch, N, T),
        "D": normal(rng, dim),
    }


specimen(
    "selective_scan", selective_scan, selective_scan_reference, 1e-3, 1e-5,
    gated=lambda rng: scan_inputs(rng, 2, 5, 50, 8, True),
    plain=lambda rng: scan_inputs(rng, 1, 3, 16, 4, False),
)  # fmt: skip


@triton.jit
def _gated_delta(
    q, k, v, g, beta, o, state, indices, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    L2_NORM: tl.constexpr,
):  # fmt: skip
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    slot = tl.load(indices + i_b).to(tl.int64)
    p_h = state + (slot * H + i_h) * K * V + o_k[:, None] * V + o_v[None, :]
    b_h = tl.load(p_h, mask=m_k[:, None] & m_v[None, :], other=0).to(tl.float32)
    p_q = q + (i_b * T * H + i_h) * K + o_k
    p_k = k + (i_b * T * H + i_h) * K + o_k
    p_v = v + (i_b * T * H + i_h) * V + o_v
    p_o = o + (i_b * T * H + i_h) * V + o_v
    p_g = g + i_b * T * H + i_h
    p_beta = beta + i_b * T * H + i_h
    for _ in range(T):
        b_q = tl.load(p_q, mask=m_k, other=0).to(tl.float32) * scale
        b_k = tl.load(p_k, mask=m_k, other=0).to(tl.float32)
        b_v = tl.load(p_v, mask=m_v, other=0).to(tl.float32)
        if L2_NORM:
            b_k = b_k / tl.sqrt(tl.sum(b_k * b_k) + 1e-6)
        b_h *= tl.exp(tl.load(p_g).to(tl.float32))
        b_v -= tl.sum(b_h * b_k[:, None], 0)
        b_v *= tl.load(p_beta)
        b_h += b_k[:, None] * b_v[None, :]
        tl.store(p_o, tl.sum(b_h * b_q[:, None], 0).to(p_o.dtype.element_ty), mask=m_v)
        p_q += H * K
        p_k += H * K
        p_v += H * V
        p_o += H * V
        p_g += H
        p_beta += H
    tl.store(p_h, b_h.to(p_h.dtype.element_ty), mask=m_k[:, None] & m_v[None, :])


def gated_delta(q, k, v, g, beta, state, indices):
    """The recurrent form; `state` holds states by slot and is updated at `indices`."""
    B, T, H, K = q.shape
    V = v.shape[-1]
    o = empty(v)
    _gated_delta[(triton.cdiv(V, 8), B * H)](
        q,
        k,
        v,
        g,
        beta,
        o,
        state,
        indices,
        K**-0.5,
        T,
        H=H,
        K=K,
        V=V,
        BK=triton.next_power_of_2(K),
        BV=8,
        L2_NORM=True,
        num_warps=1,
    )
    return o, state


def gated_delta_reference(q, k, v, g, beta, state, indices):
    k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    state, o = state.copy(), np.zeros(v.shape)
    h = state[indices]
    for t in range(q.shape[1]):
        h = h * np.exp(g[:, t])[..., None, None]
        delta = (v[:, t] - np.einsum("bhkv,bhk->bhv", h, k[:, t])) * beta[:, t][..., None]
        h = h + k[:, t][..., None] * delta[:, :, None, :]
        o[:, t] = np.einsum("bhkv,bhk->bhv", h, q[:, t]) * q.shape[-1] ** -0.5
    state[indices] = h
    return o, state


def gated_delta_inputs(rng, B, T, H, K, V):
    q, k, v = normal(rng, B, T, H, K), normal(rng, B, T, H, K), normal(rng, B, T, H, V)
    g, beta = -rng.random((B, T, H)).astype(np.float32), rng.random((B, T, H)).astype(np.float32)
    slots = rng.permutation(B + 2)[:B].astype(np.int32)
    return {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": normal(rng, B + 2, H, K, V), "indices": slots}


specimen(
    "gated_delta",
    gated_delta,
    gated_delta_reference,
    1e-3,
    1e-5,
    slots=lambda rng: gated_delta_inputs(rng, 2, 20, 3, 12, 20),
)


@triton.jit
def _causal_conv1d(
    X, W, Bias, State, Y, T, channels, stride_xb, stride_xc, stride_sb, stride_sc, WIDTH: tl.constexpr, SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    m_c = c < channels
    acc = tl.zeros([BLOCK_C, BLOCK_T], dtype=tl.float32)
    if HAS_BIAS:
        acc += tl.load(Bias + c, mask=m_c, other=0.0)[:, None]
    for w in tl.static_range(WIDTH):
        at = t + (w - WIDTH + 1)
        x = tl.load(
            X + b * stride_xb + c[:, None] * stride_xc + at[None, :],
            mask=m_c[:, None] & (at >= 0)[None, :] & (at < T)[None, :],
            other=0.0,
        )
        before = tl.load(
            State + b * stride_sb + c[:, None] * stride_sc + (at + WIDTH - 1)[None, :],
            mask=m_c[:, None] & (at < 0)[None, :],
            other=0.0,
        )
        acc += (x + before) * tl.load(W + c * WIDTH + w, mask=m_c, other=0.0)[:, None]
    if SILU:
        acc = acc / (1 + tl.exp(-acc))
    tl.store(Y + b * stride_xb + c[:, None] * stride_xc + t[None, :], acc, mask=m_c[:, None] & (t < T)[None, :])


@triton.jit
def _conv_state(
    X,
    State,
    T,
    channels,
    stride_xb,
    stride_xc,
    stride_sb,
    stride_sc,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    b = tl.program_id(1)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]
    w = tl.arange(0, BLOCK_W)[None, :]
    inside = (c < channels) & (w < WIDTH - 1)
    at = T - (WIDTH - 1) + w
    old = tl.load(State + b * stride_sb + c * stride_sc + w + T, mask=inside & (at < 0), other=0.0)
    new = tl.load(X + b * stride_xb + c * stride_xc + at, mask=inside & (at >= 0), other=0.0)
    tl.debug_barrier()
    tl.store(State + b * stride_sb + c * stride_sc + w, old + new, mask=inside)


def causal_conv1d(x, weight, bias, state, silu):
    """Convolves (batch, channels, time) with (channels, width), and updates `state`, the last width - 1 inputs."""
    batch, channels, T = x.shape
    width, y = weight.shape[1], empty(x)
    _causal_conv1d[(triton.cdiv(T, 16), triton.cdiv(channels, 8), batch)](
        x, weight, bias, state, y, T, channels, *strides(x)[:2], *strides(state)[:2], WIDTH=width, SILU=silu, HAS_BIAS=bias is not None,
        BLOCK_T=16, BLOCK_C=8,
    )  # fmt: skip
    _conv_state[(triton.cdiv(channels, 8), batch)](
        x,
        state,
        T,
        channels,
        *strides(x)[:2],
        *strides(state)[:2],
        WIDTH=width,
        BLOCK_C=8,
        BLOCK_W=triton.next_power_of_2(width),
    )
    return y, state


def causal_conv1d_reference(x, weight, bias, state, silu):
    both, width = np.concatenate([state, x], 2), weight.shape[1]
    y = sum(both[:, :, w : w + x.shape[2]] * weight[:, w, None] for w in range(width)) + (
        0 if bias is None else bias[:, None]
    )
    return (y / (1 + np.exp(-y)) if silu else y), both[:, :, -(width - 1) :]


def conv1d_inputs(rng, batch, channels, T, width, silu=True):
    x, state = normal(rng, batch, channels, T), normal(rng, batch, channels, width - 1)
    return {
        "x": x,
        "weight": normal(rng, channels, width),
        "bias": normal(rng, channels) if silu else None,
        "state": state,
        "silu": silu,
    }


specimen(
    "causal_conv1d", causal_conv1d, causal_conv1d_reference, 1e-4, 1e-5,
    prefill=lambda rng: conv1d_inputs(rng, 2, 13, 40, 4),
    one_step=lambda rng: conv1d_inputs(rng, 3, 8, 1, 4, silu=False),
)  # fmt: skip


@triton.jit
def _running_sum(X, Y, Sums, Flags, n, BLOCK: tl.constexpr):
    # A program waits only for the one before it, which started earlier.
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n, other=0)
    scanned = tl.cumsum(x, axis=0)
    carry = tl.zeros((), dtype=tl.int64)
    if pid > 0:
        while tl.atomic_add(Flags + pid - 1, 0, sem="acquire") == 0:
            pass
        carry += tl.load(Sums + pid - 1, volatile=True)
    tl.store(Sums + pid, carry + tl.sum(x, axis=0))
    tl.debug_barrier()
    tl.atomic_xchg(Flags + pid, 1, sem="release")
    tl.store(Y + i, scanned + carry, mask=i < n)


def running_sum(x):
    n, block = x.shape[0], 64
    programs = triton.cdiv(n, block)
    y, sums, flags = empty(x), empty(x, programs), zeros(x, programs, "int32")
    _running_sum[(programs,)](x, y, sums, flags, n, BLOCK=block)
    return y


specimen(
    "running_sum", running_sum, lambda x: np.cumsum(x),
    many=lambda rng: {"x": integers(rng, -(2**40), 2**40, 1000, dtype=np.int64)},
    one=lambda rng: {"x": integers(rng, -9, 9, 5, dtype=np.int64)},
)  # fmt: skip
