"""Flops of dots counted from the IR agree with the formula, wherever the loop bounds come from."""

from __future__ import annotations

import pytest

import blocknb
import blocknb.language as tl
from blocknb.profile.work import BUDGET, argument_bytes, count

TYPES = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "K": "i32"}


def counted(kernel, grid, M=64, K=128, budget=BUDGET, **constants):
    trace = kernel.trace(**TYPES, **constants, target="cpu:x86-64-v3")
    work = count(trace.stages[0].after, {"M": M, "K": K}, grid, budget=budget)
    return work.issued_dot_flops, work.exact


@blocknb.kernel
def one_dot(a, b, c, M, K, BLOCK: tl.constexpr):
    i, j = tl.arange(0, 32)[:, None], tl.arange(0, BLOCK)
    x = tl.load(a + i * BLOCK + j[None, :])
    y = tl.load(b + j[:, None] * 32 + tl.arange(0, 32)[None, :])
    tl.store(c + i * 32 + tl.arange(0, 32)[None, :], tl.dot(x, y))


@blocknb.kernel
def over_k(a, b, c, M, K, BLOCK: tl.constexpr):
    total = tl.zeros((32, 32), tl.float32)
    for k in range(tl.cdiv(K, BLOCK)):
        x = tl.load(a + k + tl.arange(0, 32)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])
        total = tl.dot(x, tl.trans(x), total)
    tl.store(c + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], total)


@blocknb.kernel
def triangle(a, b, c, M, K, BLOCK: tl.constexpr):
    total = tl.zeros((16, 16), tl.float32)
    for i in range(tl.program_id(0) + 1):
        for j in range(i):
            x = tl.load(a + i * j + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])
            total = tl.dot(x, x, total)
    tl.store(c + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], total)


@blocknb.kernel
def early_return(a, b, c, M, K, BLOCK: tl.constexpr):
    if tl.program_id(0) * 32 >= M:
        return
    x = tl.load(a + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])
    tl.store(c + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], tl.dot(x, x))


@blocknb.kernel
def by_data(a, b, c, M, K, BLOCK: tl.constexpr):
    total = tl.zeros((16, 16), tl.float32)
    for i in range(tl.load(c).to(tl.int32)):
        x = tl.load(a + i + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])
        total = tl.dot(x, x, total)
    tl.store(c + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], total)


@blocknb.kernel
def no_dot(a, b, c, M, K, BLOCK: tl.constexpr):
    tl.store(c + tl.arange(0, BLOCK), 1.0)


ONE = 2 * 16 * 16 * 16


def test_a_dot_counts_twice_the_product_of_its_sizes_in_every_program():
    assert counted(one_dot, (3, 2, 1), BLOCK=64) == (2 * 32 * 64 * 32 * 6, True)


@pytest.mark.parametrize("K", [16, 100, 128, 0])
def test_a_loop_over_k_counts_its_iterations(K):
    assert counted(over_k, (5, 1, 1), K=K, BLOCK=16) == (2 * 32 * 16 * 32 * -(-K // 16) * 5, True)


def test_bounds_that_depend_on_program_and_outer_index_are_followed():
    expected = sum(i for p in range(10) for i in range(p + 1)) * ONE
    assert counted(triangle, (10, 1, 1), BLOCK=16) == (expected, True)


def test_a_large_grid_of_different_programs_is_sampled_and_says_so():
    expected = 20 * sum(i for p in range(60) for i in range(p + 1)) * ONE
    for budget in (3e8, 1e8):  # of a sample of programs, and of one iteration of each loop
        flops, exact = counted(triangle, (60, 20, 1), BLOCK=16, budget=budget)
        assert not exact and abs(flops / expected - 1) < 0.2


def test_a_program_too_long_to_follow_is_estimated_from_one_iteration():
    K = 1 << 24
    assert counted(over_k, (5, 1, 1), K=K, BLOCK=16, budget=1e8) == (2 * 32 * 32 * K * 5, False)


def test_programs_that_return_early_count_nothing():
    assert counted(early_return, (8, 1, 1), M=64, BLOCK=16) == (2 * ONE, True)


def test_a_bound_that_is_loaded_gives_no_number():
    assert counted(by_data, (8, 1, 1), BLOCK=16)[0] is None


def test_a_kernel_without_dots_counts_zero():
    assert counted(no_dot, (8, 1, 1), BLOCK=16) == (0, True)


def test_bytes_count_an_array_once_for_reading_and_once_for_writing():
    summaries = {
        "x": {"kind": "array", "bytes": 400},
        "y": {"kind": "array", "bytes": 100},
        "n": {"kind": "scalar", "value": 3},
    }
    assert argument_bytes(summaries, loaded={"x", "y"}, stored={"y"}) == 600
