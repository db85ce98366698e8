"""Interpreted kernels follow the semantics of the language where Python's differ, and so agree with the IR."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as tl
from blocknb.errors import KernelError
from blocknb.ir import interp
from blocknb.language import int8 as byte

SIZE = tl.constexpr(8)
SCALE = 3
WIDTHS = [2, 4]


def agree(kernel, **arguments):
    """The kernel's `out` (64 int64 or fp64); fails unless the interpreted Python and the interpreted IR agree."""
    results = []
    for dtype in (np.int64, np.float64):
        case = Case(kernel.__name__, kernel, lambda rng: {}, lambda a: {})
        expected, got = ({"out": np.zeros(64, dtype), **arguments} for _ in range(2))
        func = case.parse(expected)
        interp.run(func, [expected[h.name] for h in func.hints], 1)
        kernel.interpret(1)(**got)
        np.testing.assert_array_equal(got["out"], expected["out"])
        results.append(got["out"])
    return results[0]


def test_an_assigned_constant_is_a_run_time_scalar_with_a_dtype():
    @blocknb.kernel
    def k(out):
        x = tl.full((4,), 100, tl.int8)
        at = tl.arange(0, 4)
        two = 2
        tl.store(out + at, x * 2)
        tl.store(out + 4 + at, x * two)
        tl.store(out + 8, two.dtype.primitive_bitwidth)
        half: tl.constexpr = SIZE // 2
        tl.store(out + 16 + tl.arange(0, half), half)

    assert agree(k)[:9].tolist() == [-56] * 4 + [200] * 4 + [32]


def test_integers_divide_as_in_c_and_constants_as_in_python():
    @blocknb.kernel
    def k(out, n):
        tl.store(out, n // 2)
        tl.store(out + 1, n % 4)
        tl.store(out + 2, -7 // 2)
        tl.store(out + 3, -7 % 4)
        tl.store(out + 4, n / 2 * 10)
        n //= 3
        tl.store(out + 5, n)

    assert agree(k, n=-7)[:6].tolist() == [-3, -3, -4, 1, -35, -2]


def test_and_or_not_and_chains_work_on_tiles():
    @blocknb.kernel
    def k(out, n, FLAG: tl.constexpr):
        at = tl.arange(0, 8)
        inside = at > 1 and at < 6 and n
        outside = not inside or at == 3
        chain = 1 < at <= n < 7
        tl.store(out + at, inside.to(tl.int32))
        tl.store(out + 8 + at, outside.to(tl.int32))
        tl.store(out + 16 + at, chain.to(tl.int32))
        if FLAG and undefined_name:  # noqa: F821
            tl.store(out + 24, 1)
        tl.store(out + 25, (FLAG or n) + (n and 1))
        tl.store(out + 26, 1 if FLAG is None or n in (1, 2) else 4) if FLAG is None else None
        tl.store(out + 27, 0 < SIZE < 9 == True)

    agree(k, n=5, FLAG=False)


def test_range_yields_int32_scalars_and_static_range_constants():
    @blocknb.kernel
    def k(out, n):
        small = tl.full((4,), 100, tl.int8)
        at = tl.arange(0, 4)
        for i in range(2, 4):
            tl.store(out + i * 4 + at, small * i)
        for i in tl.static_range(2, 4):
            tl.store(out + 16 + i * 4 + at, small * i)
            tl.store(out + 32 + tl.arange(0, 2**i), i)
        for i in tl.range(n, 0, -2, num_stages=2):
            tl.store(out + 48 + i, i)
        for i, width in ((3, WIDTHS[0]), (4, WIDTHS[1])):
            tl.store(out + 56 + i, width)

    agree(k, n=5)


def test_a_conditional_expression_has_the_type_of_both_arms():
    @blocknb.kernel
    def k(out, n, flag):
        small = tl.full((), 3, tl.int8)
        x = small if flag else 100
        wide = 7 if flag else n.to(tl.int64)
        tl.store(out, x * tl.full((), 100, tl.int8))
        tl.store(out + 1, wide << 40)
        pair = (1, n) if flag else (2, n)
        tl.store(out + 2, pair[0] + pair[1])
        y = (small if n > 1 else 5) if flag else (small if n > 100 else 50)
        tl.store(out + 3, y * tl.full((), 100, tl.int8))

    assert agree(k, n=9, flag=True).tolist() != agree(k, n=9, flag=False).tolist()


def test_a_parameter_that_is_one_is_a_constant_until_it_is_assigned():
    @blocknb.kernel
    def k(out, step, n):
        at = tl.arange(0, 4 * step)
        small = tl.full((4,), 100, tl.int8)
        tl.store(out + at, small * step)
        if n > 3:
            step = step + n
        tl.store(out + 8, step * 1000)
        count = step
        while count < 40:
            count += step
            n -= 1
        tl.store(out + 9, count + n)

    agree(k, step=1, n=9)
    agree(k, step=1, n=2)


def test_helpers_get_constants_and_return_early_and_tuples():
    @blocknb.kernel
    def split_off(x, size: tl.constexpr, by=SIZE, extra=None):
        if extra is None:
            return x % size, x // by
        if x > extra:
            return x, extra
        return extra, x

    @blocknb.kernel
    def k(out, n):
        low, high = split_off(n, 4)
        tl.store(out, low)
        tl.store(out + 1, high)
        low, high = split_off(n, size=4, extra=n - 1)
        tl.store(out + 2, low * 100 + high)
        low, high = split_off(n, 4, extra=n + 1)
        tl.store(out + 3, low * 100 + high)
        if n > 20:
            tl.store(out + 4, 1)
            return
        tl.store(out + 5, 1)

    agree(k, n=19)
    agree(k, n=21)


@blocknb.kernel
def power(x, N: tl.constexpr):
    if N == 0:
        return x * 0 + 1
    return x * power(x, N - 1)


def test_a_helper_may_call_itself_with_other_constants():
    @blocknb.kernel
    def k(out):
        tl.store(out + tl.arange(0, 4), power(tl.arange(0, 4), 3))

    assert agree(k)[:4].tolist() == [0, 1, 8, 27]


def test_a_plain_function_is_a_helper():
    def smaller(x, y):
        bound = 4
        return tl.minimum(x, y) + bound

    @blocknb.kernel
    def decorated(x, y):
        return smaller_kernel(x, y)

    smaller_kernel = blocknb.kernel(smaller)

    @blocknb.kernel
    def k(out, n):
        at = tl.arange(0, 8)
        tl.store(out + at, decorated(at, n))

    @blocknb.kernel
    def plain(out, n):
        at = tl.arange(0, 8)
        tl.store(out + at, smaller(at, n))

    expected, out = agree(k, n=5), np.zeros(64, np.int64)
    plain.interpret(1)(out, 5)
    np.testing.assert_array_equal(out, expected)


def test_a_user_defined_combine_function_runs_as_python(capsys):
    @blocknb.kernel
    def larger(a, i, b, j):
        if a > b or (a == b and i < j):
            return a, i
        return b, j

    @blocknb.kernel
    def horner(a, x, b, y):
        return a * y + b, x * y

    @blocknb.kernel
    def loud(a, b):
        print("of", a.type.shape)
        return a + b

    @blocknb.kernel
    def k(out):
        at = tl.arange(0, 16)
        values = (at * 7) % 13
        best, where = tl.reduce((values, at), 0, larger)
        tl.store(out, best)
        tl.store(out + 1, where)
        running, _ = tl.associative_scan((values, at * 0 + 2), 0, horner)
        tl.store(out + 16 + at, running)
        rows = tl.reshape(values, (4, 4))
        tl.store(out + 32 + tl.arange(0, 4), tl.reduce(rows, 1, horner_sum))
        tl.store(out + 36 + tl.arange(0, 4), tl.reduce(rows, 0, tl.maximum_of if False else horner_sum))

    @blocknb.kernel
    def horner_sum(a, b):
        return a + b * 1

    agree(k)

    @blocknb.kernel
    def printing(out):
        tl.store(out, tl.reduce(tl.arange(0, 8), 0, loud))

    out = np.zeros(1, np.int32)
    printing.interpret(1)(out)
    assert out[0] == 28 and capsys.readouterr().out == "of (4,)\nof (2,)\nof (1,)\n"


def test_names_from_outside_are_constants():
    bound = tl.constexpr(4)
    exp = tl.maximum

    @blocknb.kernel
    def k(out, KIND: tl.constexpr, f: tl.constexpr, none=None):
        at = tl.arange(0, SIZE * bound // 2)
        tl.store(out + at, exp(at, SCALE).to(KIND))
        tl.store(out + 40, tl.full((), 300, byte).to(tl.int32) + SIZE.value)
        if none is None and KIND == tl.int16 and KIND.primitive_bitwidth == 16 and f"{KIND}" == "int16":
            tl.store(out + 41, blocknb.next_power_of_2(SIZE + 1) + max(SIZE, 3) + len(WIDTHS) + f(2))
        tl.store(out + 42, min(at.shape[0], 7) + int(2.5) + abs(-3))
        tl.store(out + 43, tl.float32(3) * float(2))
        tl.store(out + 44, isinstance(at, tl.tensor) + isinstance(SIZE, tl.constexpr))

    agree(k, KIND=tl.int16, f=tl.cdiv if False else abs)


def test_scalars_convert_to_python_numbers(capsys):
    @blocknb.kernel
    def k(x, n):
        total = tl.sum(tl.load(x + tl.arange(0, 4)))
        print(int(n) + 1, [10, 20, 30][n], f"{total:06.2f}", {3: "three"}.get(total.item()), float(total.item()))
        if n == 1 or total:
            print(bool(total), range(n)[-1], max(n, 7), max([1, 5]))

    k.interpret(1)(np.array([0, 1, 1, 1], np.float32), 2)
    assert capsys.readouterr().out == "3 30 003.00 three 3.0\nTrue 1 7 5\n"


def test_the_language_is_an_error_outside_a_running_kernel():
    kept = []

    @blocknb.kernel
    def k(x):
        kept.append(tl.load(x + tl.arange(0, 4)))

    k.interpret(1)(np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(kept[0].numpy(), range(4))
    with pytest.raises(KernelError, match="only inside a kernel"):
        tl.sum(kept[0])
