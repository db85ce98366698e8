"""Maxima and minima on a GPU treat NaNs and signed zeros as elsewhere."""

from __future__ import annotations

import everywhere
import pytest
import seeds
import zeros_everywhere as zeros

pytest.importorskip("cupy")


@pytest.mark.parametrize("dtype", [*zeros.FLOATS, *zeros.EIGHT])
def test_maximum_and_minimum_follow_ieee_754(dtype: str) -> None:
    everywhere.check_on_gpu(zeros.pairs, *zeros.of_pairs(dtype, seeds.rng()))


@pytest.mark.parametrize("columns", [8, 64, 1024])
@pytest.mark.parametrize("dtype", zeros.FLOATS)
def test_row_extrema_ignore_nan_and_return_the_first_index(dtype: str, columns: int) -> None:
    everywhere.check_on_gpu(zeros.rows, *zeros.of_rows(dtype, seeds.rng(), 16, columns))
