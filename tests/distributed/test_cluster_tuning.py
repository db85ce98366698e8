"""Tuning on a cluster: who measures what, what happens when a worker dies, and what travels."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import distributed
import numpy as np
import pytest
from fake_tuner import fake_tuner, measured, processes
from local_cluster import started

import blocknb
import blocknb.language as tl
from blocknb.cpus import cpu_count
from blocknb.runtime import cache, parallel_compile
from blocknb.tune import Config, store
from blocknb.tune import cluster as cluster_tuning
from blocknb.tune.pruning import AutotunerError
from blocknb.tune.race import FINALISTS, Race, eliminated
from blocknb.tune.tuning import LEFT_OUT, MEASURED, Tuning

X = np.zeros(4, np.float32)


def tune(tuner: Any, client: Any) -> Tuning:
    return tuner.tune(X, 4, grid=(1,), client=client)


def check(tuning: Tuning, count: int) -> None:
    """Each configuration has one trial, which is complete, and the best is the one with the least time."""
    assert [trial.config.kwargs["BLOCK"] for trial in tuning.trials] == list(range(count))
    assert {trial.status for trial in tuning.trials} == {MEASURED}
    assert tuning.best.kwargs["BLOCK"] == min(21, count - 1)


@contextmanager
def shown(monkeypatch: pytest.MonkeyPatch, at: int = -1, do: Any = None) -> Iterator[list[str]]:
    """The texts of the progress bar; calls `do` at the step of this number."""
    texts: list[str] = []

    @contextmanager
    def shows(total: int, label: str) -> Iterator[Any]:
        texts.append(f"{label} ({total})")

        def step(text: str) -> None:
            texts.append(text)
            if len(texts) == at:
                do()

        yield step

    monkeypatch.setattr(parallel_compile, "shows", shows)
    yield texts


def test_workers_share_the_configurations_and_a_final_decides(client, tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    tuner = fake_tuner(40, log, workers=2)
    with shown(monkeypatch) as texts:
        tuning = tune(tuner, client)
    check(tuning, 40)
    counts, workers = measured(log), processes(log)
    finalists = {20, 21, 22, 19, 23}
    assert sum(counts.values()) == 40 + FINALISTS and {b for b, n in counts.items() if n > 1} <= finalists
    assert len(workers) == 2
    assert texts[0] == "nothing: tuning on 2 workers (40)" and len(texts) == 41
    assert texts[-1] == "2 workers, best BLOCK=21 (1 ms)"
    assert {kind: one.trials for kind, one in tuner.tunings.items()} == {store.device_kind(None): tuning.trials}
    told = [line.split()[2:] for line in log.read_text().splitlines()]
    assert any(text and float(text[0]) < 2 for text in told), "workers hear of the best median"


def test_each_worker_compiles_its_share_before_it_measures_it(client, tmp_path) -> None:
    log = tmp_path / "log"
    check(tune(fake_tuner(40, log, pause=0.005), client), 40)
    compiled = [line.split() for line in (tmp_path / "log.compiled").read_text().splitlines()]
    assert sorted(int(block) for block, _ in compiled) == list(range(40))
    by = dict(compiled)
    assert len(set(by.values())) == 2 and len([b for b in by if by[b] == by["0"]]) == 20
    first: dict[str, str] = {}  # worker -> the first configuration that it measured
    for line in log.read_text().splitlines():
        first.setdefault(line.split()[1], line.split()[0])
    assert all(by[block] == worker for worker, block in first.items())


def test_all_workers_leave_out_what_spills_heavily_also_one_by_one(client, tmp_path) -> None:
    """The last tasks have one configuration each, so no other one of the task shows that code need not spill."""
    log = tmp_path / "log"
    tuning = tune(fake_tuner(40, log, heavy=30), client)
    assert [trial.status for trial in tuning.trials] == [MEASURED] * 30 + [LEFT_OUT] * 10
    assert tuning.trials[35].reason == "2000 bytes of spills a thread"
    assert max(measured(log)) == 29


def test_if_everything_spills_heavily_everything_is_measured(client, tmp_path) -> None:
    check(tune(fake_tuner(24, tmp_path / "log", heavy=0), client), 24)


@pytest.mark.full
def test_workers_have_as_many_threads_as_cpus_or_as_their_environment_says() -> None:
    cpus = f"{cpu_count()} thread{'s' if cpu_count() > 1 else ''}"
    for env, threads in (({}, cpus), ({"BLOCKNB_NUM_THREADS": "3"}, "3 threads")):
        with started(1, env=env) as made, distributed.Client(made) as client:
            assert client.submit(store.device_kind, None).result().endswith(f", {threads}")


def test_kernels_are_tuned_for_real_and_the_choice_is_on_the_workers_disk(client, tmp_path, monkeypatch) -> None:
    own = cache.Cache(tmp_path)  # without the choices of earlier runs of this test
    monkeypatch.setattr(cache, "shared", lambda: own)

    @blocknb.autotune(
        [Config({"BLOCK": block}) for block in (64, 100, 4096)], key=["n"], warmup=0, rep=1, client=client
    )
    @blocknb.kernel
    def plus_one(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)

    x, out = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    with pytest.warns(RuntimeWarning, match="leaves out BLOCK=100: type mismatch"):
        plus_one[grid](x, out, 5000)
    assert (out == 1).all()
    first, wrong, second = plus_one.tuning.trials
    assert "not a power of two" in wrong.reason and first.rounds + second.rounds > 4
    assert plus_one.best_config in (first.config, second.config)
    plus_one.cache.clear()
    again = plus_one.tune(x, out, 5000, grid=grid)
    assert again.from_disk and str(again.best) == str(plus_one.best_config) and again.trials[1].reason == wrong.reason


def test_an_interrupt_keeps_the_results_and_the_next_search_continues(client, tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    tuner = fake_tuner(60, log)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with shown(monkeypatch, 20, interrupt), pytest.raises(KeyboardInterrupt):
        tune(tuner, client)
    done = [trial.config.kwargs["BLOCK"] for trial in tuner.tuning.trials if trial.status == MEASURED]
    assert 19 <= len(done) < 60 and tuner.tuning.best is None
    time.sleep(0.5)  # the tasks that ran end
    before = measured(log)
    check(tune(tuner, client), 60)
    assert all(measured(log)[block] == before[block] for block in done if abs(block - 21) > FINALISTS)


def kill_one(cluster: Any, client: Any, least: int = 1) -> bool:
    """Kills the process of a random worker, if at least so many run. Its nanny starts another, but gives up one that has not begun."""
    there = client.nthreads()
    running = [nanny.pid for nanny in cluster.workers.values() if nanny.pid and nanny.worker_address in there]
    if len(running) >= least:
        os.kill(random.choice(running), signal.SIGKILL)
    return len(running) >= least


@pytest.mark.parametrize("kept", [cluster_tuning.KEPT, 0])
def test_after_the_death_of_a_worker_another_measures_its_configurations(
    cluster, client, tmp_path, monkeypatch, kept
) -> None:
    """Also if the arguments lie on the workers alone, as large ones do."""
    monkeypatch.setattr(cluster_tuning, "KEPT", kept)
    log = tmp_path / "log"
    tuner = fake_tuner(60, log)
    with shown(monkeypatch, 12, lambda: kill_one(cluster, client)) as texts:
        check(tune(tuner, client), 60)
    assert len(texts) == 61, "a configuration whose worker died counts once"
    assert sum(measured(log).values()) <= 60 + FINALISTS + cluster_tuning.MOST


@pytest.mark.full
def test_twenty_deaths_lose_and_repeat_no_configuration(tmp_path, monkeypatch) -> None:
    """Searches one after another, in which random workers die, until twenty have died."""
    deaths, ended, random_numbers = [], threading.Event(), random.Random(0)
    with started(3) as made, distributed.Client(made) as client:

        def kill() -> None:
            while len(deaths) < 20 and not ended.wait(random_numbers.uniform(0.3, 1)):
                if kill_one(made, client, 2 if len(deaths) % 5 else 1):  # now and then the only one
                    deaths.append(time.monotonic())

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while len(deaths) < 20:
                with shown(monkeypatch) as texts:
                    tuning = tune(fake_tuner(200, tmp_path / str(len(deaths)), pause=0.1), client)
                check(tuning, 200)
                assert len(texts) == 201
        finally:
            ended.set()
            killer.join()


def test_two_clients_tune_at_the_same_time(cluster, tmp_path) -> None:
    def one(number: int) -> Tuning:
        with distributed.Client(cluster) as client:
            return tune(fake_tuner(30, tmp_path / str(number)), client)

    with ThreadPoolExecutor(2) as pool:
        for tuning in pool.map(one, range(2)):
            check(tuning, 30)


def test_the_error_of_a_launch_ends_the_search_with_its_attributes(client, tmp_path) -> None:
    with pytest.raises(blocknb.AccessError, match="outside") as caught:
        tune(fake_tuner(8, tmp_path / "log", fails=5), client)
    assert (caught.value.program, caught.value.index) == ((1, 2, 3), 7)


def test_each_kind_of_device_measures_all_configurations_and_gets_its_own_choice(tmp_path, monkeypatch) -> None:
    log = tmp_path / "log"
    kinds, lock = {}, threading.Lock()

    def kind(gpu: int | None) -> str:
        try:
            with lock:  # the workers are threads
                return kinds.setdefault(distributed.get_worker().address, f"GPU {'AB'[len(kinds) % 2]}")
        except ValueError:
            return "GPU A"

    monkeypatch.setattr(store, "device_kind", kind)
    with started(3, processes=False) as made, distributed.Client(made) as client:
        tuner = fake_tuner(25, log, pause=0)
        tuning = tune(tuner, client)
    assert sorted(tuner.tunings) == ["GPU A", "GPU B"] and tuner.tunings["GPU A"].trials == tuning.trials
    for one in tuner.tunings.values():
        check(one, 25)
    assert sum(measured(log).values()) == 2 * (25 + FINALISTS)


def test_another_kind_than_that_of_the_launch_is_named_in_a_warning(tmp_path, monkeypatch) -> None:
    def kind(gpu: int | None) -> str:
        try:
            return distributed.get_worker() and "GPU B"
        except ValueError:
            return "GPU A"

    monkeypatch.setattr(store, "device_kind", kind)
    with started(1, processes=False) as made, distributed.Client(made) as client:
        with pytest.warns(RuntimeWarning, match="the cluster has no GPU A; launches here use the choice of GPU B"):
            check(tune(fake_tuner(5, tmp_path / "log", pause=0), client), 5)


def test_without_workers_the_search_fails_after_some_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cluster_tuning, "PATIENCE", 0.2)
    monkeypatch.setattr(cluster_tuning, "POLL_SECONDS", 0.05)
    with started(0, processes=False) as made, distributed.Client(made) as client:
        with pytest.raises(AutotunerError, match="no worker is left to tune nothing"):
            tune(fake_tuner(5, tmp_path / "log"), client)


# ---- early stops


def test_the_median_of_another_worker_stops_slower_configurations() -> None:
    times = {"a": [2.0] * 4, "b": [2.1] * 4}
    assert eliminated(times) == {} == eliminated(times, least=1.9)
    assert eliminated(times, least=1.0) == {"a": 2.0, "b": 2.1}
    assert Race("k").seen() == (float("inf"), False)


# ---- what travels


@contextmanager
def counted(scheduler: str) -> Iterator[dict[str, int]]:
    """Counts messages and bytes between the scheduler and all others, and parcels that workers unpack."""
    from distributed.comm.tcp import TCP

    from blocknb.tune import measuring_worker

    found = {"messages": 0, "bytes": 0, "parcels": 0}
    write, unpack = TCP.write, measuring_worker.WorkerSearch.__init__
    lock = threading.Lock()

    async def counting(self: Any, message: Any, *args: Any, **kwargs: Any) -> int:
        size = await write(self, message, *args, **kwargs)
        if scheduler in (self.local_address, self.peer_address):
            with lock:
                found["messages"] += len(message) if isinstance(message, (list, tuple)) else 1
                found["bytes"] += size
        return size

    def unpacking(self: Any, parcel: Any) -> None:
        found["parcels"] += 1
        unpack(self, parcel)

    TCP.write, measuring_worker.WorkerSearch.__init__ = counting, unpacking
    try:
        yield found
    finally:
        TCP.write, measuring_worker.WorkerSearch.__init__ = write, unpack


@pytest.mark.full
def test_a_trial_costs_few_messages_and_each_worker_gets_the_kernel_once(tmp_path) -> None:
    """The figures of docs/cluster.md: run it with `-s`."""
    count = 2000
    with started(8, processes=False, protocol="tcp://") as made, distributed.Client(made) as client:
        client.wait_for_workers(8)
        with counted(made.scheduler_address) as found:
            check(tune(fake_tuner(count, tmp_path / "log", pause=0.001), client), count)
    messages, size = found["messages"] / count, found["bytes"] / count
    print(
        f"{count} configurations on 8 workers: {messages:.2f} messages and {size:.0f} bytes per configuration, {found}"
    )
    assert found["parcels"] == 8
    assert messages < 3 and size < 1500
