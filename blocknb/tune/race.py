"""Races the configurations of an autotuner: short rounds, and early elimination of hopeless configurations.

Each round launches every remaining configuration once, with cold caches; medians are compared (times are those of `profile.timing`). The
time includes a configuration's own hook. It excludes work of trials alone: restoring and resetting arrays, and the tuner's hooks.
Configurations of one round see the same noise. A configuration is hopeless if it was slower than the best one in nearly every round, by a
certain factor. The factor becomes smaller with the number of rounds (`LIMITS`). When the time is over, a final round among the fastest
decides. A Race keeps its measurements after an interrupt and continues from there when it runs again.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from blocknb.errors import (
    CompilationError,
    CompilerBug,
    KernelError,
    OutOfResources,
    StaticAssertionFailed,
    Unsupported,
)
from blocknb.profile.timing import LEAST_ROUNDS, clock_of, interleaved
from blocknb.runtime.binding import caller
from blocknb.tune.config import Config
from blocknb.tune.tuning import LEFT_OUT, MEASURED, NO_TIMES, NOT_MEASURED, STOPPED, Trial, as_keywords

ROUNDS, WARMUPS = 30, 3  # at most: `warmup` and `rep` bound them in milliseconds
LEAST = 4  # rounds of one that runs alone
FINALISTS, FINAL = 4, 10  # configurations in the final, and their number of rounds
#: (rounds, factor, milliseconds): after these rounds, a configuration is hopeless if it exceeds the best time by both. A smaller
#: difference costs little to measure further, and a busy host adds as much to a launch.
LIMITS = ((2, 3.0, 50.0), (4, 1.25, 0.0), (10, 1.1, 0.0))
ROUNDS_PER_OUTLIER = 8  # one round in this number may contradict the others
#: Bytes of spills per thread, in loads and stores, above which a configuration is not tried: the size of a thread's registers.
SPILLS = 1024
QUANTILES = (0.5, 0.2, 0.8)
#: Errors that eliminate one configuration but do not fail the launch.
REFUSALS = (CompilationError, OutOfResources, CompilerBug)
#: The refusals that a list of configurations normally causes. For the others, the tuner also warns.
EXPECTED = (OutOfResources, StaticAssertionFailed, Unsupported)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Entrant:
    """A configuration that can be run: `launch` is what is timed, between `before()` and `after(error)`, which is called whatever
    happens, an interrupt too."""

    config: Config
    before: Callable[[], Any]
    launch: Callable[[], Any]
    after: Callable[[BaseException | None], Any]

    def timed(self, clock: Callable[[Callable[[], Any]], Any]) -> Any:
        self.before()
        try:
            found = clock(self.launch)
        except BaseException as error:
            self.after(error)
            raise
        self.after(None)
        return found

    def __call__(self) -> Any:
        return self.timed(lambda launch: launch())


@dataclass
class Race:
    """The measurements of configurations so far: milliseconds of each round, or the answers of a `do_bench`; and which are out, why."""

    kernel: str
    values: dict[Config, list[float]] = field(default_factory=dict)
    answers: dict[Config, Any] = field(default_factory=dict)
    out: dict[Config, tuple[str, str]] = field(default_factory=dict)
    failure: KernelError | None = None
    seconds: float = 0.0
    final: bool = True
    #: Whether all entrants are in the final from the first round on.
    finalists: bool = False
    #: Rounds that warm the device up, at most.
    warmups: int = WARMUPS
    #: The part of `rep` that a configuration gets. Below 1, a time that is over needs LEAST rounds, because a final follows elsewhere.
    share: float = 1.0
    #: The state of the rest of a cluster: (the least median in milliseconds, whether to stop).
    seen: Callable[[], tuple[float, bool]] = lambda: (math.inf, False)
    #: The races on a cluster, by kind of device.
    kinds: dict[str, Race] = field(default_factory=dict)
    #: Whether a configuration is known that does not spill heavily, here or on another worker.
    low_spill: bool = False
    #: Trials of an earlier tuning, which a worker has on its disk.
    known: dict[Config, Trial] = field(default_factory=dict)

    @property
    def from_disk(self) -> bool:
        return bool(self.known)

    def take(self, other: Race) -> None:
        """Makes the results those of another race."""
        self.values, self.answers, self.out, self.known = other.values, other.answers, other.out, other.known
        self.failure = other.failure

    @staticmethod
    def refusal(error: KernelError) -> tuple[str, str]:
        """The status and the reason of a configuration that cannot run."""
        return LEFT_OUT, f"{error.title}: {error.message}".split("\n")[0]

    def refuse(self, config: Config, error: KernelError) -> None:
        """Leaves a configuration out that cannot run."""
        self.out[config] = self.refusal(error)
        self.failure = error
        if not isinstance(error, EXPECTED):
            message = f"autotuning {self.kernel} leaves out {as_keywords(config)}: {self.out[config][1]}"
            place = caller()
            warnings.warn_explicit(message, RuntimeWarning, place.file if place else "", place.line if place else 0)

    def refuse_spilling(self, spilled: Mapping[Config, int]) -> None:
        """Leaves out what spills heavily (bytes by configuration), unless everything does, also on other workers."""
        heavy = {config: count for config, count in spilled.items() if count > SPILLS}
        self.low_spill = self.low_spill or len(heavy) < len(spilled)
        if self.low_spill:
            for config, count in heavy.items():
                self.out[config] = LEFT_OUT, f"{count} bytes of spills a thread"

    def run(
        self, entrants: Sequence[Entrant], *, gpu: int | None, warmup: float, rep: float, step: Callable[[str], None]
    ) -> None:
        """Times the entrants that still compete. `warmup` and `rep` are milliseconds per configuration. `step` gets the name of each step
        when it begins. Raises KeyboardInterrupt, and the errors of a launch other than a refused configuration."""
        running = [e for e in entrants if e.config not in self.out]
        for number, entrant in enumerate(running, 1):
            step(f"first run of {number} of {len(running)}")
            try:
                entrant()  # loads the code; what the device has no room for shows here
            except REFUSALS as error:
                self.refuse(entrant.config, error)
        named = {str(i): e for i, e in enumerate(running) if e.config not in self.out}
        lengths = [len(self.values.get(e.config, ())) for e in named.values()]
        whole = min(lengths, default=0)  # of rounds before an interrupt
        before = {name: self.values.get(e.config, [])[:whole] for name, e in named.items()}
        if not named:
            return
        with _on(gpu):
            device = clock_of(gpu is not None)
            found = interleaved(
                named,
                gpu=gpu is not None,
                rounds=max(ROUNDS - whole, 1),
                warmup=self.warmups,
                # No `seconds`: the RoundScheduler looks at the clock.
                warmup_seconds=warmup * len(named) / 1e3,
                clock=lambda entrant: float(entrant.timed(device)),  # type: ignore[attr-defined]
                going=RoundScheduler(self, named, before, self.share * rep * len(named) / 1e3, step),
            )
        for name, timing in found.items():
            self.values[named[name].config] = [*before[name], *timing.values]
        if found.cancelled:
            raise KeyboardInterrupt

    def trial(self, config: Config) -> Trial:
        """The Trial of a configuration from the measurements so far."""
        if config in self.known:
            return self.known[config]
        values = self.values.get(config, [])
        status, reason = self.out.get(config, (MEASURED if values or config in self.answers else NOT_MEASURED, ""))
        times = np.quantile(values, QUANTILES).tolist() if values else self.answers.get(config, NO_TIMES)
        times = tuple(times) if isinstance(times, (list, tuple)) else times
        return Trial(config, times, len(values), status, reason)


class RoundScheduler:
    """Decides before each round which configurations take part in it, and tells the race which ones no longer do.

    Noise or long launches may leave much undecided when `seconds` are over. Then the fastest configurations go into a final. It lasts at
    most as long again, and makes their medians those of `FINAL` rounds."""

    def __init__(
        self,
        race: Race,
        entrants: Mapping[str, Entrant],
        before: Mapping[str, Sequence[float]],
        seconds: float,
        step: Callable[[str], None],
    ):
        self.race, self.entrants, self.before, self.seconds, self.step = race, entrants, before, seconds, step
        self.end, self.final = math.inf, race.finalists

    def __call__(self, times: Mapping[str, Sequence[float]]) -> list[str]:
        now = time.perf_counter()
        if self.end == math.inf:
            self.end = now + self.seconds
        running = [name for name, entrant in self.entrants.items() if entrant.config not in self.race.out]
        known = {name: [*self.before[name], *times[name]] for name in running}
        rounds = min(map(len, known.values()), default=0)
        least, stopped = self.race.seen()
        if stopped:
            return []
        for name, ratio in eliminated(known, least).items():
            self._stop(known, name, f"{ratio:.3g} times the best after {rounds} rounds")
        if not self.final and now >= self.end and rounds >= (LEAST_ROUNDS if self.race.share == 1 else LEAST):
            if not self.race.final:
                return []
            self.final, self.end = True, now + self.seconds
            for name in sorted(known, key=lambda name: statistics.median(known[name]))[FINALISTS:]:
                self._stop(
                    known, name, f"not among the {FINALISTS} fastest after {rounds} rounds, when the time was over"
                )
        elif self.final and now >= self.end and rounds >= LEAST_ROUNDS:
            return []
        if (self.final and rounds >= FINAL) or (len(known) <= 1 and rounds >= LEAST):
            return []
        self.step(f"round {rounds + 1}, {len(known)} of {len(self.entrants)} left")
        return list(known)

    def _stop(self, known: dict[str, list[float]], name: str, reason: str) -> None:
        self.race.out[self.entrants[name].config] = STOPPED, reason
        del known[name]


def eliminated(times: Mapping[K, Sequence[float]], least: float = math.inf) -> dict[K, float]:
    """The configurations that cannot win any more, of these (milliseconds by round), with their medians as multiples of the best.

    `least` is the median of one that another device has measured; it competes with the same time in each round.
    """
    rounds = min(map(len, times.values()), default=0)
    limits = [limit for limit in LIMITS if rounds >= limit[0]]
    if not limits:
        return {}
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=medians.__getitem__)
    rivals, fastest = (times[best], medians[best]) if medians[best] <= least else ([least] * rounds, least)

    def lost(values: Sequence[float], factor: float, more: float) -> bool:
        slower = sum(v > max(factor * b, b + more) for v, b in zip(values, rivals, strict=False))
        return slower >= rounds - rounds // ROUNDS_PER_OUTLIER

    return {
        n: medians[n] / (fastest or math.inf) for n, v in times.items() if any(lost(v, *limit) for _, *limit in limits)
    }


@contextlib.contextmanager
def _on(gpu: int | None) -> Iterator[None]:
    """Makes a GPU the current one, and the stream that launches go to CuPy's current one, where the clock puts its events."""
    if gpu is None:
        yield
        return
    try:
        import cupy
    except ImportError:  # torch's stream is the current one already
        from blocknb.runtime import cuda

        with cuda.api().Device(gpu):
            yield
        return
    from blocknb.testing.benching import current_stream

    with cupy.cuda.Device(gpu), cupy.cuda.ExternalStream(current_stream()):
        yield


@contextlib.contextmanager
def stopwatch(race: Race) -> Iterator[None]:
    """Adds the seconds that are spent inside to the race's, an interrupt's too."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        race.seconds += time.perf_counter() - begin
