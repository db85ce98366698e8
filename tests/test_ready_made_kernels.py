"""The wrappers of the ready-made kernels: the same results for the arrays of each library, and strides taken from them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import seeds

from blocknb import kernels as ready
from blocknb.kernels import add, matmul, softmax


def of_torch(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


@pytest.fixture(params=[np.asarray, of_torch], ids=["numpy", "torch"])
def array(request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
    """A function that makes an array of a library on the memory of a NumPy array."""
    return request.param


def random(*shape: int) -> np.ndarray:
    return seeds.rng().standard_normal(shape).astype(np.float32)


def test_vector_sums_match_numpy(array):
    x, y, out = random(1000), random(1000), np.full(1000, np.nan, np.float32)
    add(array(x), array(y), array(out))
    np.testing.assert_array_equal(out, x + y)
    with pytest.raises(ValueError, match="sizes differ: 1000, 999, 1000"):
        add(array(x), array(y[1:]), array(out))


def test_softmax_of_strided_rows_matches_numpy(array):
    x, out = random(7, 300)[:, :200], np.full((7, 200), np.nan, np.float32)
    softmax(array(x), array(out))
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, exact / exact.sum(1, keepdims=True), rtol=2e-6, atol=1e-9)


@pytest.mark.sampled(2, each=["dtype", "m"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 1), (37, 3), (16, 64), (130, 60), (3, 256), (2, 1000)])
def test_softmax_of_short_rows_and_special_values_matches_numpy(array, m, n, dtype):
    x = (random(m, n) * 4).astype(dtype)
    x[0, -1] = -np.inf if n > 1 else 0.0
    if m > 2:
        x[1], x[2, 0] = -np.inf, np.nan
    out = np.full_like(x, np.nan)
    softmax(array(x), array(out))
    with np.errstate(invalid="ignore"):
        exact = np.exp(x.astype(np.float64) - np.fmax.reduce(x, axis=1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(out, exact, rtol=1e-3 if dtype == np.float16 else 2e-6, atol=1e-7)
    with pytest.raises(ValueError, match="out must be of shape"):
        softmax(array(x), array(out[:, :0]))


@pytest.mark.parametrize(
    ("dtype", "m", "n", "padding", "cut"),
    [
        (np.float16, 19, 90, 0, {"VECTOR": 8, "BLOCK": 64, "REST": 32, "CHUNK": 0}),
        (np.float32, 19, 301, 0, {"VECTOR": 4, "BLOCK": 256, "REST": 64, "CHUNK": 0}),
        (np.float32, 3, 301, 0, {"VECTOR": 4, "BLOCK": 256, "REST": 64, "CHUNK": 64}),
        (np.float32, 3, 256, 0, {"VECTOR": 0, "BLOCK": 256, "REST": 64, "CHUNK": 64}),
        (np.float32, 19, 264, 0, {"VECTOR": 0, "BLOCK": 256, "REST": 16, "CHUNK": 0}),
        (np.float32, 19, 256, 0, None),
        (np.float16, 19, 50, 11, None),  # rows of x and out begin at different places of a vector
    ],
)
def test_softmax_of_rows_in_pieces_matches_numpy(monkeypatch, dtype, m, n, padding, cut):
    module = importlib.import_module("blocknb.kernels.softmax")
    for name, value in {"on_host": lambda array: False, "LONG": 8, "CHUNK": 64, "PROGRAMS": 15}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "WARP", 1)
    x, out = (random(m, n + padding) * 4).astype(dtype)[:, :n], np.full((m, n), np.nan, dtype)
    x[0, -1], x[1], x[2, 0] = -np.inf, -np.inf, np.nan
    found = module.pieces(x, out, None)
    assert (found and {name: found[name] for name in cut}) == cut
    softmax(x, out)
    with np.errstate(invalid="ignore"):
        exact = np.exp(x.astype(np.float64) - np.fmax.reduce(x, axis=1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(out, exact, rtol=1e-3 if dtype == np.float16 else 2e-6, atol=1e-7)
    inside = module.pieces(x, x, None)
    assert inside is None or inside["CHUNK"] == 0
    softmax(x, x)
    np.testing.assert_allclose(x, out, rtol=1e-3 if dtype == np.float16 else 2e-6, atol=1e-7)


def test_product_with_a_transposed_matrix_matches_numpy(array):
    a, b, out = random(50, 70).T, random(50, 33), np.full((70, 33), np.nan, np.float32)
    matmul(array(a), array(b), array(out), tile=(32, 32, 16))
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 1000, 100_003])
def test_sum_and_copy_match_numpy(array, n):
    x, out, total = random(n), np.full(n, np.nan, np.float32), np.full(1, np.nan, np.float32)
    ready.copy(array(x), array(out))
    np.testing.assert_array_equal(out, x)
    ready.sum(array(x), array(total), block=256, programs=7)
    np.testing.assert_allclose(total[0], x.sum(dtype=np.float64), rtol=1e-5, atol=1e-3)
    half = x.astype(np.float16)
    ready.sum(array(half), array(total))
    np.testing.assert_allclose(total[0], half.sum(dtype=np.float64), rtol=1e-5, atol=1e-3)
    with pytest.raises(ValueError, match=r"sizes differ: \d+ and 3"):
        ready.copy(array(x), array(np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match=r"one element, not the shape \(2,\)"):
        ready.sum(array(x), array(np.zeros(2, np.float32)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: ready.matmul([[1.0]], x), "a must be a NumPy, CuPy or torch array, not of type list"),
        (lambda x: ready.matmul(x, None), "b must be a NumPy, CuPy or torch array, not None"),
        (lambda x: ready.matmul(x, x, bias=[1.0] * 8), "bias must be a NumPy, CuPy or torch array"),
        (lambda x: ready.softmax([[1.0]], x), "x must be a NumPy, CuPy or torch array"),
        (lambda x: ready.layer_norm(x, [1.0] * 8, None, x), "weight must be a NumPy, CuPy or torch array"),
        (lambda x: ready.attention(x, x, 3), "v must be a NumPy, CuPy or torch array, not of type int"),
    ],
)
def test_an_argument_that_is_no_array_is_named(call, said):
    with pytest.raises(TypeError, match=said):
        call(np.ones((8, 8), np.float32))


def test_the_ready_made_kernels_are_an_attribute_of_blocknb():
    code = "import sys, blocknb; assert 'blocknb.kernels' not in sys.modules; print(blocknb.kernels.matmul.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "matmul\n", done.stderr
