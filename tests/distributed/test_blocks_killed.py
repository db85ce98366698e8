"""A worker is killed in the middle of `map_blocks`: nothing is lost, and the result is bit for bit that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

import block_wrappers as w  # noqa: E402
import dask.array as da  # noqa: E402

import blocknb  # noqa: E402

ROWS, COLUMNS, BLOCKS = 240, 64, 24


def slow_softmax(x, out):
    """Softmax of a block, slow enough that a kill comes in the middle."""
    time.sleep(0.05)
    w.softmax(x, out)


def graph(x: np.ndarray) -> da.Array:
    """Softmax, a stencil of it, and a product of the stencil with its transpose: three kinds of tasks that need each other's results."""
    soft = blocknb.map_blocks(slow_softmax, da.from_array(x, chunks=(ROWS // BLOCKS, COLUMNS)))
    edges = blocknb.map_overlap(w.stencil, soft, depth=1, boundary="reflect")
    return blocknb.contraction("ki,kj->ij", w.gram, edges, edges)


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "distributed.scheduler.allowed-failures": 100,
        "distributed.deploy.lost-worker-timeout": "10 minutes",
        "distributed.comm.timeouts.connect": "5 minutes",
        "distributed.worker.multiprocessing-method": "forkserver",  # a worker starts again in a tenth of the time
    }
    options = {"processes": True, "dashboard_address": None, "memory_limit": 0}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as made,
        distributed.Client(made),
    ):
        yield made


def running(cluster) -> list[int]:
    """The process ids of the workers that the scheduler knows."""
    known = {state.nanny for state in cluster.scheduler.workers.values()}
    return [nanny.pid for nanny in cluster.workers.values() if nanny.address in known and nanny.pid is not None]


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.full)])
def test_a_killed_worker_changes_no_bit_of_the_result(cluster, kills: int) -> None:
    rng = np.random.default_rng(kills)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    with dask.config.set(scheduler="threads"):
        expected = graph(x).compute()
    client, killed = distributed.default_client(), 0
    while killed < kills:
        future = client.compute(graph(x))
        while killed < kills and not future.done():
            time.sleep(rng.uniform(0.1, 0.5))
            if not future.done() and (pids := running(cluster)):
                os.kill(int(rng.choice(pids)), signal.SIGKILL)
                killed += 1
        assert future.result(timeout=600).tobytes() == expected.tobytes()
