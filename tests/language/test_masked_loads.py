"""A masked-out element of a load without `other` is zero everywhere: in lanes, scalars, boxes, products, and results of atomics."""

from __future__ import annotations

import everywhere
import numpy as np
import pytest
import seeds
from host_cpus import NEWER

import blocknb
import blocknb.language as tl

WAYS = ("eager", NEWER, "cpu", "ir sm_90a", "simt sm_75", "simt sm_90a")


@blocknb.kernel
def loads(x, out, one, old, counters, n, m, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < n))
    tl.store(out + N + at, tl.load(x + at, mask=(at % 3) == 0))
    r, c = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    both = tl.load(x + r * N + c, mask=(r < m) & (c < n))
    tl.store(out + 2 * N + r * N + c, both)
    tl.store(one, tl.load(x, mask=n < 0))
    tl.store(one + 1, tl.load(x + 1, mask=n > 0))
    box = tl.make_block_ptr(x, (m, n), (N, 1), (0, 0), (M, N), (1, 0))
    tl.store(out + (2 + M) * N + r * N + c, tl.load(box, boundary_check=(0, 1)))
    described = tl.make_tensor_descriptor(x, (m, N), (N, 1), (M, N))
    tl.store(out + (2 + 2 * M) * N + r * N + c, described.load([0, 4]))
    tl.store(old + at, tl.atomic_add(counters + at, 1, mask=at < n))
    tl.store(old + N + at, tl.atomic_xchg(counters + at, 9, mask=at < n))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_masked_out_elements_are_zero(dtype: str) -> None:
    rng, rows, columns = seeds.rng(), 8, 32
    n, m = int(rng.integers(1, columns)), int(rng.integers(1, rows))
    x = rng.integers(1, 100, (rows, columns)).astype(dtype)
    at = np.arange(columns)
    zero = np.zeros(1, dtype)[0]
    inside = (np.arange(rows)[:, None] < m) & (at < n)
    described = np.zeros_like(x)
    described[:m, : columns - 4] = x[:m, 4:]
    parts = [np.where(at < n, x[0], zero), np.where(at % 3 == 0, x[0], zero), np.where(inside, x, zero)]
    out = np.concatenate([p.ravel() for p in (*parts, np.where(inside, x, zero), described)])
    counters = rng.integers(1, 9, columns).astype(np.int32)
    old = np.concatenate([np.where(at < n, counters, 0), np.where(at < n, counters + 1, 0)]).astype(np.int32)
    arguments = {"x": x.ravel().copy(), "out": np.full(len(out), 7, dtype), "one": np.full(2, 7, dtype)}
    arguments |= {
        "old": np.full(2 * columns, 7, np.int32),
        "counters": counters,
        "n": n,
        "m": m,
        "M": rows,
        "N": columns,
    }
    wanted = {"out": out, "one": np.array([0, x[0, 1]], dtype), "old": old}
    wanted["counters"] = np.where(at < n, 9, counters).astype(np.int32)
    everywhere.check(loads, arguments, wanted, WAYS if dtype == "float32" else ("eager", "cpu"))


@blocknb.kernel
def product(a, b, out, k, K: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    r, s = tl.arange(0, BLOCK), tl.arange(0, DEPTH)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, DEPTH):
        inner = start + s
        x = tl.load(a + r[:, None] * K + inner[None, :], mask=inner[None, :] < k)
        y = tl.load(b + inner[:, None] * BLOCK + r[None, :], mask=inner[:, None] < k)
        total = tl.dot(x, y, total)
    tl.store(out + r[:, None] * BLOCK + r[None, :], total)


@pytest.mark.parametrize("way", ["eager", "cpu", "ir sm_80", "simt sm_80", "simt sm_90a"])
def test_products_read_masked_out_elements_as_zero(way: str) -> None:
    rng, block, most = seeds.rng(), 64, 128
    k = int(rng.integers(33, most - 8))
    a, b = (np.full(shape, np.nan, np.float16) for shape in ((block, most), (most, block)))
    a[:, :k], b[:k] = rng.integers(-3, 4, (block, k)), rng.integers(-3, 4, (k, block))
    wanted = a[:, :k].astype(np.float32) @ b[:k].astype(np.float32)
    arguments = {"a": a.ravel(), "b": b.ravel(), "out": np.full(block * block, np.nan, np.float32), "k": k}
    arguments |= {"K": most, "BLOCK": block, "DEPTH": 32}
    everywhere.check(product, arguments, {"out": wanted.ravel()}, (way,))
