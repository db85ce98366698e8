"""Matrix products on a CPU: their tiles, their loads at ragged sizes, and the pause between the calls of peers with several threads."""

from __future__ import annotations

import numpy as np
import pytest

from blocknb import kernels as ready
from blocknb.bench.suite import measure
from blocknb.kernels import shapes
from blocknb.kernels.matmul import matmul_kernel
from blocknb.kernels.strides import HOST


@pytest.mark.parametrize(
    ("size", "threads", "tile"),
    [
        ((1024, 1024, 1024), 2, (512, 256, 128)),
        ((1000, 1000, 1000), 1, (512, 256, 128)),
        ((33, 17, 1000), 1, (64, 128, 128)),  # a large tile would be filled with zeros
        ((1024, 1024, 1024), 64, (128, 128, 128)),  # large tiles would leave threads without work
    ],
)
def test_a_cpus_tile_is_large_but_not_too_large_for_the_product_or_the_threads(
    size, threads, tile, monkeypatch
) -> None:
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", str(threads))
    found = shapes.choose.__wrapped__(*size, 4, HOST)
    assert (found.m, found.n, found.k) == tile


def test_operands_of_ragged_sizes_are_not_gathered_on_a_cpu() -> None:
    a, b, out = np.ones((100, 90), np.float32), np.ones((90, 110), np.float32), np.zeros((100, 110), np.float32)
    ready.matmul(a, b, out)
    np.testing.assert_array_equal(out, 90)
    assert matmul_kernel.latest is not None
    assert "masked.gather" not in matmul_kernel.latest.trace.llvm


@pytest.mark.parametrize(("threads", "pauses"), [("1", 0), ("2", 3)])
def test_peers_pause_between_calls_if_they_have_several_threads(threads, pauses, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", threads)
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    clock = measure._rested(lambda call: call())
    assert [clock(lambda: 5.0) for _ in range(3)] == [5.0] * 3
    assert slept == [measure.PAUSE] * pauses
