"""Blocks of Dask arrays on a GPU: streamed from NumPy, in place with CuPy, within a limit, and with copies that overlap kernels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")
cupy = pytest.importorskip("cupy")

sys.path.insert(0, str(Path(__file__).parent.parent / "distributed"))

import block_wrappers as w  # noqa: E402
import dask.array as da  # noqa: E402

import blocknb  # noqa: E402
from blocknb.arrays import in_flight  # noqa: E402

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _threads() -> Any:
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def exact_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_softmax_streams_through_the_gpu_within_a_limit() -> None:
    x = RNG.standard_normal((4000, 1000)).astype(np.float32)
    chunk = 2 * 4 * 250 * 1000  # bytes of a block and its result
    in_flight.reset_totals()
    array = da.from_array(x, chunks=(250, 1000))
    found = blocknb.map_blocks(w.softmax, array, device="cuda", limit=2 * chunk).compute()
    assert type(found) is np.ndarray
    assert np.abs(found - exact_softmax(x)).max() < 1e-6
    totals = in_flight.totals()
    assert totals.blocks == 16
    assert totals.bytes_in == totals.bytes_out == x.nbytes
    assert totals.peak <= 2 * chunk
    assert totals.copy_ms > 0
    assert totals.compute_ms > 0


def test_a_product_adds_up_streamed_blocks() -> None:
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((300, 700), (700, 200)))
    left, right = da.from_array(a, chunks=(100, 256)), da.from_array(b, chunks=(256, 200))
    found = blocknb.contraction("ik,kj->ij", w.product, left, right, device="cuda").compute()
    assert np.abs(found - a.astype(np.float64) @ b).max() < 1e-3


def test_chunks_of_cupy_run_in_place() -> None:
    x = RNG.standard_normal((40, 100)).astype(np.float32)
    found = blocknb.map_blocks(w.softmax, da.from_array(x, chunks=(16, 100)).map_blocks(cupy.asarray)).compute()
    assert isinstance(found, cupy.ndarray)
    assert np.abs(found.get() - exact_softmax(x)).max() < 1e-6


def test_an_error_on_the_gpu_leaves_the_streams_usable() -> None:
    x = da.from_array(RNG.standard_normal((8, 100)).astype(np.float32), chunks=(4, 100))

    def fails(block: Any, out: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        blocknb.map_blocks(fails, x, device="cuda").compute()
    assert np.isclose(blocknb.map_blocks(w.softmax, x, device="cuda").sum().compute(), 8)
