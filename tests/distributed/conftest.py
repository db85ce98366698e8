"""A cluster for the tests of this folder: two worker processes of one thread on this machine, with a cache of kernels of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("distributed", reason="needs dask and distributed: pip install 'blocknb[dask]'")

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cluster_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder that the workers share."""
    return tmp_path_factory.mktemp("cluster-cache")


@pytest.fixture(scope="session")
def cluster(cluster_cache: Path) -> Iterator[Any]:
    """A LocalCluster of two processes. Tests that kill workers start their own."""
    before = {name: os.environ.get(name) for name in ("BLOCKNB_CACHE_DIR", "PYTHONPATH")}
    os.environ["BLOCKNB_CACHE_DIR"] = str(cluster_cache)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    try:
        with started() as made:
            yield made
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def started(workers: int = 2, **options: Any) -> Any:
    """A LocalCluster without a dashboard."""
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", **{"processes": True, "memory_limit": 0, **options}
    )  # fmt: skip


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """A client of the shared cluster."""
    with distributed.Client(cluster) as made:
        yield made
