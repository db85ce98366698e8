"""Honest timing: candidates take turns in one run, after warm-up, with cold caches, and what counts is the median.

On a GPU each call stands between two events, after a buffer larger than the L2 cache has been written, as often as the host needs to get
ahead: a call of several kernels must not wait for the host between them. On a CPU the clock is read around each call, after a buffer
larger than the last-level cache has been written. Because the candidates alternate, a change of clocks or of the neighbours' load hits
all of them; each round has another order, since what ran before a kernel says how warm the chip is (on an H200 at its power limit the
same product took 6 % longer behind one neighbour than behind another). A KeyboardInterrupt ends the measurement, and what was measured
stays.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blocknb.runtime.launch_context import unobserved

FLUSH_BYTES = 256 << 20  # more than four times the L2 cache of an H200
LEAST_ROUNDS = 3  # of a budget in seconds: fewer have no spread
LEAST_LLC = 16 << 20  # where a CPU does not tell


@dataclass(frozen=True)
class Timing:
    """Times of one candidate in milliseconds: the median, and the quarter and three-quarter points, of `runs` calls, whose times
    are `values`: those at the same place in the values of two candidates are of the same round."""

    median: float
    low: float
    high: float
    runs: int = 0
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)


class Timings(dict[str, Timing]):
    """A Timing by candidate. `cancelled`: an interrupt ended it; candidates that were never timed are then missing."""

    cancelled = False


def interleaved(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    gpu: bool,
    rounds: int = 30,
    warmup: int = 3,
    seconds: float | None = None,
    warmup_seconds: float | None = None,
    cold: bool = True,
    clock: Callable[[Callable[[], Any]], float] | None = None,
    going: Callable[[Mapping[str, Sequence[float]]], Collection[str]] | None = None,
) -> Timings:
    """Times each candidate once a round, in an order of the round's own. Returns a Timing by name, in milliseconds.

    `seconds` bounds warming up (unless `warmup_seconds` does) and measuring, each; the round in which that time is over is the last.
    With `cold` off the caches are left as the call before left them. `clock(call)` gives other times than the device's, in
    milliseconds (a clock that does more around the call finds the device's in `clock_of`). `going(times)` is asked before each round
    which candidates take part in it, given the times so far; when none does, that is the end. Nothing that is launched reaches the
    observers.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    found, order = Timings(), random.Random(0)
    with unobserved():
        try:
            measure = clock or clock_of(gpu, cold)
            for _ in _turns(warmup, seconds if warmup_seconds is None else warmup_seconds, 1):
                for call in candidates.values():
                    call()
            for _ in _turns(rounds, seconds, LEAST_ROUNDS):
                names = [*(candidates if going is None else going(times))]
                if not names:
                    break
                order.shuffle(names)
                for name in names:
                    times[name].append(measure(candidates[name]))
        except KeyboardInterrupt:
            found.cancelled = True
    found.update((name, summary(values)) for name, values in times.items() if values)
    return found


def _turns(most: int, seconds: float | None, least: int) -> Iterator[int]:
    begin = time.perf_counter()
    for turn in range(most):
        yield turn
        if seconds is not None and turn + 1 >= least and time.perf_counter() - begin > seconds:
            return


def clock_of(gpu: bool, cold: bool = True) -> Callable[[Callable[[], Any]], float]:
    """The device's clock: milliseconds of one call, which lives as long as the clock does (what is learnt of it is kept by its id)."""
    return _Gpu(cold) if gpu else _Cpu(cold)


def summary(values: list[float]) -> Timing:
    """The Timing of some measured milliseconds."""
    if len(values) == 1:
        return Timing(values[0], values[0], values[0], 1, tuple(values))
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high, len(values), tuple(values))


@functools.cache
def llc_bytes() -> int:
    """The size of this CPU's last-level cache, as Linux tells it; a guess elsewhere."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
        sizes.append(int(text[:-1]) * unit if unit else int(text))
    return max([*sizes, LEAST_LLC])


class _Cpu:
    """Times one call by the clock, caches cold or as they are."""

    def __init__(self, cold: bool) -> None:
        import numpy as np

        self.flush = np.zeros(2 * llc_bytes() // 8, np.int64) if cold else None

    def __call__(self, call: Callable[[], Any]) -> float:
        if self.flush is not None:
            self.flush += 1
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3


class _Gpu:
    """Times one call between two events on the current stream, the L2 cache cold or as it is.

    With a cold cache, the host's own time for a call (the least seen so far) says how often the cache is written over before it: the
    GPU is still busy with that when the host has queued the whole call.
    """

    MOST = 64  # times that the cache is written over

    def __init__(self, cold: bool) -> None:
        import cupy

        self.cupy = cupy
        self.flush: Any = cupy.empty(FLUSH_BYTES, cupy.uint8) if cold else None
        self.begin, self.end = cupy.cuda.Event(), cupy.cuda.Event()
        self.host: dict[int, float] = {}  # milliseconds by the call's id: calls live as long as the measurement
        self.flush_ms = min(self._between(self._fill)[0] for _ in range(3)) if cold else 0.0

    def __call__(self, call: Callable[[], Any]) -> float:
        if self.flush is None:
            return self._between(call)[0]
        known = self.host.get(id(call)) or self._between(call)[1]
        found, took = self._between(call, min(1 + int(1.5 * known / self.flush_ms), self.MOST))
        self.host[id(call)] = min(took, known)
        return found

    def _fill(self) -> None:
        self.flush.fill(1)

    def _between(self, call: Callable[[], Any], fills: int = 0) -> tuple[float, float]:
        """Milliseconds of the GPU and of the host, after so many fills."""
        for _ in range(fills):
            self._fill()
        self.begin.record()
        start = time.perf_counter()
        call()
        took = (time.perf_counter() - start) * 1e3
        self.end.record()
        self.end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(self.begin, self.end)), took
