"""`kernel.tune(..., client=client)` for a kernel without `@autotune`, and choices while workers die."""

from __future__ import annotations

import random
import statistics
import threading
from typing import Any

import distributed
import numpy as np
import pytest
from local_cluster import started
from test_cluster_tuning import kill_one

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.runtime import cache
from blocknb.tune.tuning import MEASURED, STOPPED, Tuning

DEATHS, UNDISTURBED = 20, 5


def plus_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def test_a_plain_kernel_is_tuned_on_the_workers(client, tmp_path, monkeypatch) -> None:
    own = cache.Cache(tmp_path)  # without the choices of earlier runs of this test
    monkeypatch.setattr(cache, "shared", lambda: own)
    kernel, x = blocknb.kernel(plus_one), np.zeros(5000, np.float32)
    configs = [Config({"BLOCK": block}) for block in (64, 100, 4096)]
    with pytest.warns(RuntimeWarning, match="leaves out BLOCK=100"):
        found = kernel.tune(x, x.copy(), 5000, grid=grid, configs=configs, client=client)
    assert [trial.config for trial in found.trials] == configs and found.best in (configs[0], configs[2])
    assert found.trials[0].rounds + found.trials[2].rounds > 4
    out = np.empty_like(x)
    kernel[grid](x, out, 5000, **found.best.all_kwargs())
    assert (out == 1).all()


@pytest.mark.full
def test_while_workers_die_the_choice_stays_within_the_noise_of_undisturbed_searches() -> None:
    """Real times on the CPU. Tiles of 16 elements take a multiple of the time of large ones, so a wrong choice is outside of the noise."""
    x = np.zeros(1 << 18, np.float32)
    configs = [Config({"BLOCK": 2**k}) for k in range(4, 14)]

    def search(client: Any) -> Tuning:
        tuner = blocknb.autotune(configs, key=["n"], warmup=5, rep=40, cache_results=False)(blocknb.kernel(plus_one))
        found = tuner.tune(x, x.copy(), x.size, grid=grid, client=client)
        assert [trial.config for trial in found.trials] == configs, "each configuration has one trial"
        assert {trial.status for trial in found.trials} <= {MEASURED, STOPPED}
        return found

    def trial(found: Tuning, config: Any) -> Any:
        return next(one for one in found.trials if one.config is config)

    deaths, ended, random_numbers = [], threading.Event(), random.Random(0)
    with started(3) as made, distributed.Client(made) as client:
        undisturbed = [search(client) for _ in range(UNDISTURBED)]

        def kill() -> None:
            while len(deaths) < DEATHS and not ended.wait(random_numbers.uniform(0.3, 1)):
                if kill_one(made, client, 2):
                    deaths.append(1)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            disturbed = []
            while len(deaths) < DEATHS:
                disturbed.append(search(client))
        finally:
            ended.set()
            killer.join()

    typical = {one: statistics.median(trial(found, one).median for found in undisturbed) for one in configs}
    slowest = max(trial(found, found.best).times[2] for found in undisturbed)  # the 80 % quantile of a choice
    chosen = [found.best for found in disturbed]
    print(
        f"{DEATHS} deaths, {len(disturbed)} searches: {[f'{typical[one]:.4f}' for one in chosen]} ms, noise up to {slowest:.4f} ms"
    )
    print({str(one): round(ms, 4) for one, ms in typical.items()})
    assert max(typical.values()) > slowest, "a wrong choice would be seen"
    assert all(typical[one] <= slowest for one in chosen)
