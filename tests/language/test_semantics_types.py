"""Semantics of the language: promotion, literals, reductions, casts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from semantics import interpret, ops, refused, result, value

import blocknb.language as tl
from blocknb import kernel

F16, BF16, F32, F64 = np.float16, ml_dtypes.bfloat16, np.float32, np.float64

# -- 12: promotion -----------------------------------------------------------------------------------------------------------


def test_only_python_numbers_are_weak():
    @kernel
    def k(out, x, s, n, wide):
        i = tl.arange(0, 4)
        v = tl.load(x + i)
        tl.static_assert((v * 0.5).dtype == tl.float16)
        tl.static_assert((v + 2).dtype == tl.float16)
        tl.static_assert((v * s).dtype == tl.float32)
        tl.static_assert((v * n).dtype == tl.float16)
        tl.static_assert((i + wide).dtype == tl.int64)
        tl.static_assert((i + 1).dtype == tl.int32)
        tl.static_assert((i * 0.5).dtype == tl.float32)
        tl.store(out + i, v * s + (i + wide - wide))

    x = np.array([0.1, 0.2, 0.3, 0.4], F16)
    got = result(k, F32, 4, x=x, s=0.3, n=5, wide=2**40)
    np.testing.assert_array_equal(got, x.astype(F32) * F32(0.3) + np.arange(4, dtype=F32))


def test_number_assigned_to_a_local_is_not_weak():
    @kernel
    def k(out, x):
        v = tl.load(x)
        half = 0.5
        tl.static_assert((v * half).dtype == tl.float32)
        H: tl.constexpr = 0.5
        tl.static_assert((v * H).dtype == tl.float16)
        tl.store(out, v * half)

    assert value(k, F32, x=np.array([0.1], F16)) == F32(F16(0.1)) * F32(0.5)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (BF16, F16, tl.float16),
        (BF16, F32, tl.float32),
        (BF16, F64, tl.float64),
        (F16, F32, tl.float32),
        (F32, F64, tl.float64),
        (np.int32, F16, tl.float16),
        (np.int64, F32, tl.float32),
        (np.int8, F16, tl.float16),
        (np.uint8, F64, tl.float64),
        (np.int8, np.int16, tl.int16),
        (np.int32, np.int64, tl.int64),
        (np.int32, np.uint32, tl.uint32),
        (np.uint8, np.int16, tl.int16),
        (np.int8, np.uint8, tl.uint8),
        (np.int64, np.uint64, tl.uint64),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_two_tiles_promote_like_in_triton(a, b, expected):
    @kernel
    def k(out, x, y, T: tl.constexpr):
        v = tl.load(x) + tl.load(y)
        tl.static_assert(v.dtype == T)
        tl.static_assert((tl.load(y) * tl.load(x)).dtype == T)
        tl.store(out, v)

    x, y = np.array([2], a), np.array([3], b)
    assert result(k, expected.numpy, x=x, y=y, T=expected)[0] == 5


def test_integers_divide_to_fp32_and_half_floats_divide_in_fp32():
    @kernel
    def k(out, i, h, b):
        n, v, w = tl.load(i), tl.load(h), tl.load(b)
        tl.static_assert((n / 2).dtype == tl.float32)
        tl.static_assert((n / n).dtype == tl.float32)
        tl.static_assert((v / 3).dtype == tl.float32)
        tl.static_assert((w / w).dtype == tl.float32)
        tl.static_assert((v % 3).dtype == tl.float32)
        tl.store(out, n / 2)
        tl.store(out + 1, v / 3)
        tl.store(out + 2, v % 0.3)

    h = np.array([0.7], F16)
    got = result(k, F32, 3, i=np.array([7], np.int32), h=h, b=np.array([2], BF16))
    expected = [3.5, F32(h[0]) / F32(3), np.fmod(F32(h[0]), F32(0.3))]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


# -- 13: unsigned and small integers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "literal", "says"),
    [
        (np.uint8, 300, "300 does not fit in uint8"),
        (np.uint8, -1, "-1 does not fit in uint8"),
        (np.uint32, -1, "-1 does not fit in uint32"),
        (np.int8, 200, "200 does not fit in int8"),
    ],
)
def test_a_literal_that_does_not_fit_the_tile_is_refused(dtype, literal, says):
    @kernel
    def k(out, x, N: tl.constexpr):
        tl.store(out, tl.load(x) + N)

    assert says in refused(k, x=np.zeros(1, dtype), N=literal).message


def test_division_of_signed_by_unsigned_is_refused():
    @kernel
    def k(out, x, y):
        tl.store(out, tl.load(x) // tl.load(y))

    error = refused(k, x=np.zeros(1, np.int32), y=np.ones(1, np.uint32))
    assert "one is signed, the other is not" in error.message and "cast" in error.hint


def test_signed_and_unsigned_of_equal_width_compare_as_unsigned():
    @kernel
    def k(out, x, y):
        tl.store(out, tl.load(x) < tl.load(y))
        tl.store(out + 1, tl.load(x) > tl.load(y))
        tl.store(out + 2, tl.load(x).to(tl.int64) < tl.load(y))

    got = result(k, np.int32, 3, x=np.array([-1], np.int32), y=np.array([5], np.uint32))
    assert got.tolist() == [0, 1, 1]


def test_small_integers_wrap():
    @kernel
    def k(out, x):
        v = tl.load(x + tl.arange(0, 2))
        tl.static_assert((v + v).dtype == x.dtype.element_ty)
        tl.store(out + tl.arange(0, 2), v + v)

    assert result(k, np.int32, 2, x=np.array([100, -100], np.int8)).tolist() == [-56, 56]
    assert result(k, np.int32, 2, x=np.array([200, 3], np.uint8)).tolist() == [144, 6]
    assert result(k, np.int32, 2, x=np.array([2**15 - 1, 1], np.int16)).tolist() == [-2, 2]


# -- 14: literals ------------------------------------------------------------------------------------------------------------


def test_literals_get_the_first_dtype_that_holds_them():
    @kernel
    def k(out):
        a, b, c, d = 2147483647, 2147483648, 4294967296, 9223372036854775808
        tl.static_assert(a.dtype == tl.int32 and b.dtype == tl.uint32 and c.dtype == tl.int64 and d.dtype == tl.uint64)
        e, f, g, h = -2147483648, -2147483649, 4294967295, True
        tl.static_assert(e.dtype == tl.int32 and f.dtype == tl.int64 and g.dtype == tl.uint32 and h.dtype == tl.int1)
        tl.store(out, d)

    assert value(k, np.uint64) == 2**63


def test_float_literals_are_fp32_if_in_range():
    @kernel
    def k(out):
        a, b, c, d = 0.1, 1e-50, 1e40, 0.0
        tl.static_assert(a.dtype == tl.float32 and b.dtype == tl.float64 and c.dtype == tl.float64)
        tl.static_assert(d.dtype == tl.float32 and float("inf").dtype == tl.float32)
        tiny = 1e-40
        tl.static_assert(tiny.dtype == tl.float64)
        tl.store(out, b * c)

    assert value(k, F64) == 1e-50 * 1e40


def test_an_integer_beyond_64_bits_is_refused():
    @kernel
    def k(out):
        x = 18446744073709551616
        tl.store(out, x)

    assert "18446744073709551616" in refused(k).message


# -- 15: reductions and comparisons ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "total"),
    [
        (np.bool_, tl.uint32),
        (np.int8, tl.int32),
        (np.int16, tl.int32),
        (np.int32, tl.int32),
        (np.int64, tl.int64),
        (np.uint8, tl.uint32),
        (F16, tl.float16),
        (BF16, tl.bfloat16),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_sums_widen_small_integers_and_keep_floats(dtype, total):
    @kernel
    def k(out, x, T: tl.constexpr):
        s = tl.sum(tl.load(x + tl.arange(0, 8)), 0)
        tl.static_assert(s.dtype == T)
        tl.store(out, s)

    x = np.array([1, 1, 0, 1, 1, 1, 0, 1], dtype) if dtype is np.bool_ else np.array([100] * 8).astype(dtype)
    assert value(k, F64, x=x, T=total) == (6 if dtype is np.bool_ else 800)


def test_max_of_bf16_is_computed_in_fp32():
    @kernel
    def k(out, x):
        m = tl.max(tl.load(x + tl.arange(0, 4)), 0)
        tl.static_assert(m.dtype == tl.float32)
        tl.store(out, m)

    assert value(k, F32, x=np.array([1, 3, -2, 2.5], BF16)) == 3


def test_result_dtypes_of_argmax_scans_and_comparisons():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        v = tl.load(x + i)
        best, at = tl.max(v, 0, return_indices=True)
        tl.static_assert(tl.argmax(v, 0).dtype == tl.int32 and at.dtype == tl.int32 and best.dtype == tl.float32)
        tl.static_assert((v > 0).dtype == tl.int1)
        tl.static_assert(tl.cumsum(v > 0, 0).dtype == tl.uint32)
        tl.store(out + i, tl.cumsum(v > 0, 0))
        tl.store(out + 4, at)
        tl.store(out + 5, tl.argmin(v, 0))

    assert result(k, np.int32, 6, x=np.array([1, -2, 3, 3], F32)).tolist() == [1, 1, 2, 3, 2, 1]


def test_masks_in_arithmetic_promote():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        mask = i < 3
        v = tl.load(x + i)
        tl.static_assert((mask * v).dtype == tl.float32)
        count = tl.zeros((4,), tl.int32)
        count = count + mask
        tl.static_assert(count.dtype == tl.int32)
        tl.store(out + i, mask * v + count)

    assert result(k, F32, 4, x=np.full(4, 10, F32)).tolist() == [11, 11, 11, 0]


# -- 16: bools in memory, stores cast ----------------------------------------------------------------------------------------


def test_a_bool_array_is_read_as_bytes_and_tested():
    @kernel
    def k(out, x):
        v = tl.load(x + tl.arange(0, 4))
        tl.static_assert(v.dtype == tl.int1)
        tl.store(out + tl.arange(0, 4), tl.where(v, 5, 7))

    bytes_of_bools = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert result(k, np.int32, 4, x=bytes_of_bools).tolist() == [7, 5, 5, 5]


def test_stores_into_a_bool_array_write_zero_or_one():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        tl.store(out + i, tl.load(x + i) > 1)

    got = result(k, np.bool_, 4, x=np.array([0, 1, 2, 300], np.int32))
    assert got.view(np.uint8).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("dtype", [F16, BF16, np.int32, np.int8, np.uint8, np.int64, F64])
def test_a_store_casts_to_the_element_type(dtype):
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        tl.store(out + i, tl.load(x + i))

    x = np.array([0.7, 1.9, 100.3, 3.0], F32)
    np.testing.assert_array_equal(result(k, dtype, 4, x=x), x.astype(dtype))


# -- 17: functions of small floats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["fp16", "bf16"])
def test_functions_of_half_floats_are_computed_in_fp32_and_rounded_once(dtype):
    """Triton refuses exp of fp16; here it has its only possible meaning."""

    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        v = tl.load(x + i)
        tl.static_assert(tl.exp(v).dtype == v.dtype and tl.sqrt(v).dtype == v.dtype)
        tl.store(out + i, tl.exp(v))
        tl.store(out + 4 + i, tl.log(v))
        tl.store(out + 8 + i, tl.sin(v))
        tl.store(out + 12 + i, tl.sigmoid(v))

    x = np.array([0.3, 1.7, 2.5, 3.1], dtype)
    v = x.astype(F64)
    expected = np.concatenate([np.exp(v), np.log(v), np.sin(v), 1 / (1 + np.exp(-v))])
    got = result(k, dtype, 16, x=x).astype(F64)
    np.testing.assert_allclose(got, expected, rtol=2.0 ** (-10 if dtype is F16 else -7))


# -- 18: casts ---------------------------------------------------------------------------------------------------------------


def test_bitcast_keeps_the_bits():
    @kernel
    def k(out, x):
        v = tl.load(x).to(tl.int32, bitcast=True)
        tl.static_assert(v.dtype == tl.int32)
        tl.store(out, v)
        tl.store(out + 1, tl.cast(v, tl.float32, bitcast=True).to(tl.int32))

    assert result(k, np.int32, 2, x=np.array([7.5], F32)).tolist() == [int(F32(7.5).view(np.int32)), 7]


def test_dtypes_can_be_taken_from_pointers_and_passed_as_arguments():
    @kernel
    def k(out, x, ACC_TYPE: tl.constexpr, compute_type: tl.constexpr):
        v = tl.load(x).to(ACC_TYPE)
        tl.static_assert(v.dtype == tl.float32)
        w = v.to(compute_type)
        tl.static_assert(w.dtype == tl.float16 and w.dtype == x.dtype.element_ty and w.dtype == x.type.element_ty)
        tl.store(out, w.to(out.dtype.element_ty))

    assert value(k, F64, x=np.array([0.1], F16), ACC_TYPE=tl.float32, compute_type=tl.float16) == F16(0.1)


def test_addresses_loaded_from_memory_become_pointers():
    @kernel
    def k(out, table, target):
        i = tl.arange(0, 4)
        p = tl.load(table + 1).to(tl.pointer_type(tl.float16))
        tl.static_assert(p.dtype.element_ty == tl.float16)
        tl.store(out + i, tl.load(p + i))

    target = np.array([1, 2, 3, 4], F16)
    table = np.array([0, target.ctypes.data], np.int64)
    for launch in (interpret, lambda k, grid, given: k[grid](**given)):
        out = np.zeros(4, F32)
        launch(k, (1,), {"out": out, "table": table, "target": target})
        np.testing.assert_array_equal(out, target)
    assert "bitcast" in ops(k, out=out, table=table, target=target)
