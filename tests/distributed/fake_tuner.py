"""A tuner whose times are a function of the configuration: it measures nothing, compiles nothing, and logs what it was asked for."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import blocknb
from blocknb.tune import Autotuner, Config
from blocknb.tune.race import Race

#: Pauses of each configuration in seconds, so that workers can be killed in between.
PAUSE = 0.02


@blocknb.kernel
def nothing(x, n, BLOCK):
    pass


def milliseconds(config: Config) -> float:
    """The time of a configuration; the least is that of BLOCK=21."""
    return 1 + abs(config.kwargs["BLOCK"] - 21) / 10


class FakeTuner(Autotuner):
    """Appends a line to `log` for each configuration that it measures."""

    log = ""
    pause = PAUSE
    fails = -1
    workers = 1  # the first configuration takes until so many processes have measured one
    heavy = math.inf  # the least BLOCK whose code spills heavily

    def compile_ahead(self, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Config, Any]:
        for config in configs:
            write(f"{self.log}.compiled", f"{config.kwargs['BLOCK']} {os.getpid()}")
        return {}

    def race_here(self, race: Race, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        race.refuse_spilling({config: 2000 if config.kwargs["BLOCK"] >= self.heavy else 0 for config in configs})
        for config in (config for config in configs if config not in race.out):
            least, stopped = race.seen()
            if stopped:
                return
            if config.kwargs["BLOCK"] == self.fails:
                raise blocknb.AccessError("outside", program=(1, 2, 3), index=7)
            time.sleep(self.pause)
            write(self.log, f"{config.kwargs['BLOCK']} {os.getpid()} {least if math.isfinite(least) else ''}")
            until = time.monotonic() + 120
            while len(processes(Path(self.log))) < self.workers and time.monotonic() < until:
                time.sleep(self.pause)
            race.values[config] = [milliseconds(config)] * 4


def fake_tuner(count: int, log: Path, **options: Any) -> FakeTuner:
    """A tuner of so many configurations."""
    found = FakeTuner(nothing, ["x", "n", "BLOCK"], [Config({"BLOCK": block}) for block in range(count)], ["n"])
    found.log, found.cache_results = str(log), False
    vars(found).update(options)
    log.touch()
    return found


def write(log: str, line: str) -> None:
    with open(log, "a") as file:
        file.write(line + "\n")


def processes(log: Path) -> set[str]:
    """The processes that have measured something."""
    return {line.split()[1] for line in log.read_text().splitlines()}


def measured(log: Path) -> Counter[int]:
    """How many times each configuration was measured."""
    return Counter(int(line.split()[0]) for line in log.read_text().splitlines())
