"""Reductions, shapes, loops that carry tiles, indirect loads."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def softmax(x, y, stride, n, BLOCK: bl.constexpr):
    row = bl.program_id(0)
    i = bl.arange(0, BLOCK)
    v = bl.load(x + row * stride + i, mask=i < n, other=-float("inf"))
    e = bl.exp(v - bl.max(v, axis=0))
    bl.store(y + row * stride + i, e / bl.sum(e, axis=0), mask=i < n)


def _softmax_reference(a):
    y, n = wide(a["y"]), a["n"]
    v = wide(a["x"])[:, :n]
    e = np.exp(v - v.max(1, keepdims=True))
    y[:, :n] = e / e.sum(1, keepdims=True)
    return {"y": y}


for _n, _block in ((781, 1024), (1, 16), (128, 128), (1000, 4096)):
    case(
        f"softmax_{_n}", softmax,
        lambda rng, n=_n, block=_block: {
            "x": normal(rng, (5, n + 3)), "y": poison((5, n + 3), np.float32), "stride": n + 3, "n": n, "BLOCK": block,
        },
        _softmax_reference, grid=(5,),
    )  # fmt: skip


@blocknb.kernel
def reductions(x, sum0, sum1, max1, min0, argmax1, argmin0, total, M: bl.constexpr, N: bl.constexpr):
    rows, columns = bl.arange(0, M), bl.arange(0, N)
    v = bl.load(x + rows[:, None] * N + columns[None, :])
    bl.store(sum0 + columns, bl.sum(v, axis=0))
    bl.store(sum1 + rows, bl.sum(v, axis=1))
    bl.store(max1 + rows, bl.max(v, axis=1))
    bl.store(min0 + columns, bl.min(v, axis=0))
    bl.store(argmax1 + rows, bl.argmax(v, axis=1))
    bl.store(argmin0 + columns, bl.argmin(v, axis=0))
    bl.store(total, bl.sum(v))


def _reductions_reference(a):
    x = wide(a["x"])
    return {
        "sum0": x.sum(0),
        "sum1": x.sum(1),
        "max1": x.max(1),
        "min0": x.min(0),
        "argmax1": x.argmax(1),
        "argmin0": x.argmin(0),
        "total": np.array([x.sum()]),
    }


for _m, _n, _dtype in ((64, 32, np.float32), (4, 256, np.float32), (256, 2, np.float64), (32, 64, np.int32)):

    def _make(rng, m=_m, n=_n, dtype=_dtype):
        x = normal(rng, (m, n), dtype) if np.dtype(dtype).kind == "f" else integers(rng, (m, n), dtype, -50, 50)
        outs = {"sum0": n, "sum1": m, "max1": m, "min0": n}
        return (
            {"x": x}
            | {k: poison(s, dtype) for k, s in outs.items()}
            | {
                "argmax1": poison(m, np.int32),
                "argmin0": poison(n, np.int32),
                "total": poison(1, dtype),
                "M": m,
                "N": n,
            }
        )

    case(
        f"reductions_{_m}x{_n}_{np.dtype(_dtype).name}", reductions, _make, _reductions_reference, rtol=1e-5, atol=1e-4
    )


@blocknb.kernel
def reduce_middle(x, y, A: bl.constexpr, B: bl.constexpr, C: bl.constexpr):
    v = bl.reshape(bl.load(x + bl.arange(0, A * B * C)), (A, B, C))
    s = bl.sum(v, axis=1)
    bl.store(y + bl.arange(0, A)[:, None] * C + bl.arange(0, C)[None, :], s)


case(
    "reduce_middle", reduce_middle, lambda rng: {"x": normal(rng, (8, 4, 32)), "y": poison((8, 32), np.float32), "A": 8, "B": 4, "C": 32},
    lambda a: {"y": wide(a["x"]).sum(1)},
)  # fmt: skip


@blocknb.kernel
def transpose(x, y, m, n, sx, sy, M: bl.constexpr, N: bl.constexpr):
    rows = bl.program_id(0) * M + bl.arange(0, M)
    columns = bl.program_id(1) * N + bl.arange(0, N)
    v = bl.load(x + rows[:, None] * sx + columns[None, :], mask=(rows[:, None] < m) & (columns[None, :] < n))
    bl.store(y + columns[:, None] * sy + rows[None, :], bl.trans(v), mask=(columns[:, None] < n) & (rows[None, :] < m))


def _transpose_case(name, dtype):
    def make(rng):
        return {
            "x": normal(rng, (70, 50), dtype),
            "y": poison((50, 70), dtype),
            "m": 70,
            "n": 50,
            "sx": 50,
            "sy": 70,
            "M": 32,
            "N": 64,
        }

    case(name, transpose, make, lambda a: {"y": wide(a["x"]).T}, grid=(3, 1), rtol=0, atol=0)


_transpose_case("transpose_float32", np.float32)
_transpose_case("transpose_float16", np.float16)


@blocknb.kernel
def layer_norm(x, w, b, y, n, eps, BLOCK: bl.constexpr):
    row = bl.program_id(0)
    mean = bl.zeros((BLOCK,), dtype=bl.float32)
    for start in range(0, n, BLOCK):
        i = start + bl.arange(0, BLOCK)
        mean += bl.load(x + row * n + i, mask=i < n, other=0.0).to(bl.float32)
    mu = bl.sum(mean, axis=0) / n
    square = bl.zeros((BLOCK,), dtype=bl.float32)
    for start in range(0, n, BLOCK):
        i = start + bl.arange(0, BLOCK)
        v = bl.load(x + row * n + i, mask=i < n, other=0.0).to(bl.float32)
        d = bl.where(i < n, v - mu, 0.0)
        square += d * d
    scale = bl.rsqrt(bl.sum(square, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        i = start + bl.arange(0, BLOCK)
        v = bl.load(x + row * n + i, mask=i < n).to(bl.float32)
        out = (v - mu) * scale * bl.load(w + i, mask=i < n) + bl.load(b + i, mask=i < n)
        bl.store(y + row * n + i, out, mask=i < n)


def _layer_norm_reference(a):
    x = wide(a["x"])
    centred = x - x.mean(1, keepdims=True)
    return {"y": centred / np.sqrt((centred**2).mean(1, keepdims=True) + a["eps"]) * wide(a["w"]) + wide(a["b"])}


for _dtype, _tolerance in ((np.float32, 1e-5), (np.float16, 2e-3)):

    def _make(rng, dtype=_dtype):
        return {
            "x": normal(rng, (3, 500), dtype),
            "w": normal(rng, 500),
            "b": normal(rng, 500),
            "y": poison((3, 500), dtype),
            "n": 500,
            "eps": 1e-5,
            "BLOCK": 256,
        }

    case(
        f"layer_norm_{np.dtype(_dtype).name}",
        layer_norm,
        _make,
        _layer_norm_reference,
        grid=(3,),
        rtol=_tolerance,
        atol=_tolerance,
    )


@blocknb.kernel
def online_softmax(x, y, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    top = bl.full((ROWS,), -float("inf"), bl.float32)
    total = bl.zeros((ROWS,), bl.float32)
    pointers = x + rows[:, None] * n + columns[None, :]
    for start in range(0, n, BLOCK):
        v = bl.load(pointers, mask=columns[None, :] < n - start, other=-float("inf"))
        new_top = bl.maximum(top, bl.max(v, axis=1))
        total = total * bl.exp(top - new_top) + bl.sum(bl.exp(v - new_top[:, None]), axis=1)
        top = new_top
        pointers += BLOCK
    for start in range(0, n, BLOCK):
        i = start + columns
        v = bl.load(x + rows[:, None] * n + i[None, :], mask=i[None, :] < n)
        bl.store(y + rows[:, None] * n + i[None, :], bl.exp(v - top[:, None]) / total[:, None], mask=i[None, :] < n)


def _rows_softmax(a):
    e = np.exp(wide(a["x"]) - wide(a["x"]).max(1, keepdims=True))
    return {"y": e / e.sum(1, keepdims=True)}


case(
    "online_softmax",
    online_softmax,
    lambda rng: {"x": normal(rng, (16, 200)), "y": poison((16, 200), np.float32), "n": 200, "ROWS": 8, "BLOCK": 64},
    _rows_softmax,
    grid=(2,),
)


@blocknb.kernel
def gather(table, index, out, n, width, BLOCK: bl.constexpr, WIDTH: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    row = bl.load(index + i, mask=i < n, other=0)
    j = bl.arange(0, WIDTH)
    inside = (i[:, None] < n) & (j[None, :] < width)
    bl.store(
        out + i[:, None] * width + j[None, :],
        bl.load(table + row[:, None] * width + j[None, :], mask=inside),
        mask=inside,
    )


case(
    "gather", gather,
    lambda rng: {
        "table": normal(rng, (40, 24)), "index": integers(rng, 100, np.int64, 0, 39), "out": poison((100, 24), np.float32),
        "n": 100, "width": 24, "BLOCK": 64, "WIDTH": 32,
    },
    lambda a: {"out": a["table"][a["index"]]}, grid=(2,), rtol=0, atol=0,
)  # fmt: skip


@blocknb.kernel
def matvec(a, x, y, m, n, M: bl.constexpr, N: bl.constexpr):
    rows = bl.program_id(0) * M + bl.arange(0, M)
    acc = bl.zeros((M,), bl.float32)
    for start in range(0, n, N):
        columns = start + bl.arange(0, N)
        tile = bl.load(
            a + rows[:, None] * n + columns[None, :], mask=(rows[:, None] < m) & (columns[None, :] < n), other=0.0
        )
        acc += bl.sum(tile * bl.load(x + columns, mask=columns < n, other=0.0)[None, :], axis=1)
    bl.store(y + rows, acc, mask=rows < m)


case(
    "matvec", matvec,
    lambda rng: {
        "a": normal(rng, (45, 130)), "x": normal(rng, 130), "y": poison(50, np.float32), "m": 45, "n": 130, "M": 32, "N": 64,
    },
    lambda a: {"y": np.concatenate([wide(a["a"]) @ wide(a["x"]), np.full(5, np.nan)])}, grid=(2,), rtol=1e-4, atol=1e-4,
)  # fmt: skip
