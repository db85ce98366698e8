"""The evaluator's semantics, checked by hand: promotion, wrapping, division, casts, bounds of sums, and comparisons."""

from __future__ import annotations

import numpy as np
import pytest

from blocknb.fuzz import blocks, compare, data, dtypes, numbers
from blocknb.fuzz.numbers import val


@pytest.fixture(autouse=True)
def _quiet():
    """Turns off NumPy's warnings, as the evaluator does."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ("i8", "i32", "i32"),
        ("u8", "i8", "u8"),
        ("i16", "u8", "i16"),
        ("u32", "i32", "u32"),
        ("i64", "u32", "i64"),
        ("f16", "bf16", "f16"),
        ("bf16", "bf16", "bf16"),
        ("i8", "bf16", "f32"),
        ("i64", "f16", "f16"),
        ("f32", "f64", "f64"),
        ("i1", "i8", "i8"),
    ],
)
def test_operands_are_promoted_as_in_triton(a: str, b: str, found: str) -> None:
    assert dtypes.promote(a, b) == dtypes.promote(b, a) == found


def test_integers_wrap_and_divide_as_in_c() -> None:
    a, b = val("i8", [127, -7, -128, 5]), val("i8", [1, 2, -1, 0])
    assert numbers.arithmetic("+", "i8", a, b).data.tolist() == [-128, -5, 127, 5]
    assert numbers.arithmetic("//", "i8", a, b).data.tolist() == [127, -3, -128, 0]
    assert numbers.arithmetic("%", "i8", a, b).data.tolist() == [0, -1, 0, 0]


def test_shifts_by_the_width_or_more_keep_only_the_sign() -> None:
    a, by = val("i8", [-3, 5, -3, 5]), val("i8", [8, 100, -1, 1])
    assert numbers.arithmetic(">>", "i8", a, by).data.tolist() == [-1, 0, -1, 2]
    assert numbers.arithmetic("<<", "i8", a, by).data.tolist() == [0, 0, 0, 10]


def test_casts_from_float_to_integer_truncate_and_saturate() -> None:
    x = val("f32", [1.9, -1.9, 300.0, -300.0, np.nan, np.inf])
    assert numbers.cast(x, "i8").data.tolist() == [1, -1, 127, -128, 0, 127]
    assert numbers.cast(x, "u8").data.tolist() == [1, 0, 255, 0, 0, 255]
    assert numbers.cast(val("f64", [1e30, -1e30]), "i64").data.tolist() == [2**63 - 1, -(2**63)]
    assert numbers.cast(val("f64", [1e30, 2.0**63]), "u64").data.tolist() == [2**64 - 1, 2**63]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "e4nv", "e5", "f32"])
def test_rounding_is_that_of_ml_dtypes(dtype: str) -> None:
    x = np.random.default_rng(3).normal(0, 10, 2000).astype(np.float32).astype(np.float64)
    x = np.concatenate([x, x * 1e-6, [0.0, 1.0, 440.0, 448.0]])
    want = x.astype(np.float32).astype(dtypes.storage(dtype)).astype(np.float64)
    np.testing.assert_array_equal(dtypes.rounded(dtype, x), want)


def test_a_sum_of_small_numbers_is_exact_and_other_sums_have_an_error_bound() -> None:
    exact = blocks.total(val("f32", np.arange(64) / 8), 0, False)
    assert exact.err is None
    assert exact.data == 252
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (20, 512)).astype(np.float32)
    found = blocks.total(val("f32", x), 1, False)
    for order in (x, np.sort(x, 1), x[:, ::-1]):
        assert (np.abs(np.add.accumulate(order, 1, dtype=np.float32)[:, -1] - found.data) <= found.err).all()
    assert (found.err < 0.05).all()


def test_a_contracted_product_is_within_the_bound_of_a_sum() -> None:
    rng = np.random.default_rng(5)
    a, b, c = (val("f32", rng.normal(0, 1, 500).astype(np.float32)) for _ in range(3))
    product = numbers.arithmetic("*", "f32", a, b)
    found = numbers.arithmetic("+", "f32", product, c)
    fused = numbers.fma(a, b, c)
    assert product.err is None
    assert (np.abs(found.data - fused.data) <= found.bound).all()


def test_a_comparison_closer_than_its_bounds_is_undefined() -> None:
    a = val("f32", [1.0, 2.0], [0.5, 0.5])
    found = numbers.compare("<", a, val("f32", [1.2, 5.0]))
    assert found.bound.tolist() == [np.inf, 0.0]
    with pytest.raises(numbers.Ambiguous):
        found.exact()


def test_results_of_an_undefined_number_are_undefined() -> None:
    unknown = val("f32", [1.0, np.nan, 0.0], [np.inf] * 3)
    for dtype in ("i8", "u8", "i1", "f16", "i64"):
        assert (numbers.cast(unknown, dtype).bound == np.inf).all(), dtype
    zeros = val("f32", [0.0, 1.0, 0.0])
    for sym in "+-*/":
        assert (numbers.arithmetic(sym, "f32", unknown, zeros).bound == np.inf).all(), sym
        assert (numbers.arithmetic(sym, "f32", zeros, unknown).bound == np.inf).all(), sym


def test_an_element_is_wrong_only_beyond_its_bound() -> None:
    got = np.array([1.0, 1.1, np.nan, np.nan, 5.0], np.float32)
    want, err = np.array([1.0, 1.0, np.nan, 1.0, 1.0]), np.array([0.0, 0.05, 0.0, 0.0, np.inf])
    assert compare.differing("f32", got, want, err).tolist() == [False, True, False, True, False]


def test_a_store_next_to_an_array_changes_its_guard_zone() -> None:
    guarded = data.Guarded(np.arange(5, dtype=np.int16), 3)
    guarded.array[:] = 9
    assert not guarded.broken()
    assert guarded.array.ctypes.data % data.ALIGN == 6
    guarded.raw[guarded.stop] = 0
    assert guarded.broken()
