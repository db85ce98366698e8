"""Forms of `tl.dot`: other precisions and accumulators, batches, scales along K, operands that are split, joined, permuted or gathered, and
sums across programs."""

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from zoo.arrays import POISON, empty, full, strides, zeros
from zoo.references import numbers, scaled
from zoo.registry import codes, integers, normal, specimen

HALF = np.float16


@triton.jit
def _precise(A, B, C, M, N, K, HOW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    a_block = tl.make_block_ptr(A, (M, K), (K, 1), (tl.program_id(0) * BLOCK_M, 0), (BLOCK_M, BLOCK_K), order=(1, 0))
    b_block = tl.make_block_ptr(B, (K, N), (N, 1), (0, tl.program_id(1) * BLOCK_N), (BLOCK_K, BLOCK_N), order=(1, 0))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(a, b, acc, input_precision=HOW)
        a_block = tl.advance(a_block, (0, BLOCK_K))
        b_block = tl.advance(b_block, (BLOCK_K, 0))
    c_block = tl.make_block_ptr(
        C, (M, N), (N, 1), (tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N), (BLOCK_M, BLOCK_N), order=(1, 0)
    )
    tl.store(c_block, acc, boundary_check=(0, 1))


def precise(a, b, how):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N))
    _precise[(triton.cdiv(M, 64), triton.cdiv(N, 64))](a, b, c, M, N, K, how, 64, 64, 32)
    return c


def floats(rng, M, N, K):
    return {"a": normal(rng, M, K), "b": normal(rng, K, N)}


specimen(
    "precise",
    precise,
    lambda a, b, how: a @ b,
    1e-4,
    1e-5,
    tf32x3=lambda rng: floats(rng, 70, 80, 48) | {"how": "tf32x3"},
)
specimen(
    "tf32", precise, lambda a, b, how: a @ b, 1e-2, 2e-3, tf32=lambda rng: floats(rng, 66, 80, 48) | {"how": "tf32"}
)


@triton.jit
def _half_sums(A, B, C, M, N, K, sam, sbk, scm, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)
    for k in range(0, K, BLOCK_K):
        a = tl.load(
            A + rm[:, None] * sam + (k + rk)[None, :], mask=(rm[:, None] < M) & ((k + rk)[None, :] < K), other=0.0
        )
        b = tl.load(
            B + (k + rk)[:, None] * sbk + rn[None, :], mask=((k + rk)[:, None] < K) & (rn[None, :] < N), other=0.0
        )
        acc = tl.dot(a, b, acc, out_dtype=tl.float16)
    tl.store(C + rm[:, None] * scm + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


def half_sums(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N))
    _half_sums[(triton.cdiv(M, 64), triton.cdiv(N, 32))](
        a, b, c, M, N, K, strides(a)[0], strides(b)[0], strides(c)[0], 64, 32, 32
    )
    return c


specimen(
    "half_sums", half_sums, lambda a, b: a @ b, 3e-2, 1e-2,
    ragged=lambda rng: {"a": normal(rng, 70, 48, dtype=HALF), "b": normal(rng, 48, 48, dtype=HALF)},
)  # fmt: skip


@triton.jit
def _dot_of_batches(A, B, C, Z, M, N, K, BZ: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rz = tl.program_id(2) * BZ + tl.arange(0, BZ)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BZ, BM, BN), dtype=tl.float32)
    inside = rz[:, None, None] < Z
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            A + rz[:, None, None] * M * K + rm[None, :, None] * K + rk[None, None, :],
            mask=inside & (rm[None, :, None] < M) & (rk[None, None, :] < K),
            other=0.0,
        )
        b = tl.load(
            B + rz[:, None, None] * N * K + rn[None, :, None] * K + rk[None, None, :],
            mask=inside & (rn[None, :, None] < N) & (rk[None, None, :] < K),
            other=0.0,
        )
        acc = tl.dot(a, tl.trans(b, (0, 2, 1)), acc)
    at = C + rz[:, None, None] * M * N + rm[None, :, None] * N + rn[None, None, :]
    tl.store(at, acc, mask=inside & (rm[None, :, None] < M) & (rn[None, None, :] < N))


def dot_of_batches(a, b):
    """a @ b.swapaxes(1, 2)"""
    (Z, M, K), N = a.shape, b.shape[1]
    c = empty(a, (Z, M, N), "float32")
    _dot_of_batches[(triton.cdiv(M, 64), triton.cdiv(N, 32), triton.cdiv(Z, 2))](a, b, c, Z, M, N, K, 2, 64, 32, 32)
    return c


specimen(
    "dot_of_batches", dot_of_batches, lambda a, b: a @ b.swapaxes(1, 2), 2e-3, 1e-3,
    ragged=lambda rng: {"a": normal(rng, 3, 70, 48, dtype=HALF), "b": normal(rng, 3, 33, 48, dtype=HALF)},
)  # fmt: skip


@triton.jit
def _boxes_of_batches(A, B, C, Z, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(A, [Z, M, K], [M * K, K, 1], [1, BM, BK])
    b_desc = tl.make_tensor_descriptor(B, [Z, K, N], [K * N, N, 1], [1, BK, BN])
    c_desc = tl.make_tensor_descriptor(C, [Z, M, N], [M * N, N, 1], [1, BM, BN])
    z, pid_m, pid_n = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = a_desc.load([z, pid_m * BM, k]).reshape(BM, BK)
        b = tl.reshape(b_desc.load([z, k, pid_n * BN]), [BK, BN])
        acc = tl.dot(a, b, acc)
    c_desc.store([z, pid_m * BM, pid_n * BN], acc.to(C.dtype.element_ty)[None, :, :])


def boxes_of_batches(a, b):
    (Z, M, K), N = a.shape, b.shape[2]
    c = empty(a, (Z, M, N))
    triton.set_allocator(lambda size, align, stream: full(a, size, POISON, "int8"))
    _boxes_of_batches[(triton.cdiv(M, 64), triton.cdiv(N, 64), Z)](a, b, c, Z, M, N, K, 64, 64, 32, num_warps=4)
    return c


specimen(
    "boxes_of_batches", boxes_of_batches, lambda a, b: a @ b, 1e-2, 2e-3,
    ragged=lambda rng: {"a": normal(rng, 3, 70, 48, dtype=HALF), "b": normal(rng, 3, 48, 80, dtype=HALF)},
)  # fmt: skip


@triton.jit
def _complex(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A product of complex numbers with interleaved real and imaginary parts."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    re = tl.zeros((BM, BN), tl.float32)
    im = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ra = 2 * k + tl.arange(0, 2 * BK)
        rk = k + tl.arange(0, BK)
        rb = 2 * tl.program_id(1) * BN + tl.arange(0, 2 * BN)
        a = tl.load(A + rm[:, None] * (2 * K) + ra[None, :], mask=(rm[:, None] < M) & (ra[None, :] < 2 * K), other=0.0)
        b = tl.load(B + rk[:, None] * (2 * N) + rb[None, :], mask=(rk[:, None] < K) & (rb[None, :] < 2 * N), other=0.0)
        ar, ai = a.reshape(BM, BK, 2).split()
        br, bi = tl.split(tl.reshape(b, (BK, BN, 2)))
        re = tl.dot(ar, br, re)
        re = tl.dot(-ai, bi, re)
        im = tl.dot(ar, bi, im)
        im = tl.dot(ai, br, im)
    c = tl.interleave(re, im)
    rc = 2 * tl.program_id(1) * BN + tl.arange(0, 2 * BN)
    tl.store(C + rm[:, None] * (2 * N) + rc[None, :], c, mask=(rm[:, None] < M) & (rc[None, :] < 2 * N))


def complex_product(a, b):
    (M, K), N = a.shape[:2], b.shape[1]
    c = empty(a, (M, N, 2), "float32")
    _complex[(triton.cdiv(M, 64), triton.cdiv(N, 32))](a, b, c, M, N, K, BM=64, BN=32, BK=32, num_warps=4)
    return c


def complex_reference(a, b):
    c = (a[..., 0] + 1j * a[..., 1]) @ (b[..., 0] + 1j * b[..., 1])
    return np.stack([c.real, c.imag], -1)


specimen(
    "complex_product", complex_product, complex_reference, 2e-3, 1e-3,
    ragged=lambda rng: {"a": normal(rng, 70, 48, 2, dtype=HALF), "b": normal(rng, 48, 48, 2, dtype=HALF)},
)  # fmt: skip


@triton.jit
def _last_adds(
    A, B, C, Parts, Done, M, N, K, per_split, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr
):
    """Split along K: the last program of a tile adds the parts of all."""
    tile, split = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(N, BN)
    rm = tile // tiles_n * BM + tl.arange(0, BM)
    rn = tile % tiles_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(split * per_split, min(K, (split + 1) * per_split), BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(A + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0)
        b = tl.load(B + rn[:, None] * K + rk[None, :], mask=(rn < N)[:, None] & (rk < K)[None, :], other=0.0)
        acc = tl.dot(a, b.trans(), acc)
    inner = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(Parts + (tile * SPLITS + split) * (BM * BN) + inner, acc)
    tl.debug_barrier()
    before = tl.atomic_add(Done + tile, 1, sem="acq_rel", scope="gpu")
    if before == SPLITS - 1:
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for i in tl.static_range(SPLITS):
            total += tl.load(Parts + (tile * SPLITS + i) * (BM * BN) + inner, cache_modifier=".cg")
        tl.store(C + rm[:, None] * N + rn[None, :], total.to(C.dtype.element_ty), (rm < M)[:, None] & (rn < N)[None, :])


def last_adds(a, b, splits):
    (M, K), N = a.shape, b.shape[0]
    c = empty(a, (M, N))
    tiles = triton.cdiv(M, 64) * triton.cdiv(N, 64)
    parts, done = empty(a, (tiles * splits * 64 * 64,), "float32"), zeros(a, (tiles,), "int32")
    per_split = triton.cdiv(triton.cdiv(K, 32), splits) * 32
    _last_adds[(tiles, splits)](a, b, c, parts, done, M, N, K, per_split, 64, 64, 32, splits, num_warps=4)
    return c


specimen(
    "last_adds", last_adds, lambda a, b, splits: a @ b.T, 1e-2, 2e-3,
    ragged=lambda rng: {"a": normal(rng, 40, 208, dtype=HALF), "b": normal(rng, 70, 208, dtype=HALF), "splits": 3},
)  # fmt: skip


@triton.jit
def _experts_by_index(
    x_desc, w_desc, y_desc, Rows, Expert, Gate, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The rows of a block belong to one expert. The kernel gathers them, and scatters the results to the same rows."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    expert = tl.load(Expert + pid_m)
    if expert < 0:
        return
    rows = tl.load(Rows + pid_m * BM + tl.arange(0, BM))
    gate = tl.load(Gate + pid_m * BM + tl.arange(0, BM))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = x_desc.gather(rows, k)
        w = w_desc.load([expert * N + pid_n * BN, k])
        acc = tl.dot(x, w.T, acc)
    y_desc.scatter((acc * gate[:, None]).to(y_desc.dtype), rows, pid_n * BN)


def experts_by_index(x, w, rows, expert, gate):
    (M, K), (E, N, _) = x.shape, w.shape
    y = zeros(x, (M, N))
    flat = w.reshape(E * N, K)
    _experts_by_index[(len(expert), triton.cdiv(N, 64))](
        TensorDescriptor.from_tensor(x, [1, 32]), TensorDescriptor.from_tensor(flat, [64, 32]), TensorDescriptor.from_tensor(y, [1, 64]),
        rows, expert, gate, N, K, 64, 64, 32, num_warps=4,
    )  # fmt: skip
    return y


def experts_by_index_reference(x, w, rows, expert, gate):
    y = np.zeros((len(x), w.shape[1]))
    for i, row in enumerate(rows):
        if row < len(x) and expert[i // 64] >= 0:
            y[row] = gate[i] * (w[expert[i // 64]] @ x[row])
    return y


def experts_by_index_inputs(rng, M, N, K, E):
    rows = np.full(64 * E, M, np.int32)  # rows without an expert are out of bounds
    where = rng.integers(0, E - 1, M)
    for e in range(E):
        (mine,) = np.nonzero(where == e)
        rows[64 * e : 64 * e + len(mine)] = mine[:64]
    expert = np.arange(E, dtype=np.int32)
    expert[-1] = -1
    return {
        "x": normal(rng, M, K, dtype=HALF), "w": normal(rng, E, N, K, dtype=HALF), "rows": rows, "expert": expert,
        "gate": rng.random(64 * E).astype(np.float32),
    }  # fmt: skip


specimen(
    "experts_by_index", experts_by_index, experts_by_index_reference, 1e-2, 2e-3,
    ragged=lambda rng: experts_by_index_inputs(rng, 60, 128, 48, 3),
)  # fmt: skip


@triton.jit
def _added_boxes(A, B, out_desc, M, N, K, per_split, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Split along K: TMA adds the parts to the result."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    begin = tl.program_id(2) * per_split
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(begin, min(begin + per_split, K), BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(A + rk[:, None] * M + rm[None, :], mask=(rk < K)[:, None] & (rm < M)[None, :], other=0.0)
        b = tl.load(B + rk[:, None] * N + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :], other=0.0)
        acc = tl.dot(a.T, b, acc)
    out_desc.atomic_add([tl.program_id(0) * BM, tl.program_id(1) * BN], acc)


def added_boxes(a, b):
    """Computes a.T @ b, as for gradients of weights."""
    (K, M), N = a.shape, b.shape[1]
    c = zeros(a, (M, N), "float32")
    grid = (triton.cdiv(M, 64), triton.cdiv(N, 64), 2)
    _added_boxes[grid](a, b, TensorDescriptor.from_tensor(c, [64, 64]), M, N, K, 64, 64, 64, 32, num_warps=4)
    return c


specimen(
    "added_boxes", added_boxes, lambda a, b: a.T @ b, 2e-3, 1e-3,
    ragged=lambda rng: {"a": normal(rng, 100, 80, dtype=HALF), "b": normal(rng, 100, 80, dtype=HALF)},
)  # fmt: skip


@triton.jit
def _block_scaled(
    a_desc, a_scale, b_desc, b_scale, C, M, N, K, FORMAT_A: tl.constexpr, FORMAT_B: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The scales have the layout of the hardware: (rows / 128, K / 128, 32, 4, 4)."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    per_a: tl.constexpr = 2 if FORMAT_A == "e2m1" else 1
    per_b: tl.constexpr = 2 if FORMAT_B == "e2m1" else 1
    REPEAT_K: tl.constexpr = BK // 128
    inner = tl.arange(0, 512 * REPEAT_K)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    blocks = tl.cdiv(K, 128)
    for k in tl.range(0, tl.cdiv(K, BK), num_stages=2):
        a = a_desc.load([pid_m * BM, k * BK // per_a])
        b = b_desc.load([pid_n * BN, k * BK // per_b])
        sa = tl.load(a_scale + (pid_m * blocks + k * REPEAT_K) * 512 + inner)
        sb = tl.load(b_scale + (pid_n * blocks + k * REPEAT_K) * 512 + inner)
        sa = sa.reshape(1, REPEAT_K, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BM, BK // 32)
        sb = sb.reshape(1, REPEAT_K, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BN, BK // 32)
        acc = tl.dot_scaled(a, sa, FORMAT_A, b.T, sb, FORMAT_B, acc)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    tl.store(C + rm[:, None] * N + rn[None, :], acc.to(C.dtype.element_ty), (rm[:, None] < M) & (rn[None, :] < N))


def block_scaled(a, b, a_scale, b_scale, formats):
    """Returns a @ b.T with packed scales for blocks of 128 rows."""
    M, N, K = a.shape[0], b.shape[0], a_scale.shape[1] * 128
    c = empty(a, (M, N), "float16")
    a_desc, b_desc = (
        TensorDescriptor.from_tensor(
            x if f == "e2m1" else triton.reinterpret(x, tl.float8e4nv), [128, 64 if f == "e2m1" else 128]
        )
        for x, f in zip((a, b), formats, strict=True)
    )
    _block_scaled[(triton.cdiv(M, 128), triton.cdiv(N, 128))](
        a_desc, a_scale, b_desc, b_scale, c, M, N, K, *formats, 128, 128, 128, num_warps=8
    )
    return c


def block_scaled_reference(a, b, a_scale, b_scale, formats):
    def both(x, scale, kind):
        return scaled(numbers(x, kind), scale.transpose(0, 3, 2, 1, 4).reshape(scale.shape[0] * 128, -1)[: len(x)])

    return both(a, a_scale, formats[0]) @ both(b, b_scale, formats[1]).T


def block_scaled_inputs(rng, M, N, K, formats):
    scale = lambda n: integers(rng, 124, 130, -(-n // 128), K // 128, 32, 4, 4, dtype=np.uint8)  # noqa: E731
    return {
        "a": codes(rng, M, K, formats[0]),
        "b": codes(rng, N, K, formats[1]),
        "a_scale": scale(M),
        "b_scale": scale(N),
        "formats": formats,
    }


specimen(
    "block_scaled", block_scaled, block_scaled_reference, 1e-2, 2e-3,
    mixed=lambda rng: block_scaled_inputs(rng, 130, 128, 256, ("e4m3", "e2m1")),
    fp4=lambda rng: block_scaled_inputs(rng, 128, 100, 128, ("e2m1", "e2m1")),
)  # fmt: skip


@triton.jit
def _halves_of_k(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two products use the two halves of one load of B."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rk = tl.arange(0, BK)
    even = tl.zeros((BM, BN), tl.float32)
    odd = tl.zeros((BM, BN), tl.float32)
    k = 0
    while k < K:
        b = tl.load(B + (k + tl.arange(0, 2 * BK))[:, None] * N + rn[None, :], rn[None, :] < N, other=0.0)
        first, second = b.reshape(2, BK, BN).permute(1, 2, 0).split()
        a_ptrs = A + (rm % M)[:, None] * K + (k + rk)[None, :]
        even = tl.dot(tl.load(a_ptrs), first, even)
        odd = tl.dot(tl.load(a_ptrs + BK), second, odd)
        k += 2 * BK
    tl.store(C + rm[:, None] * N + rn[None, :], even + odd, mask=(rm[:, None] < M) & (rn[None, :] < N))


def halves_of_k(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N), "float32")
    _halves_of_k[(triton.cdiv(M, 64),)](a, b, c, M, N, K, BM=64, BN=64, BK=32)
    return c


specimen(
    "halves_of_k", halves_of_k, lambda a, b: a @ b, 2e-3, 1e-3,
    ragged=lambda rng: {"a": normal(rng, 70, 128, dtype=HALF), "b": normal(rng, 128, 48, dtype=HALF)},
)  # fmt: skip
