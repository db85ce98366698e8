"""Products with searched tiles: the candidates fit their devices, each kind is tuned once, and results are right."""

from __future__ import annotations

import numpy as np
import pytest
import seeds

from blocknb.kernels.shapes import choose
from blocknb.kernels.strides import HOST, Device
from blocknb.runtime import cache
from blocknb.tune import products
from blocknb.tune.tuning import MEASURED, STOPPED

DEVICES = {"H200": Device(132, 90, 227 << 10), "A100": Device(108, 80, 163 << 10), "T4": Device(40, 75, 64 << 10)}


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("name", DEVICES)
def test_candidates_fit_the_device_and_include_the_choice_of_the_rule(name, itemsize):
    device = DEVICES[name]
    found = products.configs(itemsize, device)
    assert 8 <= len(found) <= 40 and len(set(found)) == len(found)
    for config in found:
        m, n, k = (config.kwargs[f"BLOCK_{axis}"] for axis in "MNK")
        assert (m + n) * k * itemsize * config.num_stages <= device.shared and k * itemsize >= 64
    for shape in ((4096, 4096, 4096), (1024, 1024, 1024), (4096, 4096, 512)):
        t = choose(*shape, itemsize, device)
        same = [c for c in found if (*(c.kwargs[f"BLOCK_{x}"] for x in "MNK"), c.num_warps, c.num_stages) == t[:5]]
        assert same, t


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    own = cache.Cache(tmp_path)
    monkeypatch.setattr(cache, "shared", lambda: own)
    products.tuner.cache_clear()
    yield
    products.tuner.cache_clear()


def test_a_product_is_tuned_once_per_kind_and_then_found(fresh):
    rng = seeds.rng()
    a, b = rng.standard_normal((70, 90)).astype(np.float32), rng.standard_normal((90, 50)).astype(np.float32)
    exact = np.maximum(a.astype(np.float64) @ b, 0)
    for x, y in ((a, b), (a, b), (a.copy("F"), b)):
        out = products.matmul(x, y, np.full((70, 50), np.nan, np.float32), activation="relu")
        np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-4)
    tuner = products.tuner("pointers", 4, HOST)
    assert len(tuner.cache) == 2  # a stored column by column is another kind
    assert {trial.status for trial in tuner.tuning.trials} <= {MEASURED, STOPPED} and not tuner.tuning.from_disk
    products.tuner.cache_clear()
    products.matmul(a, b, activation="relu")
    assert products.tuner("pointers", 4, HOST).tuning.from_disk


def test_batches_are_tuned_and_empty_products_are_not(fresh):
    a, b = np.ones((2, 40, 30), np.float32), np.ones((30, 20), np.float32)
    np.testing.assert_array_equal(products.matmul(a, b), np.full((2, 40, 20), 30))
    assert products.matmul(a[:, :0], b).shape == (2, 0, 20)
