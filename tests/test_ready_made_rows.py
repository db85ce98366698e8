"""The ready-made row and elementwise kernels against float64: partial tiles, tiny, long, strided, non-finite."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import seeds

from blocknb import kernels as ready
from blocknb.kernels import rotary

SHAPES = ((1, 1), (7, 33), (64, 128), (3, 5000))
SINGLE = {"rtol": 2e-5, "atol": 2e-5}


def random(*shape: int) -> np.ndarray:
    return seeds.rng().standard_normal(shape).astype(np.float32)


def poison(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


@pytest.fixture(params=["host", "gpu", "gpu, long"])
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and tiles as wrappers choose them for a CPU and for a GPU. "gpu, long" is a GPU on which rows of more than 16 elements are
    long. The CPU runs them all."""
    for name in ("rows", "cross_entropy", "norm_gradients"):
        module = importlib.import_module(f"blocknb.kernels.{name}")
        if request.param != "host":
            monkeypatch.setattr(module, "on_host", lambda array: False)
        if request.param == "gpu, long" and name != "rows":
            monkeypatch.setattr(module, "KEPT", 16)
            monkeypatch.setattr(module, "LONG", 32)


def strided(m: int, n: int) -> np.ndarray:
    """A matrix with padded rows that begin at odd offsets."""
    return (2 * random(m, n + 3) + 1)[:, 1 : n + 1]


def normed(x: np.ndarray, eps: float, centred: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z, mean and rstd in float64."""
    wide = x.astype(np.float64)
    mean = wide.mean(1, keepdims=True) * centred
    rstd = 1 / np.sqrt(((wide - mean) ** 2).mean(1, keepdims=True) + eps)
    return (wide - mean) * rstd, mean, rstd


@pytest.mark.sampled(2, each=["chosen", "m", "n"])
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_layer_norm_and_its_gradients_match_float64(m: int, n: int) -> None:
    x, weight, bias, dy = strided(m, n), random(n), random(n), random(m, n)
    out, mean, rstd = poison(m, n), poison(m), poison(m)
    assert ready.layer_norm(x, weight, bias, out, mean=mean, rstd=rstd) is out
    z, exact_mean, exact_rstd = normed(x, 1e-5, True)
    np.testing.assert_allclose(out, z * weight + bias, **SINGLE)
    np.testing.assert_allclose(mean, exact_mean[:, 0], **SINGLE)
    np.testing.assert_allclose(rstd, exact_rstd[:, 0], **SINGLE)
    dx, dweight, dbias = poison(m, n), poison(n), poison(n)
    ready.layer_norm_backward(x, weight, dy, mean, rstd, dx, dweight, dbias, programs=3)
    g = dy.astype(np.float64) * weight
    exact = exact_rstd * (g - g.mean(1, keepdims=True) - z * (g * z).mean(1, keepdims=True))
    np.testing.assert_allclose(dx, exact, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(dweight, (dy * z).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dbias, dy.astype(np.float64).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2, each=["chosen", "m", "n"])
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_rms_norm_and_its_gradients_match_float64(m: int, n: int, offset: float) -> None:
    x, weight, dy = strided(m, n), random(n), random(m, n)
    out, rstd, dx, dweight = poison(m, n), poison(m), poison(m, n), poison(n)
    ready.rms_norm(x, weight, out, rstd=rstd, offset=offset)
    z, _, exact_rstd = normed(x, 1e-6, False)
    factor = weight.astype(np.float64) + offset
    np.testing.assert_allclose(out, z * factor, **SINGLE)
    ready.rms_norm_backward(x, weight, dy, rstd, dx, dweight, offset=offset)
    g = dy.astype(np.float64) * factor
    np.testing.assert_allclose(dx, exact_rstd * (g - z * (g * z).mean(1, keepdims=True)), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(dweight, (dy * z).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("heads", "width"), [((4, 2), 16), ((3, 1), 6), ((70, 1), 256)])
def test_rotary_rotates_queries_and_keys_with_any_strides_and_back(heads: tuple[int, int], width: int) -> None:
    given = [random(2, h, 5, width).transpose(0, 2, 1, 3) for h in heads]
    angles = random(1, 5, width)
    for cos, sin in ((np.cos(angles), np.sin(angles)), (random(2, 5, width), random(2, 5, width))):
        out = [np.full(x.shape, np.nan, np.float32) for x in given]
        rotary.rotary(*given, cos, sin, *out)
        half = width // 2
        c, s = (a[:, :, None, :half].astype(np.float64) for a in (cos, sin))
        for x, found in zip(given, out, strict=True):
            a, b = x[..., :half], x[..., half:]
            np.testing.assert_allclose(found, np.concatenate((a * c - b * s, b * c + a * s), -1), **SINGLE)
        if len(cos) == 1:  # true angles
            back = [np.full(x.shape, np.nan, np.float32) for x in given]
            rotary.rotary(*out, cos, sin, *back, backward=True)
            for x, found in zip(given, back, strict=True):
                np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


def test_rotary_refuses_what_does_not_fit() -> None:
    q, k, cos = random(2, 3, 4, 8), random(2, 3, 1, 8), random(1, 3, 4)
    for wrong in (
        (q, random(2, 4, 1, 8), cos, cos, q, k),
        (q[..., ::2], k[..., ::2], cos, cos, q[..., ::2], k[..., ::2]),
        (q, k, cos[:, :2], cos, q, k),
        (q, k, cos, random(3, 3, 4), q, k),
        (q, k, cos, cos, q[:1], k),
    ):
        with pytest.raises(ValueError):
            rotary.rotary(*wrong)


def test_fp16_norms_without_weights_keep_non_finite_values_in_their_rows() -> None:
    x = random(4, 100).astype(np.float16)
    x[1, 7], x[2, 8] = np.nan, np.inf
    out = poison(4, 100, dtype=np.float16)
    ready.layer_norm(x, None, None, out)
    with np.errstate(invalid="ignore"):
        exact = normed(x, 1e-5, True)[0]
    np.testing.assert_allclose(out[[0, 3]], exact[[0, 3]], rtol=1e-3, atol=1e-3)
    assert np.isnan(out[1:3]).all()


@pytest.mark.sampled(2, each=["chosen", "m", "n"])
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize(("m", "n"), [*SHAPES, (9, 17), (9, 20), (2, 4099)])
def test_cross_entropy_and_its_gradient_match_float64(m: int, n: int) -> None:
    x, dlosses = strided(m, n), random(m)
    classes = seeds.rng().integers(0, n, m)
    classes[m // 2] = -100
    losses, logsumexp, dx = poison(m), poison(m), poison(m, n)
    ready.cross_entropy(x, classes, losses, logsumexp)
    wide, counted = x.astype(np.float64), classes >= 0
    logsum = np.log(np.exp(wide).sum(1))
    chosen = np.maximum(classes, 0)
    np.testing.assert_allclose(losses, np.where(counted, logsum - wide[np.arange(m), chosen], 0), **SINGLE)
    np.testing.assert_allclose(logsumexp, logsum, **SINGLE)
    ready.cross_entropy_backward(x, classes, dlosses, logsumexp, dx)
    exact = np.exp(wide - logsum[:, None])
    exact[np.arange(m), chosen] -= 1
    np.testing.assert_allclose(dx, exact * (dlosses * counted)[:, None], **SINGLE)


def test_cross_entropy_of_large_logits_and_masked_classes_does_not_overflow() -> None:
    x = np.array([[1000, 999, -np.inf], [-np.inf, -1000, -np.inf]], np.float32)
    losses, logsumexp = poison(2), poison(2)
    ready.cross_entropy(x, np.array([1, 1]), losses, logsumexp)
    np.testing.assert_allclose(losses, [1 + np.log1p(np.exp(-1)), 0], rtol=1e-3)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("n", [5, 35])
def test_cross_entropy_of_non_finite_or_ignored_rows(n: int) -> None:
    x = random(5, n)
    x[0], x[1, 2], x[2, 3], x[3, :-1] = -np.inf, np.nan, np.inf, -np.inf
    x[4, 0], x[4, n - 1] = -np.inf, 3e38
    classes, losses, logsumexp, dx = np.array([1, -100, 1, n - 1, n - 1]), poison(5), poison(5), poison(5, n)
    ready.cross_entropy(x, classes, losses, logsumexp)
    assert np.isnan(losses[[0, 2]]).all()
    assert np.isnan(logsumexp[[1, 2]]).all()
    np.testing.assert_array_equal(losses[[1, 3, 4]], 0)
    np.testing.assert_array_equal(logsumexp[3:], x[3:, -1])
    ready.cross_entropy_backward(x, classes, np.ones(5, np.float32), logsumexp, dx)
    assert np.isnan(dx[[0, 2]]).all()
    np.testing.assert_array_equal(dx[[1, 3, 4]], 0)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("apart", [0, 3])
def test_cross_entropy_gradient_in_place_and_with_another_stride(apart: int) -> None:
    x, classes, ones = random(4, 37), np.array([0, 36, 5, -100]), np.ones(4, np.float32)
    losses, logsumexp, dx = poison(4), poison(4), poison(4, 37 + apart)[:, :37]
    ready.cross_entropy(x, classes, losses, logsumexp)
    ready.cross_entropy_backward(x, classes, ones, logsumexp, dx)
    ready.cross_entropy_backward(x, classes, ones, logsumexp, x)
    np.testing.assert_array_equal(dx, x)
    np.testing.assert_allclose(dx.sum(1), 0, atol=1e-6)
    assert (dx[[0, 1, 2], classes[:3]] < 0).all()


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_swiglu_and_its_gradients_match_float64(m: int, n: int) -> None:
    gate, up, dout = strided(m, n), random(m, n), random(m, n)
    out, dgate, dup = poison(m, n), poison(m, n), poison(m, n)
    ready.swiglu(gate, up, out)
    g = gate.astype(np.float64)
    s = 1 / (1 + np.exp(-g))
    np.testing.assert_allclose(out, g * s * up, **SINGLE)
    ready.swiglu_backward(gate, up, dout, dgate, dup)
    np.testing.assert_allclose(dgate, dout * up * s * (1 + g * (1 - s)), **SINGLE)
    np.testing.assert_allclose(dup, dout * g * s, **SINGLE)


@pytest.mark.parametrize(("heads", "width"), [(1, 2), (3, 6), (32, 128)])
def test_rope_and_its_inverse_rotate_pairs_in_place(heads: int, width: int) -> None:
    x, angles = random(5, heads, width), random(5, width // 2)
    cosines, sines, out = np.cos(angles), np.sin(angles), poison(5, heads, width)
    ready.rope(x, cosines, sines, out)
    a, b = np.split(x.astype(np.float64), 2, axis=2)
    c, s = (np.asarray(v, np.float64)[:, None] for v in (cosines, sines))
    np.testing.assert_allclose(out, np.concatenate([a * c - b * s, b * c + a * s], axis=2), **SINGLE)
    ready.rope(out, cosines, sines, out, backward=True)
    np.testing.assert_allclose(out, x, **SINGLE)


def test_dropout_keeps_the_expected_fraction_and_is_reproducible() -> None:
    x, out, again = random(1000, 100), poison(1000, 100), poison(1000, 100)
    ready.dropout(x, out, 0.25, 7)
    ready.dropout(x, again, 0.25, 7)
    np.testing.assert_array_equal(out, again)
    kept = out != 0
    assert abs(kept.mean() - 0.75) < 0.01
    np.testing.assert_allclose(out[kept], x[kept] / 0.75, rtol=1e-6)
    ready.dropout(x, again, 0.25, 8)
    assert (again != out).any()
    ready.dropout(x, again, 0.0, 8)
    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (65, 130), (200, 3)])
def test_transposed_copy_matches_numpy(m: int, n: int) -> None:
    x, out = strided(m, n), poison(n, m)
    ready.transpose(x, out)
    np.testing.assert_array_equal(out, x.T)


def test_mismatched_arguments_are_refused_by_name() -> None:
    x, out, v = random(4, 8), poison(4, 8), random(8)
    with pytest.raises(ValueError, match=r"out must be of shape \(4, 8\), not of shape \(8, 4\)"):
        ready.layer_norm(x, v, v, out.T)
    with pytest.raises(ValueError, match=r"the rows of x must be contiguous; its strides are \(1, 4\)"):
        ready.rms_norm(random(8, 4).T, v, out)
    with pytest.raises(ValueError, match="weight must be a contiguous vector of 8 elements"):
        ready.layer_norm(x, v[:4], None, out)
    with pytest.raises(ValueError, match="65537 elements; the limit is 65536"):
        ready.rms_norm(random(1, 65537), None, poison(1, 65537))
    with pytest.raises(ValueError, match=r"cosines must be contiguous, of shape \(4, 2\)"):
        ready.rope(random(4, 2, 4), random(4, 3), random(4, 2), poison(4, 2, 4))
    with pytest.raises(ValueError, match="p must be"):
        ready.dropout(x, out, 1.0, 0)
    with pytest.raises(ValueError, match=r"cannot transpose \(4, 8\) into \(4, 8\)"):
        ready.transpose(x, out)
