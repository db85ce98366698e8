"""Matrix products of every dtype and order, and attention."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def matmul(
    a,
    b,
    c,
    m,
    n,
    k,
    sam,
    sak,
    sbk,
    sbn,
    scm,
    scn,
    BM: bl.constexpr,
    BN: bl.constexpr,
    BK: bl.constexpr,
    GROUP: bl.constexpr,
    LEAKY: bl.constexpr,
    PRECISION: bl.constexpr,
):
    pid = bl.program_id(0)
    across = bl.cdiv(n, BN)
    width = GROUP * across
    first = pid // width * GROUP
    size = min(bl.cdiv(m, BM) - first, GROUP)
    pm = first + (pid % width) % size
    pn = (pid % width) // size
    om = (pm * BM + bl.arange(0, BM)) % m
    on = (pn * BN + bl.arange(0, BN)) % n
    ok = bl.arange(0, BK)
    pa = a + om[:, None] * sam + ok[None, :] * sak
    pb = b + ok[:, None] * sbk + on[None, :] * sbn
    acc = bl.zeros((BM, BN), dtype=c.dtype.element_ty if c.dtype.element_ty.primitive_bitwidth > 16 else bl.float32)
    for step in range(bl.cdiv(k, BK)):
        ta = bl.load(pa, mask=ok[None, :] < k - step * BK, other=0)
        tb = bl.load(pb, mask=ok[:, None] < k - step * BK, other=0)
        acc = bl.dot(ta, tb, acc, input_precision=PRECISION)
        pa += BK * sak
        pb += BK * sbk
    if LEAKY:
        acc = bl.where(acc >= 0, acc, 0.01 * acc)
    cm = pm * BM + bl.arange(0, BM)
    cn = pn * BN + bl.arange(0, BN)
    bl.store(
        c + cm[:, None] * scm + cn[None, :] * scn,
        acc.to(c.dtype.element_ty),
        mask=(cm[:, None] < m) & (cn[None, :] < n),
    )


def matmul_case(
    name, operand, result, m, n, k, tile, *, order="nn", leaky=False, precision="tf32", rtol=1e-5, **options
):
    """C = A @ B, `order` n or t for each operand: t is stored column by column. `options` of the launch."""

    def operand_array(rng, shape, transposed):
        x = (
            normal(rng, shape[::-1] if transposed else shape)
            if np.dtype(operand) != np.int8
            else integers(rng, shape[::-1] if transposed else shape, np.int8)
        )
        x = x.astype(operand)
        return x.T if transposed else x

    def make(rng):
        a, b, c = (
            operand_array(rng, (m, k), order[0] == "t"),
            operand_array(rng, (k, n), order[1] == "t"),
            poison((m, n), result),
        )
        strides = [s // x.itemsize for x in (a, b, c) for s in x.strides]
        names = ("sam", "sak", "sbk", "sbn", "scm", "scn")
        sizes = {
            "m": m,
            "n": n,
            "k": k,
            "BM": tile[0],
            "BN": tile[1],
            "BK": tile[2],
            "GROUP": 4,
            "LEAKY": leaky,
            "PRECISION": precision,
        }
        return {"a": a, "b": b, "c": c} | dict(zip(names, strides, strict=True)) | sizes

    def reference(x):
        c = wide(x["a"]) @ wide(x["b"])
        return {"c": np.where(c >= 0, c, 0.01 * c) if leaky else c}

    programs, options = -(-m // tile[0]) * -(-n // tile[1]), {"num_warps": 4, **options}
    case(name, matmul, make, reference, grid=(programs,), rtol=rtol, atol=rtol * 10, options=options)


matmul_case("matmul_float16", np.float16, np.float32, 100, 72, 80, (64, 64, 32), rtol=1e-4)
matmul_case("matmul_float16_nt", np.float16, np.float16, 128, 64, 64, (64, 64, 32), order="nt", rtol=2e-3)
matmul_case(
    "matmul_float16_tn_leaky",
    np.float16,
    np.float16,
    70,
    64,
    50,
    (32, 64, 16),
    order="tn",
    leaky=True,
    rtol=2e-3,
    num_warps=8,
)
matmul_case("matmul_float16_small", np.float16, np.float32, 20, 17, 33, (16, 16, 16), rtol=1e-4, num_warps=1)
matmul_case("matmul_bfloat16", ml_dtypes.bfloat16, np.float32, 64, 64, 64, (64, 32, 32), rtol=1e-4)
matmul_case("matmul_tf32", np.float32, np.float32, 64, 72, 48, (64, 64, 32), rtol=5e-3)
matmul_case("matmul_tf32_tt", np.float32, np.float32, 64, 64, 32, (32, 64, 32), order="tt", rtol=5e-3)
matmul_case("matmul_ieee", np.float32, np.float32, 60, 50, 40, (32, 32, 16), precision="ieee", rtol=1e-4)
matmul_case("matmul_float64", np.float64, np.float64, 33, 40, 50, (32, 32, 16), rtol=1e-12)
matmul_case("matmul_int8", np.int8, np.int32, 64, 64, 96, (64, 64, 32))


@blocknb.kernel
def attention(q, k, v, out, n, scale, ROWS: bl.constexpr, COLUMNS: bl.constexpr, HEAD: bl.constexpr):
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns, head = bl.arange(0, COLUMNS), bl.arange(0, HEAD)
    tq = bl.load(q + rows[:, None] * HEAD + head[None, :], mask=rows[:, None] < n, other=0.0)
    top = bl.full((ROWS,), -float("inf"), bl.float32)
    total = bl.zeros((ROWS,), bl.float32)
    acc = bl.zeros((ROWS, HEAD), bl.float32)
    for start in range(0, n, COLUMNS):
        j = start + columns
        tk = bl.load(k + j[None, :] * HEAD + head[:, None], mask=j[None, :] < n, other=0.0)
        s = bl.where(j[None, :] < n, bl.dot(tq, tk) * scale, -float("inf"))
        new_top = bl.maximum(top, bl.max(s, axis=1))
        p = bl.exp(s - new_top[:, None])
        factor = bl.exp(top - new_top)
        total = total * factor + bl.sum(p, axis=1)
        tv = bl.load(v + j[:, None] * HEAD + head[None, :], mask=j[:, None] < n, other=0.0)
        acc = bl.dot(p.to(tv.dtype), tv, acc * factor[:, None])
        top = new_top
    bl.store(out + rows[:, None] * HEAD + head[None, :], acc / total[:, None], mask=rows[:, None] < n)


def _attention_reference(a):
    q, k, v = wide(a["q"]), wide(a["k"]), wide(a["v"])
    s = q @ k.T * a["scale"]
    e = np.exp(s - s.max(1, keepdims=True))
    return {"out": e / e.sum(1, keepdims=True) @ v}


def attention_case(name, rows=64, columns=32, head=32, n=100, dtype=np.float16, **options):
    def make(rng):
        sizes = {"n": n, "scale": head**-0.5, "ROWS": rows, "COLUMNS": columns, "HEAD": head}
        return {x: normal(rng, (n, head), dtype) for x in "qkv"} | {"out": poison((n, head), np.float32)} | sizes

    programs = -(-n // rows)
    case(name, attention, make, _attention_reference, grid=(programs,), options=options, rtol=5e-3, atol=5e-3)


attention_case("attention")
