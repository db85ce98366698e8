"""Selects between bitwise results and their operands become one masked AVX-512 instruction."""

from __future__ import annotations

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl

SIGN = tl.constexpr(-0x80000000)
REST = tl.constexpr(0x7FFFFFFF)


@blocknb.kernel
def select(x, y, condition, out, WHICH: tl.constexpr, ORDER: tl.constexpr):
    """One result per kernel, because the constant must have no other use."""
    at = tl.arange(0, 16)[:, None] * 8 + tl.arange(0, 8)[None, :]
    p = tl.load(x + at)
    size = tl.load(y + at) + 1.0
    q = size.to(tl.int32, bitcast=True)
    chosen = tl.load(condition + at) > 0
    if WHICH == 0:
        result = (p & SIGN) | (q & REST)
    elif WHICH == 1:
        result = (p & REST) | (q & SIGN)
    elif WHICH == 2:
        result = (p & SIGN) | tl.abs(size).to(tl.int32, bitcast=True)
    elif WHICH == 3:
        result = (p & 255) ^ q
    else:
        result = (p ^ q) & 255
    if ORDER == 0:
        result = tl.where(chosen, result, p)
    elif ORDER == 1:
        result = tl.where(chosen, result, q)
    elif ORDER == 2:
        result = tl.where(chosen, p, result)
    else:
        result = tl.where(chosen, q, result)
    tl.store(out + at, result)


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("which", range(5))
def test_where_selects_between_bitwise_results_and_their_operands(which: int, order: int) -> None:
    rng = seeds.rng()
    x, condition = rng.integers(-(1 << 31), 1 << 31, 128, np.int32), rng.integers(0, 2, 128, np.int32)
    y = rng.standard_normal(128).astype(np.float32)
    out = np.full(128, 77, np.int32)
    select[(1,)](x, y, condition, out, WHICH=which, ORDER=order)
    p, q, sign, rest = x, (y + np.float32(1)).view(np.int32), np.int32(SIGN.value), np.int32(REST.value)
    copied = (p & sign) | (q & rest)
    result = (copied, (p & rest) | (q & sign), copied, (p & 255) ^ q, (p ^ q) & 255)[which]
    true, false = ((result, p), (result, q), (p, result), (q, result))[order]
    np.testing.assert_array_equal(out, np.where(condition > 0, true, false))
