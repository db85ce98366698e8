"""Starts clusters on this machine."""

from __future__ import annotations

from typing import Any

import dask
import distributed

# A busy machine takes long to start a worker again, and to answer. By default, a LocalCluster gives up after 15 and 30 seconds.
dask.config.set(
    {"distributed.deploy.lost-worker-timeout": "10 minutes", "distributed.comm.timeouts.connect": "5 minutes"}
)


def started(workers: int = 2, **options: Any) -> distributed.LocalCluster:
    """A LocalCluster of workers of one thread, in processes unless `processes=False`."""
    given = {"processes": True, "memory_limit": 0, "dashboard_address": ":0", **options}
    return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, **given)
