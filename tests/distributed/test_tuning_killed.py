"""Random workers die while a kernel is tuned with real times: each configuration has one result, and the choice stays within the noise."""

from __future__ import annotations

import os
import random
import signal
import threading

import distributed
import numpy as np
import pytest
from local_cluster import started

import blocknb
import blocknb.language as tl
from blocknb.tune.race import LIMITS
from blocknb.tune.tuning import MEASURED, STOPPED, Tuning

KILLS = 20
ROWS, COLUMNS = 512, 4096
SLOW = 1, 16  # the smallest tile
RESOLUTION = LIMITS[-1][1]  # the tuner keeps measuring configurations whose times differ by less
CONFIGS = [(rows, block) for rows in (1, 2, 4, 8, 16, 32) for block in (16, 32, 64, 128, 256, 512, 1024, 4096)]


@blocknb.kernel
def row_sums(x, out, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row[:, None] * columns + at[None, :])
    tl.store(out + row, tl.sum(total, 1))


def tuned(configs, client=None, rep: int = 40) -> Tuning:
    """The table of a search that is not kept."""
    made = [blocknb.Config({"ROWS": rows, "BLOCK": block}) for rows, block in configs]
    tuner = blocknb.autotune(made, key=["columns"], cache_results=False, warmup=5, rep=rep)(row_sums)
    x, out = np.ones((ROWS, COLUMNS), np.float32), np.empty(ROWS, np.float32)
    return tuner.tune(x, out, COLUMNS, grid=lambda c: (ROWS // c["ROWS"],), client=client)


def best_of(found: Tuning) -> tuple[int, int]:
    return found.best.kwargs["ROWS"], found.best.kwargs["BLOCK"]


@pytest.mark.full
def test_random_kills_leave_one_result_per_configuration_and_a_choice_within_the_noise() -> None:
    numbers, ended, kills = random.Random(0), threading.Event(), []
    with started(3, env={"BLOCKNB_NUM_THREADS": "1"}) as made, distributed.Client(made) as client:
        client.wait_for_workers(3)
        undisturbed = best_of(tuned(CONFIGS, client))

        def kill() -> None:
            while len(kills) < KILLS and not ended.wait(numbers.uniform(0.2, 0.8)):
                there = client.nthreads()
                running = [nanny.pid for nanny in made.workers.values() if nanny.pid and nanny.worker_address in there]
                if len(running) > 1:
                    os.kill(numbers.choice(running), signal.SIGKILL)
                    kills.append(None)

        killer, choices = threading.Thread(target=kill), []
        killer.start()
        try:
            while len(kills) < KILLS:
                found = tuned(CONFIGS, client)
                assert [(t.config.kwargs["ROWS"], t.config.kwargs["BLOCK"]) for t in found.trials] == CONFIGS
                assert {t.status for t in found.trials} <= {MEASURED, STOPPED}
                assert all(t.rounds > 0 and t.median < float("inf") for t in found.trials)
                choices.append(best_of(found))
        finally:
            ended.set()
            killer.join()
        # All choices run in turns on the workers, five times: the same noise for each. A slow configuration shows what the noise hides.
        compared = list(dict.fromkeys([undisturbed, *choices, SLOW]))
        searches = [tuned(compared, client, rep=200) for _ in range(5)]
    times = {one: sorted(found.trials[n].median for found in searches) for n, one in enumerate(compared)}
    noise = max([RESOLUTION] + [times[one][3] / times[one][1] for one in {undisturbed, *choices}])
    limit = noise * times[undisturbed][2]
    print(
        f"{len(choices)} searches with {KILLS} kills chose {choices}; undisturbed {undisturbed}; ms: {times}; noise {noise:.3g}"
    )
    assert times[SLOW][2] > limit, "the noise hides a slow configuration"
    assert all(times[choice][2] <= limit for choice in choices), (undisturbed, limit, times)
