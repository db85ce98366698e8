"""Kernels on tensor descriptors, made on the host and on the device. They are persistent and grouped products, convolution, a paged cache,
and rows gathered and added by index. Rows are padded to 16 bytes, as descriptors require."""

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from zoo.arrays import POISON, dtype_name, empty, full, strides, table, vector, zeros
from zoo.references import paged_decode
from zoo.registry import integers, normal, specimen


def scratch(like):
    """Sets the allocator from which Triton's launches take memory for the descriptors that a kernel makes."""
    triton.set_allocator(lambda size, alignment, stream: full(like, size, POISON, "int8"))


def set_block_sizes(nargs):
    m, n, k = nargs["BLOCK_M"], nargs["BLOCK_N"], nargs["BLOCK_K"]
    nargs["a_desc"].block_shape = [m, k]
    nargs["b_desc"].block_shape = [n, k]
    nargs["c_desc"].block_shape = [m, n // 2] if nargs["SUBTILE"] else [m, n]


def descriptor_configs():
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 16, "GROUP_M": 2, "SUBTILE": sub}, pre_hook=set_block_sizes
        )
        for m, n, sub in ((32, 32, True), (16, 32, False))
    ]


@triton.jit
def tile_of(tile, grid_m, grid_n, GROUP_M: tl.constexpr):
    width = GROUP_M * grid_n
    first = tile // width * GROUP_M
    size = min(grid_m - first, GROUP_M)
    return first + tile % size, tile % width // size


@triton.autotune(configs=descriptor_configs(), key=["M", "N", "K"], warmup=1, rep=2)
@triton.jit
def _host_descriptors(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SUBTILE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), grid_m * grid_n, PROGRAMS, flatten=True, warp_specialize=False):
        pid_m, pid_n = tile_of(tile, grid_m, grid_n, GROUP_M)
        row, column = pid_m * BLOCK_M, pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([row, k * BLOCK_K])
            b = b_desc.load([column, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        if SUBTILE:  # stores half of the columns at a time, so that the stored block is small
            acc = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(acc)
            c_desc.store([row, column], left.to(c_desc.dtype))
            c_desc.store([row, column + BLOCK_N // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([row, column], acc.to(c_desc.dtype))


def host_descriptor_matmul(a, b):
    """a @ b.T"""
    (M, K), N = a.shape, b.shape[0]
    c = empty(a, (M, N))
    one = [1, 1]  # the pre_hook of a configuration sets the block
    a_desc, b_desc, c_desc = (TensorDescriptor(x, list(x.shape), list(strides(x)), one) for x in (a, b, c))
    _host_descriptors[lambda META: (min(3, triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"])),)](
        a_desc, b_desc, c_desc, M, N, K, PROGRAMS=3
    )
    return c


specimen(
    "host_descriptor_matmul", host_descriptor_matmul, lambda a, b: a @ b.T, 1e-2, 2e-3,
    ragged=lambda rng: {"a": normal(rng, 70, 40, dtype=np.float16), "b": normal(rng, 88, 40, dtype=np.float16)},
)  # fmt: skip


@triton.jit
def _device_descriptors(
    A, B, Bias, C, M, N, K, lda, ldb, ldc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    a_desc = tl.make_tensor_descriptor(A, shape=[M, K], strides=[lda, 1], block_shape=[BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(B, shape=[K, N], strides=[ldb, 1], block_shape=[BLOCK_K, BLOCK_N])
    bias_desc = tl.make_tensor_descriptor(Bias, shape=[N], strides=[1], block_shape=[BLOCK_N])
    c_desc = tl.make_tensor_descriptor(C, shape=[M, N], strides=[ldc, 1], block_shape=[BLOCK_M, BLOCK_N])
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), grid_m * grid_n, tl.num_programs(0)):
        pid_m, pid_n = tl.swizzle2d(tile // grid_n, tile % grid_n, grid_m, grid_n, GROUP_M)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in tl.range(0, K, BLOCK_K, num_stages=3):
            acc = tl.dot(
                a_desc.load([pid_m * BLOCK_M, k]), b_desc.load([k, pid_n * BLOCK_N]), acc, input_precision="ieee"
            )
        acc += bias_desc.load([pid_n * BLOCK_N]).to(tl.float32)[None, :]
        c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(C.dtype.element_ty))


def device_descriptor_matmul(a, b, bias):
    (M, K), N = a.shape, b.shape[1]
    c = empty(a, (M, N))
    scratch(a)
    _device_descriptors[(4,)](
        a, b, bias, c, M, N, K, strides(a)[0], strides(b)[0], strides(c)[0], BLOCK_M=32, BLOCK_N=16, BLOCK_K=32, GROUP_M=2
    )  # fmt: skip
    return c


specimen(
    "device_descriptor_matmul", device_descriptor_matmul, lambda a, b, bias: a @ b + bias, 1e-4, 1e-5,
    ragged=lambda rng: {"a": normal(rng, 70, 52), "b": normal(rng, 52, 44), "bias": normal(rng, 44)},
)  # fmt: skip
specimen(
    "device_descriptor_matmul", device_descriptor_matmul, lambda a, b, bias: a @ b + bias, 5e-2, 1e-2,
    bf16=lambda rng: {name: normal(rng, *shape, dtype="bfloat16") for name, shape in (("a", (40, 40)), ("b", (40, 24)), ("bias", (24,)))},
)  # fmt: skip


@triton.jit
def _grouped_descriptors(
    a_table, b_table, c_table, sizes, groups, PROGRAMS: tl.constexpr, DTYPE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    end = 0
    for g in range(groups):
        m = tl.load(sizes + g * 3)
        n = tl.load(sizes + g * 3 + 1)
        k = tl.load(sizes + g * 3 + 2)
        tiles_n = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * tiles_n
        if tile >= end and tile < end + tiles:
            a = tl.make_tensor_descriptor(
                tl.load(a_table + g).to(tl.pointer_type(DTYPE)), [m, k], [k, 1], [BLOCK_M, BLOCK_K]
            )
            b = tl.make_tensor_descriptor(
                tl.load(b_table + g).to(tl.pointer_type(DTYPE)), [n, k], [k, 1], [BLOCK_N, BLOCK_K]
            )
            c = tl.make_tensor_descriptor(
                tl.load(c_table + g).to(tl.pointer_type(DTYPE)), [m, n], [n, 1], [BLOCK_M, BLOCK_N]
            )
            while tile < end + tiles:
                row, column = (tile - end) // tiles_n * BLOCK_M, (tile - end) % tiles_n * BLOCK_N
                acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for at in range(0, k, BLOCK_K):
                    acc += tl.dot(a.load([row, at]), b.load([column, at]).T)
                c.store([row, column], acc.to(DTYPE))
                tile += PROGRAMS
        end += tiles


def grouped_descriptors(a, b):
    c = [empty(x, (x.shape[0], y.shape[0])) for x, y in zip(a, b, strict=True)]
    sizes = [n for x, y in zip(a, b, strict=True) for n in (x.shape[0], y.shape[0], x.shape[1])]
    scratch(a[0])
    _grouped_descriptors[(4,)](
        table(a), table(b), table(c), vector(a[0], sizes), len(a), PROGRAMS=4, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
        DTYPE={"float16": tl.float16, "float32": tl.float32}[dtype_name(a[0])],
    )  # fmt: skip
    return tuple(c)


def grouped_inputs(rng, *sizes):
    return {
        "a": [normal(rng, m, k, dtype=np.float16) for m, n, k in sizes],
        "b": [normal(rng, n, k, dtype=np.float16) for m, n, k in sizes],
    }


specimen(
    "grouped_descriptors", grouped_descriptors, lambda a, b: tuple(x @ y.T for x, y in zip(a, b, strict=True)), 1e-2, 2e-3,
    three=lambda rng: grouped_inputs(rng, (20, 40, 40), (5, 16, 8), (50, 24, 72)),
)  # fmt: skip


@triton.jit
def _conv_descriptors(
    X, W, Y, batch, height, width, channels, outputs, PAD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    x = tl.make_tensor_descriptor(
        X, [batch, height, width, channels], [height * width * channels, width * channels, channels, 1], [1, 1, BLOCK_W, BLOCK_C]
    )  # fmt: skip
    w = tl.make_tensor_descriptor(
        W, [KH * KW, channels, outputs], [channels * outputs, outputs, 1], [1, BLOCK_C, BLOCK_O]
    )
    y = tl.make_tensor_descriptor(
        Y, [batch, height, width, outputs], [height * width * outputs, width * outputs, outputs, 1], [1, 1, BLOCK_W, BLOCK_O]
    )  # fmt: skip
    column = tl.program_id(0) * BLOCK_W
    row = tl.program_id(1) % height
    image = tl.program_id(1) // height
    out = tl.program_id(2) * BLOCK_O
    acc = tl.zeros([BLOCK_W, BLOCK_O], tl.float32)
    for tap in range(KH * KW):
        for c in range(0, channels, BLOCK_C):
            # A descriptor reads zeros outside the image, which serve as padding.
            pixels = x.load([image, row + tap // KW - PAD, column + tap % KW - PAD, c]).reshape(BLOCK_W, BLOCK_C)
            weights = w.load([tap, c, out]).reshape(BLOCK_C, BLOCK_O)
            acc = tl.dot(pixels, weights, acc)
    y.store([image, row, column, out], acc.to(Y.dtype.element_ty).reshape(1, 1, BLOCK_W, BLOCK_O))


def conv_descriptors(x, weight):
    """x is (batch, height, width, channels), weight (3, 3, channels, outputs)."""
    batch, height, width, channels = x.shape
    outputs = weight.shape[-1]
    y = empty(x, (batch, height, width, outputs))
    scratch(x)
    _conv_descriptors[(triton.cdiv(width, 16), batch * height, triton.cdiv(outputs, 16))](
        x, weight, y, batch, height, width, channels, outputs, PAD=1, KH=3, KW=3, BLOCK_W=16, BLOCK_C=16, BLOCK_O=16
    )
    return y


def conv_reference(x, weight):
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), (1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows, weight)


specimen(
    "conv_descriptors", conv_descriptors, conv_reference, 1e-2, 2e-3,
    padded=lambda rng: {"x": normal(rng, 2, 5, 19, 24, dtype=np.float16), "weight": normal(rng, 3, 3, 24, 8, dtype=np.float16)},
)  # fmt: skip


@triton.jit
def _paged_descriptors(
    q_desc, k_desc, v_desc, Out, tables, lengths, scale, pages, GROUP: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr
):
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + sequence)
    q = q_desc.load([sequence, kv_head * GROUP, 0]).reshape(GROUP, D)
    m = tl.full([GROUP], -float("inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, D], tl.float32)
    for p in range(tl.cdiv(length, PAGE)):
        page = tl.load(tables + sequence * pages + p)
        k = k_desc.load([page, kv_head, 0, 0]).reshape(PAGE, D)
        v = v_desc.load([page, kv_head, 0, 0]).reshape(PAGE, D)
        s = tl.dot(q, k.T) * scale
        s = tl.where((p * PAGE + tl.arange(0, PAGE) < length)[None, :], s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1))
        weight = tl.exp(s - new[:, None])
        shrink = tl.exp(m - new)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        total = total * shrink + tl.sum(weight, 1)
        m = new
    at = (sequence * tl.num_programs(1) + kv_head) * GROUP + tl.arange(0, GROUP)
    tl.store(
        Out + at[:, None] * D + tl.arange(0, D)[None, :], tl.div_rn(acc, total[:, None] + tl.zeros_like(acc)).to(tl.float16)
    )  # fmt: skip


def paged_descriptors(q, k_cache, v_cache, tables, lengths):
    """Attention with one query per sequence; caches are (pages, kv_heads, page, dim)."""
    batch, heads, dim = q.shape
    _, kv_heads, page, _ = k_cache.shape
    out, group = empty(q), heads // kv_heads
    _paged_descriptors[(batch, kv_heads)](
        TensorDescriptor.from_tensor(q, [1, group, dim]), TensorDescriptor.from_tensor(k_cache, [1, 1, page, dim]),
        TensorDescriptor.from_tensor(v_cache, [1, 1, page, dim]), out, tables, lengths, dim**-0.5, tables.shape[1], GROUP=group,
        PAGE=page, D=dim,
    )  # fmt: skip
    return out


def paged_reference(q, k_cache, v_cache, tables, lengths):
    return paged_decode(q, k_cache.swapaxes(1, 2), v_cache.swapaxes(1, 2), tables, lengths)


def paged_inputs(rng, batch, heads, kv_heads, dim, page):
    pages = 4
    caches = (normal(rng, batch * pages + 2, kv_heads, page, dim, dtype=np.float16) for _ in range(2))
    order = rng.permutation(batch * pages + 2)[: batch * pages].reshape(batch, pages).astype(np.int32)
    return {
        "q": normal(rng, batch, heads, dim, dtype=np.float16), "k_cache": next(caches), "v_cache": next(caches), "tables": order,
        "lengths": integers(rng, 1, pages * page + 1, batch),
    }  # fmt: skip


specimen(
    "paged_descriptors", paged_descriptors, paged_reference, 2e-2, 5e-3,
    grouped=lambda rng: paged_inputs(rng, 3, 8, 2, 32, 16),
)  # fmt: skip


@triton.jit
def _gather_rows(desc, out_desc, indices, rows, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * COLUMNS
    picked = desc.gather(tl.load(indices + i, mask=i < rows, other=0), column)
    out_desc.store([tl.program_id(0) * BLOCK, column], picked)


@triton.jit
def _add_blocks(desc, total_desc, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    block = desc.load([tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS])
    total_desc.atomic_add([0, tl.program_id(1) * COLUMNS], block)


def pick_and_add(x, indices):
    """Returns x[indices] and the sum of its blocks of 8 rows."""
    rows, columns = indices.shape[0], x.shape[1]
    picked, total = empty(x, (rows, columns)), zeros(x, (8, columns))
    grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 16))
    _gather_rows[grid](
        TensorDescriptor.from_tensor(x, [1, 16]), TensorDescriptor.from_tensor(picked, [8, 16]), indices, rows, BLOCK=8,
        COLUMNS=16,
    )  # fmt: skip
    _add_blocks[grid](
        TensorDescriptor.from_tensor(picked, [8, 16]), TensorDescriptor.from_tensor(total, [8, 16]), ROWS=8, COLUMNS=16
    )
    return picked, total


def pick_and_add_reference(x, indices):
    padded = np.zeros((-(-len(indices) // 8) * 8, x.shape[1]))
    padded[: len(indices)] = x[indices]
    return x[indices], padded.reshape(-1, 8, x.shape[1]).sum(0)


specimen(
    "pick_and_add", pick_and_add, pick_and_add_reference, 1e-5, 1e-6,
    ragged=lambda rng: {"x": normal(rng, 30, 36), "indices": integers(rng, 0, 30, 21)},
)  # fmt: skip
