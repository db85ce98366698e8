"""A cluster for the tests of this folder: two worker processes of one thread on this machine, with a cache of kernels of their own.

The folder is left out where distributed is not installed: pip install "blocknb[dask]".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("distributed") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder that the workers share."""
    return tmp_path_factory.mktemp("cluster-cache")


@pytest.fixture(scope="session")
def cluster(cluster_cache: Path) -> Iterator[Any]:
    """A LocalCluster of two processes. It restarts workers that a test kills."""
    from local_cluster import started

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKNB_CACHE_DIR", str(cluster_cache))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))
        with started() as made:
            yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """A client of the shared cluster."""
    from distributed import Client

    with Client(cluster) as made:
        made.wait_for_workers(2, timeout=120)  # a test may have killed one
        yield made
