"""8-bit floats: every number converted both ways, the supported operations, and the rejected ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import seeds
from frontend_helpers import failure, kernel, launch
from kernels import float8

import blocknb
import blocknb.language as tl
from blocknb.errors import TypeMismatch
from blocknb.language import types as t
from blocknb.language.float8 import FORMATS


@pytest.mark.parametrize("name", float8.ML_DTYPES)
def test_format_table_agrees_with_ml_dtypes(name: str) -> None:
    form, numbers = FORMATS[name], float8.patterns(name)
    mine = np.array([form.decode(bits) for bits in range(256)])
    np.testing.assert_array_equal(mine, numbers)
    assert (np.signbit(mine) == np.signbit(numbers))[~np.isnan(mine)].all()
    assert form.maximum == float(ml_dtypes.finfo(float8.ML_DTYPES[name]).max)
    x = float8.corners(seeds.rng(), name)
    np.testing.assert_array_equal([form.encode(float(v)) for v in x], float8.nearest(x, name))


HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)


@pytest.mark.sampled(2, each=["dtype", "form"])
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name
)
@pytest.mark.parametrize("form", t.FLOAT8, ids=str)
def test_cpu_rounds_every_16_bit_number_correctly(form: t.DType, dtype: type) -> None:
    if dtype == ml_dtypes.bfloat16:
        x = HALVES.view(np.uint16).view(dtype)
    else:
        x = HALVES.astype(dtype)
    out, cut = np.zeros(65536, np.uint8), np.zeros(65536, np.uint8)
    float8.narrow[(16,)](x, out, cut, 65536, KIND=form, BLOCK=4096)
    np.testing.assert_array_equal(out, float8.nearest(x, form.name))
    np.testing.assert_array_equal(cut, float8.toward_zero(x, form.name))


@kernel
def round_all(x, out, cut, KIND: tl.constexpr):
    i = tl.arange(0, 65536)
    v = tl.load(x + i)
    tl.store(out + i, v.to(KIND).to(tl.uint8, bitcast=True))
    tl.store(cut + i, v.to(KIND, fp_downcast_rounding="rtz").to(tl.uint8, bitcast=True))


@pytest.mark.parametrize("form", t.FLOAT8, ids=str)
def test_interpreter_rounds_every_16_bit_number_correctly(form: t.DType) -> None:
    out, cut = np.zeros(65536, np.uint8), np.zeros(65536, np.uint8)
    launch(round_all, 1, x=HALVES, out=out, cut=cut, KIND=form)
    np.testing.assert_array_equal(out, float8.nearest(HALVES, form.name))
    np.testing.assert_array_equal(cut, float8.toward_zero(HALVES, form.name))


def test_dtype_attributes_of_8_bit_floats() -> None:
    asked = {"fp8e4nv": "e4nv", "fp8e5": "e5", "fp8e4b15": "e4b15", "fp8e4b8": "e4b8", "fp8e5b16": "e5b16"}
    for dtype in t.FLOAT8:
        assert dtype.is_fp8() and dtype.is_floating() and not dtype.is_standard_floating()
        assert [name for name, rest in asked.items() if getattr(dtype, f"is_fp8{rest}")()] == [dtype.name]
        assert (dtype.primitive_bitwidth, dtype.itemsize) == (8, 1)
        assert getattr(tl, dtype.name.replace("fp8", "float8")) is dtype
    assert tl.float16.is_standard_floating() and not tl.float16.is_fp8()


def test_different_formats_promote_to_fp16_and_bf16_gives_fp32() -> None:
    for a in t.FLOAT8:
        for b in t.FLOAT8:
            assert t.promote(a, b) == (a if a == b else t.float16)
        for wide in (t.float16, t.bfloat16, t.float32, t.float64):
            expected = t.float32 if wide == t.bfloat16 else wide
            assert t.promote(a, wide) == t.promote(wide, a) == expected


def test_literals_are_rounded_once() -> None:
    @blocknb.kernel
    def constants(out, KIND: tl.constexpr):
        i = tl.arange(0, 1)
        tl.store(out + i, tl.full((1,), 1e6, KIND).to(tl.float32))
        tl.store(out + 1 + i, tl.full((1,), 0.3, KIND).to(tl.float32))
        tl.store(out + 2 + i, tl.where(i < 0, tl.zeros((1,), KIND), -1.0).to(tl.float32))

    for form in t.FLOAT8:
        out = np.zeros(3, np.float32)
        constants[(1,)](out, KIND=form)
        table = FORMATS[form.name]
        assert out.tolist() == [table.maximum, table.decode(table.encode(0.3)), -1.0]


@kernel
def refused(x, OPERATION: tl.constexpr):
    a = tl.load(x + tl.arange(0, 8))
    if OPERATION[0] == "a + a":
        a + a
    elif OPERATION[0] == "a * 2.0":
        a * 2.0
    elif OPERATION[0] == "a + tl.arange(0, 8)":
        a + tl.arange(0, 8)
    elif OPERATION[0] == "a / a":
        a / a
    elif OPERATION[0] == "a % a":
        a % a
    elif OPERATION[0] == "tl.exp(a)":
        tl.exp(a)
    elif OPERATION[0] == "tl.sum(a, 0)":
        tl.sum(a, 0)
    elif OPERATION[0] == "tl.cumsum(a, 0)":
        tl.cumsum(a, 0)
    elif OPERATION[0] == "tl.fma(a, a, a)":
        tl.fma(a, a, a)
    elif OPERATION[0] == "tl.floor(a)":
        tl.floor(a)


@pytest.mark.parametrize(
    "operation",
    ["a + a", "a * 2.0", "a + tl.arange(0, 8)", "tl.exp(a)", "tl.sum(a, 0)", "tl.cumsum(a, 0)",
     "tl.fma(a, a, a)", "tl.floor(a)"],
)  # fmt: skip
@pytest.mark.parametrize("form", t.FLOAT8, ids=str)
def test_arithmetic_is_refused_with_an_alternative(operation: str, form: t.DType) -> None:
    error = failure(refused, TypeMismatch, x=f"*{form.short}", OPERATION=(operation,))
    assert f"does not compute in {form}" in str(error)
    assert ".to(tl.float16)" in str(error.hint)
