"""`kernel.tune`: a table of configurations for a kernel that has no `@autotune`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.runtime import cache
from blocknb.runtime.job import Job
from blocknb.tune import Autotuner, AutotunerError

CONFIGS = [Config({"BLOCK": 64}), Config({"BLOCK": 4096})]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.Cache(tmp_path)  # without the choices of earlier runs
    monkeypatch.setattr(cache, "shared", lambda: own)


def plus_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def plus_stages(x, out, n, num_stages: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + num_stages, mask=at < n)


def plus_first(x, out, n, pair, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + pair[0], mask=at < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def race_without_clock(monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> list[int]:
    """Replaces the measurement; the first configuration wins. Returns the counts of results with which searches begin.

    If `interrupted`, the first search stops after one configuration."""
    seen = []

    def race_here(self: Any, race: Any, configs: Any, args: Any, kwargs: Any) -> None:
        seen.append(len(race.values))
        race.values[configs[0]] = [1.0] * 4
        if interrupted and len(seen) == 1:
            raise KeyboardInterrupt
        race.values[configs[1]] = [2.0] * 4

    monkeypatch.setattr(Autotuner, "race_here", race_here)
    return seen


def test_a_plain_kernel_is_tuned_and_the_best_configuration_launches_it() -> None:
    kernel = blocknb.kernel(plus_one)
    x, out = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    found = kernel.tune(x, out, 5000, grid=grid, configs=CONFIGS)
    assert [trial.config for trial in found.trials] == CONFIGS and found.best in CONFIGS and not found.from_disk
    assert all(trial.rounds > 3 for trial in found.trials)
    kernel[grid](x, out, 5000, **found.launch_kwargs())
    assert (out == 1).all()
    assert kernel.tune(x, out, 5000, grid=grid, configs=CONFIGS).from_disk
    assert not kernel.tune(x, out, 4000, grid=grid, configs=CONFIGS).from_disk, "the numbers of a launch are its key"


@pytest.mark.parametrize(("function", "added"), [(plus_one, 1), (plus_stages, 3)])
def test_a_launch_of_the_best_configuration_compiles_nothing_new(
    function: Any, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x, out = blocknb.kernel(function), np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    found = kernel.tune(x, out, 5000, grid=grid, configs=CONFIGS)
    for name in ("run", "begin"):
        monkeypatch.setattr(Job, name, lambda job: pytest.fail(f"{job.source.name} was compiled after its tuning"))
    made = kernel[grid](x, out, 5000, **found.launch_kwargs())
    assert (out == added).all()
    assert blocknb.autotune([found.best], key=[])(kernel)[grid](x, out, 5000) is made
    again = kernel.tune(x, out, 5000, grid=grid, configs=CONFIGS)
    assert again.from_disk and again.launch_kwargs() == found.launch_kwargs()


def test_a_decorator_with_the_best_configuration_runs_its_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    race_without_clock(monkeypatch, interrupted=False)
    kernel, x, seen = blocknb.kernel(plus_one), np.zeros(64, np.float32), []
    configs = [Config(c.kwargs, pre_hook=lambda named: seen.append(named["BLOCK"])) for c in CONFIGS]
    found = kernel.tune(x, x.copy(), 64, grid=grid, configs=configs)
    kernel[grid](x, x.copy(), 64, **found.launch_kwargs())
    assert not seen
    blocknb.autotune([found.best], key=[])(kernel)[grid](x, x.copy(), 64)
    assert seen == [64]


def test_an_interrupted_table_has_no_keywords_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    race_without_clock(monkeypatch, interrupted=True)
    kernel, x = blocknb.kernel(plus_one), np.zeros(64, np.float32)
    with pytest.raises(KeyboardInterrupt):
        kernel.tune(x, x.copy(), 64, grid=grid, configs=CONFIGS)
    with pytest.raises(AutotunerError, match="was interrupted"):
        kernel.tuning.launch_kwargs()


@pytest.mark.parametrize("options", [{"pre_hook": print}, {"num_stages": 3}], ids=["hook", "stages"])
def test_configurations_with_another_hook_or_option_are_another_search(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = race_without_clock(monkeypatch, interrupted=True)
    kernel, x = blocknb.kernel(plus_one), np.zeros(64, np.float32)
    others = [Config(config.kwargs, **options) for config in CONFIGS]
    assert list(map(str, others)) == list(map(str, CONFIGS)), "their texts do not tell them apart"
    with pytest.raises(KeyboardInterrupt):
        kernel.tune(x, x.copy(), 64, grid=grid, configs=CONFIGS)
    assert kernel.tune(x, x.copy(), 64, grid=grid, configs=others).best is others[0]
    assert seen == [0, 0]


@pytest.fixture
def tuned(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, collect: Callable[[], int]
) -> dict[str, Any]:
    """A kernel after a search, and the array of its launch. With True as the parameter, an interrupt has ended the search."""
    race_without_clock(monkeypatch, interrupted=getattr(request, "param", False))
    kernel, x = blocknb.kernel(plus_one), np.zeros(64, np.float32)
    with contextlib.suppress(KeyboardInterrupt):
        kernel.tune(x, x.copy(), 64, grid=grid, configs=CONFIGS)
    return {"kernel": kernel, "array": x}


@pytest.mark.parametrize(("tuned", "what"), [(False, "kernel"), (True, "kernel"), (False, "array")], indirect=["tuned"])
def test_a_search_keeps_neither_its_kernel_nor_an_array_alive(
    tuned: dict[str, Any], what: str, collect: Callable[[], int]
) -> None:
    alive = weakref.ref(tuned.pop(what))
    collect()
    assert alive() is None


def test_numbers_of_numpy_shapes_and_tuples_belong_to_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    race_without_clock(monkeypatch, interrupted=False)
    kernel, x = blocknb.kernel(plus_first), np.zeros((8, 8), np.float32)

    def tuned(x: Any, n: Any, pair: Any) -> Any:
        return kernel.tune(x, x.copy(), n, pair, grid=grid, configs=CONFIGS)

    first = tuned(x, np.int64(64), (1, 2))
    assert (first.key["n"], first.key["shapes"]) == (64, "x (8, 8), out (8, 8), pair (1, 2)")
    assert tuned(x, np.int64(64), (1, 2)).from_disk
    others = [(x, np.int64(32), (1, 2)), (x.reshape(64), np.int64(64), (1, 2)), (x, np.int64(64), (3, 2))]
    for other in others:
        assert not tuned(*other).from_disk and tuned(*other).from_disk


def test_an_interrupted_search_of_a_plain_kernel_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = race_without_clock(monkeypatch, interrupted=True)
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
