"""A cluster for the tests of this folder: two worker processes of one thread on this machine, with a cache of kernels of their own.

The folder is left out where distributed is not installed: pip install "blocknb[dask]".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
_running = ExitStack()
_clusters: list[Any] = []
collect_ignore_glob = [] if find_spec("distributed") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder that the workers share."""
    return tmp_path_factory.mktemp("cluster-cache")


@pytest.fixture
def cluster(cluster_cache: Path) -> Any:
    """A LocalCluster of two processes for the tests of this folder. It restarts workers that a test kills."""
    if not _clusters:
        from local_cluster import started

        patch = _running.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("BLOCKNB_CACHE_DIR", str(cluster_cache))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))
        _clusters.append(_running.enter_context(started()))
    return _clusters[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends the cluster where the next test is of another folder: an idle one takes a tenth of a processor from all later tests."""
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _clusters.clear()
            _running.close()


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """A client of the shared cluster."""
    from distributed import Client

    with Client(cluster) as made:
        made.wait_for_workers(2, timeout=600)  # a test may have killed one
        yield made
