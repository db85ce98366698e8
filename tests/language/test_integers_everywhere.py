"""Division by zero, oversized shifts, and rounding to and among floats give one result, wherever a kernel runs."""

from __future__ import annotations

import everywhere
import integers_everywhere as integers
import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl
from blocknb.language.types import from_numpy

QUICK = ("eager", "cpu", "simt sm_90a")
CONSTANTS = ("eager", "ir", "cpu", "passes cpu", "simt sm_90a")


def parameters(ways: tuple[str, ...], quick: tuple[str, ...], dtypes: tuple[str, ...]) -> list:
    return [(d, ways) for d in quick] + [pytest.param(d, everywhere.WAYS, marks=pytest.mark.full) for d in dtypes]


@pytest.mark.parametrize(("dtype", "ways"), parameters(QUICK, ("int8", "int64", "uint32"), integers.INTEGERS))
def test_division_by_zero_and_oversized_shifts_give_zero(dtype: str, ways: tuple[str, ...]) -> None:
    everywhere.check(integers.arithmetic, *integers.of_arithmetic(dtype, seeds.rng()), ways)


@pytest.mark.parametrize(("dtype", "ways"), parameters(CONSTANTS, ("int32",), integers.INTEGERS))
def test_constants_divide_and_shift_like_run_time_values(dtype: str, ways: tuple[str, ...]) -> None:
    made = integers.of_divisors(dtype, seeds.rng(), from_numpy(np.dtype(dtype)))
    everywhere.check(integers.by_constants, *made, ways)


@pytest.mark.parametrize(
    ("dtype", "ways"),
    parameters(QUICK, ("int64", "float64"), (*integers.INTEGERS, *integers.FLOATS)),
)
def test_integers_are_rounded_once_to_each_float_dtype(dtype: str, ways: tuple[str, ...]) -> None:
    everywhere.check(integers.conversions, *integers.of_conversions(dtype, seeds.rng()), ways)


@pytest.mark.parametrize("dtype", ["int64", "uint32", "float32", "float64"])
def test_constants_are_rounded_like_run_time_values(dtype: str) -> None:
    made = integers.of_constant_conversions(dtype, seeds.rng(), 20, from_numpy(integers.kind(dtype)))
    everywhere.check(integers.of_constants, *made, ("eager", "ir cpu"))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint32])
def test_a_division_by_zero_does_not_end_the_process(dtype: type) -> None:
    @blocknb.kernel
    def k(x, y, out):
        tl.store(out, tl.load(x) // tl.load(y))
        tl.store(out + 1, tl.load(x) % tl.load(y))
        tl.store(out + 2, tl.load(x + 1) // (tl.load(y) - 1))

    out = np.full(3, 5, dtype)
    least = np.iinfo(dtype).min
    k[(1,)](np.array([7, least], dtype), np.zeros(1, dtype), out)
    assert out.tolist() == [0, 0, least]
