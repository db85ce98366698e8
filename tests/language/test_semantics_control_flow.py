"""Semantics of the language: branches, loops, conditions, combine functions, helpers."""

from __future__ import annotations

import helpers_of_another_module
import numpy as np
import pytest
from semantics import ops, refused, result, value

import blocknb.language as tl
from blocknb import kernel
from blocknb.errors import SyntaxUnsupported

F32 = np.float32
X = np.arange(1, 17, dtype=F32)

# -- 23: types of names ------------------------------------------------------------------------------------------------------


def test_a_name_may_not_change_its_type_in_one_arm():
    @kernel
    def k(out, n):
        x = 1
        if n > 3:
            x = 0.5
        tl.store(out, x)

    error = refused(k, n=4)
    assert "`x` is of different types after the arms" in error.message and "int32" in error.message


def test_name_defined_in_one_arm_is_undefined_after_the_branch():
    @kernel
    def k(out, n):
        if n > 3:
            x = 1
        tl.store(out, x)

    error = refused(k, n=4)
    assert "`x` is assigned only in the `if` arm" in error.message and "before the branch" in error.hint


def test_name_defined_in_both_arms_with_one_type_is_valid():
    @kernel
    def k(out, n):
        if n > 3:
            x = 1
            scratch = tl.arange(0, 4)
        else:
            x = n
            scratch = 2.5  # noqa: F841
        tl.store(out, x)

    assert value(k, np.int32, n=4) == 1
    assert value(k, np.int32, n=2) == 2


def test_loop_carried_names_have_the_type_of_their_first_value():
    @kernel
    def k(out, x, n):
        m = -float("inf")
        s = 0.0
        c = 0
        tl.static_assert(m.dtype == tl.float32 and s.dtype == tl.float32 and c.dtype == tl.int32)
        for i in range(n):
            v = tl.load(x + i)
            m = max(m, v)
            s += v
            c += 1
        tl.store(out, m)
        tl.store(out + 1, s)
        tl.store(out + 2, c)

    assert result(k, F32, 3, x=X, n=5).tolist() == [5, 15, 5]
    assert result(k, F32, 3, x=X, n=0).tolist() == [-np.inf, 0, 0]


def test_64_bit_sum_cannot_be_carried_in_a_32_bit_name():
    @kernel
    def k(out, x, n):
        s = 0
        for i in range(n):
            s += tl.load(x + i)
        tl.store(out, s)

    error = refused(k, np.int64, x=np.zeros(4, np.int64), n=4)
    assert "`s` changes its type in the loop: int32 before it, int64" in error.message
    assert "tl.int64" in error.hint


def test_a_scalar_does_not_become_a_block_in_a_loop():
    @kernel
    def k(out, x, n):
        acc = 0.0
        for i in range(n):
            acc += tl.load(x + tl.arange(0, 4))
        tl.store(out + tl.arange(0, 4), acc)

    error = refused(k, x=X, n=4)
    assert "`acc` changes its type in the loop" in error.message
    assert "acc = tl.zeros((4,), dtype=tl.float32)" in error.hint


# -- 24: returns, and names after loops --------------------------------------------------------------------------------------


@kernel
def clipped(x, low):
    if x < low:
        return low
    y = x * 2
    return y  # noqa: RET504


@kernel
def stores(out, x):
    tl.store(out, x)


def test_an_early_return_ends_the_program():
    @kernel
    def k(out, n):
        pid = tl.program_id(0)
        if pid >= n:
            return
        stores(out + pid, pid + 5)

    assert result(k, np.int32, 4, grid=4, n=2).view(np.uint32).tolist() == [5, 6, 0xA5A5A5A5, 0xA5A5A5A5]


def test_a_helper_returns_early_with_a_value():
    @kernel
    def k(out, n):
        tl.store(out, clipped(n, 5))

    assert value(k, np.int32, n=3) == 5
    assert value(k, np.int32, n=7) == 14


def test_a_return_inside_a_run_time_loop_is_refused():
    @kernel
    def k(out, n):
        for i in range(n):
            if i > 3:
                return
            tl.store(out, i)

    error = refused(k, n=8)
    assert isinstance(error, SyntaxUnsupported) and "return" in error.message


@pytest.mark.parametrize("word", ["break", "continue"])
def test_break_and_continue_do_not_exist(word):
    @kernel
    def breaks(out, n):
        for i in range(n):
            if i > 3:
                break

    @kernel
    def continues(out, n):
        for i in range(n):
            if i > 3:
                continue

    error = refused(breaks if word == "break" else continues, n=8)
    assert f"`{word}`" in error.message and error.hint


def test_the_loop_variable_survives_the_loop():
    @kernel
    def k(out, n):
        i = 77
        for i in range(n):
            pass
        tl.store(out, i)

    assert value(k, np.int32, n=5) == 4


def test_names_defined_in_a_loop_end_with_it():
    @kernel
    def k(out, n):
        for i in range(n):
            x = i
        tl.store(out, x)

    error = refused(k, n=5)
    assert "`x` is assigned only inside the loop" in error.message and "before the loop" in error.hint


# -- 25: loops ---------------------------------------------------------------------------------------------------------------


def test_loop_bounds_have_32_or_64_bits():
    @kernel
    def k(out, n, wide):
        for i in range(n):
            tl.static_assert(i.dtype == tl.int32)
        c = 0
        for j in range(wide, wide + n):
            tl.static_assert(j.dtype == tl.int64)
            c += 1
        tl.store(out, c)

    assert value(k, np.int32, n=5, wide=2**40) == 5


def test_a_constant_negative_step_counts_down():
    @kernel
    def k(out, n):
        s = 0
        for i in range(n, 0, -2):
            s = s * 10 + i
        for i in range(n - 1, -1, -1):
            s = s * 10 + i
        tl.store(out, s)

    assert value(k, np.int32, n=5) == 53143210


def test_tl_range_takes_its_hints():
    @kernel
    def k(out, n, STAGES: tl.constexpr):
        s = 0
        for _ in tl.range(0, n, 2, num_stages=STAGES, flatten=True, loop_unroll_factor=2):
            s += 1
        for i in tl.range(n):
            s += i
        tl.store(out, s)

    assert value(k, np.int32, n=5, STAGES=3) == 3 + 10
    assert "num_stages=3" in ops(k, out=np.zeros(1, np.int32), n=5, STAGES=3)


def test_static_range_gives_constants():
    @kernel
    def k(out):
        s = 0
        for i in tl.static_range(1, 4):
            s += tl.sum(tl.arange(0, 2**i))
        tl.store(out, s)

    assert value(k, np.int32) == 1 + 6 + 28


def test_while_with_and_runs_while_both_conditions_hold():
    @kernel
    def k(out, x, n):
        i = 0
        while i < n and tl.load(x + i) < 4.0:
            i += 1
        tl.store(out, i)

    assert value(k, np.int32, x=X, n=10) == 3
    assert value(k, np.int32, x=X, n=2) == 2


def test_program_may_wait_for_a_program_with_a_lower_id():
    @kernel
    def k(out, flags):
        pid = tl.program_id(0)
        if pid > 0:
            while tl.atomic_cas(flags + pid - 1, 1, 2) != 1:
                pass
            tl.store(out + pid, tl.load(out + pid - 1) + pid)
        else:
            tl.store(out, 10.0)
        tl.debug_barrier()
        tl.atomic_xchg(flags + pid, 1)

    assert result(k, F32, 4, grid=4, flags=np.zeros(4, np.int32)).tolist() == [10, 11, 13, 16]


# -- 26: and, or, not, chained comparisons -----------------------------------------------------------------------------------


def test_and_or_not_of_tiles_are_bitwise():
    @kernel
    def k(out, n):
        i = tl.arange(0, 8)
        tl.store(out + i, (i > 1) and (i < n))
        tl.store(out + 8 + i, (i < 2) or (i > n))
        tl.store(out + 16 + i, not (i < n))

    i = np.arange(8)
    got = result(k, np.int32, 24, n=5)
    np.testing.assert_array_equal(got, np.concatenate([(i > 1) & (i < 5), (i < 2) | (i > 5), i >= 5]))


def test_chained_comparisons_are_true_if_every_comparison_is():
    @kernel
    def k(out, x):
        v = tl.load(x + tl.arange(0, 16))
        tl.store(out + tl.arange(0, 16), 2 < v <= 5)

    np.testing.assert_array_equal(result(k, np.int32, 16, x=X), (X > 2) & (X <= 5))


def test_a_block_of_one_element_is_a_condition():
    @kernel
    def k(out, x):
        v = tl.load(x + tl.arange(0, 1))
        if v > 3:
            tl.store(out, 1)
        else:
            tl.store(out, 2)

    assert value(k, np.int32, x=np.array([5], F32)) == 1
    assert value(k, np.int32, x=np.array([2], F32)) == 2


def test_a_larger_block_cannot_be_a_condition():
    @kernel
    def k(out, x):
        if tl.load(x + tl.arange(0, 4)) > 3:
            tl.store(out, 1)

    error = refused(k, x=X)
    assert "tile of shape (4,)" in error.message and "tl.where" in error.hint


# -- 27: combine functions ---------------------------------------------------------------------------------------------------


@kernel
def better(a, b):
    return a > b


@kernel
def arg_best(a, i, b, j, KEEP_NAN: tl.constexpr = True):
    if KEEP_NAN:
        first = better(a, b) or (a != a)
    else:
        first = better(a, b)
    return tl.where(first, a, b), tl.where(first, i, j)


@kernel
def welford(n1, mean1, n2, mean2):
    n = n1 + n2
    return n, mean1 + (mean2 - mean1) * (n2 / n)


@kernel
def product(a, b):
    return a * b


@kernel
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


def test_a_reduction_over_tuples_calls_helpers_and_holds_constant_branches():
    @kernel
    def k(out, x):
        i = tl.arange(0, 16)
        best, at = tl.reduce((tl.load(x + i), i), 0, arg_best)
        tl.store(out, best)
        tl.store(out + 1, at)

    x = np.random.default_rng(0).permutation(16).astype(F32)
    assert result(k, F32, 2, x=x).tolist() == [15, x.argmax()]
    x[5] = np.nan
    got = result(k, F32, 2, x=x)
    assert np.isnan(got[0]) and got[1] == 5


def test_functions_of_other_modules_can_be_combine_functions():
    @kernel
    def k(out, x):
        i = tl.arange(0, 16)
        tl.store(out, tl.reduce(tl.load(x + i), 0, helpers_of_another_module.larger))
        tl.store(
            out + 1, tl.reduce(tl.load(x + i), axis=0, combine_fn=helpers_of_another_module.larger, keep_dims=False)
        )

    assert result(k, F32, 2, x=X).tolist() == [16, 16]


def test_reduction_of_counts_and_means_gives_the_mean():
    @kernel
    def k(out, x):
        i = tl.arange(0, 16)
        n, mean = tl.reduce((tl.full((16,), 1.0, tl.float32), tl.load(x + i)), 0, welford)
        tl.store(out, n)
        tl.store(out + 1, mean)

    assert result(k, F32, 2, x=X).tolist() == [16, 8.5]


def test_scans_run_forward_and_in_reverse_over_tuples():
    @kernel
    def k(out, x):
        i = tl.arange(0, 8)
        v = tl.load(x + i)
        tl.store(out + i, tl.associative_scan(v, 0, product))
        tl.store(out + 8 + i, tl.associative_scan(v, 0, product, reverse=True))
        _, h = tl.associative_scan((tl.full((8,), 0.5, tl.float32), v), axis=0, combine_fn=affine)
        tl.store(out + 16 + i, h)

    x = X[:8]
    h, state = 0.0, []
    for v in x:
        h = 0.5 * h + v
        state.append(h)
    expected = np.concatenate([np.cumprod(x), np.cumprod(x[::-1])[::-1], state])
    np.testing.assert_allclose(result(k, F32, 24, x=x), expected, rtol=1e-6)


def test_max_returns_indices_of_the_first_best():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        best, at = tl.max(tl.load(x + i[:, None] * 4 + i[None, :]), 1, return_indices=True)
        tl.store(out + i, best)
        tl.store(out + 4 + i, at)

    x = np.array([[3, 1, 3, 0], [0, 9, 9, 9], [5, 5, 5, 5], [1, 2, 3, 4]], F32)
    assert result(k, F32, 8, x=x).tolist() == [3, 9, 5, 4, 0, 1, 0, 3]


# -- 28: return values and calls of functions --------------------------------------------------------------------------------

DEFAULT = tl.constexpr(4)


@kernel
def chosen(MODE: tl.constexpr):
    if MODE == 0:
        return 8
    elif MODE == 1:
        return None
    return "text"


@kernel
def both(x, y):
    return x + y, (x - y, 2)


@kernel
def nothing(x):
    x + 1


@kernel
def with_defaults(x, n=DEFAULT, scale: tl.constexpr = 2, other=None):
    return tl.sum(tl.arange(0, n)) * scale + (x if other is None else other)


def test_arms_of_a_constant_branch_may_return_different_constants():
    @kernel
    def k(out):
        x = tl.arange(0, chosen(0))
        if chosen(1) is None:
            tl.store(out, tl.sum(x))
        if chosen(2) == "text":
            tl.store(out + 1, 1)

    assert result(k, np.int32, 2).tolist() == [28, 1]


def test_functions_may_return_tuples_of_tiles_and_none():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        v = tl.load(x + i)
        a, (b, c) = both(v, 2)
        tl.static_assert(nothing(v) is None)
        nothing(v)
        tl.store(out + i, a * b * c)

    np.testing.assert_array_equal(result(k, F32, 4, x=X), (X[:4] + 2) * (X[:4] - 2) * 2)


def test_helpers_take_keywords_defaults_and_star_arguments():
    @kernel
    def k(out, n):
        tl.store(out, with_defaults(n))
        tl.store(out + 1, with_defaults(x=n, n=8, other=3))
        tl.store(out + 2, with_defaults(n, scale=3))
        tl.store(out + 3, tl.sum(tl.arange(0, 4), _builder=None))

    assert result(k, np.int32, 4, n=100).tolist() == [112, 59, 118, 6]
