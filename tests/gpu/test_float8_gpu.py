"""8-bit floats on a GPU: every 16-bit number converted down and every 8-bit pattern converted up, for each format."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from kernels import float8

import blocknb
import blocknb.language as tl
from blocknb.language import types as t

cupy = pytest.importorskip("cupy")
HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("form", t.FLOAT8, ids=str)
def test_every_16_bit_number_is_rounded_correctly(form, dtype):
    x = HALVES.astype(dtype)
    out, cut = cupy.zeros(65536, np.uint8), cupy.zeros(65536, np.uint8)
    float8.narrow[(16,)](cupy.asarray(x), out, cut, 65536, KIND=form, BLOCK=4096)
    np.testing.assert_array_equal(cupy.asnumpy(out), float8.nearest(x, form.name))
    np.testing.assert_array_equal(cupy.asnumpy(cut), float8.toward_zero(x, form.name))


@pytest.mark.parametrize("form", t.FLOAT8, ids=str)
def test_32_bit_numbers_are_rounded_correctly(form):
    bits = seeds.rng().integers(0, 2**32, 1 << 18, dtype=np.uint32)
    corners = float8.corners(seeds.rng(), form.name).astype(np.float32)
    x = np.concatenate([bits.view(np.float32), corners])
    out, cut = cupy.zeros(len(x), np.uint8), cupy.zeros(len(x), np.uint8)
    grid = (blocknb.cdiv(len(x), 1024),)
    float8.narrow[grid](cupy.asarray(x), out, cut, len(x), KIND=form, BLOCK=1024)
    np.testing.assert_array_equal(cupy.asnumpy(out), float8.nearest(x, form.name))
    np.testing.assert_array_equal(cupy.asnumpy(cut), float8.toward_zero(x, form.name))


def test_cupy_bytes_can_be_reinterpreted_as_float8():
    @blocknb.kernel
    def widen(x, y):
        i = tl.arange(0, 256)
        tl.store(y + i, tl.load(x + i).to(tl.float32))

    for form in t.FLOAT8:
        y = cupy.empty(256, np.float32)
        widen[(1,)](blocknb.reinterpret(cupy.arange(256, dtype=np.uint8), form), y)
        np.testing.assert_array_equal(cupy.asnumpy(y), float8.patterns(form.name))
