"""Narrow and unsigned index arithmetic wraps in CPU loops as elsewhere; copies of masked rows are complete."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl
from blocknb.runtime import host

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@blocknb.kernel
def wrapped(sums, masks, products, rest, start, n, D: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr):
    """Arithmetic in D on a counter, its results as E, and as masks."""
    i = tl.arange(0, BLOCK)
    x = (i + start).to(D)
    tl.store(sums + i, (x + 100).to(E))
    tl.store(products + i, (x * 3 - 7).to(E))
    tl.store(masks + i, 1, mask=(x - 5) < 10)
    tl.store(rest + i, x.to(E), mask=x <= n.to(D))


@pytest.mark.parametrize(
    ("block", "wides"), [(64, ("int64",)), *(pytest.param(b, DTYPES, marks=pytest.mark.full) for b in (32, 512))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_of_narrow_and_unsigned_counters_wraps(dtype, block, wides):
    rng = seeds.rng()
    for wide in wides:
        start, n = int(rng.integers(-300, 300)), int(rng.integers(0, 120))
        sums, products, rest = (np.full(block, 77, wide) for _ in range(3))
        masks = np.zeros(block, np.int8)
        wrapped[(1,)](sums, masks, products, rest, start, n, D=getattr(tl, dtype), E=getattr(tl, wide), BLOCK=block)
        with np.errstate(over="ignore"):
            x = (np.arange(block) + start).astype(dtype)
            c = x.dtype.type
            context = f"{dtype} as {wide}, start {start}, n {n}"
            np.testing.assert_array_equal(sums, (x + c(100)).astype(wide), err_msg=context)
            np.testing.assert_array_equal(products, (x * c(3) - c(7)).astype(wide), err_msg=context)
            np.testing.assert_array_equal(masks, (x - c(5)) < c(10), err_msg=context)
            np.testing.assert_array_equal(rest, np.where(x <= c(n), x.astype(wide), 77), err_msg=context)


@blocknb.kernel
def limited(out, limit, start, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK).to(tl.int64) + start
    tl.store(out + i - start, 1, mask=i < limit)
    tl.store(out + BLOCK + i - start, 1, mask=i <= limit)


@pytest.mark.parametrize("limit", [2**63 - 1, -(2**63), -4, 3])
def test_a_limit_at_the_end_of_int64_does_not_overflow(limit):
    out, start = np.zeros(128, np.int8), -9
    limited[(1,)](out, limit, start, BLOCK=64)
    i = np.arange(64) + start
    np.testing.assert_array_equal(out, np.concatenate([i < limit, i <= limit]))


@pytest.fixture
def poisoned_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch memory holds 0xFF before each launch."""
    memory = type(host._scratch)
    plain = memory.at_least

    def at_least(self, size: int) -> int:
        address: int = plain(self, size)
        ctypes.memset(address, 0xFF, size)
        return address

    monkeypatch.setattr(memory, "at_least", at_least)


@blocknb.kernel
def chosen_row(n, take, out, total, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    if take < 4:
        row = inside.to(tl.int64)
    else:
        row = tl.full((BLOCK,), 1, tl.int64)
    tl.store(out + i, i.to(tl.int16), mask=inside)
    tl.store(total, tl.sum(row))


@blocknb.kernel
def scanned_mask(n, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.cumsum(inside.to(tl.uint8).to(tl.float32), 0, reverse=True), mask=inside)


@pytest.mark.usefixtures("poisoned_scratch")
@pytest.mark.parametrize("n", [0, 1, 9, 63, 64, 65, 127, 128])
def test_copy_of_a_masked_row_is_complete(n):
    out, total = np.zeros(128, np.int16), np.zeros(1, np.int64)
    chosen_row[(1,)](n, 3, out, total, BLOCK=128)
    np.testing.assert_array_equal(out, np.where(np.arange(128) < n, np.arange(128), 0))
    assert total[0] == n
    counts = np.zeros(128, np.float32)
    scanned_mask[(1,)](n, counts, BLOCK=128)
    np.testing.assert_array_equal(counts, np.maximum(n - np.arange(128), 0))
