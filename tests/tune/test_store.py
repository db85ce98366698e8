"""Tuning results on disk: their keys, damaged entries, and concurrent writers."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.runtime import cache, host
from blocknb.tune import Autotuner, store
from blocknb.tune.tuning import LEFT_OUT, MEASURED, Trial, Tuning

X = np.arange(1000, dtype=np.float32)
TRIED: list[int] = []
CONFIGS = [Config({"BLOCK": 64}), Config({"BLOCK": 128})]


@blocknb.kernel
def scale(x, out, n, BLOCK: tl.constexpr, TWICE: tl.constexpr = False):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * (4 if TWICE else 2), mask=i < n)


def bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    call()
    TRIED.append(0)
    return [1.0 / len(TRIED)] * len(quantiles)


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cache.Cache:
    found = cache.Cache(tmp_path)
    monkeypatch.setattr(cache, "shared", lambda: found)
    TRIED.clear()
    return found


def launched(
    n: int = 1000, configs: Sequence[Config] = CONFIGS, kernel: Any = scale, x: Any = X, **given: Any
) -> Autotuner:
    """A new autotuner, as in a new process, after a launch that must be right."""
    made = blocknb.autotune(configs, ["n"], do_bench=bench, cache_results=True)(kernel)
    out = np.zeros_like(x)
    made[lambda meta: (blocknb.cdiv(n, meta["BLOCK"]),)](x, out, n, **given)
    np.testing.assert_array_equal(out[:n], x[:n] * (4 if given.get("TWICE") else 2))
    return made


def kept(
    configs: Sequence[Config] = CONFIGS, args: Sequence[Any] = (X, X, 1000), key: Any = (1000, "float32"), **given: Any
) -> str | None:
    place = store.StorePlace.of(scale, scale.arg_names, args, given, configs, key)
    return place and place.digest


def test_another_process_finds_the_choice_with_all_trials() -> None:
    first = launched()
    second = launched()
    assert len(TRIED) == 2 and first.best_config == second.best_config == CONFIGS[1]
    assert second.tuning.from_disk and second.bench_time == 0 and not first.tuning.from_disk
    assert second.tuning.trials == first.tuning.trials and second.configs_timings == first.configs_timings


def test_key_dtype_constants_options_and_configurations_select_the_entry() -> None:
    launched()
    for more in (
        {"n": 999},
        {"x": X.astype(np.float64)},
        {"TWICE": True},
        {"checked": False},
        {"configs": CONFIGS[::-1]},
    ):
        before = len(TRIED)
        launched(**more)
        assert len(TRIED) == before + 2, more
        launched(**more)
        assert len(TRIED) == before + 2, more


def test_the_grid_and_arguments_outside_the_key_do_not_change_the_entry() -> None:
    assert kept() == kept(args=(X[:10], X, 5)) == kept(args=(), x=X, out=X, n=5, grid=(3,)) is not None
    assert kept() != kept(args=(X, X, 1000, 64))


def test_the_kernel_its_options_heuristics_and_the_machine_select_the_entry(monkeypatch) -> None:
    def place(kernel: Any) -> str:
        return store.StorePlace.of(kernel, kernel.arg_names, (X, X, 1000), {}, CONFIGS, (1000,)).digest

    def other(x, out, n, BLOCK: tl.constexpr, TWICE: tl.constexpr = False):
        tl.store(out, tl.load(x))

    found = place(scale)
    assert found == place(blocknb.kernel(scale.fn)) and place(blocknb.kernel(other)) != found
    assert place(blocknb.kernel(scale.fn, fast_math=True)) != found
    rules = [blocknb.kernel(scale.fn) for _ in range(3)]
    blocknb.heuristics({"TWICE": lambda args: args["n"] > 3})(rules[0])
    blocknb.heuristics({"TWICE": lambda args: args["n"] > 4})(rules[1])
    assert len({found, *map(place, rules)}) == 3
    monkeypatch.setattr(host, "thread_count", lambda: 77)
    assert place(scale) != found


def test_objects_without_a_stable_description_are_not_stored() -> None:
    opaque = threading.Lock()
    assert kept(key=(opaque,)) is None and kept(TWICE=opaque) is None
    assert kept(configs=[*CONFIGS, Config({"BLOCK": 32}, pre_hook=print)]) is None
    assert kept(TWICE=True) is not None


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_file_is_dropped_and_the_kernel_tuned_again(own, tmp_path, damage) -> None:
    launched()
    (path,) = [p for p in tmp_path.rglob("*.bnb") if b'"trials"' in p.read_bytes()]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage is None else damage)
    launched()
    assert len(TRIED) == 4
    launched()
    assert len(TRIED) == 4 and path.read_bytes().count(b"trials") == 1


TRIALS = [[[1.0, 1.0, 1.0], 3, MEASURED, ""], [[2.0, 2.0, 2.0], 3, MEASURED, ""]]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"times": [[1.0] * 3] * 2},
        {"trials": TRIALS[:1], "best": 0},
        {"trials": TRIALS, "best": 2},
        {"trials": TRIALS, "best": "0"},
        {"trials": [["soon", 3, MEASURED, ""]] * 2, "best": 0},
        {"trials": [[[1.0] * 3, 3, "perhaps", ""]] * 2, "best": 0},
        {"trials": [[1.0]] * 2, "best": 0},
    ],
)  # fmt: skip
def test_an_entry_with_invalid_contents_is_dropped(own, meta) -> None:
    place = store.StorePlace(cache.key("place"), tuple(CONFIGS))
    own.put(place.digest, {"trials": TRIALS, "best": 1}, {})
    assert place.read() == ([Trial(c, tuple(t[0]), 3) for c, t in zip(CONFIGS, TRIALS, strict=True)], CONFIGS[1])
    own.put(place.digest, meta, {})
    assert place.read() is None and own.get(place.digest) is None


def test_times_of_any_number_type_and_reasons_are_restored() -> None:
    trials = (Trial(CONFIGS[0], np.float32(0.5)), Trial(CONFIGS[1], status=LEFT_OUT, reason="too much"))
    place = store.StorePlace(cache.key("numbers"), tuple(CONFIGS))
    place.write(Tuning("k", {}, trials, CONFIGS[0]))
    found, best = place.read()
    assert best is CONFIGS[0] and found[0].times == 0.5 and found[1].reason == "too much"
    assert found[1].times == (float("inf"),) * 3


def _write(root: str, number: int, times: int) -> int:
    """Runs in another process: writes and reads one entry repeatedly, and returns the number of complete reads."""
    cache.shared = lambda kept=cache.Cache(root): kept  # type: ignore[assignment]
    place, read = store.StorePlace(cache.key("contended"), tuple(CONFIGS)), 0
    for i in range(times):
        trials = tuple(Trial(c, [float(number)] * 3, i) for c in CONFIGS)
        place.write(Tuning("k", {}, trials, CONFIGS[number % 2]))
        found = place.read()
        if found is not None:
            assert {trial.times[0] for trial in found[0]} == {found[0][0].times[0]}
            assert found[1] is CONFIGS[int(found[0][0].times[0]) % 2]
            read += 1
    return read


def test_several_processes_may_write_the_same_entry(tmp_path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        read = pool.starmap(_write, [(str(tmp_path), number, 40) for number in range(2)])
    assert read == [40, 40]
    assert not list(tmp_path.rglob(".new-*"))


@pytest.mark.parametrize(
    ("cache_results", "ours", "environment", "kept"),
    [
        (None, True, {}, True),
        (None, False, {}, False),
        (True, False, {}, True),
        (False, True, {}, False),
        (True, True, {"TRITON_CACHE_AUTOTUNING": "0"}, True),
        (None, True, {"TRITON_CACHE_AUTOTUNING": "0"}, False),
        (None, False, {"TRITON_CACHE_AUTOTUNING": "1"}, True),
        (False, True, {"BLOCKNB_CACHE_AUTOTUNING": "1"}, True),
        (False, True, {"BLOCKNB_CACHE_AUTOTUNING": "0"}, False),
        (None, True, {"BLOCKNB_CACHE_AUTOTUNING": ""}, True),
    ],
)  # fmt: skip
def test_cache_results_and_the_environment_decide_what_is_stored(
    monkeypatch, cache_results: bool | None, ours: bool, environment: dict[str, str], kept: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert store.wanted(cache_results, ours) is kept


def test_by_default_a_second_tuner_finds_the_choice_of_the_first() -> None:
    def made(**options: Any) -> Autotuner:
        kernel = blocknb.autotune(CONFIGS, ["n"], warmup=0, rep=1, **options)(scale)
        kernel[(16,)](X, np.zeros_like(X), 1000)
        return kernel

    first = made()
    assert not first.tuning.from_disk and first.tuning.trials[0].rounds >= 3
    assert made().tuning == Tuning(**{**vars(first.tuning), "from_disk": True, "seconds": 0.0})
    assert not made(cache_results=False).tuning.from_disk
