"""Calls: helpers inlined, library functions, Python's own functions; and a whole program at the end."""

import linecache

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, ir, kernel, launch, place, text

import blocknb
import blocknb.language as tl
from blocknb.errors import SyntaxUnsupported, TypeMismatch


@kernel
def add_scaled(x, y, scale=2, shift: tl.constexpr = 1):
    """A docstring."""
    return x + scale * y + shift, y


def test_helpers_are_inlined_with_defaults_keywords_and_tuples():
    @kernel
    def k(out, n):
        a, b = add_scaled(n, y=n)
        c, _ = add_scaled(1, 1, shift=0, scale=n)
        tl.store(out, a + b)
        tl.store(out + 1, c)

    assert evaluate(k, np.int32, (2,), n=5).tolist() == [5 + 10 + 1 + 5, 6]


def test_the_ops_of_a_helper_keep_their_line_and_name_their_call():
    @kernel
    def k(out, n):
        tl.store(out, add_scaled(n, n)[0])

    inner = [op for op in ir(k, out="*i32", n="i32").ops() if op.loc.function == "add_scaled"]
    assert inner
    assert {op.loc.line - add_scaled.source.first_line for op in inner} == {3}
    assert {op.loc.caller.line - k.source.first_line for op in inner} == {2}
    assert inner[0].loc.outermost.function == "k"


def test_a_literal_stays_constant_in_a_helper_and_a_tile_passes_for_a_constexpr():
    @kernel
    def fill(ptr, size, value: tl.constexpr):
        tl.store(ptr + tl.arange(0, size), value)

    @kernel
    def k(out, n):
        fill(out, 4, n)

    assert evaluate(k, np.int32, (4,), n=7).tolist() == [7] * 4


def test_a_missing_argument_of_a_helper_is_named():
    @kernel
    def k(out, n):
        tl.store(out, add_scaled(n))

    error = failure(k, TypeMismatch, out="*i32", n="i32")
    assert error.message == "the call of `add_scaled` lacks the argument `y`"
    assert place(k, error) == (2, "add_scaled(n)")


@kernel
def forever(n):
    return forever(n - 1)


def test_recursion_is_refused_at_the_call():
    @kernel
    def k(out, n):
        tl.store(out, forever(n))

    error = failure(k, SyntaxUnsupported, out="*i32", n="i32")
    assert "recursion: `forever` calls itself" in error.message
    assert error.loc.caller.line == k.source.first_line + 2
    assert place(forever, error) == (2, "forever(n - 1)")


@kernel
def power(x, N: tl.constexpr):
    if N == 0:
        return x * 0 + 1
    return x * power(x, N - 1)


def test_recursion_is_allowed_while_its_constants_change():
    @kernel
    def k(out, N: tl.constexpr):
        tl.store(out + tl.arange(0, 2), power(tl.arange(0, 2) + 1, N))

    assert evaluate(k, np.int32, (2,), N=5).tolist() == [1, 32]
    error = failure(k, SyntaxUnsupported, out="*i32", N=-1)
    assert error.message == "recursion: `power` calls itself 32 times" and error.loc.caller.function == "k"
    assert place(power, error) == (4, "power(x, N - 1)")


def double(n):
    return 2 * n


def test_plain_python_functions_are_called_on_constants_while_compiling():
    @kernel
    def k(out, N: tl.constexpr):
        tl.store(out + tl.arange(0, double(N)), min(double(N), 3))

    assert evaluate(k, np.int32, (4,), N=2).tolist() == [3] * 4


def test_plain_python_functions_refuse_run_time_values():
    @kernel
    def k(out, n):
        tl.store(out, double(n))

    error = failure(k, TypeMismatch, out="*i32", n="i32")
    assert "`double` is a plain Python function" in error.message
    assert "@blocknb.kernel" in error.hint


def test_host_cdiv_means_the_languages_cdiv_inside_a_kernel():
    @kernel
    def k(out, n, N: tl.constexpr):
        tl.static_assert(blocknb.cdiv(N, 4) == 3)
        tl.static_assert(blocknb.next_power_of_2(N) == 16)
        tl.store(out, blocknb.cdiv(n, 4))

    assert evaluate(k, np.int32, n=9, N=9) == 3


def test_functions_may_be_constexpr_arguments():
    @kernel
    def k(out, n, F: tl.constexpr):
        tl.store(out, F(n))

    @kernel
    def square(x):
        return x * x

    assert evaluate(k, np.int32, n=5, F=square) == 25


def test_static_methods_are_helpers():
    class Helpers:
        @staticmethod
        @kernel
        def triple(x):
            return 3 * x

    @kernel
    def k(out, n):
        tl.store(out, Helpers.triple(n))

    assert evaluate(k, np.int32, n=5) == 15


def test_a_one_line_definition_is_parsed():
    one = kernel(increment)

    @kernel
    def k(out, n): tl.store(out, one(n))  # fmt: skip

    assert evaluate(k, np.int32, n=5) == 6


def increment(x): return x + 1  # fmt: skip


def test_a_local_may_be_named_range_and_a_parameter_type():
    @kernel
    def k(out, type: tl.constexpr, n):
        range = tl.arange(0, 2)
        tl.store(out + range, type + n)

    assert evaluate(k, np.int32, (2,), type=3, n=4).tolist() == [7, 7]


def test_python_min_of_run_time_values_is_the_languages_minimum():
    @kernel
    def k(out, n):
        tl.store(out, min(n, 4, 7) + max(n, 2) + abs(-n) + int(2.5))

    assert evaluate(k, np.int32, n=5) == 4 + 5 + 5 + 2


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("abs()", "missing a required argument: 'x'"),
        ("max()", "`max` has no arguments"),
        ("float(n, n)", "too many positional arguments"),
        ("tl.float32()", "the dtype fp32 converts one value, not 0"),
        ("tl.float32(n, bitcast=True)", "converts one value, not 2"),
        ("len(n)", "int32 has no length"),
        ("isinstance(n)", "missing a required argument"),
        ("n()", "`n` is a value here (int32), not a function"),
        ("tl.int1.name()", "the constant 'int1' is not a function"),
        ("tl.range(n)", "`range` cannot be called here"),
        ("range(n)", "use a range with run-time bounds only in `for ... in`"),
        ("getattr(n, 'dtyp')", "int32 has no `dtyp`"),
        ("hasattr(n)", "missing a required argument"),
    ],
)
def test_invalid_calls_give_a_reason(expression, said):
    space = {"kernel": kernel, "tl": tl, "__name__": "cells"}
    name = f"<call {expression}>"
    lines = ["@kernel\n", "def k(out, n):\n", f"    tl.store(out, {expression})\n"]
    linecache.cache[name] = (0, None, lines, name)
    exec(compile("".join(lines), name, "exec"), space)
    error = failure(space["k"], TypeMismatch, out="*f32", n="i32")
    assert said in error.message
    assert error.loc.line == 3


def test_library_softmax_matches_numpy():
    @kernel
    def k(out, x):
        i, j = tl.arange(0, 2), tl.arange(0, 8)
        at = i[:, None] * 8 + j[None, :]
        tl.store(out + at, tl.softmax(tl.load(x + at), 1))

    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(evaluate(k, np.float32, (2, 8), x=x), expected, rtol=1e-6)


def test_whole_program_computes_a_matrix_product():
    @kernel
    def k(c, a, b, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        j = tl.program_id(1) * B + tl.arange(0, B)
        acc = tl.zeros((B, B), tl.float32)
        for at in range(0, n, B):
            inner = at + tl.arange(0, B)
            x = tl.load(a + i[:, None] * n + inner[None, :], (i[:, None] < n) & (inner[None, :] < n), 0.0)
            y = tl.load(b + inner[:, None] * n + j[None, :], (inner[:, None] < n) & (j[None, :] < n))
            acc = tl.dot(x, y, acc, input_precision="ieee")
        tl.store(c + i[:, None] * n + j[None, :], acc, (i[:, None] < n) & (j[None, :] < n))

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 20, 20)).astype(np.float32)
    c = np.full((20, 20), np.nan, np.float32)
    launch(k, (2, 2), c=c, a=a, b=b, n=20, B=16)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)
    assert "dot" in text(k, c="*f32", a="*f32", b="*f32", n="i32", B=16)


@kernel
def weighted(a, b, c):
    return a + b * 2 + c * 4


def test_tuples_are_unpacked_in_calls_and_iterated_in_comprehensions():
    @kernel
    def k(out, x, SIZES: tl.constexpr):
        i = tl.arange(0, SIZES[0])
        v = 7
        rows = [tl.load(x + i + j * 8) for j in (0, 1, 2)]
        twice = [v * 2 for v in rows[1:]]
        sizes: tl.constexpr = [n + 1 for n, keep in ((SIZES[0], True), (3, False), (SIZES[1], True)) if keep]
        tl.static_assert(sizes == (9, 6) and len(rows) == 3)
        tl.store(out + i, weighted(rows[0], *twice) + tl.reshape(i, *SIZES[:1]) + v)

    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    expected = x[0] + x[1] * 4 + x[2] * 8 + np.arange(8) + 7
    np.testing.assert_array_equal(evaluate(k, np.float32, (8,), x=x, SIZES=(8, 5)), expected)


def test_only_tuples_are_unpacked_and_only_constants_filter_comprehensions():
    @kernel
    def spread(out, x):
        tl.store(out, tl.maximum(*tl.load(x + tl.arange(0, 2))))

    error = failure(spread, TypeMismatch, out="*f32", x="*f32")
    assert error.message == "`*` expands a tuple, not fp32 of shape (2,)"
    assert place(spread, error) == (2, "tl.load(x + tl.arange(0, 2))")

    @kernel
    def left_out(out, n):
        kept = [i for i in (1, 2) if i > n]
        tl.store(out, kept[0])

    error = failure(left_out, TypeMismatch, out="*i32", n="i32")
    assert error.message == "the condition of a comprehension must be known at compile time"
    assert place(left_out, error) == (2, "i > n")

    @kernel
    def double_star(out):
        options = (1,)
        tl.store(out, **options)

    assert failure(double_star, SyntaxUnsupported, out="*i32").message == "`**` in a call is not supported in a kernel"
