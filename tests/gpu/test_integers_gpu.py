"""Integer division, shifts and rounding give the same results on a GPU as elsewhere."""

from __future__ import annotations

import everywhere
import integers_everywhere as integers
import numpy as np
import pytest
import seeds

from blocknb.language.types import from_numpy

pytest.importorskip("cupy")


@pytest.mark.parametrize("dtype", integers.INTEGERS)
def test_division_by_zero_and_oversized_shifts_give_zero(dtype: str) -> None:
    everywhere.check_on_gpu(integers.arithmetic, *integers.of_arithmetic(dtype, seeds.rng()))
    made = integers.of_divisors(dtype, seeds.rng(), from_numpy(np.dtype(dtype)))
    everywhere.check_on_gpu(integers.by_constants, *made)


@pytest.mark.parametrize("dtype", [*integers.INTEGERS, *integers.FLOATS])
def test_integers_are_rounded_once_to_each_float_dtype(dtype: str) -> None:
    everywhere.check_on_gpu(integers.conversions, *integers.of_conversions(dtype, seeds.rng()))
