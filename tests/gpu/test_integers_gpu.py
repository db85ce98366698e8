"""On a GPU integers divide and shift, and numbers are rounded, as everywhere else."""

from __future__ import annotations

import everywhere
import integers_everywhere as integers
import numpy as np
import pytest

import blocknb
from blocknb.language.types import from_numpy
from blocknb.runtime.interface import TensorWrapper

cupy = pytest.importorskip("cupy")


def launched(kernel, arguments, wanted) -> None:
    device = {name: _device(value) for name, value in arguments.items()}
    kernel[(1,)](**device)
    for name, array in wanted.items():
        base = device[name].base if isinstance(device[name], TensorWrapper) else device[name]
        everywhere.same_bits(cupy.asnumpy(base).view(array.dtype), array, name)


def _device(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "iuf":
        return cupy.asarray(value)
    return blocknb.reinterpret(cupy.asarray(value.view(f"u{value.dtype.itemsize}")), from_numpy(value.dtype))


@pytest.mark.parametrize("dtype", integers.INTEGERS)
def test_quotients_by_zero_are_zero_and_shifts_move_every_bit_out(dtype: str) -> None:
    launched(integers.arithmetic, *integers.of_arithmetic(dtype, np.random.default_rng()))
    made = integers.of_divisors(dtype, np.random.default_rng(), from_numpy(np.dtype(dtype)))
    launched(integers.by_constants, *made)


@pytest.mark.parametrize("dtype", [*integers.INTEGERS, *integers.FLOATS])
def test_numbers_are_rounded_once_to_each_float(dtype: str) -> None:
    launched(integers.conversions, *integers.of_conversions(dtype, np.random.default_rng()))
