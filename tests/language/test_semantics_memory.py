"""Semantics of the language: loads and stores, pointers as values, dot."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from semantics import ops, refused, result, value

import blocknb.language as tl
from blocknb import kernel

F16, F32 = np.float16, np.float32
X = np.arange(1, 17, dtype=F32)

# -- 19: masks and other -----------------------------------------------------------------------------------------------------


def test_other_without_a_mask_is_refused():
    @kernel
    def k(out):
        tl.store(out, tl.load(out, other=0.0))

    error = refused(k)
    assert error.message == "`other` is given without a mask" and "mask=offsets < n" in error.hint


def test_masked_out_lanes_are_zero():
    @kernel
    def k(out, x, n):
        i = tl.arange(0, 16)
        tl.store(out + i, tl.load(x + i, mask=i < n))

    for dtype in (F32, F16, np.int32, np.int8, np.bool_):
        got = result(k, dtype, 16, x=np.ones(16, dtype), n=5)
        np.testing.assert_array_equal(got, np.arange(16) < 5)


def test_other_is_cast_to_the_element_type():
    @kernel
    def k(out, x, n):
        i = tl.arange(0, 4)
        tl.store(out + i, tl.load(x + i, mask=i < n, other=-1.5))
        tl.store(
            out + 4 + i, tl.load(x + i, mask=i < n, other=-float("inf")) if x.dtype.element_ty == tl.float32 else 0
        )

    assert result(k, np.int32, 8, x=np.arange(4, dtype=np.int32), n=2).tolist() == [0, 1, -1, -1, 0, 0, 0, 0]
    assert result(k, F32, 8, x=X[:4], n=2)[2:].tolist() == [-1.5, -1.5, 1, 2, -np.inf, -np.inf]


def test_mask_may_be_positional_true_scalar_or_of_smaller_shape():
    @kernel
    def k(out, x, n):
        i = tl.arange(0, 4)
        at = i[:, None] * 4 + i[None, :]
        a = tl.load(x + at, i[:, None] < 2, 0.0)
        b = tl.load(x + at, mask=True)
        c = tl.load(x + at, mask=n > 3, other=100.0)
        tl.store(out + at, a + b + c, i[None, :] < 3)

    x = X.reshape(4, 4)
    for n in (3, 4):
        got = result(k, F32, (4, 4), x=x, n=n)
        expected = x * (np.arange(4) < 2)[:, None] + x + (x if n > 3 else 100)
        np.testing.assert_array_equal(got[:, :3], expected[:, :3])
        assert np.isnan(got[:, 3]).all()


def test_integer_mask_is_refused_with_the_comparison_to_write():
    @kernel
    def k(out, x):
        i = tl.arange(0, 4)
        tl.store(out + i, 1.0, mask=tl.load(x + i))

    error = refused(k, x=np.zeros(4, np.int32))
    assert "int32 of shape (4,)" in error.message and "mask != 0" in error.hint


# -- 20: pointers are values -------------------------------------------------------------------------------------------------


def test_pointer_parameters_can_be_advanced_in_place():
    @kernel
    def k(out, X, stride):
        row = tl.program_id(0)
        X += row * stride
        out += row * 4
        i = tl.arange(0, 4)
        tl.store(out + i, tl.load(X + i))

    got = result(k, F32, (2, 4), grid=(2,), X=X, stride=8)
    np.testing.assert_array_equal(got, X.reshape(2, 8)[:, :4])


def test_offsets_selected_by_where_can_be_added():
    @kernel
    def k(out, x, c):
        i = tl.arange(0, 4)
        tl.store(out + i, tl.load(x + tl.where(i < c, i + 8, i)))

    assert result(k, F32, 4, x=X, c=2).tolist() == [9, 10, 3, 4]


def test_pointer_tiles_are_carried_through_nested_loops():
    @kernel
    def k(out, x, n, m):
        i = tl.arange(0, 2)
        rows = x + i[:, None] * 8 + i[None, :]
        acc = tl.zeros((2, 2), tl.float32)
        for a in range(n):
            cols = rows
            for b in range(m):
                acc += tl.load(cols)
                cols += 2
            rows += m
        tl.store(out + i[:, None] * 2 + i[None, :], acc)

    got = result(k, F32, (2, 2), x=X, n=2, m=2)
    x = X.reshape(2, 8)
    expected = sum(x[:, a * 2 + b * 2 : a * 2 + b * 2 + 2] for a in range(2) for b in range(2))
    np.testing.assert_array_equal(got, expected)


def test_pointer_can_be_selected_by_a_constant_or_run_time_ternary():
    @kernel
    def k(out, x, y, n, FIRST: tl.constexpr):
        p = x if FIRST else y
        q = x if n > 3 else y
        tl.store(out, tl.load(p) * 10 + tl.load(q))

    x, y = np.array([1], F32), np.array([2], F32)
    assert value(k, F32, x=x, y=y, n=4, FIRST=True) == 11
    assert value(k, F32, x=x, y=y, n=3, FIRST=False) == 22


def test_pointers_can_be_moved_backwards():
    @kernel
    def k(out, x, D):
        p = x + 10
        p -= D
        tl.store(out, tl.load(p) + tl.load(p - 1))

    assert value(k, F32, x=X, D=4) == 7 + 6


def test_unsigned_offsets_are_not_negative():
    @kernel
    def k(out, x, i):
        at = tl.load(i + tl.arange(0, 2))
        tl.store(out + tl.arange(0, 2), tl.load(x + at))

    x = np.arange(256, dtype=F32)
    assert result(k, F32, 2, x=x, i=np.array([3, 200], np.uint8)).tolist() == [3, 200]
    x = np.arange(40_000, dtype=F32)
    assert result(k, F32, 2, x=x, i=np.array([3, 39_999], np.uint16)).tolist() == [3, 39_999]


# -- 21: scalars and blocks --------------------------------------------------------------------------------------------------


def test_a_scalar_is_stored_to_every_pointer_of_a_block():
    @kernel
    def k(out, x):
        tl.store(out + tl.arange(0, 4), tl.load(x))

    assert result(k, F32, 4, x=X).tolist() == [1, 1, 1, 1]


def test_storing_a_tile_to_a_scalar_pointer_is_refused():
    @kernel
    def k(out):
        tl.store(out, tl.arange(0, 4))

    error = refused(k)
    assert "shape (4,)" in error.message and "pointer is a scalar" in error.message and "tl.arange" in error.hint


def test_tiles_without_axes_are_scalars_and_tiles_of_one_element_are_not():
    @kernel
    def k(out):
        a = tl.zeros((), tl.float32)
        b = tl.full([], 2, tl.float32)
        tl.static_assert(a.shape == () and b.shape == ())
        one = tl.arange(0, 1)
        tl.static_assert(one.shape == (1,))
        tl.store(out, a + b)
        tl.store(out + 1 + one, one + 5)

    assert result(k, F32, 2).tolist() == [2, 5]


# -- 22: dot -----------------------------------------------------------------------------------------------------------------


@kernel
def product(out, x, y, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, T: tl.constexpr, OPTION: tl.constexpr):
    m, n, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(x + m[:, None] * K + d[None, :])
    b = tl.load(y + d[:, None] * N + n[None, :])
    if OPTION == "allow":
        c = tl.dot(a, b, allow_tf32=False)
    elif OPTION == "precision":
        c = tl.dot(a, b, input_precision="ieee")
    elif OPTION == "acc":
        c = tl.dot(a, b, acc=tl.full((M, N), 1, T))
    elif OPTION == "out":
        c = tl.dot(a, b, out_dtype=T)
    elif OPTION == "mixed":
        c = tl.dot(a, b, tl.full((M, N), 1, T), allow_tf32=False, out_dtype=T)
    else:
        c = tl.dot(a, b)
    tl.static_assert(c.dtype == T)
    tl.store(out + m[:, None] * N + n[None, :], c)


def matrices(M, N, K, dtype):
    rng = np.random.default_rng(M * 1000 + N * 100 + K)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-100, 100, (M, K)).astype(dtype), rng.integers(-100, 100, (K, N)).astype(dtype)
    return rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)


@pytest.mark.parametrize("shape", [(16, 16, 16), (1, 16, 32), (4, 2, 16), (32, 64, 16)], ids=str)
def test_dot_accepts_small_m_and_n(shape):
    x, y = matrices(*shape, F16)
    got = result(product, F32, shape[:2], x=x, y=y, M=shape[0], N=shape[1], K=shape[2], T=tl.float32, OPTION="")
    np.testing.assert_allclose(got, x.astype(np.float64) @ y.astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "precision"),
    [("", "tf32"), ("allow", "ieee"), ("precision", "ieee"), ("mixed", "ieee"), ("acc", "tf32")],
)
def test_dot_of_fp32_uses_tf32_by_default(option, precision):
    x, y = matrices(16, 16, 32, F32)
    given = {"x": x, "y": y, "M": 16, "N": 16, "K": 32, "T": tl.float32, "OPTION": option}
    assert f"precision={precision}" in ops(product, out=np.zeros((16, 16), F32), **given).replace('"', "").replace(
        "'", ""
    )
    got = result(product, F32, (16, 16), tolerance=1e-3 if precision == "tf32" else None, **given)
    expected = x.astype(np.float64) @ y.astype(np.float64) + (option in ("mixed", "acc"))
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-2 if precision == "tf32" else 1e-4)


@pytest.mark.parametrize(
    ("dtype", "out", "option"),
    [
        (np.int8, tl.int32, ""),
        (np.int8, tl.int32, "acc"),
        (F16, tl.float16, "out"),
        (F16, tl.float16, "mixed"),
        (F16, tl.float32, "acc"),
        (ml_dtypes.bfloat16, tl.float32, "mixed"),
        (np.float64, tl.float64, ""),
    ],
    ids=str,
)
def test_dot_accumulates_in_the_requested_dtype(dtype, out, option):
    x, y = matrices(16, 16, 32, dtype)
    got = result(product, out.numpy, (16, 16), x=x, y=y, M=16, N=16, K=32, T=out, OPTION=option)
    expected = x.astype(np.float64) @ y.astype(np.float64) + (option in ("mixed", "acc"))
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=0.05 if out == tl.float16 else 1e-4)


def test_batched_dot_multiplies_matrix_by_matrix():
    @kernel
    def k(out, x, y):
        s, i, d = tl.arange(0, 2), tl.arange(0, 16), tl.arange(0, 16)
        at = s[:, None, None] * 256 + i[None, :, None] * 16 + d[None, None, :]
        c = tl.dot(tl.load(x + at), tl.load(y + at), allow_tf32=False)
        tl.static_assert(c.shape == (2, 16, 16) and c.dtype == tl.float32)
        tl.store(out + at, c)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 2, 16, 16)).astype(F32)
    np.testing.assert_allclose(
        result(k, F32, (2, 16, 16), x=x, y=y), x.astype(np.float64) @ y.astype(np.float64), atol=1e-5
    )


def test_dot_accepts_the_old_keywords_for_transposed_operands():
    @kernel
    def k(out, x, y):
        m, n, d = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, 64)
        a = tl.load(x + d[:, None] * 16 + m[None, :])
        b = tl.load(y + n[:, None] * 64 + d[None, :])
        at = m[:, None] * 32 + n[None, :]
        tl.store(out + at, tl.dot(a, b, trans_a=True, trans_b=True))
        tl.store(out + 512 + at, tl.dot(tl.trans(a), b, trans_b=True))
        tl.store(out + 1024 + at, tl.dot(a, b.T, allow_tf32=False, trans_a=True))

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 16)).astype(F16), rng.standard_normal((32, 64)).astype(F16)
    got = result(k, F32, (3, 16, 32), x=x, y=y)
    expected = x.astype(np.float64).T @ y.astype(np.float64).T
    np.testing.assert_allclose(got, np.stack([expected] * 3), rtol=1e-5, atol=1e-5)


def test_error_of_a_transposed_dot_names_the_multiplied_shapes():
    @kernel
    def k(out, x, OPTION: tl.constexpr):
        tile = tl.load(x + tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :])
        if OPTION:
            tl.dot(tile, tile, trans_a=True, trans_b=True)
        else:
            tl.dot(tile, tile, trans_b=tl.program_id(0) > 0)

    x = np.zeros((16, 32), F16)
    assert "dot of shapes (32, 16) and (32, 16)" in refused(k, x=x, OPTION=True).message
    assert "trans_b" in refused(k, x=x, OPTION=False).message
