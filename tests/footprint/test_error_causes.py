"""Causes of wrong results: kernels that are right have none of them. The wrong counterparts are cells of tests/mistakes."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.footprint.error_causes import error_causes


def kinds(kernel, grid, *args, **constants) -> set[str]:
    found = kernel.footprint(grid)(*args, **constants)
    return {finding.kind for finding in error_causes(found, [0])}


@blocknb.kernel
def masked_maximum(x, out, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, tl.max(tl.load(x + i, mask=i < n, other=OTHER), axis=0))


@pytest.mark.parametrize(("other", "named"), [(0.0, {"masked"}), (float("-inf"), set())])
def test_lanes_that_are_off_change_a_maximum(other: float, named: set[str]):
    assert (
        kinds(masked_maximum, 1, np.full(100, -2, np.float32), np.zeros(1, np.float32), 100, OTHER=other, BLOCK=128)
        == named
    )


def test_lanes_that_are_off_do_not_change_the_maximum_of_positive_numbers():
    args = np.full(100, 2, np.float32), np.zeros(1, np.float32), 100
    assert not kinds(masked_maximum, 1, *args, OTHER=0.0, BLOCK=128)


@blocknb.kernel
def variance(x, out, n, GUARD: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    d = v - tl.sum(v, axis=0) / n
    if GUARD:
        d = tl.where(i < n, d, 0.0)
    tl.store(out, tl.sum(d * d, axis=0) / n)


@pytest.mark.parametrize(("guard", "named"), [(False, {"masked"}), (True, set())])
def test_a_select_keeps_lanes_that_are_off_out_of_a_sum(guard: bool, named: set[str]):
    args = 3 + np.arange(100, dtype=np.float32), np.zeros(1, np.float32), 100
    assert kinds(variance, 1, *args, GUARD=guard, BLOCK=128) == named


@blocknb.kernel
def loop_sum(x, out, n, ADDS: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), DTYPE)
    for k in range(0, n, BLOCK):
        if ADDS:
            total += tl.load(x + k + tl.arange(0, BLOCK)).to(DTYPE)
        else:
            total = tl.load(x + k + tl.arange(0, BLOCK)).to(DTYPE)
    tl.store(out, tl.sum(total, axis=0))


@pytest.mark.parametrize(
    ("adds", "dtype", "named"),
    [(True, tl.float32, set()), (True, tl.float16, {"half"}), (False, tl.float32, {"overwritten"})],
)
def test_an_accumulator_adds_in_a_wide_dtype(adds: bool, dtype: object, named: set[str]):
    args = np.ones(64, np.float32), np.zeros(1, np.float32), 64
    assert kinds(loop_sum, 1, *args, ADDS=adds, DTYPE=dtype, BLOCK=16) == named


@blocknb.kernel
def convert(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@pytest.mark.parametrize(
    ("value", "dtype", "named"),
    [(1.5, np.int32, {"fraction"}), (2.0, np.int32, set()), (-1, np.uint8, {"range"}), (1e6, np.float16, {"overflow"})],
)
def test_a_store_keeps_its_values(value: float, dtype: type, named: set[str]):
    assert kinds(convert, 1, np.full(16, value, np.float32), np.zeros(16, dtype), BLOCK=16) == named


def test_products_of_integers_wrap_around():
    @blocknb.kernel
    def square(x, out, BLOCK: tl.constexpr):
        v = tl.load(x + tl.arange(0, BLOCK))
        tl.store(out + tl.arange(0, BLOCK), v * v)

    assert kinds(square, 1, np.full(16, 100, np.int8), np.zeros(16, np.int32), BLOCK=16) == {"wraps"}
    assert not kinds(square, 1, np.full(16, 11, np.int8), np.zeros(16, np.int32), BLOCK=16)


@blocknb.kernel
def quotient(x, out, GUARD: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = 16 // tl.load(x + i)
    tl.store(out + i, tl.where(i > 0, v, 0) if GUARD else v)


@pytest.mark.parametrize("guard", [False, True])
def test_a_division_by_zero_speaks_of_where_only_if_there_is_one(guard: bool):
    seen = quotient.footprint(1)(np.arange(16, dtype=np.int32), np.zeros(16, np.int32), GUARD=guard, BLOCK=16)
    (found,) = error_causes(seen, [0])
    assert found.kind == "zero"
    assert ("tl.where discards no division" in found.text) == guard
