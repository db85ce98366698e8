"""Returns under branches, in unrolled loops and before other calls; unsupported jumps."""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, ir, kernel, place

import blocknb.language as tl
from blocknb.errors import SyntaxUnsupported, TypeMismatch
from blocknb.ir.interp import run


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
def test_a_return_under_a_run_time_branch_inside_a_constant_branch_ends_the_kernel(n, flag):
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
def test_a_return_in_an_unrolled_loop_skips_the_remaining_iterations(n, step, expected):
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


def test_unrolling_of_a_loop_with_a_return_is_bounded():
    @kernel
    def k(out, n):
        for i in tl.static_range(100):
            if n == i:
                return
        tl.store(out, 1)

    assert "a `return` in a loop that unrolls" in failure(k, SyntaxUnsupported, out="*i32", n="i32").message


@pytest.mark.parametrize("jump", ["return", "break", "continue"])
def test_jumps_out_of_a_loop_are_refused_with_an_alternative(jump):
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


def test_alternatives_named_by_the_hints_give_the_same_result():
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


def test_return_value_of_a_kernel_is_ignored():
    @kernel
    def k(out, n):
        if n > 3:
            return n
        tl.store(out, 5)
        return n + 1.5

    assert evaluate(k, np.int32, n=np.int32(2)) == 5
    assert evaluate(k, np.int32, n=np.int32(7)) == 0


def test_conditions_may_be_chained_or_a_tile_of_one_element():
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


# -- in inner arms


@kernel
def ladder(x, a, b, FLAG: tl.constexpr):
    """Five branches with a nested return each: copying the code after them would give 32 paths."""
    if a > 3:
        if b > 3:
            return x
        x += 1
    if a > 2:
        if FLAG:
            if b == -3:
                return x * 2
        x += 10
        m = x
    else:
        if b < -2:
            return x - 1
        m = -x
    if a % 2 == 0:
        if b == 1:
            return m
        elif b == 2:
            m = m * 2
        else:
            x = 0
    if b > 0:
        if a == 1:
            return a * 50 + m
        m += 1000
    for i in tl.static_range(3):
        if a == -i:
            if b == i:
                return i * 10000
            m += i
    if a == -3:
        if b == -1:
            return m + x
    return m * 10000 + x


@pytest.mark.parametrize("flag", [True, False])
def test_code_after_nested_returns_runs_on_every_other_path(flag):
    @kernel
    def k(out, a, b, FLAG: tl.constexpr):
        tl.store(out, ladder(7, a, b, FLAG))

    def integer(n):
        return int(np.int32(n))

    func = ir(k, out="*i32", a="i32", b="i32", FLAG=flag)
    for a in range(-4, 6):
        for b in range(-4, 6):
            out = np.zeros(1, np.int32)
            run(func, [out, np.int32(a), np.int32(b)], 1)
            assert out[0] == integer(inner(a, b, flag)), (a, b)


def inner(a, b, flag):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl, "static_range", range)  # the helper's own Python is the reference
        return ladder.source.function(7, a, b, flag)


@kernel
def several(p, q, n, v):
    """Tuples of a pointer, a tile, a constant and a block pointer."""
    block = tl.make_block_ptr(p, (8,), (1,), (0,), (4,), (0,))
    if n > 0:
        if n == 1:
            return p + 4, v * 2, 5, tl.advance(block, (4,))
        if n == 2:
            return q, v, 6, block
        v += 1.0
    if n > -5:
        if n == -1:
            return q + 1, v - 1.0, n, block
        block = tl.advance(block, (n,))
    if n > 2:
        if n == 3:
            return q + n, v, 8, block
    return p, v, 9, tl.advance(block, (4,))


def test_values_of_all_kinds_can_be_returned_from_inner_arms():
    @kernel
    def k(out, p, q, n):
        pointer, v, number, block = several(p, q, n, tl.arange(0, 4).to(tl.float32))
        tl.store(out, tl.load(pointer))
        tl.store(out + 1, number)
        tl.store(out + 2 + tl.arange(0, 4), v)
        tl.store(out + 6 + tl.arange(0, 4), tl.load(block, boundary_check=(0,)))

    p, q, v = np.arange(20, dtype=np.float32), np.arange(100, 120, dtype=np.float32), np.arange(4, dtype=np.float32)

    def block(at):
        return [float(i) if 0 <= i < 8 else 0.0 for i in range(at, at + 4)]

    expected = {
        1: (4, 5, v * 2, block(4)),
        2: (100, 6, v, block(0)),
        -1: (101, -1, v - 1, block(0)),
        3: (103, 8, v + 1, block(3)),
        -4: (0, 9, v, block(0)),
        -9: (0, 9, v, block(4)),
        4: (0, 9, v + 1, block(8)),
    }
    for n, (pointed, number, tile, elements) in expected.items():
        found = evaluate(k, np.float32, (10,), p=p, q=q, n=np.int32(n))
        assert found.tolist() == [pointed, number, *tile, *elements], n


def test_types_that_differ_between_inner_returns_are_refused_at_a_branch():
    @kernel
    def mixed(a, b, x):
        if a > 0:
            if b > 0:
                return x
        if a > 1:
            if b > 1:
                return x
        if a > 2:
            if b > 2:
                return x + 1
            x += 1
        return x * 0.5

    @kernel
    def k(out, a, b, x):
        tl.store(out, mixed(a, b, x))

    error = failure(k, TypeMismatch, out="*f32", a="i32", b="i32", x="i32")
    assert error.message == "`mixed` returns different types from the arms of this branch: int32 and fp32"
    assert place(mixed, error)[1].startswith("a > ")
    assert error.hint == "return values of the same type in all arms"


def test_returning_a_value_on_only_some_paths_is_refused():
    @kernel  # noqa: RET503
    def open_ended(a, b, x):
        for i in tl.static_range(4):
            if a > i:
                if b > i:
                    return x
        x += 1

    @kernel
    def k(out, a, b, x):
        tl.store(out, open_ended(a, b, x))

    error = failure(k, TypeMismatch, out="*f32", a="i32", b="i32", x="i32")
    assert "`open_ended` returns different types" in error.message
    assert place(open_ended, error)[1] == "a > i"


def test_only_names_undefined_on_a_continuing_path_are_errors():
    @kernel
    def k(out, a, b):
        for i in tl.static_range(3):
            if a > i:
                if b > i:
                    return
                t = a + i
            else:
                t = b
        if a > 5:
            if b < -5:
                return
            u = t
        tl.store(out, t)
        tl.store(out + 1, u)

    error = failure(k, TypeMismatch, out="*i32", a="i32", b="i32")
    assert error.message.startswith("`u` is assigned only in the `if` arm")
    assert place(k, error)[1] == "u"


def test_hundreds_of_early_returns_do_not_nest_deeper():
    lines = [f"    if n == {i}:\n        return {i * i}\n" for i in range(300)]
    source = "@kernel\ndef many(n):\n" + "".join(lines) + "    return -1\n"
    linecache.cache["<many>"] = (len(source), None, source.splitlines(keepends=True), "<many>")
    names = {"kernel": kernel}
    exec(compile(source, "<many>", "exec"), names)
    many = names["many"]

    @kernel
    def k(out, n):
        tl.store(out, many(n))

    for n, expected in ((0, 0), (7, 49), (100, 10000), (299, 299 * 299), (300, -1)):
        assert evaluate(k, np.int32, n=np.int32(n)) == expected
