"""The race of an autotuner's configurations: short rounds in turn, and those that are hopeless get no further ones.

Times are those of `profile.timing`: in each round every configuration that is still running is launched once, with cold caches, and
medians are compared. What each launch does counts, so a configuration's own hook is inside of what is timed; what only trials do
(restoring and resetting arrays, the tuner's hooks) is not. Times of one round have met the same noise, and that is the spread that a
hopeless configuration must be beyond: it was slower than the best in every round (now and then a round may be spoilt), by a factor that
gets stricter as more is known (`LIMITS`). What is undecided when the time is over is decided among the fastest. A Race survives an
interrupt with all that was measured, and goes on from there when it is run again.
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
from blocknb.tune.tuning import LEFT_OUT, MEASURED, NO_TIMES, STOPPED, WAITING, Trial, spelled

ROUNDS, WARMUPS = 30, 3  # at most: `warmup` and `rep` bound them in milliseconds
LEAST = 4  # rounds of one that runs alone
FINALISTS, FINAL = 4, 10  # how many go on, to how many rounds, when the time is over
#: After so many rounds, what is hopeless: so many times the best one's time, and so many milliseconds more (what is slower by less costs
#: little to measure further, and a busy host adds as much to a launch).
LIMITS = ((2, 3.0, 50.0), (4, 1.25, 0.0), (10, 1.1, 0.0))
SPOILT = 8  # one round in so many may say otherwise
#: Bytes of spills a thread, in loads and stores, beyond which a configuration is not even tried: as much as its registers hold.
SPILLS = 1024
QUANTILES = (0.5, 0.2, 0.8)
#: What takes one configuration out of the race, and not the launch with it.
REFUSALS = (CompilationError, OutOfResources, CompilerBug)
#: Of these, what a list of configurations brings with it; of the others a warning tells, too.
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
    """What is known of configurations so far: milliseconds of each round, or the answers of a `do_bench`; and which are out, why."""

    kernel: str
    values: dict[Config, list[float]] = field(default_factory=dict)
    answers: dict[Config, Any] = field(default_factory=dict)
    out: dict[Config, tuple[str, str]] = field(default_factory=dict)
    failure: KernelError | None = None
    seconds: float = 0.0

    def refuse(self, config: Config, error: KernelError) -> None:
        """Leaves a configuration out that cannot run."""
        self.out[config] = LEFT_OUT, f"{error.title}: {error.message}".split("\n")[0]
        self.failure = error
        if not isinstance(error, EXPECTED):
            message = f"autotuning {self.kernel} leaves out {spelled(config)}: {self.out[config][1]}"
            place = caller()
            warnings.warn_explicit(message, RuntimeWarning, place.file if place else "", place.line if place else 0)

    def refuse_spilling(self, spilled: Mapping[Config, int]) -> None:
        """Leaves out what spills heavily (bytes by configuration), unless everything does."""
        heavy = {config: count for config, count in spilled.items() if count > SPILLS}
        if len(heavy) < len(spilled):
            for config, count in heavy.items():
                self.out[config] = LEFT_OUT, f"{count} bytes of spills a thread"

    def run(
        self, entrants: Sequence[Entrant], *, gpu: int | None, warmup: float, rep: float, step: Callable[[str], None]
    ) -> None:
        """Runs all that are not out. `warmup` and `rep` are milliseconds a configuration; `step` is told what begins. Raises
        KeyboardInterrupt, and whatever a launch raises that is no refusal."""
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
                warmup=WARMUPS,
                # No `seconds`: the judge looks at the clock.
                warmup_seconds=warmup * len(named) / 1e3,
                clock=lambda entrant: float(entrant.timed(device)),  # type: ignore[attr-defined]
                going=Judge(self, named, before, rep * len(named) / 1e3, step),
            )
        for name, timing in found.items():
            self.values[named[name].config] = [*before[name], *timing.values]
        if found.cancelled:
            raise KeyboardInterrupt

    def trial(self, config: Config) -> Trial:
        """What is known of a configuration."""
        values = self.values.get(config, [])
        fate, reason = self.out.get(config, (MEASURED if values or config in self.answers else WAITING, ""))
        times = np.quantile(values, QUANTILES).tolist() if values else self.answers.get(config, NO_TIMES)
        times = tuple(times) if isinstance(times, (list, tuple)) else times
        return Trial(config, times, len(values), fate, reason)


class Judge:
    """Says before each round who takes part in it, and has the race know of who does not any more.

    When `seconds` are over and much is left undecided, because it is noisy or takes long, the fastest go into a final: it lasts as long
    again at most, and makes their medians those of `FINAL` rounds."""

    def __init__(
        self,
        race: Race,
        entrants: Mapping[str, Entrant],
        before: Mapping[str, Sequence[float]],
        seconds: float,
        step: Callable[[str], None],
    ):
        self.race, self.entrants, self.before, self.seconds, self.step = race, entrants, before, seconds, step
        self.end, self.final = math.inf, False

    def __call__(self, times: Mapping[str, Sequence[float]]) -> list[str]:
        now = time.perf_counter()
        if self.end == math.inf:
            self.end = now + self.seconds
        running = [name for name, entrant in self.entrants.items() if entrant.config not in self.race.out]
        known = {name: [*self.before[name], *times[name]] for name in running}
        rounds = min(map(len, known.values()), default=0)
        for name, ratio in hopeless(known).items():
            self._stop(known, name, f"{ratio:.3g} times the best after {rounds} rounds")
        if not self.final and now >= self.end and rounds >= LEAST_ROUNDS:
            self.final, self.end = True, now + self.seconds
            for name in sorted(known, key=lambda name: statistics.median(known[name]))[FINALISTS:]:
                self._stop(
                    known, name, f"not among the {FINALISTS} fastest after {rounds} rounds, when the time was over"
                )
        elif self.final and now >= self.end:
            return []
        if (self.final and rounds >= FINAL) or (len(known) <= 1 and rounds >= LEAST):
            return []
        self.step(f"round {rounds + 1}, {len(known)} of {len(self.entrants)} left")
        return list(known)

    def _stop(self, known: dict[str, list[float]], name: str, reason: str) -> None:
        self.race.out[self.entrants[name].config] = STOPPED, reason
        del known[name]


def hopeless(times: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """Which of these (milliseconds by round) cannot win any more, with their medians as multiples of the best."""
    rounds = min(map(len, times.values()), default=0)
    limits = [limit for limit in LIMITS if rounds >= limit[0]]
    if not limits:
        return {}
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=medians.__getitem__)

    def lost(values: Sequence[float], factor: float, more: float) -> bool:
        slower = sum(v > max(factor * b, b + more) for v, b in zip(values, times[best], strict=False))
        return slower >= rounds - rounds // SPOILT

    return {
        n: medians[n] / (medians[best] or math.inf)
        for n, v in times.items()
        if any(lost(v, *limit) for _, *limit in limits)
    }


@contextlib.contextmanager
def _on(gpu: int | None) -> Iterator[None]:
    """Makes a GPU the current one, and the stream that launches go to CuPy's current one, where the clock puts its events."""
    if gpu is None:
        yield
        return
    import cupy

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
