"""The state of an autotuner: how it measures, and the searches that run or were interrupted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blocknb import forks
from blocknb.errors import KernelError
from blocknb.tune.config import Config
from blocknb.tune.fast_choice import FastChoices
from blocknb.tune.race import Race
from blocknb.tune.tuning import MEASURED, Trial, Tuning

WARMUP, REP = 25, 100  # milliseconds per configuration


@dataclass(frozen=True)
class Measuring:
    """How configurations are timed: `warmup` and `rep` in milliseconds, by replays of a CUDA graph, or by the caller's `do_bench`."""

    warmup: float = WARMUP
    rep: float = REP
    use_cuda_graph: bool = False
    do_bench: Callable[..., Any] | None = None


class SharedTrials:
    """The trials of all configurations, some of which share a measurement.

    A CPU has no warps and stages, so with `ignore_gpu_options` configurations that differ only in these share a trial. `tried` are those to
    measure. `parameters` are the names of the kernel's parameters.
    """

    def __init__(
        self,
        kernel: str,
        named: Mapping[str, Any],
        configs: Sequence[Config],
        ignore_gpu_options: bool,
        parameters: Sequence[str],
    ):
        self.kernel, self.named, self.configs, self.parameters = kernel, named, list(configs), parameters
        self._same = {c: (*sorted(c.kwargs.items()), c.pre_hook) if ignore_gpu_options else c for c in configs}
        self._tried: dict[Any, Config] = {}
        for config in configs:
            self._tried.setdefault(self._same[config], config)

    @property
    def tried(self) -> list[Config]:
        return list(self._tried.values())

    def trials(self, race: Race) -> tuple[Trial, ...]:
        """The trial of each configuration in a race."""
        found = []
        for config in self.configs:
            tried = self._tried[self._same[config]]
            trial = race.trial(tried)
            if config is not tried and trial.status == MEASURED:
                trial = replace(trial, reason="one measurement for all num_warps and num_stages: a CPU has neither")
            found.append(replace(trial, config=config))
        return tuple(found)

    def tuning(self, race: Race) -> Tuning:
        """The Tuning of a race. Its `best` is None if no configuration could run."""
        trials = self.trials(race)
        finished = [trial for trial in trials if trial.status == MEASURED]
        best = min(finished, key=lambda trial: trial.median).config if finished else None
        return Tuning(self.kernel, self.named, trials, best, race.seconds, race.from_disk, self.parameters)


class Searches:
    """The searches of an autotuner. They have a lock, the races by tuning key, the choices for repeated launches, and the error of the last
    configuration that could not run. They also know whether the user was warned of arrays that trials update. `client` is that of a Dask
    cluster or None. `tunings` are the tables of the last tuning there, by kind of device."""

    def __init__(self, client: Any = None) -> None:
        self.client, self.tunings = client, dict[str, Tuning]()
        self.races: dict[tuple[Any, ...], Race] = {}
        self.refused: KernelError | None = None
        self.warned = False
        self.choices = FastChoices((), ())
        self.lock = threading.RLock()
        forks.renewed(self, lock=threading.RLock)

    @contextlib.contextmanager
    def using(self, client: Any) -> Iterator[None]:
        """Holds the lock, and uses another client for some time, unless it is None."""
        with self.lock:
            before, self.client = self.client, client or self.client
            try:
                yield
            finally:
                self.client = before
