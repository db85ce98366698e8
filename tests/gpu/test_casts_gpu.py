"""Casts from floats to integers give the same result on a GPU as elsewhere."""

from __future__ import annotations

import casts_everywhere as casts
import everywhere
import numpy as np
import pytest
import seeds

pytest.importorskip("cupy")


def launched(x: np.ndarray, other: float, block: int) -> None:
    everywhere.check_on_gpu(casts.from_float, *casts.of_lanes(x, other, block))


@pytest.mark.parametrize("dtype", casts.FLOATS)
def test_casts_at_the_limits_match_the_other_backends(dtype: str) -> None:
    launched(casts.specials(dtype), 3.0, 512)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casts_of_random_bits_match_the_other_backends(dtype: str) -> None:
    rng, size = seeds.rng(), np.dtype(dtype).itemsize
    bits = rng.integers(0, 256, (2000, size), np.uint8).reshape(-1).view(dtype)
    near = (rng.standard_normal(2000) * 2.0 ** rng.integers(-3, 66, 2000)).astype(dtype)
    launched(np.concatenate([bits, near]), 0.0, 4096)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_casts_of_every_narrow_float_match_the_other_backends(dtype: str) -> None:
    kind = np.dtype(casts.NARROW.get(dtype, dtype))
    every = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
    for x in np.array_split(every, -(-len(every) // 4096)):
        launched(x, 0.0, 4096)
