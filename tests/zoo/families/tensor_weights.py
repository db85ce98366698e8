"""Matrix products on tensor cores with compressed weights: 8 and 4 bits, 2:4 sparsity, and 8-bit floats with block scales."""

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from zoo.arrays import empty, strides
from zoo.references import number, spread
from zoo.registry import codes, integers, normal, specimen

HALF = np.float16


@triton.jit
def _int8_weights(
    X, W, Scale, Y, M, N, K, sxm, swk, swn, sym, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BEFORE: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    scale = tl.load(Scale + rn, mask=rn < N, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(X + rm[:, None] * sxm + (rk + k)[None, :], (rm[:, None] < M) & ((rk + k)[None, :] < K), 0.0)
        w = tl.load(
            W + (rk + k)[:, None] * swk + rn[None, :] * swn, ((rk + k)[:, None] < K) & (rn[None, :] < N), other=0
        )
        if BEFORE:
            acc = tl.dot(x, (w.to(tl.float32) * scale[None, :]).to(x.dtype), acc)
        else:
            acc = tl.dot(x, w.to(x.dtype), acc)
    if not BEFORE:
        acc *= scale[None, :]
    tl.store(Y + rm[:, None] * sym + rn[None, :], acc.to(Y.dtype.element_ty), (rm[:, None] < M) & (rn[None, :] < N))


def int8_weights(x, w, scale, before):
    (M, K), N = x.shape, w.shape[1]
    y = empty(x, (M, N))
    _int8_weights[(triton.cdiv(M, 64), triton.cdiv(N, 64))](
        x, w, scale, y, M, N, K, strides(x)[0], *strides(w), strides(y)[0], 64, 64, 64, BEFORE=before, num_stages=3
    )
    return y


def int8_weights_inputs(rng, M, N, K, before):
    made = {"x": normal(rng, M, K, dtype="bfloat16"), "w": integers(rng, -128, 128, N, K, dtype=np.int8).T}
    return made | {"scale": (rng.random(N) / 64).astype(np.float32), "before": before}


specimen(
    "int8_weights", int8_weights, lambda x, w, scale, before: x @ (w.astype(float) * scale), 5e-2, 1e-2,
    before=lambda rng: int8_weights_inputs(rng, 70, 80, 80, True), behind=lambda rng: int8_weights_inputs(rng, 64, 128, 128, False),
)  # fmt: skip


@triton.jit
def _int4_interleaved(
    X, W, Scales, Zeros, Y, M, N, K, sxm, swk, ssg, sym, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Two weights per byte along K, the low nibble first; scales and zero points per GROUP weights."""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    rb = tl.arange(0, BLOCK_K // 2)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        x = tl.load(
            X + rm[:, None] * sxm + (k * BLOCK_K + rk)[None, :],
            mask=(rm[:, None] < M) & ((k * BLOCK_K + rk)[None, :] < K),
            other=0.0,
        )
        at = k * (BLOCK_K // 2) + rb
        packed = tl.load(W + at[:, None] * swk + rn[None, :], mask=(at[:, None] < K // 2) & (rn[None, :] < N), other=0)
        low = packed & 0xF
        high = (packed >> 4) & 0xF
        w = tl.join(low, high).permute(0, 2, 1).reshape(BLOCK_K, BLOCK_N)
        group = k * BLOCK_K // GROUP
        scale = tl.load(Scales + group * ssg + rn, mask=rn < N, other=0.0)
        zero = tl.load(Zeros + group * ssg + rn, mask=rn < N, other=0.0)
        w = (w.to(tl.float16) - zero[None, :]) * scale[None, :]
        acc = tl.dot(x, w, acc)
    tl.store(Y + rm[:, None] * sym + rn[None, :], acc.to(tl.float16), mask=(rm[:, None] < M) & (rn[None, :] < N))


def int4_interleaved(x, w, scales, zeros, group):
    (M, K), N = x.shape, w.shape[1]
    y = empty(x, (M, N))
    _int4_interleaved[(triton.cdiv(M, 64), triton.cdiv(N, 64))](
        x,
        w,
        scales,
        zeros,
        y,
        M,
        N,
        K,
        strides(x)[0],
        strides(w)[0],
        strides(scales)[0],
        strides(y)[0],
        group,
        64,
        64,
        32,
    )
    return y


def int4_interleaved_reference(x, w, scales, zeros, group):
    numbers = np.stack([w & 15, w >> 4], 1).reshape(-1, w.shape[1]).astype(float)
    scales, zeros = (spread(v, group, len(numbers), 0) for v in (scales, zeros))
    return x @ ((numbers - zeros) * scales)


def int4_interleaved_inputs(rng, M, N, K, group):
    groups = -(-K // group)
    return {
        "x": normal(rng, M, K, dtype=HALF), "w": integers(rng, 0, 256, K // 2, N, dtype=np.uint8),
        "scales": (rng.random((groups, N)) / 8).astype(HALF), "zeros": integers(rng, 0, 16, groups, N).astype(HALF), "group": group,
    }  # fmt: skip


specimen(
    "int4_interleaved", int4_interleaved, int4_interleaved_reference, 2e-2, 4e-3,
    ragged=lambda rng: int4_interleaved_inputs(rng, 70, 80, 96, 64),
)  # fmt: skip


@triton.jit
def _two_of_four(
    X, W, Meta, Y, M, N, K, sxm, swk, smk, sym, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """2:4 sparsity: two of four weights along K are stored; bits 0-1 and 2-3 of a byte hold their positions."""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    rq = tl.arange(0, BLOCK_K // 4)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(X + rm[:, None] * sxm + (k + rk)[None, :], (rm < M)[:, None] & (k + rk < K)[None, :], 0.0)
        quad = k // 4 + rq
        mask = (quad < K // 4)[:, None] & (rn < N)[None, :]
        first = tl.load(W + (2 * quad)[:, None] * swk + rn[None, :], mask, 0.0)
        second = tl.load(W + (2 * quad + 1)[:, None] * swk + rn[None, :], mask, 0.0)
        meta = tl.load(Meta + quad[:, None] * smk + rn[None, :], mask, 0)
        i, j = meta & 3, meta >> 2
        place = tl.arange(0, 4)[None, :, None]
        dense = tl.where(i[:, None, :] == place, first[:, None, :], 0.0)
        dense += tl.where(j[:, None, :] == place, second[:, None, :], 0.0)
        acc = tl.dot(x, dense.reshape(BLOCK_K, BLOCK_N), acc)
    tl.store(Y + rm[:, None] * sym + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


def two_of_four(x, w, meta):
    (M, K), N = x.shape, w.shape[1]
    y = empty(x, (M, N), "float32")
    _two_of_four[(triton.cdiv(M, 64), triton.cdiv(N, 64))](
        x, w, meta, y, M, N, K, strides(x)[0], strides(w)[0], strides(meta)[0], strides(y)[0], 64, 64, 64
    )
    return y


def two_of_four_reference(x, w, meta):
    dense = np.zeros((x.shape[1], w.shape[1]))
    quad, n = np.indices(meta.shape)
    for half, place in enumerate((meta & 3, meta >> 2)):
        dense[4 * quad + place, n] = w[half::2]
    return x @ dense


def two_of_four_inputs(rng, M, N, K):
    pairs = np.array([i | j << 2 for i in range(4) for j in range(i + 1, 4)], np.uint8)
    return {
        "x": normal(rng, M, K, dtype=HALF),
        "w": normal(rng, K // 2, N, dtype=HALF),
        "meta": pairs[rng.integers(0, 6, (K // 4, N))],
    }


specimen(
    "two_of_four", two_of_four, two_of_four_reference, 2e-3, 1e-3, ragged=lambda rng: two_of_four_inputs(rng, 70, 80, 112),
)  # fmt: skip


def fp8(x):
    return triton.reinterpret(x, tl.float8e4nv)


@triton.jit
def _fp8_descriptors(
    a_desc, b_desc, c_desc, a_scale, b_scale, stride_as, stride_bs, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Returns a @ b.T; a has one scale per 1 x BLOCK_K elements, b one per BLOCK_N x BLOCK_K."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = a_desc.load([pid_m * BLOCK_M, k * BLOCK_K])
        b = b_desc.load([pid_n * BLOCK_N, k * BLOCK_K])
        sa = tl.load(a_scale + rm + k * stride_as)  # the caller has padded rows
        sb = tl.load(b_scale + pid_n * stride_bs + k)
        acc += tl.dot(a, b.T) * sa[:, None] * sb
    c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_desc.dtype))


def fp8_descriptors(a, b, a_scale, b_scale):
    (M, K), N = a.shape, b.shape[0]
    c = empty(a, (M, N), "float16")
    a_desc = TensorDescriptor(fp8(a), [M, K], list(strides(a)), [64, 128])
    b_desc = TensorDescriptor(fp8(b), [N, K], list(strides(b)), [128, 128])
    c_desc = TensorDescriptor.from_tensor(c, [64, 128])
    _fp8_descriptors[(triton.cdiv(M, 64), triton.cdiv(N, 128))](
        a_desc, b_desc, c_desc, a_scale, b_scale, strides(a_scale)[0], strides(b_scale)[0], K, 64, 128, 128, num_warps=4
    )
    return c


def fp8_descriptors_reference(a, b, a_scale, b_scale):
    (M, K), N = a.shape, b.shape[0]
    of_b = spread(spread(b_scale, 128, N, 0), 128, K, 1)
    return (number(a) * spread(a_scale, 128, K, 0)[:, :M].T) @ (number(b) * of_b).T


def fp8_descriptors_inputs(rng, M, N, K):
    up = lambda n, block: -(-n // block)  # noqa: E731
    return {
        "a": codes(rng, M, K), "b": codes(rng, N, K),
        "a_scale": rng.random((up(K, 128), up(M, 64) * 64)).astype(np.float32),
        "b_scale": rng.random((up(N, 128), up(K, 128))).astype(np.float32),
    }  # fmt: skip


specimen(
    "fp8_descriptors", fp8_descriptors, fp8_descriptors_reference, 2e-2, 4e-3,
    ragged=lambda rng: fp8_descriptors_inputs(rng, 70, 136, 208),
)  # fmt: skip
