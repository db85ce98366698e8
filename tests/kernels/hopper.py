"""Products whose tiles suit wgmma on sm_90a (other targets use mma.sync): every dtype, order and split."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from blocknb.kernels.tiling import operand_descriptor
from blocknb.kernels.wide_tiles import store_part
from kernels.base import case, normal, poison, wide
from kernels.float8 import product_case
from kernels.products import attention_case, matmul_case


def wgmma_case(name, *args, **options):
    matmul_case(f"wgmma_{name}", *args, **options)


wgmma_case("fp16", np.float16, np.float16, 100, 72, 80, (64, 64, 32), order="nt", rtol=2e-3)
wgmma_case("fp16_parts", np.float16, np.float16, 72, 144, 48, (64, 128, 16), order="nt", leaky=True, rtol=2e-3)
wgmma_case("fp16_nn", np.float16, np.float32, 72, 100, 40, (64, 128, 16), num_warps=8, rtol=1e-4)
wgmma_case(
    "fp16_tn_leaky", np.float16, np.float16, 130, 60, 70, (128, 64, 64), order="tn", leaky=True, num_warps=8, rtol=2e-3
)
wgmma_case("bf16_tt", ml_dtypes.bfloat16, np.float32, 64, 40, 150, (64, 32, 128), order="tt", num_warps=8, rtol=1e-4)
wgmma_case("bf16_narrow", ml_dtypes.bfloat16, np.float32, 120, 9, 64, (128, 8, 64), rtol=1e-4)
wgmma_case("fp16_narrow_nn", np.float16, np.float32, 60, 16, 80, (64, 16, 64), num_warps=8, rtol=1e-4)
wgmma_case("tf32", np.float32, np.float32, 64, 72, 48, (64, 64, 32), order="nt", rtol=5e-3)
wgmma_case("tf32_tn", np.float32, np.float32, 64, 20, 80, (64, 32, 64), order="tn", num_warps=4, rtol=5e-3)
wgmma_case("int8", np.int8, np.int32, 64, 64, 96, (64, 64, 64), order="nt")
wgmma_case("int8_nn", np.int8, np.int32, 100, 40, 96, (128, 64, 32), num_warps=8)
attention_case("wgmma_attention")
attention_case("wgmma_attention_wide", 128, 64, 64, 130, ml_dtypes.bfloat16, num_warps=8)
# wgmma adds products of 8-bit floats with fewer bits than an fp32 has.
product_case(bl.float8e4nv, bl.float8e4nv, 64, 32, 64, "wgmma_", rtol=2e-3, atol=2e-2)
product_case(bl.float8e4nv, bl.float8e5, 128, 16, 128, "wgmma_", rtol=2e-3, atol=2e-2)


@blocknb.kernel
def chain(a, b, c, out, M: bl.constexpr, K: bl.constexpr, N: bl.constexpr):
    """Computes r = a @ b rounded, and r @ c + r: operand A in registers, in shared memory in two layouts, and one operand twice."""
    m, k, n = bl.arange(0, M), bl.arange(0, K), bl.arange(0, N)
    ta, tb = bl.load(a + m[:, None] * K + k[None, :]), bl.load(b + k[:, None] * K + k[None, :])
    first = bl.dot(ta, tb)
    second = bl.dot((first * 0.25).to(a.dtype.element_ty), tb, first)
    tc = bl.load(c + k[:, None] * N + n[None, :])
    for _ in range(2):
        if bl.program_id(0) == 0:
            second = bl.dot(ta, tb, second)
    bl.store(out + m[:, None] * N + n[None, :], bl.dot(second.to(a.dtype.element_ty), tc))


def chain_case(name, dtype, m, k, n, num_warps, rtol):
    def make(rng):
        arrays = {"a": normal(rng, (m, k)), "b": normal(rng, (k, k)), "c": normal(rng, (k, n))}
        arrays = {x: (value / 4).astype(dtype) for x, value in arrays.items()}
        return arrays | {"out": poison((m, n), np.float32), "M": m, "K": k, "N": n}

    def reference(x):
        a, b, c = (wide(x[name]) for name in "abc")
        first = a @ b
        second = wide((first * 0.25).astype(dtype)) @ b + first + 2 * (a @ b)
        return {"out": wide(second.astype(dtype)) @ c}

    options = {"num_warps": num_warps}
    case(f"wgmma_chain_{name}", chain, make, reference, rtol=rtol, atol=rtol * 20, options=options)


chain_case("fp16", np.float16, 64, 64, 32, 4, 4e-3)
chain_case("fp16_split", np.float16, 64, 64, 128, 8, 4e-3)
chain_case("tf32", np.float32, 128, 32, 16, 8, 5e-3)


@blocknb.kernel
def gated(x, g, u, out, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """silu(x @ g) * (x @ u): two products per iteration, both in flight until the next one."""
    m, columns, ok = bl.arange(0, BM), bl.program_id(0) * BN + bl.arange(0, BN), bl.arange(0, BK)
    gate, up = bl.zeros((BM, BN), bl.float32), bl.zeros((BM, BN), bl.float32)
    for start in range(0, k, BK):
        inside = start + ok < k
        tx = bl.load(x + m[:, None] * k + (start + ok)[None, :], mask=inside[None, :], other=0.0)
        at = (start + ok)[:, None] * n + columns[None, :]
        within = inside[:, None] & (columns[None, :] < n)
        gate = bl.dot(tx, bl.load(g + at, mask=within, other=0.0), gate)
        up = bl.dot(tx, bl.load(u + at, mask=within, other=0.0), up)
    result = gate * bl.sigmoid(gate) * up
    bl.store(out + m[:, None] * n + columns[None, :], result, mask=columns[None, :] < n)


def _gated_make(rng):
    shapes = {"x": (128, 80), "g": (80, 48), "u": (80, 48)}
    arrays = {name: (normal(rng, shape) / 4).astype(np.float16) for name, shape in shapes.items()}
    return arrays | {"out": poison((128, 48), np.float32), "n": 48, "k": 80, "BM": 128, "BN": 32, "BK": 16}


def _gated_reference(a):
    gate, up = (wide(a["x"]) @ wide(a[name]) for name in "gu")
    return {"out": gate / (1 + np.exp(-gate)) * up}


case("wgmma_gated", gated, _gated_make, _gated_reference, grid=(2,), rtol=1e-3, atol=1e-3)


@blocknb.kernel
def boxed(a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """leaky_relu(a @ b.T) with tensor descriptors: a producer warp copies the operands, and TMA stores the result."""
    rows, columns = (
        bl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK]),
        bl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK]),
    )
    result, across = bl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN]), bl.cdiv(n, BN)
    row, column = bl.program_id(0) // across * BM, bl.program_id(0) % across * BN
    total = bl.zeros((BM, BN), bl.float32)
    for inner in range(0, k, BK):
        total = bl.dot(rows.load([row, inner]), columns.load([column, inner]).T, total)
    total = bl.where(total >= 0, total, 0.01 * total)
    result.store([row, column], total.to(c.dtype.element_ty))


def boxed_case(name, dtype, m, n, k, tile, rtol, **options):
    def make(rng):
        a, b = (normal(rng, (rows, k)).astype(np.float16) for rows in (m, n))
        return {"a": a, "b": b, "c": poison((m, n), dtype), "m": m, "n": n, "k": k} | dict(
            zip(("BM", "BN", "BK"), tile, strict=True)
        )

    def reference(arguments):
        total = wide(arguments["a"]) @ wide(arguments["b"]).T
        return {"c": np.where(total >= 0, total, 0.01 * total)}

    grid = (-(-m // tile[0]) * -(-n // tile[1]),)
    case(f"boxed_{name}", boxed, make, reference, grid=grid, rtol=rtol, atol=rtol, options=options)


boxed_case("fp16", np.float16, 72, 272, 48, (64, 128, 16), 4e-3)
boxed_case("fp32", np.float32, 136, 48, 48, (128, 32, 32), 1e-3, num_warps=8)
boxed_case("fp16_wide", np.float16, 72, 272, 48, (64, 256, 32), 4e-3, num_stages=2)


@blocknb.kernel
def used_columns(
    a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, WIDTH: bl.constexpr, BK: bl.constexpr, TRANS_B: bl.constexpr
):
    """a @ b in tiles of BM by WIDTH columns, the first ones of a product of BM by BN: wgmma leaves out the others."""
    rows = bl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    columns = operand_descriptor(b, k, n, k if TRANS_B else n, BK, BN, TRANS_B)
    across = bl.cdiv(n, WIDTH)
    row, column = bl.program_id(0) // across * BM, bl.program_id(0) % across * WIDTH
    total = bl.zeros((BM, BN), bl.float32)
    for inner in range(0, k, BK):
        y = columns.load([column, inner]).T if TRANS_B else columns.load([inner, column])
        total = bl.dot(rows.load([row, inner]), y, total)
    store_part(c, m, n, n, None, row, column, total.to(c.dtype.element_ty), WIDTH)


def used_columns_case(name, width, block, transposed, m=72, n=176, k=96, **options):
    def make(rng):
        a, b = normal(rng, (m, k)).astype(np.float16), normal(rng, (n, k) if transposed else (k, n)).astype(np.float16)
        sizes = {"m": m, "n": n, "k": k, "BM": 64, "BN": block, "WIDTH": width, "BK": 64, "TRANS_B": transposed}
        return {"a": a, "b": b, "c": poison((m, n), np.float16), **sizes}

    def reference(x):
        return {"c": wide(x["a"]) @ wide(x["b"].T if transposed else x["b"])}

    grid = (-(-m // 64) * -(-n // width),)
    case(f"used_columns_{name}", used_columns, make, reference, grid=grid, rtol=4e-3, atol=4e-3, options=options)


used_columns_case("nn", 80, 128, False)
used_columns_case("nn_panels", 48, 256, False, num_stages=2)
used_columns_case("nt", 104, 128, True)


@blocknb.kernel
def crossed(a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """a @ b.T on a plain grid of two axes: the program swizzle groups its columns, here by four."""
    rows, columns = bl.program_id(0) * BM + bl.arange(0, BM), bl.program_id(1) * BN + bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        x = bl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        y = bl.load(
            b + columns[:, None] * k + inner[None, :], mask=(columns[:, None] < n) & (inner[None, :] < k), other=0.0
        )
        total = bl.dot(x, y.T, total)
    bl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


case(
    "crossed_fp16", crossed,
    lambda rng: {"a": normal(rng, (328, 32)).astype(np.float16), "b": normal(rng, (20, 32)).astype(np.float16),
                 "c": poison((328, 20), np.float32), "m": 328, "n": 20, "k": 32, "BM": 64, "BN": 8, "BK": 16},
    lambda x: {"c": wide(x["a"]) @ wide(x["b"]).T}, grid=(6, 3), rtol=1e-3, atol=1e-3, options={"num_warps": 4},
)  # fmt: skip
