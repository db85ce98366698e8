"""On a GPU maxima and minima have the NaNs and signed zeros that they have everywhere else."""

from __future__ import annotations

import everywhere
import numpy as np
import pytest
import zeros_everywhere as zeros

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


@pytest.mark.parametrize("dtype", [*zeros.FLOATS, *zeros.EIGHT])
def test_of_two_the_larger_and_smaller_are_those_of_ieee_754(dtype: str) -> None:
    launched(zeros.pairs, *zeros.of_pairs(dtype, np.random.default_rng()))


@pytest.mark.parametrize("columns", [8, 64, 1024])
@pytest.mark.parametrize("dtype", zeros.FLOATS)
def test_of_rows_the_extremes_are_numbers_and_their_places_the_first(dtype: str, columns: int) -> None:
    launched(zeros.rows, *zeros.of_rows(dtype, np.random.default_rng(), 16, columns))
