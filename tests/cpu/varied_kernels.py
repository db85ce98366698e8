"""Kernels over rows with exact results, each with a NumPy reference, so that every way of compiling must give the same bits.

Inputs are the integers 0 to 3, so sums are exact in every dtype and in every order. Each kernel takes a length `n` from 1 to BLOCK;
`PROGRAMS` programs run, and outputs are initialized with 99.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from frontend_helpers import kernel

import blocknb.language as tl

PROGRAMS = 5
ROWS = 8


@dataclass(frozen=True)
class Varied:
    """A kernel and its reference `meaning(x, y, n, block)`, which changes y as all programs do. `size` is the minimal length of x and y."""

    kernel: kernel
    meaning: Callable[[np.ndarray, np.ndarray, int, int], None]
    size: Callable[[int, int], int]
    dtypes: tuple[str, ...]


DTYPES = ("float32", "int32", "int8", "float16", "float64", "int64", "uint8")
KERNELS: dict[str, Varied] = {}


def varied(
    function: Callable,
    size: Callable[[int, int], int] = lambda n, block: PROGRAMS * block,
    dtypes: tuple[str, ...] = DTYPES,
) -> Callable:
    def register(meaning: Callable) -> Callable:
        KERNELS[function.__name__] = Varied(kernel(function), meaning, size, dtypes)
        return meaning

    return register


def codes(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    q = tl.load(x + tl.program_id(0) * BLOCK + i, mask=i < n, other=0).to(tl.int8)
    keep = q > 1
    total = tl.sum(q.to(tl.int32), 0).to(tl.int8)
    tl.store(y + tl.program_id(0) * BLOCK + i, q - total, mask=keep)


@varied(codes)
def codes_meaning(x, y, n, block):
    for p in range(PROGRAMS):
        q = np.where(np.arange(block) < n, x[p * block : (p + 1) * block], 0).astype(np.int8)
        value = q - q.sum(dtype=np.int32).astype(np.int8)
        y[p * block : (p + 1) * block][q > 1] = value[q > 1].astype(y.dtype)


def rows(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    place = tl.program_id(0) * n + i
    v = tl.load(x + place, mask=i < n, other=0)
    tl.store(y + place, v * 2 - tl.max(v, axis=0) + tl.sum(v, axis=0), mask=i < n)


@varied(rows)
def rows_meaning(x, y, n, block):
    table = x[: PROGRAMS * n].reshape(PROGRAMS, n).astype(np.int64)
    y[: PROGRAMS * n] = (table * 2 - table.max(1, keepdims=True) + table.sum(1, keepdims=True)).ravel()


def beyond(x, y, n, BLOCK: tl.constexpr):
    """Padding that is read: `other` is no neutral element, and readers access elements beyond the row."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=2) + 1
    total = tl.sum(v, axis=0)
    w = v * 2 + tl.min(v, axis=0)
    least = tl.min(w, axis=0)
    tl.store(y + i, w - least, mask=i < n + 5)
    tl.store(y + BLOCK + i, tl.flip(v) + i.to(v.dtype))
    tl.store(y + 2 * BLOCK, total)


@varied(beyond)
def beyond_meaning(x, y, n, block):
    v = np.where(np.arange(block) < n, x[:block], 2).astype(np.int64) + 1
    w = v * 2 + v.min()
    y[: min(n + 5, block)] = (w - w.min())[: n + 5]
    y[block : 2 * block] = v[::-1] + np.arange(block)
    y[2 * block] = v.sum().astype(y.dtype)


def wrapped(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + (i + tl.program_id(0) * 3) % n)
    total = tl.sum(v, axis=0)
    tl.store(y + tl.program_id(0) * BLOCK + i, v + total)


@varied(wrapped)
def wrapped_meaning(x, y, n, block):
    for p in range(PROGRAMS):
        v = x[(np.arange(block) + p * 3) % n].astype(np.int64)
        y[p * block : (p + 1) * block] = v + v.sum()


def carried(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for row in range(4):
        v = tl.load(x + row * BLOCK + i, mask=i < n - row, other=1).to(tl.int32)
        v = v - tl.max(v, axis=0)
        total += v * 2
    tl.store(y + i, total)


@varied(carried)
def carried_meaning(x, y, n, block):
    total = np.zeros(block, np.int64)
    for row in range(4):
        v = np.where(np.arange(block) < n - row, x[row * block : (row + 1) * block], 1).astype(np.int64)
        total += (v - v.max()) * 2
    y[:block] = total


def transposed(x, y, n, BLOCK: tl.constexpr):
    r, c = tl.arange(0, 8), tl.arange(0, BLOCK)
    inside = (r[:, None] < n) & (c[None, :] < n)
    v = tl.load(x + r[:, None] * BLOCK + c[None, :], mask=inside, other=1)
    tl.store(y + c[None, :] * 8 + r[:, None], v + tl.sum(v, axis=0)[None, :] + tl.max(v, axis=1)[:, None], mask=inside)


@varied(transposed, lambda n, block: ROWS * block)
def transposed_meaning(x, y, n, block):
    r, c = np.arange(ROWS)[:, None], np.arange(block)[None, :]
    inside = (r < n) & (c < n)
    v = np.where(inside, x[: ROWS * block].reshape(ROWS, block), 1).astype(np.int64)
    value = v + v.sum(0)[None, :] + v.max(1)[:, None]
    y[: ROWS * block].reshape(block, ROWS).T[inside] = value[inside]


def products(x, y, n, BLOCK: tl.constexpr):
    m, k = tl.arange(0, 16), tl.arange(0, BLOCK)
    a = tl.load(x + m[:, None] * BLOCK + k[None, :], mask=k[None, :] < n, other=0).to(tl.float32)
    b = tl.load(x + k[:, None] * 16 + m[None, :], mask=k[:, None] < n, other=0).to(tl.float32)
    tl.store(y + m[:, None] * 16 + m[None, :], tl.dot(a, b).to(tl.int32))


@varied(products, lambda n, block: 16 * max(block, 16))
def products_meaning(x, y, n, block):
    a = x[: 16 * block].reshape(16, block)[:, :n].astype(np.int64)
    b = x[: 16 * block].reshape(block, 16)[:n].astype(np.int64)
    y[:256] = (a @ b).ravel()


def scanned(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * BLOCK + i, mask=i < n, other=0)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.cumsum(v, axis=0), mask=i < n)


@varied(scanned)
def scanned_meaning(x, y, n, block):
    for p in range(PROGRAMS):
        y[p * block : p * block + n] = np.cumsum(x[p * block : p * block + n].astype(np.int64))


def branches(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=3).to(tl.int32)
    left = n
    while left > 3:
        if left % 2 == 0:
            v = v + 1
        else:
            v = tl.where(i < left, v * 2, v) % 5
        left = left // 2
    tl.store(y + i, v, mask=i < n - 1)
    tl.store(y + BLOCK + i, v + left, mask=(i >= 2) & (i < n))


@varied(branches)
def branches_meaning(x, y, n, block):
    i = np.arange(block)
    v, left = np.where(i < n, x[:block], 3).astype(np.int64), n
    while left > 3:
        v = v + 1 if left % 2 == 0 else np.where(i < left, v * 2, v) % 5
        left //= 2
    y[:block][i < n - 1] = v[i < n - 1]
    y[block : 2 * block][(i >= 2) & (i < n)] = (v + left)[(i >= 2) & (i < n)]


def counts(x, y, n, BLOCK: tl.constexpr):
    """Programs in any order add to the same elements."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * BLOCK + i, mask=i < n, other=0).to(tl.int32)
    tl.atomic_add(y + v, v.to(y.dtype.element_ty), mask=i < n)


@varied(counts, dtypes=("float32", "int32", "float64", "int64"))
def counts_meaning(x, y, n, block):
    for p in range(PROGRAMS):
        v = x[p * block : p * block + n].astype(np.int64)
        np.add.at(y, v, v.astype(y.dtype))


def large(x, y, n, BLOCK: tl.constexpr):
    """Cheap enough for non-temporal stores."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n + (tl.num_programs(0) - 1) * BLOCK
    tl.store(y + i, tl.load(x + i, mask=inside) * 2 + 1, mask=inside)


@varied(large)
def large_meaning(x, y, n, block):
    size = (PROGRAMS - 1) * block + n
    y[:size] = x[:size] * 2 + 1


def chosen(x, y, n, BLOCK: tl.constexpr):
    """Masks as data, which end where the row ends."""
    i = tl.arange(0, BLOCK)
    place = tl.program_id(0) * BLOCK + i
    v = tl.load(x + place, mask=i < n)
    e = tl.where(i < n, v + 1, 0)
    keep = (e > 1) & (i < n)
    tl.store(y + place, e + tl.sum(e, axis=0), mask=keep)


@varied(chosen)
def chosen_meaning(x, y, n, block):
    for p in range(PROGRAMS):
        v = x[p * block : p * block + n].astype(np.int64) + 1
        y[p * block : p * block + n][v > 1] = (v + v.sum())[v > 1]


def viewed(x, y, n, BLOCK: tl.constexpr):
    """A row as the only row of a tile of two axes."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1)
    w = (v + 1)[None, :] * 3
    s = tl.sum(w, axis=1)
    u = w - tl.max(w, axis=1)[:, None]
    tl.store(y + i[None, :], w + s[:, None], mask=(i < n)[None, :])
    tl.store(y + BLOCK + i[None, :], u + tl.min(u, axis=1)[:, None])


@varied(viewed)
def viewed_meaning(x, y, n, block):
    w = (np.where(np.arange(block) < n, x[:block], 1).astype(np.int64) + 1) * 3
    y[:n] = (w + w.sum())[:n]
    y[block : 2 * block] = w - w.max() + (w - w.max()).min()


def scalars(x, y, n, BLOCK: tl.constexpr):
    """Accesses of one element, with and without masks."""
    p = tl.program_id(0)
    a = tl.load(x + n - 1)
    b = tl.load(x + n, mask=n < BLOCK, other=7)
    tl.store(y + p, a + b)
    tl.store(y + 8 + p, a - b, mask=n > 3)
    tl.atomic_add(y + 20, a + 1, mask=n > 5)
    tl.atomic_add(y + 21, 2)
    if p == 2:
        tl.store(y + 22, tl.atomic_cas(y + 23, 99, 5))
        tl.store(y + 24, tl.atomic_cas(y + 25, 98, 5))


@varied(scalars, dtypes=("int32", "int64"))
def scalars_meaning(x, y, n, block):
    a, b = x[n - 1], x[n] if n < block else 7
    y[:PROGRAMS] = a + b
    y[8 : 8 + PROGRAMS] = a - b if n > 3 else 99
    y[20] += PROGRAMS * (a + 1) if n > 5 else 0
    y[21] += PROGRAMS * 2
    y[22:26] = 99, 5, 99, 99


def columns(x, y, n, BLOCK: tl.constexpr):
    """Elements are contiguous along the rows' axis, so reductions of rows keep their sums in scratch memory."""
    r, c = tl.arange(0, 8), tl.arange(0, BLOCK)
    place = c[None, :] * 8 + r[:, None]
    v = tl.load(x + place, mask=(c < n)[None, :], other=1)
    w = v * 2 - tl.max(v, axis=1)[:, None]
    u = w + tl.sum(w, axis=1)[:, None]
    tl.store(y + place, u, mask=(c < n)[None, :])


@varied(columns, lambda n, block: ROWS * block)
def columns_meaning(x, y, n, block):
    v = np.where(np.arange(block)[:, None] < n, x[: ROWS * block].reshape(block, ROWS), 1).astype(np.int64)
    w = v * 2 - v.max(0)
    y[: ROWS * n] = (w + w.sum(0))[:n].ravel()


def swapping(x, y, n, BLOCK: tl.constexpr):
    """A loop that computes its next tile while the previous one is still in use."""
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1).to(tl.int32)
    b = tl.load(x + BLOCK + i, mask=i < n, other=2).to(tl.int32)
    for _ in range(3):
        c = a * 2 + b
        t = tl.sum(c, axis=0)
        b = b + a % 3 + t % 2
        a = c
    tl.store(y + i, a - b)


@varied(swapping)
def swapping_meaning(x, y, n, block):
    i = np.arange(block)
    a, b = np.where(i < n, x[:block], 1).astype(np.int64), np.where(i < n, x[block : 2 * block], 2).astype(np.int64)
    for _ in range(3):
        c = a * 2 + b
        a, b = c, b + a % 3 + c.sum() % 2
    y[:block] = a - b
