"""Atomics: every operation over its dtypes, on tiles of several ranks and scalars, with and without the old value."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, poison

FLOATS = (np.float32, np.float64)
WORDS = (np.int32, np.uint32, np.int64, np.uint64)


@blocknb.kernel
def updates(sums, highs, lows, x, n, BLOCK: bl.constexpr):
    """All elements of all programs update the same few cells."""
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    v = bl.load(x + i, mask=i < n)
    bl.atomic_add(sums + i % 7, v, mask=i < n)
    bl.atomic_max(highs + i % 5, v, mask=i < n, sem="relaxed")
    bl.atomic_min(lows + i % 3, v, mask=i < n, sem="release", scope="sys")


def _updates_reference(a: Any) -> dict:
    i = np.arange(a["n"])
    out = {name: a[name].copy() for name in ("sums", "highs", "lows")}
    for fn, name, cells in ((np.add, "sums", 7), (np.maximum, "highs", 5), (np.minimum, "lows", 3)):
        fn.at(out[name], i % cells, a["x"])
    return out


def _numbers(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    if np.dtype(dtype).kind == "f":  # sums of these are exact in any order
        return rng.integers(-64, 64, n).astype(dtype) / 4
    return integers(rng, n, dtype)


for _dtype in (*WORDS, *FLOATS):
    case(
        f"updates_{np.dtype(_dtype).name}",
        updates,
        lambda rng, d=_dtype: {
            "sums": _numbers(rng, 7, d),
            "highs": _numbers(rng, 5, d),
            "lows": _numbers(rng, 3, d),
            "x": _numbers(rng, 500, d),
            "n": 500,
            "BLOCK": 128,
        },
        _updates_reference,
        grid=(4,),
    )


@blocknb.kernel
def bitwise(cells, x, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    v = bl.load(x + i)
    bl.atomic_and(cells + i % 4, v)
    bl.debug_barrier()
    (cells + 4 + i % 4).atomic_or(v)
    bl.atomic_xor(cells + 8 + i % 4, v, scope="cta")


def _bitwise_reference(a: Any) -> dict:
    out, i = a["cells"].copy(), np.arange(256) % 4
    np.bitwise_and.at(out, i, a["x"])
    np.bitwise_or.at(out, 4 + i, a["x"])
    np.bitwise_xor.at(out, 8 + i, a["x"])
    return {"cells": out}


for _dtype in WORDS:
    case(
        f"bitwise_{np.dtype(_dtype).name}", bitwise,
        lambda rng, d=_dtype: {"cells": integers(rng, 12, d), "x": integers(rng, 256, d), "BLOCK": 256},
        _bitwise_reference,
    )  # fmt: skip


@blocknb.kernel
def narrow_sums(cells, x, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.atomic_add(cells + i % 8, bl.load(x + i))


for _dtype in (np.float16, ml_dtypes.bfloat16):
    case(
        f"narrow_sums_{np.dtype(_dtype).name}",
        narrow_sums,
        lambda rng, d=_dtype: {
            "cells": rng.integers(0, 4, 8).astype(d),
            "x": rng.integers(-3, 4, 128).astype(d),
            "BLOCK": 128,
        },
        lambda a: {"cells": a["cells"].astype(np.float64) + a["x"].astype(np.float64).reshape(16, 8).sum(0)},
    )


@blocknb.kernel
def old_values(cells, out, swapped, M: bl.constexpr, N: bl.constexpr):
    """Each element has its own cell, and restores the old value after each atomic."""
    at = bl.arange(0, M)[:, None] * N + bl.arange(0, N)[None, :]
    before = bl.atomic_add(cells + at, at.to(cells.dtype.element_ty), mask=at % 3 != 1)
    there = bl.atomic_xchg(cells + at, before)
    bl.store(out + at, there)
    found = bl.atomic_cas(cells + at, before, there)
    bl.store(swapped + at, (found == before).to(bl.int32))
    bl.store(out + M * N + bl.arange(0, N), bl.sum(there, 0))


def _old_reference(a: Any) -> dict:
    cells = a["cells"]
    at = np.arange(cells.size).reshape(cells.shape).astype(cells.dtype)
    there = np.where(at.astype(int) % 3 != 1, cells + at, cells)
    out = np.concatenate([there.reshape(-1), there.sum(0)])
    return {"cells": there, "out": out, "swapped": np.ones(cells.shape)}


for _dtype, _shape in (
    (np.int32, (4, 8)),
    (np.int64, (32, 16)),
    (np.float32, (1, 16)),
    (np.float64, (16, 2)),
    (np.uint32, (2, 2)),
):
    case(
        f"old_values_{np.dtype(_dtype).name}",
        old_values,
        lambda rng, d=_dtype, s=_shape: {
            "cells": rng.integers(0, 100, s).astype(d) * (np.arange(s[0] * s[1]).reshape(s) % 3 != 1).astype(d),
            "out": poison(s[0] * s[1] + s[1], d),
            "swapped": poison(s, np.int32),
            "M": s[0],
            "N": s[1],
        },
        _old_reference,
    )


@blocknb.kernel
def swaps(cells, expected, new, old, n, BLOCK: bl.constexpr):
    """Half of the cells hold the expected value. Bits are compared, so -0 differs from 0."""
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    before = bl.load(expected + i)
    bl.store(old + i, bl.atomic_cas(cells + i, before, bl.load(new + i)))
    bl.atomic_cas(cells + n, bl.load(expected + n), bl.load(new + n))


def _swaps_make(rng: np.random.Generator, dtype: Any) -> dict[str, Any]:
    n, bits = 64, f"u{np.dtype(dtype).itemsize}"
    finite = 0x7BFF if np.dtype(dtype).kind not in "iu" else 0xFFFF
    cells, other, new = (rng.integers(0, finite, n + 1, dtype=bits, endpoint=True) for _ in range(3))
    expected = np.where(rng.random(n + 1) < 0.5, cells, other)
    cells[:2], expected[:2] = (0, 0x8000), (0x8000, 0x8000)
    arrays = {"cells": cells, "expected": expected, "new": new, "old": np.full(n, 0xA5, bits)}
    return {name: x.view(dtype) for name, x in arrays.items()} | {"n": n, "BLOCK": 32}


def _swaps_reference(a: Any) -> dict:
    bits = [a[name].view(np.uint16) for name in ("cells", "expected", "new")]
    found = np.where(bits[0] == bits[1], bits[2], bits[0]).view(a["cells"].dtype)
    return {"cells": found, "old": a["cells"][: a["n"]]}


for _dtype in (np.int16, np.uint16, np.float16, ml_dtypes.bfloat16):
    case(
        f"swaps_{np.dtype(_dtype).name}", swaps, lambda rng, d=_dtype: _swaps_make(rng, d), _swaps_reference, grid=(2,),
        rtol=0, atol=0,
    )  # fmt: skip


@blocknb.kernel
def tickets(counter, order, last, x, total, n, BLOCK: bl.constexpr):
    """A counter gives each program a number; the program with the last one adds the results of the others."""
    pid = bl.program_id(0)
    i = bl.arange(0, BLOCK)
    bl.store(x + pid * BLOCK + i, i * pid)
    mine = bl.atomic_add(counter, 1)
    bl.store(order + mine, pid)
    if mine == bl.num_programs(0) - 1:
        acc = bl.zeros((BLOCK,), bl.int32)
        for other in range(n):
            acc += bl.load(x + other * BLOCK + i)
        bl.store(total, bl.sum(acc))
        bl.atomic_xchg(last, mine)
        bl.atomic_max(last + 1, mine, mask=mine > n)


case(
    "tickets",
    tickets,
    lambda rng: {
        "counter": np.zeros(1, np.int32),
        "order": poison(6, np.int32),
        "last": np.zeros(2, np.int64),
        "x": poison((6, 64), np.int32),
        "total": poison(1, np.int32),
        "n": 6,
        "BLOCK": 64,
    },
    lambda a: {
        "counter": np.array([6]),
        "x": np.outer(np.arange(6), np.arange(64)),
        "total": np.array([15 * 63 * 32]),
        "last": np.array([5, 0]),
    },
    grid=(6,),
)


@blocknb.kernel
def locked(lock, cells, x, n, BLOCK: bl.constexpr):
    """A critical section, which one program at a time executes."""
    i = bl.arange(0, BLOCK)
    v = bl.load(x + bl.program_id(0) * BLOCK + i)
    while bl.atomic_cas(lock, 0, 1) == 1:
        pass
    old = bl.load(cells + i)
    bl.store(cells + i, old + v)
    bl.debug_barrier()
    bl.atomic_xchg(lock, 0)


case(
    "locked",
    locked,
    lambda rng: {
        "lock": np.zeros(1, np.int32),
        "cells": np.zeros(128, np.float32),
        "x": rng.integers(0, 9, (12, 128)).astype(np.float32),
        "n": 12,
        "BLOCK": 128,
    },
    lambda a: {"lock": np.zeros(1), "cells": a["x"].sum(0)},
    grid=(12,),
)


@blocknb.kernel
def chained(flags, sums, x, out, BLOCK: bl.constexpr):
    """A scan over programs, each of which waits for the one before."""
    pid = bl.program_id(0)
    i = bl.arange(0, BLOCK)
    v = bl.load(x + pid * BLOCK + i)
    before = 0
    if pid > 0:
        while bl.atomic_add(flags + pid - 1, 0, sem="acquire") == 0:
            pass
        before = bl.load(sums + pid - 1)
    bl.store(sums + pid, before + bl.sum(v))
    bl.atomic_xchg(flags + pid, 1, sem="release")
    bl.store(out + pid * BLOCK + i, v + before)


def _chained_reference(a: Any) -> dict:
    totals = a["x"].sum(1)
    before = np.cumsum(totals) - totals
    return {"out": a["x"] + before[:, None], "sums": np.cumsum(totals), "flags": np.ones(20)}


case(
    "chained",
    chained,
    lambda rng: {
        "flags": np.zeros(20, np.int32),
        "sums": poison(20, np.int32),
        "x": rng.integers(-50, 50, (20, 64)).astype(np.int32),
        "out": poison((20, 64), np.int32),
        "BLOCK": 64,
    },
    _chained_reference,
    grid=(20,),
)


@blocknb.kernel
def add_vectors(sums, x, n, BLOCK: bl.constexpr):
    """Sums of several elements that a thread holds contiguously, also in a reshaped tile."""
    i = bl.arange(0, BLOCK)
    v = bl.load(x + bl.program_id(0) * BLOCK + i)
    bl.atomic_add(sums + i, v)
    bl.atomic_add(sums + BLOCK + i, v, mask=i < n, sem="relaxed")
    permuted = bl.reshape(bl.permute(bl.reshape(v, (BLOCK // 8, 2, 4)), (1, 0, 2)), (BLOCK,))
    bl.atomic_add(sums + 2 * BLOCK + i, permuted, sem="relaxed")


def _add_vectors_reference(a: Any) -> dict:
    total = a["x"].sum(0)
    permuted = total.reshape(-1, 2, 4).swapaxes(0, 1).reshape(-1)
    return {"sums": np.stack([total, np.where(np.arange(512) < a["n"], total, 0), permuted])}


case(
    "add_vectors",
    add_vectors,
    lambda rng: {
        "sums": np.zeros((3, 512), np.float32),
        "x": rng.integers(-50, 50, (3, 512)).astype(np.float32),
        "n": 304,
        "BLOCK": 512,
    },
    _add_vectors_reference,
    grid=(3,),
)
