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


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("boundary", ["reflect", "periodic", 3.0])
def test_a_stencil_streams_chunks_with_their_halo(pinned: bool, boundary: Any) -> None:
    import cupyx

    x = RNG.standard_normal((70, 90)).astype(np.float32)

    def placed(block: np.ndarray) -> np.ndarray:
        host = cupyx.empty_pinned(block.shape, block.dtype) if pinned else np.empty_like(block)
        host[...] = block
        return host

    array = da.from_array(x, chunks=(32, 40)).map_blocks(placed, dtype=x.dtype, meta=np.empty((0, 0), x.dtype))
    found = blocknb.map_overlap(w.stencil, array, depth=1, boundary=boundary, device="cuda").compute()
    mode = {"reflect": {"mode": "symmetric"}, "periodic": {"mode": "wrap"}}.get(boundary, {"constant_values": 3.0})
    y = np.pad(x.astype(np.float64), 1, **mode)
    expected = y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:] - 4 * y[1:-1, 1:-1]
    assert np.abs(found - expected).max() < 1e-4


def test_the_result_of_a_pinned_chunk_is_pinned() -> None:
    import cupyx

    from blocknb.arrays.cupy_device import CupyDevice

    def placed(block: np.ndarray) -> np.ndarray:
        host = cupyx.empty_pinned(block.shape, block.dtype)
        host[...] = block
        return host

    seen = []

    def noted(block: np.ndarray) -> np.ndarray:
        seen.append(CupyDevice(0).is_pinned(block))
        return block

    x = RNG.standard_normal((8, 100)).astype(np.float32)
    plain, kept = da.from_array(x, chunks=-1), {"dtype": x.dtype, "meta": np.empty((0, 0), x.dtype)}
    for array, pinned in ((plain, False), (plain.map_blocks(placed, **kept), True)):
        found = blocknb.map_blocks(w.softmax, array, device="cuda").map_blocks(noted, **kept).compute()
        assert np.abs(found - exact_softmax(x)).max() < 1e-6
        assert seen.pop() == pinned


def test_chunks_of_cupy_with_a_halo_run_in_place() -> None:
    x = RNG.standard_normal((20, 30)).astype(np.float32)
    array = da.from_array(x, chunks=(9, 16)).map_blocks(cupy.asarray)
    found = blocknb.map_overlap(w.stencil, array, depth=1, boundary="reflect").compute()
    expected = blocknb.map_overlap(w.stencil, da.from_array(x, chunks=(9, 16)), depth=1, boundary="reflect").compute()
    assert isinstance(found, cupy.ndarray) and np.abs(found.get() - expected).max() < 1e-5


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
