"""exp, erf, sin and cos in machine code of the GPU: errors in units of the last place, over bit patterns of all magnitudes."""

from __future__ import annotations

from typing import Any

import numpy as np
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


@blocknb.kernel
def sines(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sin(tl.load(x + at)))


@blocknb.kernel
def cosines(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.cos(tl.load(x + at)))


def exact_erf(x: Any) -> Any:
    from cupyx.scipy import special

    return special.erf(x)


@pytest.mark.parametrize(
    ("kernel", "exact"),
    [
        (exponentials, lambda x: cupy.exp(x)),
        (error_functions, exact_erf),
        (sines, lambda x: cupy.sin(x)),
        (cosines, lambda x: cupy.cos(x)),
    ],
    ids=["exp", "erf", "sin", "cos"],
)
def test_every_256th_float_is_within_two_units_in_the_last_place(kernel: Any, exact: Any) -> None:
    start = int(cupy.random.default_rng().integers(0, 256))
    x = (cupy.arange(1 << 24, dtype=cupy.uint32) * cupy.uint32(256) + cupy.uint32(start)).view(cupy.float32)
    out = cupy.full_like(x, -7.0)
    kernel[(x.size // 1024,)](x, out, BLOCK=1024)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = exact(cupy.asarray(x.get().astype(np.float64))).get()  # CuPy's own cast flushes subnormal numbers
        got, rounded = out.get(), wanted.astype(np.float32)
        finite = np.isfinite(rounded)
        errors = np.abs(got - wanted)[finite] / np.spacing(np.abs(rounded[finite])).astype(np.float64)
    worst = int(np.argmax(errors))
    assert errors[worst] <= 2, (x.get()[finite][worst], got[finite][worst], wanted[finite][worst])
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
