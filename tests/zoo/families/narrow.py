"""8-bit and 4-bit formats: quantization to fp8, products with scales per row and per block, and microscaled products. There is also
attention in fp8, and fp4 unpacked by the GPU. Bytes are uint8 arrays; `triton.reinterpret` gives them the dtype fp8, as libraries without
the dtype do."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides
from zoo.references import FLOAT8, causal_scores, number, numbers, scaled, softmax, spread
from zoo.registry import codes, integers, normal, specimen


def fp8(x):
    return triton.reinterpret(x, tl.float8e4nv)


@triton.jit
def _quantise_groups(
    X, Q, S, columns, stride_x, stride_q, stride_s, eps, GROUP: tl.constexpr, LIMIT: tl.constexpr, POWERS: tl.constexpr
):
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = group * GROUP + tl.arange(0, GROUP)
    mask = at < columns
    x = tl.load(X + row * stride_x + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)), eps) / LIMIT
    if POWERS:
        scale = tl.exp2(tl.ceil(tl.log2(scale)))
    q = tl.clamp(x / scale, -LIMIT, LIMIT).to(Q.dtype.element_ty)
    tl.store(Q + row * stride_q + at, q, mask=mask)
    tl.store(S + row * stride_s + group, scale)


@triton.jit
def _dequantise_groups(Q, S, Y, columns, stride_q, stride_s, stride_y, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < columns
    q = tl.load(Q + row * stride_q + at, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(S + row * stride_s + at // GROUP, mask=mask, other=0.0)
    tl.store(Y + row * stride_y + at, q * s, mask=mask)


def quantise_groups(x, powers):
    """Returns the scales of groups of 32 columns, and the numbers after conversion to fp8 and back."""
    rows, columns = x.shape
    groups = triton.cdiv(columns, 32)
    q, s, y = (
        empty(x, (rows, columns), "uint8"),
        empty(x, (rows, groups), "float32"),
        empty(x, (rows, columns), "float32"),
    )
    _quantise_groups[(rows, groups)](
        x, fp8(q), s, columns, strides(x)[0], strides(q)[0], strides(s)[0], 1e-10, GROUP=32, LIMIT=448.0, POWERS=powers, num_warps=1
    )  # fmt: skip
    _dequantise_groups[(rows, triton.cdiv(columns, 64))](
        fp8(q), s, y, columns, strides(q)[0], strides(s)[0], strides(y)[0], GROUP=32, BLOCK=64
    )
    return s, y


def quantise_reference(x, powers):
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // 32) * 32))
    padded[:, :columns] = x
    scale = np.maximum(np.abs(padded.reshape(rows, -1, 32)).max(-1), 1e-10) / 448
    if powers:
        scale = 2.0 ** np.ceil(np.log2(scale))
    return scale, x


def between_powers(rng, rows, columns):
    """Numbers of several magnitudes. No group's scale is so close to a power of two that rounding decides between two powers."""
    x = normal(rng, rows, columns).clip(-5, 5)
    x[:, ::32] = 5
    return x * np.exp2(rng.integers(-3, 4, (rows, 1))).astype(np.float32)


specimen(  # fp8 has four significant bits
    "quantise_groups", quantise_groups, quantise_reference, 0.0626, 1e-3,
    ragged=lambda rng: {"x": normal(rng, 5, 75, dtype=np.float16), "powers": False},
    powers=lambda rng: {"x": between_powers(rng, 4, 64), "powers": True},
)  # fmt: skip


@triton.jit
def _rowwise(
    A, B, C, scale_a, scale_b, bias, M, N, K, stride_am, stride_bn, stride_cm, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        rk = k * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(A + rm[:, None] * stride_am + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0)
        b = tl.load(B + rk[:, None] + rn[None, :] * stride_bn, mask=(rk < K)[:, None] & (rn < N)[None, :], other=0.0)
        if FAST:
            acc = tl.dot(a, b, acc, max_num_imprecise_acc=32, out_dtype=tl.float32)
        else:
            acc += tl.dot(a, b, out_dtype=tl.float32)
    sa = tl.load(scale_a + rm, mask=rm < M, other=0.0)
    sb = tl.load(scale_b + rn, mask=rn < N, other=0.0)
    acc *= sa[:, None] * sb[None, :]
    if bias is not None:
        acc += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :].to(tl.float32)
    tl.store(C + rm[:, None] * stride_cm + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


def rowwise_matmul(a, b, scale_a, scale_b, bias, fast):
    """Returns (a * scale_a[:, None]) @ (b * scale_b[:, None]).T + bias for fp8 bytes."""
    (M, K), N = a.shape, b.shape[0]
    c = empty(scale_a, (M, N), "float32")
    _rowwise[(triton.cdiv(M, 32), triton.cdiv(N, 16))](
        fp8(a), fp8(b), c, scale_a, scale_b, bias, M, N, K, strides(a)[0], strides(b)[0], strides(c)[0], BLOCK_M=32, BLOCK_N=16,
        BLOCK_K=32, FAST=fast,
    )  # fmt: skip
    return c


def rowwise_reference(a, b, scale_a, scale_b, bias, fast):
    c = (number(a) * scale_a[:, None]) @ (number(b) * scale_b[:, None]).T
    return c if bias is None else c + bias


specimen(
    "fp8_rowwise", rowwise_matmul, rowwise_reference, 1e-3, 1e-3,
    ragged=lambda rng: {"a": codes(rng, 40, 75), "b": codes(rng, 21, 75), "scale_a": rng.random(40).astype(np.float32),
                        "scale_b": rng.random(21).astype(np.float32), "bias": normal(rng, 21), "fast": True},
    whole=lambda rng: {"a": codes(rng, 32, 64), "b": codes(rng, 32, 64), "scale_a": rng.random(32).astype(np.float32),
                       "scale_b": rng.random(32).astype(np.float32), "bias": None, "fast": False},
)  # fmt: skip


@triton.jit
def _blockwise(
    A, B, C, As, Bs, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_as_m, stride_as_k,
    stride_bs_k, stride_bs_n, group_n, group_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * grid_n
    first = pid // in_group * GROUP_M
    rows = min(grid_m - first, GROUP_M)
    pid_m, pid_n = first + (pid % rows), (pid % in_group) // rows
    rm = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    rn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = A + (rm[:, None] * stride_am + rk[None, :] * stride_ak)
    b_ptrs = B + (rk[:, None] * stride_bk + rn[None, :] * stride_bn)
    as_ptrs = As + rm * stride_as_m
    bs_ptrs = Bs + rn // group_n * stride_bs_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=rk[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=rk[:, None] < K - k * BLOCK_K, other=0.0)
        group = k * BLOCK_K // group_k
        a_s = tl.load(as_ptrs + group * stride_as_k)
        b_s = tl.load(bs_ptrs + group * stride_bs_k)
        acc += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if C.dtype.element_ty == tl.bfloat16:
        c = acc.to(tl.bfloat16)
    elif C.dtype.element_ty == tl.float16:
        c = acc.to(tl.float16)
    else:
        c = acc.to(tl.float32)
    tl.store(C + stride_cm * cm[:, None] + stride_cn * cn[None, :], c, mask=(cm[:, None] < M) & (cn[None, :] < N))


def blockwise_matmul(a, b, a_scale, b_scale, group):
    """Returns a @ b.T; a has one scale per 1 x group elements, b one per group x group."""
    (M, K), N = a.shape, b.shape[0]
    c = empty(a, (M, N), "float16")
    _blockwise[lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)](
        fp8(a), fp8(b), c, a_scale, b_scale, M, N, K, *strides(a), *strides(b)[::-1], *strides(c), *strides(a_scale),
        *strides(b_scale)[::-1], group, group, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, GROUP_M=2,
    )  # fmt: skip
    return c


def blockwise_reference(a, b, a_scale, b_scale, group):
    N, K = b.shape
    of_b = spread(spread(b_scale, group, K, 1), group, N, 0)
    return (number(a) * spread(a_scale, group, K, 1)) @ (number(b) * of_b).T


specimen(
    "fp8_blockwise", blockwise_matmul, blockwise_reference, 2e-3, 2e-3,
    ragged=lambda rng: {"a": codes(rng, 21, 80), "b": codes(rng, 44, 80), "a_scale": rng.random((21, 3)).astype(np.float32),
                        "b_scale": rng.random((2, 3)).astype(np.float32), "group": 32},
)  # fmt: skip


@triton.jit
def _microscaled(
    A, B, C, a_scale, b_scale, M, N, K, stride_am, stride_bn, stride_cm, stride_sa, stride_sb, A_FORMAT: tl.constexpr,
    B_FORMAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    a_bytes: tl.constexpr = BLOCK_K // 2 if A_FORMAT == "e2m1" else BLOCK_K
    b_bytes: tl.constexpr = BLOCK_K // 2 if B_FORMAT == "e2m1" else BLOCK_K
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ra, rb = tl.arange(0, a_bytes), tl.arange(0, b_bytes)
    groups = tl.arange(0, BLOCK_K // 32)
    m, n = (rm < M)[:, None], (rn < N)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(K // BLOCK_K):
        a = tl.load(A + rm[:, None] * stride_am + (k * a_bytes + ra)[None, :], mask=m, other=0)
        b = tl.load(B + rn[:, None] * stride_bn + (k * b_bytes + rb)[None, :], mask=n, other=0)
        at = (k * (BLOCK_K // 32) + groups)[None, :]
        sb = tl.load(b_scale + rn[:, None] * stride_sb + at, mask=n, other=127)
        if a_scale is not None:
            sa = tl.load(a_scale + rm[:, None] * stride_sa + at, mask=m, other=127)
        else:
            sa = None
        acc = tl.dot_scaled(a, sa, A_FORMAT, b.T, sb, B_FORMAT, acc)
    tl.store(C + rm[:, None] * stride_cm + rn[None, :], acc, mask=m & (rn < N)[None, :])


def microscaled_matmul(a, b, a_scale, b_scale, a_format, b_format, k):
    """Returns a @ b.T with one scale per 32 elements along K."""
    M, N = a.shape[0], b.shape[0]
    c = empty(b_scale, (M, N), "float32")
    _microscaled[(triton.cdiv(M, 16), triton.cdiv(N, 32))](
        a, b, c, a_scale, b_scale, M, N, k, strides(a)[0], strides(b)[0], strides(c)[0],
        strides(a_scale)[0] if a_scale is not None else 0, strides(b_scale)[0], A_FORMAT=a_format, B_FORMAT=b_format, BLOCK_M=16,
        BLOCK_N=32, BLOCK_K=64,
    )  # fmt: skip
    return c


def microscaled_reference(a, b, a_scale, b_scale, a_format, b_format, k):
    a = numbers(a, a_format)
    return (a if a_scale is None else scaled(a, a_scale)) @ scaled(numbers(b, b_format), b_scale).T


def microscaled_inputs(rng, M, N, K, a_format, b_format):
    scales = [integers(rng, 122, 132, n, K // 32, dtype=np.uint8) for n in (M, N)]
    return {
        "a": normal(rng, M, K, dtype=np.float16) if a_format == "fp16" else codes(rng, M, K, a_format),
        "b": codes(rng, N, K, b_format), "a_scale": None if a_format == "fp16" else scales[0],
        "b_scale": scales[1], "a_format": a_format, "b_format": b_format, "k": K,
    }  # fmt: skip


specimen(
    "microscaled", microscaled_matmul, microscaled_reference, 2e-3, 2e-3,
    fp8_fp4=lambda rng: microscaled_inputs(rng, 20, 40, 128, "e4m3", "e2m1"),
    fp4=lambda rng: microscaled_inputs(rng, 16, 33, 64, "e2m1", "e2m1"),
    fp8=lambda rng: microscaled_inputs(rng, 17, 32, 64, "e5m2", "e4m3"),
    weights=lambda rng: microscaled_inputs(rng, 16, 32, 64, "fp16", "e2m1"),
)  # fmt: skip


@triton.jit
def _fp8_attention(
    Q, K, V, Out, q_scale, k_scale, v_scale, sm_scale, length, stride_h, stride_m, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    start, head = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    q_block = tl.make_block_ptr(Q + head * stride_h, (length, D), (stride_m, 1), (start, 0), (BLOCK_M, D), (1, 0))
    k_block = tl.make_block_ptr(K + head * stride_h, (D, length), (1, stride_m), (0, 0), (D, BLOCK_N), (0, 1))
    v_block = tl.make_block_ptr(V + head * stride_h, (length, D), (stride_m, 1), (0, 0), (BLOCK_N, D), (1, 0))
    q = tl.load(q_block, boundary_check=(0,), padding_option="zero")
    scale = sm_scale * 1.4426950408889634 * tl.load(q_scale + head) * tl.load(k_scale + head)
    rows = start + tl.arange(0, BLOCK_M)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    end = min(start + BLOCK_M, length) if CAUSAL else length
    for n in range(0, end, BLOCK_N):
        columns = n + tl.arange(0, BLOCK_N)
        k = tl.load(k_block, boundary_check=(1,), padding_option="zero")
        s = tl.dot(q, k) * scale
        keep = (columns < length)[None, :]
        if CAUSAL:
            keep &= rows[:, None] >= columns[None, :]
        s = tl.where(keep, s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        shrink = tl.math.exp2(m - new)
        total = total * shrink + tl.sum(p, 1)
        # Scaling moves the weights, which are at most 1, to the upper range of fp8.
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        acc = tl.dot((p * 256.0).to(tl.float8e4nv), v, acc * shrink[:, None])
        m = new
        k_block = tl.advance(k_block, (0, BLOCK_N))
        v_block = tl.advance(v_block, (BLOCK_N, 0))
    acc *= tl.load(v_scale + head) / (256.0 * total[:, None])
    out = Out + head * stride_h + rows[:, None] * stride_m + tl.arange(0, D)[None, :]
    tl.store(out, acc.to(Out.dtype.element_ty), mask=(rows < length)[:, None])


def fp8_attention(q, k, v, q_scale, k_scale, v_scale, causal):
    """q, k and v are (heads, length, dim) bytes with one scale per head."""
    heads, length, dim = q.shape
    out = empty(q, q.shape, "float16")
    _fp8_attention[(triton.cdiv(length, 32), heads)](
        fp8(q), fp8(k), fp8(v), out, q_scale, k_scale, v_scale, dim**-0.5, length, *strides(q)[:2], CAUSAL=causal, BLOCK_M=32,
        BLOCK_N=32, D=dim,
    )  # fmt: skip
    return out


def attention_weights(q, k, q_scale, k_scale, causal):
    q, k = number(q) * q_scale[:, None, None], number(k) * k_scale[:, None, None]
    s = np.einsum("hmd,hnd->hmn", q, k) * q.shape[-1] ** -0.5
    if causal:
        s = causal_scores(s)
    return softmax(s)


def fp8_attention_reference(q, k, v, q_scale, k_scale, v_scale, causal):
    return attention_weights(q, k, q_scale, k_scale, causal) @ (number(v) * v_scale[:, None, None])


def fp8_attention_error(q, k, v, q_scale, k_scale, v_scale, causal):
    """A weight is rounded to four significant bits: the error is at most 1/17 of it, or 2^-18 for a very small one. The bound of 1/16 also
    covers the rounding of fp32 and fp16."""
    v = np.abs(number(v)) * v_scale[:, None, None]
    return (attention_weights(q, k, q_scale, k_scale, causal) @ v / 16 + 2.0**-18 * v.sum(1, keepdims=True),)


specimen(
    "fp8_attention", fp8_attention, fp8_attention_reference, error=fp8_attention_error,
    causal=lambda rng: {n: normal(rng, 2, 75, 32, dtype=FLOAT8["e4m3"]).view(np.uint8) for n in "qkv"}
    | {f"{n}_scale": (0.5 + rng.random(2)).astype(np.float32) for n in "qkv"}
    | {"causal": True},
)  # fmt: skip


@triton.jit
def _unpack_fp4(X, S, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n, other=0)
    low, high = tl.inline_asm_elementwise(
        asm="""
        {
            .reg .b32 code<2>, sign<2>, size<2>;
            and.b32 code0, $2, 0xF;
            shr.u32 code1, $2, 4;
            and.b32 code1, code1, 0xF;
            shl.b32 sign0, code0, 28;
            and.b32 sign0, sign0, 0x80000000;
            shl.b32 sign1, code1, 28;
            and.b32 sign1, sign1, 0x80000000;
            and.b32 size0, code0, 7;
            shl.b32 size0, size0, 22;
            and.b32 size1, code1, 7;
            shl.b32 size1, size1, 22;
            or.b32 $0, size0, sign0;
            or.b32 $1, size1, sign1;
        }
        """,
        constraints="=r,=r,r",
        args=[x.to(tl.int32)],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )
    # Exponent and mantissa are at fp32's positions; the biases differ by 127 - 1. The rule also holds for subnormal numbers.
    scale = tl.load(S + i // 8, mask=i < n, other=0.0) * 8.507059173023462e37
    tl.store(Y + 2 * i, low * scale, mask=i < n)
    tl.store(Y + 2 * i + 1, high * scale, mask=i < n)


def unpack_fp4(x, scale):
    y = empty(scale, 2 * x.shape[0])
    _unpack_fp4[(triton.cdiv(x.shape[0], 64),)](x, scale, y, x.shape[0], BLOCK=64)
    return y


def unpack_reference(x, scale):
    x = numbers(x[None], "e2m1")[0]
    return x * spread(scale, 16, len(x), 0)


specimen(
    "unpack_fp4", unpack_fp4, unpack_reference, 1e-6, 1e-7, gpu_only=True,
    # The kernel multiplies a scale by 2^126, which overflows from 4 on.
    groups=lambda rng: {"x": integers(rng, 0, 256, 200, dtype=np.uint8), "scale": np.clip(normal(rng, 25), -3, 3)},
)  # fmt: skip
