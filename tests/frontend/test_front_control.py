"""Branches, loops, returns and calls: structured IR from Python's statements."""

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, ir, kernel, place

import blocknb.language as tl
from blocknb.errors import TypeMismatch


def names(func):
    return [op.name for op in func.ops()]


# -- branches --------------------------------------------------------------------------------------------------------------


def test_a_branch_on_a_constant_visits_the_taken_arm_only():
    @kernel
    def k(out, FLAG: tl.constexpr):
        if FLAG == "a":
            tl.store(out, 1)
        elif FLAG is None:
            undefined_name.anything()  # noqa: F821
        else:
            raise ValueError("neither")

    assert names(ir(k, out="*i32", FLAG=tl.constexpr("a"))) == ["const", "store"]


def test_a_run_time_branch_yields_the_names_assigned_differently():
    @kernel
    def k(out, n):
        x = 1
        y = 5
        if n > 3:
            x = x + n
        elif n > 1:
            x = 7
        tl.store(out, x * 10 + y)

    assert [int(evaluate(k, np.int32, n=n)) for n in (0, 2, 4)] == [15, 75, 55]
    assert names(ir(k, out="*i32", n="i32")).count("if") == 2


def test_both_arms_may_assign_the_same_value_to_a_name():
    @kernel
    def k(out, n):
        x = n + 1
        y = n * 10
        if n > 3:
            x = y
            tl.store(out + 1, 1)
        else:
            x = y
        tl.store(out, x)

    assert [evaluate(k, np.int32, (2,), n=n).tolist() for n in (2, 4)] == [[20, 0], [40, 1]]


def test_code_after_an_early_return_moves_into_the_other_arm():
    @kernel
    def k(out, n):
        if n > 10:
            return
        tl.store(out, 1)
        if n > 5:
            tl.store(out, 2)
            return
        tl.store(out + 1, 3)

    results = [evaluate(k, np.int32, (2,), n=n).tolist() for n in (11, 6, 2)]
    assert results == [[0, 0], [2, 0], [1, 3]]


def test_code_after_a_nested_return_moves_into_all_other_arms():
    @kernel
    def k(out, n):
        if n > 0:
            if n > 5:
                return
            tl.store(out, 1)
        else:
            tl.store(out, 2)
        tl.store(out + 1, 3)

    assert [evaluate(k, np.int32, (2,), n=n).tolist() for n in (6, 3, -1)] == [[0, 0], [1, 3], [2, 3]]


def test_code_after_a_return_under_constant_and_run_time_conditions_is_kept():
    @kernel
    def k(out, n, F: tl.constexpr):
        if F:
            if n > 5:
                return
            tl.store(out, 1)
        if not F:
            pass
        else:
            m = n + 1
        tl.store(out + 1, m)

    assert [evaluate(k, np.int32, (2,), n=n, F=True).tolist() for n in (6, 3)] == [[0, 0], [1, 4]]


def test_a_helper_returns_from_under_a_constant_condition():
    @kernel
    def found(x, F: tl.constexpr):
        if F:
            if x == 3:
                return 7
        return x * 2

    @kernel
    def k(out, n, F: tl.constexpr):
        tl.store(out, found(n, F) + 100)

    assert [int(evaluate(k, np.int32, n=n, F=f)) for n, f in ((3, True), (4, True), (3, False))] == [107, 108, 106]


def test_a_return_in_an_unrolled_loop_skips_the_remaining_code():
    @kernel
    def k(out, n):
        for i in tl.static_range(3):
            if n == i:
                return
            tl.store(out + i, 1)
        tl.store(out + 3, 1)

    results = [evaluate(k, np.int32, (4,), n=n).tolist() for n in (0, 2, 9)]
    assert results == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]


def test_return_value_of_a_kernel_is_ignored():
    @kernel
    def k(out, n):
        if n > 3:
            return n
        tl.store(out, n)
        return out

    assert [int(evaluate(k, np.int32, n=n)) for n in (3, 4)] == [3, 0]


def test_helpers_return_values_early():
    @kernel
    def sign(x):
        if x > 0:
            return 1
        if x < 0:
            return -1
        return 0

    @kernel
    def k(out, n):
        tl.store(out, sign(n))

    assert [int(evaluate(k, np.int32, n=n)) for n in (9, -9, 0)] == [1, -1, 0]


def test_a_ternary_on_a_run_time_scalar_becomes_an_if():
    @kernel
    def k(out, x, n):
        tl.store(out, tl.load(x) if n > 0 else 0.0)

    assert evaluate(k, np.float32, x=np.array([4.0], np.float32), n=1 + 1) == 4.0
    assert "if" in names(ir(k, out="*f32", x="*f32", n="i32"))


def test_a_dead_load_in_a_ternary_on_a_constant_is_not_emitted():
    @kernel
    def k(out, x, HAS: tl.constexpr):
        scale = tl.load(x) if HAS else 1
        tl.store(out, scale.to(tl.float32))

    assert "load" not in names(ir(k, out="*f32", x=None, HAS=False))


def test_a_tile_cannot_be_a_condition():
    @kernel
    def k(out):
        if tl.arange(0, 4) > 2:
            tl.store(out, 1)

    error = failure(k, TypeMismatch, out="*i32")
    assert "tile of shape (4,)" in error.message
    assert "tl.where" in error.hint
    assert place(k, error) == (2, "tl.arange(0, 4) > 2")


def test_a_tile_of_one_element_can_be_a_condition():
    @kernel
    def k(out, n):
        if tl.full((1, 1), n, tl.int32) > 2:
            tl.store(out, 1)

    assert [int(evaluate(k, np.int32, n=n)) for n in (2, 3)] == [0, 1]


def test_a_name_made_in_one_arm_is_undefined_after_the_branch():
    @kernel
    def k(out, n):
        if n > 3:
            x = 1
        tl.store(out, x)

    error = failure(k, TypeMismatch, out="*i32", n="i32")
    assert error.message == f"`x` is assigned only in the `if` arm of the branch at line {k.source.first_line + 2}"
    assert place(k, error) == (4, "x")


def test_a_name_keeps_its_type_over_a_branch():
    @kernel
    def k(out, n):
        x = 1
        if n > 3:
            x = 2.5
        tl.store(out, x)

    error = failure(k, TypeMismatch, out="*f32", n="i32")
    assert "fp32 and int32" in error.message
    assert place(k, error) == (4, "x")


def test_constants_that_differ_between_arms_become_run_time_values():
    @kernel
    def k(out, n, ONE):
        if n > 3:
            ONE = ONE + n
        tl.store(out, ONE)

    assert [int(evaluate(k, np.int32, n=n, ONE=1)) for n in (2, 9)] == [1, 10]


THRESHOLD = tl.constexpr(3)
PLAIN = 4


def test_globals_are_constants_with_their_current_value():
    @kernel
    def k(out):
        if THRESHOLD == 3 and PLAIN > THRESHOLD:
            tl.store(out + tl.arange(0, PLAIN), THRESHOLD + 1)

    assert evaluate(k, np.int32, (4,)).tolist() == [4] * 4


def test_and_or_not_short_circuit_on_constants():
    @kernel
    def k(out, x, N: tl.constexpr):
        if x is not None and x.dtype.element_ty == tl.float32:
            tl.store(out, 9)
        if N == 3 or undefined_name:  # noqa: F821
            tl.store(out, 0 or N)
        flag = not (N == 3 and not N)
        if flag:
            tl.store(out + 1, 1 if N is None else 2)

    assert evaluate(k, np.int32, (2,), x=None, N=3).tolist() == [3, 2]


# -- loops -----------------------------------------------------------------------------------------------------------------


def test_a_loop_carries_only_the_names_it_assigns():
    @kernel
    def k(out, n, FLAG: tl.constexpr):
        total = 0
        other = 3
        kept = 5
        for i in range(n):
            total += i
            if FLAG:
                other = other + 1
        tl.store(out, total + other + kept)

    assert evaluate(k, np.int32, n=5, FLAG=False) == 18
    assert evaluate(k, np.int32, n=5, FLAG=True) == 23
    (loop,) = [op for op in ir(k, out="*i32", n="i32", FLAG=False).ops() if op.name == "for"]
    assert len(loop.results) == 1


def test_tuples_of_values_are_carried():
    @kernel
    def k(out, n):
        pair = (0, 1)
        for _ in range(n):
            pair = (pair[1], pair[0] + pair[1])
        tl.store(out, pair[0])

    assert evaluate(k, np.int32, n=10) == 55


@pytest.mark.parametrize(
    ("bounds", "expected"), [((0, 5, 1), [0, 1, 2, 3, 4]), ((5, 0, -2), [5, 3, 1]), ((3, 3, 1), [])]
)
def test_ranges_may_count_up_or_down(bounds, expected):
    @kernel
    def k(out, a, b, STEP: tl.constexpr):
        at = 0
        for i in range(a, b, STEP):
            tl.store(out + at, i + 100)
            at += 1

    out = evaluate(k, np.int32, (8,), a=np.int32(bounds[0]), b=np.int32(bounds[1]), STEP=bounds[2])
    assert [int(x) - 100 for x in out if x] == expected


def test_a_range_with_a_64_bit_bound_counts_in_64_bits():
    @kernel
    def k(out, n):
        for i in range(n):
            tl.static_assert(i.dtype == tl.int64)
            tl.store(out, i)

    assert evaluate(k, np.int64, n=np.int64(3)) == 2


def test_the_hints_of_tl_range_reach_the_loop():
    @kernel
    def k(out, n):
        for i in tl.range(0, n, num_stages=3, flatten=True):
            tl.store(out + i, i)

    (loop,) = [op for op in ir(k, out="*i32", n="i32").ops() if op.name == "for"]
    assert loop.attrs["num_stages"] == 3


@pytest.mark.parametrize(
    ("count", "attrs"), [(4, {"unroll": True}), (8, {"unroll_factor": 4}), (None, {"unroll_factor": 4})]
)
def test_an_unroll_factor_that_covers_the_loop_unrolls_it(count, attrs):
    @kernel
    def k(out, n, COUNT: tl.constexpr):
        for i in tl.range(n if COUNT is None else COUNT, loop_unroll_factor=4):
            tl.store(out + i, i)

    (loop,) = [op for op in ir(k, out="*i32", n="i32", COUNT=count).ops() if op.name == "for"]
    assert dict(loop.attrs) == attrs


def test_loop_variable_read_after_the_loop_keeps_its_last_value():
    @kernel
    def k(out, n):
        for i in range(n):
            tl.store(out + 1, i)
        tl.store(out, i)

    assert evaluate(k, np.int32, (2,), n=4).tolist() == [3, 3]


def test_two_loops_with_one_variable_carry_nothing():
    @kernel
    def k(out, n):
        for i in range(n):
            tl.store(out, i)
        for i in range(n):
            tl.store(out + 1, i)

    assert all(not op.results for op in ir(k, out="*i32", n="i32").ops() if op.name == "for")


def test_static_range_gives_constants_and_leaves_no_loop():
    @kernel
    def k(out, N: tl.constexpr):
        for i in tl.static_range(N):
            tl.static_assert(i >= 0)
            tl.store(out + tl.arange(0, 2 ** (i + 1)), i)

    assert evaluate(k, np.int32, (4,), N=2).tolist() == [1, 1, 1, 1]
    assert "for" not in names(ir(k, out="*i32", N=2))


def test_static_range_needs_constants_and_is_bounded():
    @kernel
    def runtime(out, n):
        for i in tl.static_range(n):
            tl.store(out + i, i)

    @kernel
    def endless(out):
        for i in tl.static_range(1000000):
            pass

    assert "compile time" in failure(runtime, TypeMismatch, out="*i32", n="i32").message
    assert "10000 copies" in failure(endless, TypeMismatch, out="*i32").message


def test_a_while_loop_runs_until_its_condition_fails():
    @kernel
    def k(out, n):
        steps = 0
        while n != 1 and steps < 100:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        tl.store(out, steps)

    assert evaluate(k, np.int32, n=6) == 8


def test_a_while_on_a_false_constant_is_removed():
    @kernel
    def k(out, GO: tl.constexpr):
        while GO:
            nothing_of_this_is_visited  # noqa: F821

    assert names(ir(k, out="*i32", GO=False)) == []


def test_nested_loops_carry_values_through_both_levels():
    @kernel
    def k(out, n):
        acc = tl.zeros((2,), tl.int32)
        for i in range(n):
            for j in range(i):
                acc += j
        tl.store(out + tl.arange(0, 2), acc)

    assert evaluate(k, np.int32, (2,), n=4).tolist() == [4, 4]


@pytest.mark.parametrize("initial", ["0.0", "zero"])
def test_type_change_of_a_carried_name_is_an_error_with_a_hint(initial):
    @kernel
    def scalar_to_tile(x, n):
        acc = 0.0
        for i in range(n):
            acc += tl.load(x + i + tl.arange(0, 4))
        tl.store(x, tl.sum(acc, 0))

    @kernel
    def narrow_to_wide(x, n):
        acc = 0
        for i in range(n):
            acc += tl.load(x)
        tl.store(x, acc)

    if initial == "0.0":
        error = failure(scalar_to_tile, TypeMismatch, x="*f32", n="i32")
        assert "`acc` changes its type in the loop: fp32 before it, fp32 of shape (4,)" in error.message
        assert "tl.zeros((4,), dtype=tl.float32)" in error.hint
        assert place(scalar_to_tile, error) == (4, "acc")
    else:
        error = failure(narrow_to_wide, TypeMismatch, x="*i64", n="i32")
        assert "int32 before it, int64 at the end" in error.message


def test_names_made_inside_a_loop_end_with_it():
    @kernel
    def k(out, n):
        for i in range(n):
            x = i
        tl.store(out, x)

    error = failure(k, TypeMismatch, out="*i32", n="i32")
    assert "only inside the loop" in error.message
    assert place(k, error)[0] == 4


def test_pointers_are_carried_and_advanced():
    @kernel
    def k(out, x, n, stride):
        p = x + tl.arange(0, 2)
        acc = tl.zeros((2,), tl.int32)
        for _ in range(n):
            acc += tl.load(p)
            p += stride
        tl.store(out + tl.arange(0, 2), acc)

    assert evaluate(k, np.int32, (2,), x=np.arange(6, dtype=np.int32), n=3, stride=2).tolist() == [6, 9]
