"""`kernel.tune`: a table of configurations for a kernel that has no `@autotune`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.runtime import cache
from blocknb.tune import Autotuner, AutotunerError

CONFIGS = [Config({"BLOCK": 64}), Config({"BLOCK": 4096})]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.Cache(tmp_path)  # without the choices of earlier runs
    monkeypatch.setattr(cache, "shared", lambda: own)


def plus_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def test_a_plain_kernel_is_tuned_and_the_best_configuration_launches_it() -> None:
    kernel = blocknb.kernel(plus_one)
    x, out = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    found = kernel.tune(x, out, 5000, grid=grid, configs=CONFIGS)
    assert [trial.config for trial in found.trials] == CONFIGS and found.best in CONFIGS and not found.from_disk
    assert all(trial.rounds > 3 for trial in found.trials)
    kernel[grid](x, out, 5000, **found.best.all_kwargs())
    assert (out == 1).all()
    assert kernel.tune(x, out, 5000, grid=grid, configs=CONFIGS).from_disk
    assert not kernel.tune(x, out, 4000, grid=grid, configs=CONFIGS).from_disk, "the numbers of a launch are its key"


def test_an_interrupted_search_of_a_plain_kernel_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def race_here(self: Any, race: Any, configs: Any, args: Any, kwargs: Any) -> None:
        seen.append(len(race.values))
        race.values[configs[0]] = [1.0] * 4
        if len(seen) == 1:
            raise KeyboardInterrupt
        race.values[configs[1]] = [2.0] * 4

    monkeypatch.setattr(Autotuner, "race_here", race_here)
    kernel, x = blocknb.kernel(plus_one), np.zeros(64, np.float32)
    with pytest.raises(KeyboardInterrupt):
        kernel.tune(x, x.copy(), 64, grid=grid, configs=CONFIGS)
    assert kernel.tune(x, x.copy(), 64, grid=grid, configs=list(CONFIGS)).best is CONFIGS[0]
    assert seen == [0, 1]


def test_an_updated_array_is_restored_between_trials() -> None:
    kernel, x = blocknb.kernel(plus_one), np.zeros(5000, np.float32)
    kernel.tune(x, x, 5000, grid=grid, configs=CONFIGS, restore_value=["x"])
    assert (x == 0).all()


def test_without_configurations_the_error_says_what_to_write() -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(AutotunerError, match="plus_one.tune needs configurations") as caught:
        blocknb.kernel(plus_one).tune(x, x, 64, grid=grid, configs=[])
    assert "blocknb.Config" in str(caught.value.hint)
