"""Semantics of the language: compile-time values, and what names refer to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from semantics import ops, refused, result, value

import blocknb
import blocknb.language as tl
from blocknb import kernel
from blocknb.compat import triton

# -- 1: plain assignments make run-time scalars ------------------------------------------------------------------------------


def test_a_constant_assigned_to_a_plain_local_is_a_run_time_scalar():
    @kernel
    def k(out):
        x = 7
        tl.static_assert(x.dtype == tl.int32)
        y = 0.5
        tl.static_assert(y.dtype == tl.float32)
        b = True
        tl.static_assert(b.dtype == tl.int1)
        tl.store(out, x + y + b.to(tl.int32))

    assert value(k, np.float32) == 8.5


def test_plain_local_from_either_arm_has_methods():
    @kernel
    def k(out, p, F: tl.constexpr):
        scale = tl.load(p) if F else 3
        tl.store(out, scale.to(tl.float32) * 0.5)

    p = np.array([5.0], np.float32)
    assert value(k, np.float32, p=p, F=True) == 2.5
    assert value(k, np.float32, p=p, F=False) == 1.5


def test_plain_local_that_never_changes_may_be_a_size():
    """Triton refuses this. Here the constant behind the name is known, so the name has its only possible meaning."""

    @kernel
    def k(out):
        B = 16
        tl.store(out + tl.arange(0, B), tl.zeros((B,), tl.int32) + B)

    np.testing.assert_array_equal(result(k, np.int32, 16), np.full(16, 16))


def test_plain_local_that_changes_cannot_be_a_size():
    @kernel
    def k(out, n):
        B = 16
        if n > 3:
            B = 32
        tl.store(out + tl.arange(0, B), 1)

    error = refused(k, n=4)
    assert "must be known at compile time" in error.message and "tl.constexpr" in error.hint


def test_constexpr_local_is_a_size():
    @kernel
    def k(out):
        B: tl.constexpr = 16
        HALF: "tl.constexpr" = B // 2  # noqa: UP037
        tl.store(out + tl.arange(0, HALF), B)

    np.testing.assert_array_equal(result(k, np.int32, 8), np.full(8, 16))


# -- 2: constants through calls ----------------------------------------------------------------------------------------------


@kernel
def count_up(n):
    return tl.arange(0, n)


@kernel
def scaled(x, SCALE: tl.constexpr):
    return x * SCALE


def test_a_literal_stays_constant_in_an_unannotated_parameter():
    @kernel
    def k(out, N: tl.constexpr):
        tl.store(out + count_up(8), count_up(n=N // 2))

    np.testing.assert_array_equal(result(k, np.int32, 8, N=16), np.arange(8))


def test_a_run_time_value_passes_through_a_parameter_annotated_constexpr():
    @kernel
    def k(out, x):
        tl.store(out, scaled(tl.load(x), tl.load(x + 1)))

    assert value(k, np.float32, x=np.array([3, 5], np.float32)) == 15


# -- 3: Python's division for constants, C's at run time ---------------------------------------------------------------------


@kernel
def divided(a, b):
    return a // b, a % b


def test_division_floors_constants_and_truncates_run_time_integers():
    @kernel
    def k(out, a, b):
        q, r = divided(-7, 2)
        p, s = divided(a, b)
        tl.store(out + 0, q)
        tl.store(out + 1, r)
        tl.store(out + 2, p)
        tl.store(out + 3, s)
        tl.store(out + 4, a // 2)
        tl.store(out + 5, a % 2)

    assert result(k, np.int32, 6, a=-7, b=2).tolist() == [-4, 1, -3, -1, -3, -1]


def test_plain_local_divides_like_a_run_time_integer():
    @kernel
    def k(out):
        a = -7
        tl.store(out, a // 2)
        tl.store(out + 1, a % 2)

    assert result(k, np.int32, 2).tolist() == [-3, -1]


# -- 4: dead arms ------------------------------------------------------------------------------------------------------------


def test_only_the_taken_arm_of_a_constant_branch_is_visited():
    @kernel
    def k(out, MODE: tl.constexpr):
        if MODE == "one":
            x = 1
        elif MODE == "two":
            x = 2
        else:
            x = undefined_name + tl.arange(0, 3).foo  # noqa: F821
            raise ValueError("no such mode")
        tl.store(out, x)

    assert value(k, np.int32, MODE="one") == 1
    assert value(k, np.int32, MODE="two") == 2
    assert "undefined_name" in refused(k, MODE="three").message


def test_a_dead_arm_may_return_or_change_types():
    @kernel
    def k(out, EARLY: tl.constexpr):
        x = 1
        if EARLY:
            tl.store(out, 5)
            return
        else:
            x = tl.zeros((4,), tl.float32)
        tl.store(out, tl.sum(x) + 6)

    assert value(k, np.float32, EARLY=True) == 5
    assert value(k, np.float32, EARLY=False) == 6


def test_a_ternary_on_a_constant_visits_one_arm():
    @kernel
    def k(out, p, N: tl.constexpr):
        x = undefined_name if N > 3 else 4  # noqa: F821
        y = 2 if p is None else tl.load(p)
        tl.store(out, x * y)

    assert value(k, np.int32, p=None, N=2) == 8
    assert value(k, np.int32, p=np.array([5], np.int32), N=2) == 20


def test_and_or_short_circuit_on_constants():
    @kernel
    def k(out, p, N: tl.constexpr):
        x = 0
        if p is not None and tl.load(p) > 3:
            x = 1
        if N == 2 or undefined_name:  # noqa: F821
            x += 10
        if N == 3 and undefined_name:  # noqa: F821
            x += 100
        tl.store(out, x)

    assert value(k, np.int32, p=None, N=2) == 10
    assert value(k, np.int32, p=np.array([4], np.int32), N=2) == 11
    assert value(k, np.int32, p=np.array([3], np.int32), N=2) == 10


def test_type_string_and_bit_operations_are_evaluated_at_compile_time():
    @kernel
    def k(out, x, STAGE: tl.constexpr, ACT: tl.constexpr):
        n = 0
        if x.dtype.element_ty == tl.float16:
            n += 1
        else:
            undefined_name()  # noqa: F821
        if STAGE & 1:
            undefined_name()  # noqa: F821
        if STAGE & 2:
            n += 2
        if ACT == "gelu" and ACT != "relu" and ACT in ("gelu", "silu"):
            n += 4
        if not isinstance(x, tl.tensor):
            undefined_name()  # noqa: F821
        if isinstance(STAGE, tl.tensor):
            undefined_name()  # noqa: F821
        if isinstance(STAGE, tl.constexpr):
            n += 8
        tl.store(out, n)

    assert value(k, np.int32, x=np.zeros(1, np.float16), STAGE=2, ACT="gelu") == 15


# -- 5: None -----------------------------------------------------------------------------------------------------------------


def test_arithmetic_on_none_is_allowed_in_dead_arms():
    @kernel
    def k(out, bias, stride, HAS_BIAS: tl.constexpr):
        x = 1.0
        if bias is not None:
            bias += 2 * stride
            x += tl.load(bias)
        if HAS_BIAS:
            x += 100
        tl.store(out, x)

    has = {"HAS_BIAS": lambda args: args["bias"] is not None}
    tuned = blocknb.heuristics(has)(k)
    out = np.zeros(1, np.float32)
    tuned[(1,)](out, None, None)
    assert out[0] == 1
    tuned[(1,)](out, np.arange(5, dtype=np.float32), 2)
    assert out[0] == 105
    assert value(k, np.float32, bias=None, stride=None, HAS_BIAS=False) == 1


def test_arithmetic_on_none_in_a_live_arm_is_an_error_that_names_none():
    @kernel
    def k(out, bias):
        tl.store(out, tl.load(bias + 1))

    error = refused(k, bias=None)
    assert "None" in error.message and "is not None" in error.hint


# -- 6: how arguments become types -------------------------------------------------------------------------------------------


def test_an_argument_of_one_folds_and_still_has_the_methods_of_a_number():
    @kernel
    def k(out, stride):
        tl.store(out + tl.arange(0, 1) * stride, stride.to(tl.float32) / 2)

    assert value(k, np.float32, stride=1) == 0.5
    assert value(k, np.float32, stride=3) == 1.5
    assert "stride" in ops(k, out=np.zeros(4, np.float32), stride=3).splitlines()[0]
    assert "stride" not in ops(k, out=np.zeros(4, np.float32), stride=1).splitlines()[0]


@pytest.mark.parametrize("spec", [["n"], [1]], ids=["name", "index"])
def test_do_not_specialize_keeps_one_a_run_time_value_without_hints(spec):
    @blocknb.jit(do_not_specialize=spec)
    def k(out, n):
        tl.store(out, n)

    for n in (1, 16):
        assert value(k, np.int32, n=n) == n
        first = ops(k, out=np.zeros(1, np.int32), n=n).splitlines()[0]
        assert "%n" in first
    assert k[(1,)](np.zeros(1, np.int32), 16).trace is k[(1,)](np.zeros(1, np.int32), 1).trace


def test_multiples_of_16_and_aligned_pointers_are_hints():
    @kernel
    def k(out, n):
        tl.store(out, n)

    def signature(array, n):
        return k.trace(array, n, target="cpu").signature

    memory = np.zeros(64, np.int32)
    start = -memory.ctypes.data % 16 // 4
    aligned = memory[start:]
    assert signature(aligned, 32) == {"out": "*i32:16", "n": "i32:16"}
    assert signature(aligned[1:], 33) == {"out": "*i32", "n": "i32"}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (True, tl.int1),
        (5, tl.int32),
        (-(2**31), tl.int32),
        (2**31, tl.int64),
        (-(2**31) - 1, tl.int64),
        (2**63 - 1, tl.int64),
        (2**63, tl.uint64),
        (2.0, tl.float32),
        (1e300, tl.float32),
    ],
    ids=str,
)
def test_python_integers_get_the_smallest_sufficient_dtype(argument, expected):
    @kernel
    def k(out, x, T: tl.constexpr):
        tl.static_assert(x.dtype == T)
        tl.store(out, x)

    got = value(k, expected.numpy, x=argument, T=expected)
    assert got == (np.inf if argument == 1e300 else argument)


# -- 7, 8: globals -----------------------------------------------------------------------------------------------------------

WIDTH = tl.constexpr(8)
HALF = tl.constexpr(WIDTH // 2)
PLAIN = 3
ANNOTATED: tl.constexpr = -1
RATIO = 0.25
FLAG = True
exponential = tl.exp
largest = tl.max
ACC = tl.float32


def test_globals_may_be_constexprs_modules_functions_aliases_and_dtypes():
    @kernel
    def k(out):
        x = count_up(WIDTH).to(ACC)
        tl.store(out, largest(exponential(x * 0), 0) + HALF + math.pi * 0)

    assert value(k, np.float32) == 5


def test_global_plain_numbers_are_constants():
    @kernel
    def k(out):
        x = tl.arange(0, 2 ** (PLAIN + ANNOTATED))
        tl.store(out, tl.sum(x) * RATIO + (1 if FLAG else 0))

    assert value(k, np.float32) == 2.5


def test_changed_global_is_used_by_the_next_launch(monkeypatch):
    @kernel
    def k(out):
        tl.store(out, PLAIN + ANNOTATED)

    out = np.zeros(1, np.int32)
    k[(1,)](out)
    assert out[0] == 2
    monkeypatch.setitem(globals(), "PLAIN", 30)
    k[(1,)](out)
    assert out[0] == 29
    monkeypatch.setitem(globals(), "ANNOTATED", -5)
    k[(1,)](out)
    assert out[0] == 25


# -- 9: functions of the host on constants -----------------------------------------------------------------------------------


def bits_of(n):
    return n.bit_length()


def test_host_functions_are_called_on_constants():
    @kernel
    def k(out, N: tl.constexpr):
        P: tl.constexpr = blocknb.next_power_of_2(N)
        C: tl.constexpr = tl.cdiv(N, 4)
        D: tl.constexpr = blocknb.cdiv(N, 4)
        tl.static_assert(P == 16 and C == 3 and D == 3)
        tl.static_assert(min(P, C) == 3 and max(P, C, 99) == 99 and len((1, 2)) == 2)
        tl.static_assert(float(C) == 3.0 and int(3.9) == 3 and isinstance(C, int))
        tl.static_assert(getattr(tl, "float32") == tl.float32)
        tl.static_assert(bits_of(N) == 4)
        tl.store(out, tl.sum(tl.arange(0, P)))

    assert value(k, np.int32, N=10) == 120


@triton.constexpr_function
def marked(n):
    return n * 3


@tl.constexpr
def wrapped(n):
    return [n, n + 1]


def test_constexpr_functions_are_called_on_constants():
    @kernel
    def k(out, N: tl.constexpr):
        tl.static_assert(marked(N) == 12)
        tl.store(out, tl.sum(tl.arange(0, wrapped(marked(N) - 5)[1])))

    assert value(k, np.int32, N=4) == 28


def test_functions_of_constants_also_work_on_run_time_values():
    @kernel
    def k(out, n):
        tl.store(out, tl.cdiv(n, 4) + blocknb.cdiv(n, 4) + min(n, 5) + max(n, 5))

    assert value(k, np.int32, n=10) == 3 + 3 + 5 + 10


def test_plain_function_of_run_time_values_is_an_error_that_suggests_the_decorator():
    @kernel
    def k(out, n):
        tl.store(out, bits_of(n))

    error = refused(k, n=10)
    assert "`bits_of`" in error.message and "@blocknb.kernel" in error.hint


# -- 10: lists, shapes, dtypes -----------------------------------------------------------------------------------------------


def test_lists_are_tuples_of_constants():
    @kernel
    def k(out, n: tl.constexpr):
        shape: tl.constexpr = [n, 2, 4]
        x = tl.full(shape, 1, tl.int32)
        y = tl.reshape(tl.arange(0, 32), [n * 2, 4])
        tl.static_assert(len(shape) == 3 and shape[0] == n and shape[-1] == 4)
        tl.store(out, tl.sum(x) + tl.sum(y))

    assert value(k, np.int32, n=4) == 32 + 496


def test_shapes_and_dtypes_are_constants():
    @kernel
    def k(out, x, T: tl.constexpr):
        i: tl.constexpr = 2
        v = tl.load(x + tl.arange(0, 2**i)[:, None] + tl.arange(0, 8)[None, :])
        tl.static_assert(v.shape[0] == 4 and v.shape[1] == 8 and v.numel == 32)
        tl.static_assert(v.dtype.primitive_bitwidth == 16 and v.dtype.is_floating() and not v.dtype.is_int())
        tl.static_assert(i.value == 2)
        tl.static_assert(T.value == tl.float32)
        w = tl.zeros((v.shape[0], v.shape[1] // 2), v.dtype)
        tl.store(out, tl.sum(w.to(T)) + tl.sum(v.to(T)) + 2**i)

    assert value(k, np.float32, x=np.ones(32, np.float16), T=tl.float32) == 36


# -- 11: names ---------------------------------------------------------------------------------------------------------------


def test_parameters_and_locals_may_shadow_builtins():
    @kernel
    def k(out, type, n):
        range = n * 2
        sum = range + type
        tl.store(out, sum)

    assert value(k, np.int32, type=3, n=4) == 11


def test_num_warps_may_be_both_parameter_and_option():
    @kernel
    def k(out, num_warps: tl.constexpr):
        tl.store(out, num_warps)

    assert value(k, np.int32, num_warps=8) == 8
    out = np.zeros(1, np.int32)
    assert k[(1,)](out, 2).metadata.num_warps == 2
    assert k[(1,)](out, num_warps=8).metadata.num_warps == 8
    assert out[0] == 8


def test_plain_parameter_may_follow_constexpr_parameters():
    @kernel
    def k(out, BLOCK: tl.constexpr, n, OTHER: tl.constexpr = 3):
        tl.store(out, BLOCK * n + OTHER)

    out = np.zeros(1, np.int32)
    k[(1,)](out, 4, 5)
    assert out[0] == 23
    assert value(k, np.int32, BLOCK=4, n=5, OTHER=1) == 21
