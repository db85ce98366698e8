"""Integers wrap on the CPU even if they look like arithmetic progressions: narrow casts, unsigned range tests."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb.language as tl
from blocknb import kernel


@kernel
def narrowed(o, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, i.to(DTYPE).to(tl.int32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_a_narrow_cast_of_an_index_wraps_before_it_is_widened_again(dtype: str) -> None:
    size = 1 << 17 if "16" in dtype else 512
    got = np.full(size, 77, np.int32)
    narrowed[(1,)](got, DTYPE=getattr(tl, dtype), BLOCK=size)
    np.testing.assert_array_equal(got, np.arange(size).astype(dtype).astype(np.int32))


@kernel
def in_range(x, o, LOW: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offset = i.to(tl.uint32) - LOW
    tl.store(o + i, tl.load(x + i, mask=offset < COUNT, other=-1))


def test_unsigned_difference_below_zero_wraps_to_a_large_number() -> None:
    x, got = np.arange(64, dtype=np.int32), np.full(64, 77, np.int32)
    in_range[(1,)](x, got, LOW=5, COUNT=10, BLOCK=64)
    np.testing.assert_array_equal(got, np.where((x >= 5) & (x < 15), x, -1))


@kernel
def far(o, BASE: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, (i * STEP + BASE).to(tl.int64))


@pytest.mark.parametrize(("base", "step"), [(2**31 - 10, 1), (-(2**31) + 10, -1), (2**31 - 10, 3), (63, -1)])
def test_a_sum_of_an_index_and_a_constant_wraps(base: int, step: int) -> None:
    got = np.full(64, 77, np.int64)
    far[(1,)](got, BASE=base, STEP=step, BLOCK=64)
    want = (np.arange(64) * step + base).astype(np.int32).astype(np.int64)
    np.testing.assert_array_equal(got, want)


@kernel
def hashed(x, o, seeds, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    key = i.to(tl.uint32) + tl.load(seeds)
    tl.store(o + i, tl.load(x + i, mask=key < 100, other=-1))


@pytest.mark.parametrize("seed", [0, 60, 2**31, 2**32 - 20])
def test_an_unsigned_sum_wraps_before_it_is_compared(seed: int) -> None:
    x, got = np.arange(64, dtype=np.int32), np.full(64, 77, np.int32)
    hashed[(1,)](x, got, np.array([seed], np.uint32), BLOCK=64)
    key = x.astype(np.uint32) + np.uint32(seed)
    np.testing.assert_array_equal(got, np.where(key < 100, x, -1))
