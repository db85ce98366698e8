"""A cast from float to integer gives the same result everywhere: compiled for CPUs and GPUs, interpreted, debugged, and folded."""

from __future__ import annotations

import math

import casts_everywhere as casts
import everywhere
import numpy as np
import pytest
import seeds
from host_cpus import NEWER, OLDER

import blocknb
import blocknb.language as tl
from blocknb.errors import KernelError
from blocknb.language.types import from_numpy

OTHERS = (-1.0, 300.0, -3e9, 1e20, -math.inf, math.inf, math.nan)


QUICK = ("eager", NEWER, "cpu", "simt sm_90a")


@pytest.mark.parametrize(
    ("dtype", "ways"),
    [(dtype, QUICK) for dtype in ("bfloat16", "float32", "float64", "float8_e5m2")]
    + [pytest.param(dtype, everywhere.WAYS, marks=pytest.mark.full) for dtype in casts.FLOATS],
)
def test_casts_at_the_limits_agree_in_lanes_stores_padding_and_scalars(dtype, ways) -> None:
    rng, x = seeds.rng(), casts.specials(dtype)
    other = OTHERS[rng.integers(len(OTHERS))] if not dtype.startswith("float8") else 3.0
    arguments, wanted = casts.of_lanes(rng.permutation(x), other, 128 if len(x) < 128 else 512)
    everywhere.check(casts.from_float, arguments, wanted, ways)


@pytest.mark.parametrize(
    ("dtype", "count"),
    [(dtype, 20) for dtype in ("float32", "float64", "float8_e5m2")]
    + [pytest.param(dtype, None, marks=pytest.mark.full) for dtype in casts.FLOATS],
)
def test_casts_of_constants_agree_with_run_time_casts(dtype: str, count: int | None) -> None:
    x = seeds.rng().permutation(casts.specials(dtype))[:count]
    if dtype.startswith("float8"):  # an infinity becomes the largest number of an fp8 format, as a constant, too
        x = x[~np.isinf(x.astype(np.float32))]
    arguments, wanted = casts.of_constants(x, from_numpy(x.dtype))
    ways = ("eager", "ir", "ir cpu") if count else ("passes cpu",)
    everywhere.check(casts.from_constants, arguments, wanted, ways)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casts_of_random_bits_agree(dtype: str) -> None:
    rng, size = seeds.rng(), np.dtype(dtype).itemsize
    bits = rng.integers(0, 256, (200, size), np.uint8).reshape(-1).view(dtype)
    near = (rng.standard_normal(200) * 2.0 ** rng.integers(-3, 66, 200)).astype(dtype)
    arguments, wanted = casts.of_lanes(np.concatenate([bits, near]), 0.0, 512)
    everywhere.check(casts.from_float, arguments, wanted, ("eager", NEWER, "cpu"))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_casts_of_every_narrow_float_agree(dtype: str) -> None:
    kind = np.dtype(casts.NARROW.get(dtype, dtype))
    every = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
    for x in np.array_split(every, -(-len(every) // 4096)):
        arguments, wanted = casts.of_lanes(x, 0.0, 4096)
        everywhere.check(casts.from_float, arguments, wanted, ("eager", "ir", *OLDER, "cpu"))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_integer_constant_cannot_be_infinite(value: float) -> None:
    @blocknb.kernel
    def k(out, V: tl.constexpr):
        tl.store(out + tl.arange(0, 4), tl.full((4,), V, tl.int32))

    with pytest.raises(KernelError, match="cannot become"):
        k[(1,)](np.zeros(4, np.int32), V=value)
