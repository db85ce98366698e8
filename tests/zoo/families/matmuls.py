"""Matrix products: with epilogues, batched, split along K, with 8-bit and packed 4-bit weights, persistent, and many products of different
sizes in one launch."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import dtype_name, empty, strides, table, vector, zeros
from zoo.registry import integers, normal, specimen


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def swizzled(pid, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    grid_m = tl.cdiv(M, BLOCK_M)
    grid_n = tl.cdiv(N, BLOCK_N)
    width = GROUP_M * grid_n
    group = pid // width
    size = min(grid_m - group * GROUP_M, GROUP_M)
    return group * GROUP_M + (pid % size), (pid % width) // size


def tile_configs():
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 2}, num_warps=4, num_stages=3)
        for m, n, k in ((16, 32, 32), (32, 32, 16))
    ]


@triton.autotune(configs=tile_configs(), key=["M", "N", "K"], warmup=1, rep=2)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit
def _linear(
    A, B, C, bias, residual, row_scale, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_rm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = swizzled(tl.program_id(axis=0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    tl.assume(pid_m >= 0)
    tl.assume(stride_am > 0)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ram = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    rbn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = A + (ram[:, None] * stride_am + rk[None, :] * stride_ak)
    b_ptrs = B + (rk[:, None] * stride_bk + rbn[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(K, 0, -BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=rk[None, :] < k, other=0.0)
            b = tl.load(b_ptrs, mask=rk[:, None] < k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
    if row_scale is not None:
        acc *= tl.load(row_scale + rm, mask=rm < M, other=1.0)[:, None]
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    elif ACTIVATION == "gelu":
        acc = gelu(acc)
    if residual is not None:
        acc += tl.load(residual + rm[:, None] * stride_rm + rn[None, :], mask=mask, other=0.0)
    tl.store(C + stride_cm * rm[:, None] + stride_cn * rn[None, :], acc.to(C.dtype.element_ty), mask=mask)


def linear(x, weight, bias, residual, row_scale, activation):
    """activation((x @ weight.T + bias) * row_scale[:, None]) + residual; weight is (N, K)."""
    (M, K), N = x.shape, weight.shape[0]
    out = empty(x, (M, N))
    grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)  # noqa: E731
    stride_bn, stride_bk = strides(weight)
    _linear[grid](
        x, weight, out, bias, residual, row_scale, M, N, K, *strides(x), stride_bk, stride_bn, *strides(out),
        strides(residual)[0] if residual is not None else 0, ACTIVATION=activation, HAS_BIAS=bias is not None,
    )  # fmt: skip
    return out


def linear_reference(x, weight, bias, residual, row_scale, activation):
    from math import erf

    y = x @ weight.T + (0 if bias is None else bias)
    y = y if row_scale is None else y * row_scale[:, None]
    if activation == "leaky_relu":
        y = np.where(y >= 0, y, 0.01 * y)
    elif activation == "gelu":
        y = 0.5 * y * (1 + np.vectorize(erf)(y / np.sqrt(2)))
    return y if residual is None else y + residual


def linear_inputs(rng, M, N, K, activation="", dtype=np.float32, extras=True):
    return {
        "x": normal(rng, M, K, dtype=dtype), "weight": normal(rng, N, K, dtype=dtype), "activation": activation,
        "bias": normal(rng, N, dtype=dtype) if extras else None, "residual": normal(rng, M, N, dtype=dtype) if extras else None,
        "row_scale": normal(rng, M) if extras else None,
    }  # fmt: skip


specimen(
    "linear", linear, linear_reference, 1e-4, 1e-5,
    gelu=lambda rng: linear_inputs(rng, 50, 70, 64, "gelu"),
    ragged=lambda rng: linear_inputs(rng, 33, 31, 45, "leaky_relu"),
    plain=lambda rng: linear_inputs(rng, 16, 40, 32, extras=False),
)  # fmt: skip
specimen(
    "linear", linear, linear_reference, 1e-2, 2e-3, fp16=lambda rng: linear_inputs(rng, 40, 48, 96, "gelu", np.float16)
)
specimen(
    "linear", linear, linear_reference, 5e-2, 1e-2, bf16=lambda rng: linear_inputs(rng, 40, 48, 80, "", "bfloat16")
)


@triton.jit
def _batched(
    A, B, C, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, alpha,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    A += batch * stride_ab
    B += batch * stride_bb
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        kk = k * BLOCK_K + rk
        a = tl.load(
            A + rm[:, None] * stride_am + kk[None, :] * stride_ak, mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0
        )
        b = tl.load(
            B + kk[:, None] * stride_bk + rn[None, :] * stride_bn, mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0
        )
        acc += tl.dot(a, b, allow_tf32=False)
    c = C + batch * stride_cb + rm[:, None] * stride_cm + rn[None, :] * stride_cn
    tl.store(c, acc * alpha, mask=(rm[:, None] < M) & (rn[None, :] < N))


def batched_matmul(a, b, alpha):
    batches, M, K = a.shape
    N = b.shape[2]
    c = empty(a, (batches, M, N))
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 16), batches)
    _batched[grid](a, b, c, M, N, K, *strides(a), *strides(b), *strides(c), alpha, BLOCK_M=32, BLOCK_N=16, BLOCK_K=16)
    return c


specimen(
    "batched_matmul", batched_matmul, lambda a, b, alpha: alpha * (a @ b), 1e-4, 1e-5,
    ragged=lambda rng: {"a": normal(rng, 3, 40, 50), "b": normal(rng, 3, 50, 33), "alpha": 0.5},
)  # fmt: skip


@triton.jit
def _split_k(
    A, B, C, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = swizzled(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    pid_z = tl.program_id(1)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = pid_z * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = A + (rm % M)[:, None] * stride_am + rk[None, :] * stride_ak
    b_ptrs = B + rk[:, None] * stride_bk + (rn % N)[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K * SPLIT_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - k * (BLOCK_K * SPLIT_K)
            a = tl.load(a_ptrs, mask=rk[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=rk[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * SPLIT_K * stride_ak
        b_ptrs += BLOCK_K * SPLIT_K * stride_bk
    c_ptrs = C + rm[:, None] * stride_cm + rn[None, :] * stride_cn
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    if SPLIT_K == 1:
        tl.store(c_ptrs, acc, mask=mask)
    else:
        tl.atomic_add(c_ptrs, acc, mask=mask, sem="relaxed")


_split_k = triton.heuristics({"EVEN_K": lambda args: args["K"] % (args["BLOCK_K"] * args["SPLIT_K"]) == 0})(_split_k)


def split_k_matmul(a, b, split):
    (M, K), N = a.shape, b.shape[1]
    c = zeros(a, (M, N), "float32")
    grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]), META["SPLIT_K"])  # noqa: E731
    _split_k[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        *strides(a),
        *strides(b),
        *strides(c),
        BLOCK_M=16,
        BLOCK_N=16,
        BLOCK_K=16,
        SPLIT_K=split,
        GROUP_M=4,
    )
    return c


specimen(
    "split_k", split_k_matmul, lambda a, b, split: a @ b, 2e-3, 1e-4,
    four=lambda rng: {"a": normal(rng, 20, 300, dtype=np.float16), "b": normal(rng, 300, 24, dtype=np.float16), "split": 4},
    even=lambda rng: {"a": normal(rng, 16, 64, dtype=np.float16), "b": normal(rng, 64, 32, dtype=np.float16).T.copy().T, "split": 2},
    none=lambda rng: {"a": normal(rng, 17, 40, dtype=np.float16), "b": normal(rng, 40, 19, dtype=np.float16), "split": 1},
)  # fmt: skip


@triton.jit
def _int8_matmul(
    A, B, C, a_scale, a_zero, b_scale, b_sum, M, N, K, stride_am, stride_bk, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for k in range(0, K, BLOCK_K):
        rk = k + tl.arange(0, BLOCK_K)
        a = tl.load(A + rm[:, None] * stride_am + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0)
        b = tl.load(
            B + rk[:, None] * stride_bk + rn[None, :] * stride_bn, mask=(rk[:, None] < K) & (rn[None, :] < N), other=0
        )
        acc += tl.dot(a, b, out_dtype=tl.int32)
    # (a - zero) @ b, without the zero point in the inner loop
    zero = tl.load(a_zero + rm, mask=rm < M, other=0)
    acc -= zero[:, None] * tl.load(b_sum + rn, mask=rn < N, other=0)[None, :]
    scale = (
        tl.load(a_scale + rm, mask=rm < M, other=0.0)[:, None] * tl.load(b_scale + rn, mask=rn < N, other=0.0)[None, :]
    )
    tl.store(
        C + rm[:, None] * stride_cm + rn[None, :],
        acc.to(tl.float32) * scale,
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


def int8_matmul(a, b, a_scale, a_zero, b_scale):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N), "float32")
    column_sum = vector(a, [0] * N)
    _column_sums[(triton.cdiv(N, 16),)](b, column_sum, K, N, *strides(b), BLOCK=16)
    grid = (triton.cdiv(M, 16), triton.cdiv(N, 32))
    _int8_matmul[grid](
        a, b, c, a_scale, a_zero, b_scale, column_sum, M, N, K, strides(a)[0], *strides(b), strides(c)[0],
        BLOCK_M=16, BLOCK_N=32, BLOCK_K=32,
    )  # fmt: skip
    return c


@triton.jit
def _column_sums(B, sums, K, N, stride_k, stride_n, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for k in range(K):
        total += tl.load(B + k * stride_k + n * stride_n, mask=n < N, other=0)
    tl.store(sums + n, total, mask=n < N)


def int8_inputs(rng, M, N, K):
    return {
        "a": integers(rng, -128, 128, M, K, dtype=np.int8), "b": integers(rng, -128, 128, N, K, dtype=np.int8).T,
        "a_scale": rng.random(M).astype(np.float32), "a_zero": integers(rng, -20, 20, M), "b_scale": rng.random(N).astype(np.float32),
    }  # fmt: skip


specimen(
    "int8_matmul", int8_matmul,
    lambda a, b, a_scale, a_zero, b_scale: (a.astype(float) - a_zero[:, None]) @ b.astype(float) * np.outer(a_scale, b_scale), 1e-5, 1e-6,
    ragged=lambda rng: int8_inputs(rng, 21, 40, 75),
)  # fmt: skip


@triton.jit
def _int4_matmul(
    X, QWeight, Scales, QZeros, Y, M, N, K, stride_xm, stride_qk, stride_qn, stride_sg, stride_zg, stride_ym,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    # Eight weights share an int32, along K; eight zero points along N.
    q_ptrs = QWeight + (rk[:, None] // 8) * stride_qk + rn[None, :] * stride_qn
    shift = (rk % 8) * 4
    zero_shift = (rn % 8) * 4
    x_ptrs = X + rm[:, None] * stride_xm + rk[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        group = k * BLOCK_K // GROUP
        scales = tl.load(Scales + group * stride_sg + rn, mask=rn < N, other=0.0)
        zeros = tl.load(QZeros + group * stride_zg + rn // 8, mask=rn < N, other=0)
        zeros = ((zeros >> zero_shift) & 0xF) + 1
        q = tl.load(q_ptrs, mask=rn[None, :] < N, other=0)
        w = ((q >> shift[:, None]) & 0xF) - zeros[None, :]
        w = (w * scales[None, :]).to(X.dtype.element_ty)
        x = tl.load(x_ptrs, mask=rm[:, None] < M, other=0.0)
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        q_ptrs += (BLOCK_K // 8) * stride_qk
    tl.store(
        Y + rm[:, None] * stride_ym + rn[None, :],
        acc.to(Y.dtype.element_ty),
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


def int4_matmul(x, qweight, scales, qzeros, group):
    (M, K), N = x.shape, qweight.shape[1]
    y = empty(x, (M, N))
    grid = (triton.cdiv(M, 16), triton.cdiv(N, 32))
    _int4_matmul[grid](
        x, qweight, scales, qzeros, y, M, N, K, strides(x)[0], *strides(qweight), strides(scales)[0], strides(qzeros)[0], strides(y)[0],
        GROUP=group, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32,
    )  # fmt: skip
    return y


def int4_reference(x, qweight, scales, qzeros, group):
    nibble = np.arange(8) * 4
    w = (qweight[:, None, :] >> nibble[None, :, None] & 15).reshape(-1, qweight.shape[1])
    z = (qzeros[:, :, None] >> nibble & 15).reshape(qzeros.shape[0], -1) + 1
    at = np.arange(w.shape[0]) // group
    return x @ ((w - z[at]) * scales[at])


def int4_inputs(rng, M, N, K, group):
    words = lambda *shape: integers(rng, -(2**31), 2**31, *shape, dtype=np.int64).astype(np.int32)  # noqa: E731
    return {
        "x": normal(rng, M, K, dtype=np.float16), "qweight": words(K // 8, N), "qzeros": words(K // group, N // 8), "group": group,
        "scales": (rng.random((K // group, N)) / 8).astype(np.float16),
    }  # fmt: skip


specimen("int4_matmul", int4_matmul, int4_reference, 1e-2, 5e-3, groups=lambda rng: int4_inputs(rng, 20, 56, 128, 64))


@triton.jit
def _persistent(
    A, B, C, M, N, K, stride_am, stride_bn, stride_cm, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        pid_m, pid_n = swizzled(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
        rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
        safe_m = tl.where(rm < M, rm, 0)
        safe_n = tl.where(rn < N, rn, 0)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for ki in range(k_tiles):
            rk = ki * BLOCK_K + tl.arange(0, BLOCK_K)
            a = tl.load(A + safe_m[:, None] * stride_am + rk[None, :], mask=rk[None, :] < K, other=0.0)
            b = tl.load(B + safe_n[:, None] * stride_bn + rk[None, :], mask=rk[None, :] < K, other=0.0)
            acc = tl.dot(a, b.T, acc)
        c = acc.to(C.dtype.element_ty)
        tl.store(C + rm[:, None] * stride_cm + rn[None, :], c, mask=(rm[:, None] < M) & (rn[None, :] < N))


def persistent_matmul(a, b):
    """a @ b.T"""
    (M, K), N = a.shape, b.shape[0]
    c = empty(a, (M, N))
    programs = min(triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"], 3)
    _persistent[(programs,)](
        a,
        b,
        c,
        M,
        N,
        K,
        strides(a)[0],
        strides(b)[0],
        strides(c)[0],
        BLOCK_M=32,
        BLOCK_N=16,
        BLOCK_K=16,
        GROUP_M=2,
        PROGRAMS=programs,
    )
    return c


specimen(
    "persistent_matmul", persistent_matmul, lambda a, b: a @ b.T, 1e-2, 2e-3,
    ragged=lambda rng: {"a": normal(rng, 100, 40, dtype=np.float16), "b": normal(rng, 75, 40, dtype=np.float16)},
)  # fmt: skip


@triton.jit
def _grouped(
    a_table, b_table, c_table, sizes, leading, groups, PROGRAMS: tl.constexpr, DTYPE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    last_end = 0
    for g in range(groups):
        m = tl.load(sizes + g * 3)
        n = tl.load(sizes + g * 3 + 1)
        k = tl.load(sizes + g * 3 + 2)
        tiles_n = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * tiles_n
        while tile >= last_end and tile < last_end + tiles:
            lda = tl.load(leading + g * 3)
            ldb = tl.load(leading + g * 3 + 1)
            ldc = tl.load(leading + g * 3 + 2)
            a_ptr = tl.load(a_table + g).to(tl.pointer_type(DTYPE))
            b_ptr = tl.load(b_table + g).to(tl.pointer_type(DTYPE))
            c_ptr = tl.load(c_table + g).to(tl.pointer_type(DTYPE))
            at = tile - last_end
            rm = at // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
            rn = at % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
            rk = tl.arange(0, BLOCK_K)
            a_ptrs = a_ptr + rm[:, None] * lda + rk[None, :]
            b_ptrs = b_ptr + rk[:, None] * ldb + rn[None, :]
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for kk in range(tl.cdiv(k, BLOCK_K)):
                tl.multiple_of(a_ptrs, [4, 4])
                left = k - kk * BLOCK_K
                a = tl.load(a_ptrs, mask=(rm[:, None] < m) & (rk[None, :] < left), other=0.0)
                b = tl.load(b_ptrs, mask=(rk[:, None] < left) & (rn[None, :] < n), other=0.0)
                acc += tl.dot(a, b)
                a_ptrs += BLOCK_K
                b_ptrs += BLOCK_K * ldb
            tl.store(c_ptr + rm[:, None] * ldc + rn[None, :], acc.to(DTYPE), mask=(rm[:, None] < m) & (rn[None, :] < n))
            tile += PROGRAMS
        last_end = last_end + tiles


def grouped_gemm(a, b):
    """Returns the products of pairs of matrices."""
    c = [empty(x, (x.shape[0], y.shape[1])) for x, y in zip(a, b, strict=True)]
    sizes = [n for x, y in zip(a, b, strict=True) for n in (x.shape[0], y.shape[1], x.shape[1])]
    leading = [strides(m)[0] for triple in zip(a, b, c, strict=True) for m in triple]
    programs = 4
    _grouped[(programs,)](
        table(a), table(b), table(c), vector(a[0], sizes), vector(a[0], leading), len(a), PROGRAMS=programs,
        DTYPE={"float16": tl.float16, "float32": tl.float32}[dtype_name(a[0])], BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
    )  # fmt: skip
    return tuple(c)


def grouped_inputs(rng, *sizes, dtype=np.float16):
    return {
        "a": [normal(rng, m, k, dtype=dtype) for m, n, k in sizes],
        "b": [normal(rng, k, n, dtype=dtype) for m, n, k in sizes],
    }


specimen(
    "grouped_gemm", grouped_gemm, lambda a, b: tuple(x @ y for x, y in zip(a, b, strict=True)), 1e-2, 2e-3,
    three=lambda rng: grouped_inputs(rng, (20, 33, 40), (5, 16, 16), (48, 17, 70)),
)  # fmt: skip
