"""Where a function ends: returns under branches, in unrolled loops, before other calls; and the jumps that do not exist."""

from __future__ import annotations

import numpy as np
import pytest
from front import evaluate, failure, kernel, place

import blocknb.language as tl
from blocknb.errors import SyntaxUnsupported


@kernel
def two_ways(n):
    if n > 3:
        return n
    if n == 3:
        return n * 100
    n -= 1
    return n


@pytest.mark.parametrize("n", [9, 3, 2, -4])
@pytest.mark.parametrize("flag", [True, False])
def test_a_return_under_a_run_time_branch_within_a_constant_one_ends_the_kernel(n, flag):
    @kernel
    def k(out, n, FLAG: tl.constexpr):
        if FLAG:
            if n > 3:
                tl.store(out, 7)
                return
            tl.store(out, two_ways(n))
        tl.store(out + 1, two_ways(n + 1))

    def value(n):
        return n if n > 3 else 300 if n == 3 else n - 1

    found = evaluate(k, np.int32, (2,), n=np.int32(n), FLAG=flag)
    expected = [7, 0] if flag and n > 3 else [value(n) if flag else 0, value(n + 1)]
    assert list(found) == expected


@kernel
def find(n, step):
    for i in tl.static_range(4):
        if n == i * step:
            if step > 3:
                return i
            return i + 100
    return -1


@pytest.mark.parametrize(("n", "step", "expected"), [(8, 4, 2), (6, 3, 102), (0, 5, 0), (7, 5, -1), (15, 5, 3)])
def test_a_return_in_an_unrolled_loop_skips_the_turns_that_are_left(n, step, expected):
    @kernel
    def k(out, n, step):
        tl.store(out, find(n, step))
        for i in tl.static_range(5):
            tl.store(out + 1 + i, i + 1)
            if n == i:
                return
        tl.store(out + 6, 1)

    found = evaluate(k, np.int32, (7,), n=np.int32(n), step=np.int32(step))
    turns = [i + 1 if n >= i or n > 4 else 0 for i in range(5)]
    assert list(found) == [expected, *turns, int(n > 4)]


def test_a_loop_with_a_return_unrolls_only_so_far():
    @kernel
    def k(out, n):
        for i in tl.static_range(100):
            if n == i:
                return
        tl.store(out, 1)

    assert "a `return` in a loop that unrolls" in failure(k, SyntaxUnsupported, out="*i32", n="i32").message


@pytest.mark.parametrize("jump", ["return", "break", "continue"])
def test_jumps_out_of_a_loop_are_refused_at_their_place_with_another_way(jump):
    @kernel
    def with_return(out, n):
        for i in range(n):
            if i == 3:
                return
            tl.store(out + i, i)

    @kernel
    def with_break(out, n):
        while n > 0:
            n -= 1
            if n == 3:
                break

    @kernel
    def with_continue(out, n):
        for i in range(n):
            if i == 3:
                continue
            tl.store(out + i, i)

    k = {"return": with_return, "break": with_break, "continue": with_continue}[jump]
    error = failure(k, SyntaxUnsupported, out="*i32", n="i32")
    assert place(k, error)[1] == jump
    assert f"`{jump}`" in error.message
    assert "while" in (error.hint or "") or "under an `if`" in (error.hint or "")


def test_the_ways_that_the_hints_name_compute_the_same():
    """A condition that ends the loop, and a body under an `if`."""

    @kernel
    def k(out, n):
        i, going = 0, True
        while i < n and going:
            if i != 5:
                tl.store(out + i, i + 1)
            i += 1
            going = i < 8
        tl.store(out + 15, i)

    found = evaluate(k, np.int32, (16,), n=np.int32(12))
    assert list(found) == [1, 2, 3, 4, 5, 0, 7, 8, *[0] * 7, 8]


def test_what_a_kernel_returns_goes_nowhere():
    @kernel
    def k(out, n):
        if n > 3:
            return n
        tl.store(out, 5)
        return n + 1.5

    assert evaluate(k, np.int32, n=np.int32(2)) == 5
    assert evaluate(k, np.int32, n=np.int32(7)) == 0


def test_conditions_chain_and_take_a_block_of_one():
    @kernel
    def k(out, n):
        if 0 < n < 5:
            tl.store(out, 1)
        if 0 < n <= 7 < n + 3:
            tl.store(out + 1, 1)
        if (tl.arange(0, 1) + n) > 4:
            tl.store(out + 2, 1)
        last = 0
        for j in range(n, 0, -2):
            last = j
        tl.store(out + 3, last * 10 + j)

    def expected(n):
        return [int(0 < n < 5), int(0 < n <= 7 < n + 3), int(n > 4), 11 * [*range(n, 0, -2)][-1]]

    for n in (3, 6, 7, 9):
        assert list(evaluate(k, np.int32, (4,), n=np.int32(n))) == expected(n)
