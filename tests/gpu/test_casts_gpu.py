"""On a GPU a float becomes the integer that it becomes everywhere else."""

from __future__ import annotations

import casts_everywhere as casts
import everywhere
import numpy as np
import pytest

import blocknb
from blocknb.language.types import from_numpy

cupy = pytest.importorskip("cupy")


def launched(x: np.ndarray, other: float, block: int) -> None:
    arguments, wanted = casts.of_lanes(x, other, block)
    # CuPy knows no bfloat16 and no fp8: their bits, and a view.
    device = {name: _device(value) for name, value in arguments.items()}
    casts.from_float[(1,)](**device)
    for name, array in wanted.items():
        everywhere.same_bits(cupy.asnumpy(device[name]), array, f"{x.dtype}: {name}")


def _device(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "iuf":
        return cupy.asarray(value)
    return blocknb.reinterpret(cupy.asarray(value.view(f"u{value.dtype.itemsize}")), from_numpy(value.dtype))


@pytest.mark.parametrize("dtype", casts.FLOATS)
def test_numbers_at_the_limits_are_cast_as_elsewhere(dtype: str) -> None:
    launched(casts.specials(dtype), 3.0, 512)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_patterns_of_bits_are_cast_as_elsewhere(dtype: str) -> None:
    seed = np.random.SeedSequence().entropy
    print("seed", seed)
    rng, size = np.random.default_rng(seed), np.dtype(dtype).itemsize
    bits = rng.integers(0, 256, (2000, size), np.uint8).reshape(-1).view(dtype)
    near = (rng.standard_normal(2000) * 2.0 ** rng.integers(-3, 66, 2000)).astype(dtype)
    launched(np.concatenate([bits, near]), 0.0, 4096)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_narrow_float_is_cast_as_elsewhere(dtype: str) -> None:
    kind = np.dtype(casts.NARROW.get(dtype, dtype))
    every = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
    for x in np.array_split(every, -(-len(every) // 4096)):
        launched(x, 0.0, 4096)
