"""exp and erf in machine code of the GPU: errors in units of the last place, over bit patterns of all magnitudes."""

from __future__ import annotations

from typing import Any

import pytest

import blocknb
import blocknb.language as tl
from blocknb.language import libdevice

cupy = pytest.importorskip("cupy")


@blocknb.kernel
def exponentials(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, libdevice.exp(tl.load(x + at)))


@blocknb.kernel
def error_functions(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.erf(tl.load(x + at)))


def exact_erf(x: Any) -> Any:
    from cupyx.scipy import special

    return special.erf(x)


@pytest.mark.parametrize(
    ("kernel", "exact"),
    [(exponentials, lambda x: cupy.exp(x)), (error_functions, exact_erf)],
    ids=["exp", "erf"],
)
def test_every_256th_float_is_within_two_units_in_the_last_place(kernel: Any, exact: Any) -> None:
    start = int(cupy.random.default_rng().integers(0, 256))
    x = (cupy.arange(1 << 24, dtype=cupy.uint32) * cupy.uint32(256) + cupy.uint32(start)).view(cupy.float32)
    out = cupy.full_like(x, -7.0)
    kernel[(x.size // 1024,)](x, out, BLOCK=1024)
    wanted = exact(x.astype(cupy.float64))
    rounded = wanted.astype(cupy.float32)
    finite = cupy.isfinite(rounded)
    size = cupy.abs(rounded)
    step = (cupy.nextafter(size, cupy.float32(cupy.inf)) - size).astype(cupy.float64)
    errors = cupy.abs(out.astype(cupy.float64) - wanted) / step
    assert float(errors[finite].max()) <= 2
    special = ~finite
    assert bool(((out == rounded) | (cupy.isnan(out) & cupy.isnan(rounded)))[special].all())
