"""`accesses`: the figures of the view Tiles as a table, compared with numbers that follow from the hardware's rules."""

from __future__ import annotations

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError
from blocknb.notebook.accesses import accesses

N = 4096


@blocknb.kernel
def copied(x, out, n, first, step, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + first + at * step, mask=at < n), mask=at < n)


@blocknb.kernel
def gathered(x, index, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + tl.load(index + at)))


@blocknb.kernel
def never_launched(x):
    tl.store(x, 0.0)


def launch(n: int = N, first: int = 0, step: int = 1) -> None:
    x, out = np.zeros(8 * N + 8, np.float32), np.zeros(N, np.float32)
    copied[blocknb.cdiv(n, 1024),](x, out, n, first, step, B=1024, num_warps=4)


@pytest.mark.parametrize(
    ("n", "first", "step", "lane", "requests", "sectors"),
    [
        (N, 0, 1, 16, 8, 128),
        (N - 3, 0, 1, 4, 32, 128),  # the mask may end anywhere
        (N, 1, 1, 4, 32, 160),  # each request reaches into a fifth sector
        (N, 0, 2, 4, 32, 256),
        (N, 0, 8, 4, 32, 1024),
    ],
)
def test_a_load_requests_the_sectors_that_it_touches(n, first, step, lane, requests, sectors):
    found = accesses(lambda: launch(n, first, step))
    load, store = found.rows
    assert (load.name, load.array, store.name, store.array) == ("load", "x", "store", "out")
    assert (load.bytes, load.requests, load.sectors, load.ideal) == (lane, requests, sectors, 128)
    assert found.work.issued_bytes == found.work.unique_bytes == 2 * 4 * n
    assert str(sectors) in repr(found) or f"{sectors:,}" in repr(found)


def test_the_last_program_requests_only_unmasked_sectors():
    found = accesses(lambda: launch(N - 1000), program=3)
    assert found.rows[0].ideal == 3 and found.rows[0].requests == 1  # 24 elements, in one warp
    with pytest.raises(KeyError, match="program 4 is out of range: the grid has 4 programs"):
        accesses(lambda: launch(N - 1000), program=4)


def test_barriers_and_shared_memory_are_those_of_the_memory_ir():
    contiguous, strided = accesses(launch), accesses(lambda: launch(step=2))
    assert (contiguous.barriers, contiguous.shared_bytes) == (0, 0)
    assert (strided.barriers, strided.shared_bytes) == (
        1,
        4096,
    )  # a conversion through shared memory gives each lane contiguous elements


def test_traffic_that_depends_on_loaded_data_is_unknown():
    x, index = np.zeros(64, np.float32), np.zeros(64, np.int32)
    found = accesses(lambda: gathered[1,](x, index, x.copy(), B=64))
    assert [row.sectors is None for row in found.rows] == [False, True, False]
    assert "?" in repr(found)


def test_a_kernel_means_its_last_observed_launch_for_any_target():
    observed(launch)
    assert accesses(copied).rows == accesses(copied, "sm_80").rows
    assert str(accesses(copied, "sm_80").trace.target) == "sm_80"


def test_without_a_launch_the_error_names_the_remedy():
    for subject in (never_launched, lambda: None):
        with pytest.raises(LaunchError, match="there is no launch to analyse"):
            accesses(subject)
