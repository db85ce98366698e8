"""Matrix products on tensor cores with tiles of usual sizes: plain, persistent, and fused with a prologue or an epilogue."""

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from zoo.arrays import POISON, empty, full, strides
from zoo.registry import normal, specimen

HALF = np.float16


def halves(rng, **shapes):
    return {name: normal(rng, *shape, dtype=HALF) for name, shape in shapes.items()}


# -- the plain product of tutorials


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def _grid_2d(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(axis=0)
    pid_n = tl.program_id(axis=1)
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "silu":
        accumulator = silu(accumulator)
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)


def grid_2d(a, b, activation):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N))
    grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]), triton.cdiv(N, META["BLOCK_N"]))  # noqa: E731
    _grid_2d[grid](
        a, b, c, M, N, K, *strides(a), *strides(b), *strides(c), BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, ACTIVATION=activation,
        num_stages=4, num_warps=4,
    )  # fmt: skip
    return c


def grid_2d_reference(a, b, activation):
    c = a @ b
    return c / (1 + np.exp(-c)) if activation else c


specimen(
    "grid_2d", grid_2d, grid_2d_reference, 1e-2, 2e-3,
    ragged=lambda rng: halves(rng, a=(100, 80), b=(80, 96)) | {"activation": "silu"},
    whole=lambda rng: halves(rng, a=(128, 64), b=(64, 128)) | {"activation": ""},
    columns=lambda rng: {"a": halves(rng, a=(72, 65))["a"].T, "b": halves(rng, b=(90, 72))["b"].T, "activation": ""},
)  # fmt: skip


# -- persistent products with descriptors


@triton.jit
def _tile(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M: tl.constexpr):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + (tile_id % group_size_m)
    pid_n = (tile_id % num_pid_in_group) // group_size_m
    return pid_m, pid_n


@triton.jit
def _persistent_tma(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, FP8_OUTPUT: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr, NUM_SMS: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    dtype = tl.float8e4nv if FP8_OUTPUT else tl.float16
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    num_tiles = num_pid_m * num_pid_n
    tile_id_c = start_pid - NUM_SMS
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE):
        pid_m, pid_n = _tile(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M)
        offs_am = pid_m * BLOCK_SIZE_M
        offs_bn = pid_n * BLOCK_SIZE_N
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for ki in range(k_tiles):
            offs_k = ki * BLOCK_SIZE_K
            a = a_desc.load([offs_am, offs_k])
            b = b_desc.load([offs_bn, offs_k])
            accumulator = tl.dot(a, b.T, accumulator)
        tile_id_c += NUM_SMS
        pid_m, pid_n = _tile(tile_id_c, num_pid_in_group, num_pid_m, GROUP_SIZE_M)
        offs_am_c = pid_m * BLOCK_SIZE_M
        offs_bn_c = pid_n * BLOCK_SIZE_N
        if EPILOGUE_SUBTILE:
            acc = tl.reshape(accumulator, (BLOCK_SIZE_M, 2, BLOCK_SIZE_N // 2))
            acc = tl.permute(acc, (0, 2, 1))
            acc0, acc1 = tl.split(acc)
            c_desc.store([offs_am_c, offs_bn_c], acc0.to(dtype))
            c_desc.store([offs_am_c, offs_bn_c + BLOCK_SIZE_N // 2], acc1.to(dtype))
        else:
            c_desc.store([offs_am_c, offs_bn_c], accumulator.to(dtype))


def persistent_tma(a, b, subtile, specialize):
    """a @ b.T"""
    (M, K), N = a.shape, b.shape[0]
    c = empty(a, (M, N))
    BM, BN, BK = 64, 128, 64
    a_desc = TensorDescriptor(a, list(a.shape), list(strides(a)), [BM, BK])
    b_desc = TensorDescriptor(b, list(b.shape), list(strides(b)), [BN, BK])
    c_desc = TensorDescriptor(c, list(c.shape), list(strides(c)), [BM, BN // 2 if subtile else BN])
    _persistent_tma[(min(2, triton.cdiv(M, BM) * triton.cdiv(N, BN)),)](
        a_desc, b_desc, c_desc, M, N, K, BM, BN, BK, 8, False, subtile, 2, specialize, FLATTEN=specialize, num_warps=4,
        num_stages=3,
    )  # fmt: skip
    return c


specimen(
    "persistent_tma", persistent_tma, lambda a, b, subtile, specialize: a @ b.T, 1e-2, 2e-3,
    subtile=lambda rng: halves(rng, a=(144, 112), b=(208, 112)) | {"subtile": True, "specialize": True},
    whole=lambda rng: halves(rng, a=(128, 128), b=(256, 128)) | {"subtile": False, "specialize": False},
)  # fmt: skip


@triton.jit
def _descriptor_persistent(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    dtype = c_ptr.dtype.element_ty
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    num_tiles = num_pid_m * num_pid_n
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[K, N], strides=[N, 1], block_shape=[BLOCK_SIZE_K, BLOCK_SIZE_N])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N])
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True):
        pid_m, pid_n = _tile(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M)
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for ki in range(k_tiles):
            a = a_desc.load([pid_m * BLOCK_SIZE_M, ki * BLOCK_SIZE_K])
            b = b_desc.load([ki * BLOCK_SIZE_K, pid_n * BLOCK_SIZE_N])
            accumulator = tl.dot(a, b, accumulator)
        c_desc.store([pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N], accumulator.to(dtype))


def descriptor_persistent(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N))
    triton.set_allocator(lambda size, align, stream: full(a, size, POISON, "int8"))
    _descriptor_persistent[(3,)](a, b, c, M, N, K, 64, 64, 64, 4, 3, num_warps=4)
    return c


specimen(
    "descriptor_persistent", descriptor_persistent, lambda a, b: a @ b, 5e-2, 1e-2,
    bf16=lambda rng: {"a": normal(rng, 130, 80, dtype="bfloat16"), "b": normal(rng, 80, 136, dtype="bfloat16")},
)  # fmt: skip


# -- prologues and epilogues


@triton.jit
def _gated(
    X, W, Out, M, N, K, sxm, sxk, swk, swn, som, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """silu(x @ w[:, :N]) * (x @ w[:, N:])"""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    x_ptrs = X + rm[:, None] * sxm + rk[None, :] * sxk
    w_ptrs = W + rk[:, None] * swk + rn[None, :] * swn
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs, mask=(rm[:, None] < M) & (rk[None, :] + k < K), other=0.0)
        mask = (rn[None, :] < N) & (rk[:, None] + k < K)
        gate += tl.dot(x, tl.load(w_ptrs, mask=mask, other=0.0))
        up += tl.dot(x, tl.load(w_ptrs + N * swn, mask=mask, other=0.0))
        x_ptrs += BLOCK_K * sxk
        w_ptrs += BLOCK_K * swk
    out = silu(gate) * up
    tl.store(
        Out + rm[:, None] * som + rn[None, :],
        out.to(Out.type.element_ty),
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


def gated(x, w):
    (M, K), N = x.shape, w.shape[1] // 2
    out = empty(x, (M, N))
    _gated[(triton.cdiv(M, 64), triton.cdiv(N, 64))](
        x, w, out, M, N, K, *strides(x), *strides(w), strides(out)[0], BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, num_warps=4
    )
    return out


def gated_reference(x, w):
    gate, up = np.split(x @ w, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


specimen(
    "gated", gated, gated_reference, 2e-2, 4e-3, ragged=lambda rng: halves(rng, x=(75, 96), w=(96, 160)),
    whole=lambda rng: halves(rng, x=(64, 64), w=(64, 256)),
)  # fmt: skip


@triton.jit
def _norm_linear(
    X, Gain, W, Y, M, N, K, eps, sxm, swn, sym, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Computes rms_norm(x, gain) @ w.T; the loop of the product also adds the squares for the norm."""
    pid = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    rm = pid // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    squares = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=3):
        rk = k * BLOCK_K + tl.arange(0, BLOCK_K)
        x = tl.load(X + rm[:, None] * sxm + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0)
        wide = x.to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
        gain = tl.load(Gain + rk, mask=rk < K, other=0.0)
        w = tl.load(W + rn[None, :] * swn + rk[:, None], mask=(rn < N)[None, :] & (rk < K)[:, None], other=0.0)
        acc = tl.dot(x * gain[None, :], w, acc)
    acc *= tl.rsqrt(squares / K + eps)[:, None]
    tl.store(Y + rm[:, None] * sym + rn[None, :], acc.to(Y.dtype.element_ty), (rm < M)[:, None] & (rn < N)[None, :])


def norm_linear(x, gain, w, eps):
    (M, K), N = x.shape, w.shape[0]
    y = empty(x, (M, N))
    _norm_linear[(triton.cdiv(M, 64) * triton.cdiv(N, 128),)](
        x, gain, w, y, M, N, K, eps, strides(x)[0], strides(w)[0], strides(y)[0], 64, 128, 64, num_warps=8
    )
    return y


specimen(
    "norm_linear", norm_linear,
    lambda x, gain, w, eps: (x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * gain) @ w.T, 2e-2, 4e-3,
    ragged=lambda rng: halves(rng, x=(70, 144), gain=(144,), w=(90, 144)) | {"eps": 1e-5},
)  # fmt: skip


@triton.jit
def _linear_norm(
    X, W, Bias, Residual, Gain, Shift, Y, M, K, eps, stride_x, stride_w, stride_y, N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes layer_norm(x @ w + bias + residual). Each program computes whole rows."""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.arange(0, BLOCK_N)
    seen = rn < N
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        rk = k + tl.arange(0, BLOCK_K)
        x = tl.load(X + rm[:, None] * stride_x + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        w = tl.load(W + rk[:, None] * stride_w + rn[None, :], mask=(rk[:, None] < K) & seen[None, :], other=0.0)
        acc += tl.dot(x, w)
    inside = (rm[:, None] < M) & seen[None, :]
    acc += tl.load(Bias + rn, mask=seen, other=0.0)[None, :]
    acc += tl.load(Residual + rm[:, None] * stride_y + rn[None, :], mask=inside, other=0.0)
    mean = tl.sum(tl.where(seen[None, :], acc, 0.0), axis=1) / N
    centred = tl.where(seen[None, :], acc - mean[:, None], 0.0)
    var = tl.sum(centred * centred, axis=1, keep_dims=True) / N
    y = centred / tl.sqrt(var + eps) * tl.load(Gain + rn, mask=seen, other=0.0) + tl.load(
        Shift + rn, mask=seen, other=0.0
    )
    tl.store(Y + rm[:, None] * stride_y + rn[None, :], y, mask=inside)


def linear_norm(x, w, bias, residual, gain, shift, eps):
    (M, K), N = x.shape, w.shape[1]
    y = empty(residual)
    _linear_norm[(triton.cdiv(M, 64),)](
        x, w, bias, residual, gain, shift, y, M, K, eps, strides(x)[0], strides(w)[0], strides(y)[0], N=N, BLOCK_M=64,
        BLOCK_N=triton.next_power_of_2(N), BLOCK_K=32, num_warps=4,
    )  # fmt: skip
    return y


def linear_norm_reference(x, w, bias, residual, gain, shift, eps):
    y = x @ w + bias + residual
    return (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + eps) * gain + shift


specimen(
    "linear_norm", linear_norm, linear_norm_reference, 2e-2, 2e-3,
    ragged=lambda rng: halves(rng, x=(70, 48), w=(48, 112), bias=(112,), residual=(70, 112), gain=(112,), shift=(112,)) | {"eps": 1e-5},
)  # fmt: skip


@triton.jit
def _mlp(X, W1, W2, Y, M, H, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_H: tl.constexpr):
    """Computes relu(x @ w1) ** 2 @ w2 with the hidden layer in registers."""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rd = tl.arange(0, D)
    rh = tl.arange(0, BLOCK_H)
    x = tl.load(X + rm[:, None] * D + rd[None, :], mask=rm[:, None] < M, other=0.0)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for h in range(0, H, BLOCK_H):
        w1 = tl.load(W1 + rd[:, None] * H + (h + rh)[None, :], mask=(h + rh)[None, :] < H, other=0.0)
        w2 = tl.load(W2 + (h + rh)[:, None] * D + rd[None, :], mask=(h + rh)[:, None] < H, other=0.0)
        hidden = tl.maximum(tl.dot(x, w1), 0.0)
        hidden = (hidden * hidden).to(x.dtype)
        acc = tl.dot(hidden, w2, acc)
    tl.store(Y + rm[:, None] * D + rd[None, :], acc.to(Y.dtype.element_ty), mask=rm[:, None] < M)


def mlp(x, w1, w2):
    y = empty(x)
    _mlp[(triton.cdiv(x.shape[0], 64),)](x, w1, w2, y, x.shape[0], w1.shape[1], D=x.shape[1], BLOCK_M=64, BLOCK_H=64)
    return y


def mlp_inputs(rng, M, D, H):
    made = halves(rng, x=(M, D), w1=(D, H), w2=(H, D))
    return {name: (x / 4).astype(HALF) for name, x in made.items()}


specimen(
    "mlp", mlp, lambda x, w1, w2: np.maximum(x @ w1, 0) ** 2 @ w2, 2e-2, 4e-3, ragged=lambda rng: mlp_inputs(rng, 77, 64, 144),
    whole=lambda rng: mlp_inputs(rng, 64, 64, 128),
)  # fmt: skip


@triton.jit
def _lora(
    X, W, A, B, Y, M, N, K, scaling, sxm, swk, sak, sbr, sym, RANK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rr = tl.arange(0, RANK)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    low = tl.zeros((BLOCK_M, RANK), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        x = tl.load(X + rm[:, None] * sxm + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)
        w = tl.load(W + rk[:, None] * swk + rn[None, :], mask=(rk[:, None] < left) & (rn[None, :] < N), other=0.0)
        a = tl.load(A + rk[:, None] * sak + rr[None, :], mask=rk[:, None] < left, other=0.0)
        acc = tl.dot(x, w, acc)
        low = tl.dot(x, a, low)
        X += BLOCK_K
        W += BLOCK_K * swk
        A += BLOCK_K * sak
    b = tl.load(B + rr[:, None] * sbr + rn[None, :], mask=rn[None, :] < N, other=0.0)
    acc = tl.dot((low * scaling).to(b.dtype), b, acc)
    tl.store(Y + rm[:, None] * sym + rn[None, :], acc.to(Y.dtype.element_ty), (rm[:, None] < M) & (rn[None, :] < N))


def lora(x, w, a, b, scaling):
    (M, K), N = x.shape, w.shape[1]
    y = empty(x, (M, N))
    _lora[(triton.cdiv(M, 64), triton.cdiv(N, 64))](
        x, w, a, b, y, M, N, K, scaling, strides(x)[0], strides(w)[0], strides(a)[0], strides(b)[0], strides(y)[0],
        RANK=a.shape[1], BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, num_warps=4,
    )  # fmt: skip
    return y


specimen(
    "lora", lora, lambda x, w, a, b, scaling: x @ w + scaling * (x @ a) @ b, 2e-2, 4e-3,
    ragged=lambda rng: halves(rng, x=(70, 96), w=(96, 80), a=(96, 16), b=(16, 80)) | {"scaling": 0.5},
)  # fmt: skip


@triton.jit
def _gram(X, C, M, K, sxm, sxk, scm, scn, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """Computes the lower half of x @ x.T, and mirrors it."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    if pid_n > pid_m:
        return
    rm = pid_m * BLOCK + tl.arange(0, BLOCK)
    rn = pid_n * BLOCK + tl.arange(0, BLOCK)
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = X + (rm % M)[:, None] * sxm + rk[None, :] * sxk
    b_ptrs = X + (rn % M)[:, None] * sxm + rk[None, :] * sxk
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=rk[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=rk[None, :] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, tl.permute(b, (1, 0)), acc)
        a_ptrs += BLOCK_K * sxk
        b_ptrs += BLOCK_K * sxk
    out = acc.to(C.dtype.element_ty)
    tl.store(C + rm[:, None] * scm + rn[None, :] * scn, out, mask=(rm[:, None] < M) & (rn[None, :] < M))
    if pid_n < pid_m:
        tl.store(C + rn[:, None] * scm + rm[None, :] * scn, out.T, mask=(rn[:, None] < M) & (rm[None, :] < M))


def gram(x):
    M, K = x.shape
    c = empty(x, (M, M), "float32")
    _gram[(triton.cdiv(M, 64), triton.cdiv(M, 64))](x, c, M, K, *strides(x), *strides(c), BLOCK=64, BLOCK_K=64)
    return c


specimen(
    "gram", gram, lambda x: x @ x.T, 5e-2, 1e-3, ragged=lambda rng: {"x": normal(rng, 100, 80, dtype="bfloat16")},
    columns=lambda rng: {"x": normal(rng, 80, 128, dtype="bfloat16").T},
)  # fmt: skip
