"""Timing of several candidates: interleaved in one run, after a warm-up, with cold caches; the median counts.

On a GPU, two CUDA events enclose each call. Before the call, the timer overwrites a buffer larger than the L2 cache. It repeats this until
the host has queued the whole call, because the kernels of a call must not wait for the host. On a CPU, the timer reads the clock around
each call, after it overwrites a buffer larger than the last-level cache. The candidates alternate, so a change of clock rates or of the
machine's load affects all of them. Each round has another order, because the preceding kernel heats the chip. On an H200 at its power
limit, the same product took 6 % longer after one kernel than after another. A KeyboardInterrupt ends the measurement and keeps its results.
"""

from __future__ import annotations

import functools
import os
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blocknb.errors import LaunchError
from blocknb.runtime.launch_context import unobserved

FLUSH_BYTES = 256 << 20  # more than four times the L2 cache of an H200
LEAST_ROUNDS = 3  # even beyond the budget in seconds: fewer rounds have no spread
LEAST_LLC = 16 << 20  # bytes; assumed if Linux does not report the size


@dataclass(frozen=True)
class Timing:
    """Times of one candidate in milliseconds: the median and the quartiles (`low`, `high`) of `runs` calls on a `device`.

    `cold`: the caches were flushed before each call, or the one call was the first launch of its code. Equal positions in the `values` of
    two candidates belong to the same round. Every view of a card shows times in this form (`entry`)."""

    median: float
    low: float
    high: float
    runs: int = 0
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)
    cold: bool = True
    device: str = ""

    def on(self, device: str) -> Timing:
        """A copy of the times with the name of the device."""
        return replace(self, device=device)

    @property
    def entry(self) -> dict[str, Any]:
        """The time as a document holds it."""
        numbers = {name: float(f"{getattr(self, name):.6g}") for name in ("median", "low", "high")}
        return {"n": self.runs, "cold": self.cold, **numbers, "device": self.device}


class Timings(dict[str, Timing]):
    """A Timing by candidate. `cancelled`: an interrupt ended the measurement, and candidates without a time are missing."""

    cancelled = False

    def complete(self) -> Timings:
        """These times. Raises KeyboardInterrupt if an interrupt ended the measurement."""
        if self.cancelled:
            raise KeyboardInterrupt
        return self


def interleaved(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    gpu: bool,
    rounds: int = 30,
    warmup: int = 3,
    seconds: float | None = None,
    warmup_seconds: float | None = None,
    cold: bool = True,
    clean: bool = False,
    clock: Callable[[Callable[[], Any]], float] | None = None,
    going: Callable[[Mapping[str, Sequence[float]]], Collection[str]] | None = None,
) -> Timings:
    """Times each candidate once per round, in random order. Returns a Timing by name, in milliseconds.

    `seconds` limits the warm-up (unless `warmup_seconds` does) and the measurement, each; the round that exceeds the limit is the last.
    Without `cold`, the timer does not flush the caches. With `clean`, it flushes the L2 cache of a GPU by reading. `clock(call)` replaces
    the clock of the device and returns milliseconds; it may use `clock_of`. Before each round, `going(times)` returns the candidates that
    take part, given the times so far; if there are none, the measurement ends. Observers do not see the launches.

    The environment variable BLOCKNB_TIMING_SCALE multiplies the time limits: 0.1 is quick, and less precise.
    """
    factor = scale()
    seconds, warmup_seconds = (limit and limit * factor for limit in (seconds, warmup_seconds))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    found, order = Timings(), random.Random(0)
    with unobserved():
        try:
            measure = clock or clock_of(gpu, cold, clean)
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
    found.update((name, summary(values, cold)) for name, values in times.items() if values)
    return found


def scale() -> float:
    """The factor of all time limits, from BLOCKNB_TIMING_SCALE. Raises LaunchError if that is no number."""
    text = os.environ.get("BLOCKNB_TIMING_SCALE") or "1"
    try:
        return float(text)
    except ValueError:
        raise LaunchError(f"BLOCKNB_TIMING_SCALE is {text!r}, which is not a number") from None


def _turns(most: int, seconds: float | None, least: int) -> Iterator[int]:
    begin = time.perf_counter()
    for turn in range(most):
        yield turn
        if seconds is not None and turn + 1 >= least and time.perf_counter() - begin > seconds:
            return


def clock_of(gpu: bool, cold: bool = True, clean: bool = False) -> Callable[[Callable[[], Any]], float]:
    """The clock of the device: a function from a call to its milliseconds. A call must live as long as the clock, which knows it by id."""
    if not gpu:
        return _Cpu(cold)
    try:
        import cupy  # noqa: F401
    except ImportError:
        return CleanTorchClock(cold) if clean else TorchClock(cold)
    return CleanEventClock(cold) if clean else EventClock(cold)


def summary(values: Sequence[float], cold: bool = True) -> Timing:
    """The Timing of measured milliseconds."""
    if len(values) == 1:
        return Timing(values[0], values[0], values[0], 1, tuple(values), cold)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high, len(values), tuple(values), cold)


@functools.cache
def llc_bytes() -> int:
    """The bytes of the last-level cache of this CPU, as Linux reports them; `LEAST_LLC` elsewhere.

    BLOCKNB_LLC_BYTES replaces them: a virtual machine may report the cache of the whole host. Raises LaunchError for a text that is no
    positive integer.
    """
    if text := os.environ.get("BLOCKNB_LLC_BYTES"):
        if not (text.isdecimal() and int(text)):
            raise LaunchError(f"BLOCKNB_LLC_BYTES is {text!r}, which is not a number of bytes")
        return int(text)
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
        sizes.append(int(text[:-1]) * unit if unit else int(text))
    return max([*sizes, LEAST_LLC])


class _Cpu:
    """Times one call by the clock of the host. `cold` flushes the caches first."""

    def __init__(self, cold: bool) -> None:
        import numpy as np

        self.flush = np.zeros(2 * llc_bytes() // 8, np.int64) if cold else None

    def __call__(self, call: Callable[[], Any]) -> float:
        if self.flush is not None:
            self.flush += 1
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3


class EventClock:
    """Times one call between two events on the current stream. `cold` flushes the L2 cache first. The events and the memory are CuPy's;
    a subclass may take those of another library.

    The number of flushes follows from the host time of the call (the least so far). The GPU must still be flushing when the host has queued
    the whole call.
    """

    MOST = 64  # flushes per call

    def __init__(self, cold: bool) -> None:
        self.flush, self.begin, self.end = self.opened(FLUSH_BYTES if cold else 0)
        self.host: dict[int, float] = {}  # milliseconds by the call's id: calls live as long as the measurement
        self.flush_ms = min(self._between(self.fill)[0] for _ in range(3)) if cold else 0.0

    def __call__(self, call: Callable[[], Any]) -> float:
        if self.flush is None:
            return self._between(call)[0]
        known = self.host.get(id(call)) or self._between(call)[1]
        found, took = self._between(call, min(1 + int(1.5 * known / self.flush_ms), self.MOST))
        self.host[id(call)] = min(took, known)
        return found

    def opened(self, size: int) -> tuple[Any, Any, Any]:
        """Makes the buffer of `size` bytes that flushes the cache (None for 0), and the events for the begin and the end."""
        import cupy

        return cupy.empty(size, cupy.uint8) if size else None, cupy.cuda.Event(), cupy.cuda.Event()

    def fill(self) -> None:
        """Overwrites the buffer."""
        self.flush.fill(1)

    def elapsed(self) -> float:
        """The milliseconds between the events, both of which have happened."""
        import cupy

        return float(cupy.cuda.get_elapsed_time(self.begin, self.end))

    def _between(self, call: Callable[[], Any], fills: int = 0) -> tuple[float, float]:
        """Milliseconds of the GPU and of the host for one call, after `fills` flushes."""
        for _ in range(fills):
            self.fill()
        self.begin.record()
        start = time.perf_counter()
        call()
        took = (time.perf_counter() - start) * 1e3
        self.end.record()
        self.end.synchronize()
        return self.elapsed(), took


class CleanEventClock(EventClock):
    """A clock that flushes the L2 cache by reading, so that it holds no modified lines.

    `EventClock` leaves modified lines in the cache. The cache writes them back while the timed kernel reads, and the kernel waits for both.
    """

    def opened(self, size: int) -> tuple[Any, Any, Any]:
        import cupy

        _, begin, end = super().opened(0)
        self.largest = cupy.zeros((), cupy.int32)
        return cupy.zeros(size // 4, cupy.int32) if size else None, begin, end

    def fill(self) -> None:
        """Reads the buffer."""
        self.flush.max(out=self.largest)


class TorchClock(EventClock):
    """The clock of a GPU with events and memory of torch, on its current stream."""

    def fill(self) -> None:
        self.flush.fill_(1)

    def opened(self, size: int) -> tuple[Any, Any, Any]:
        import torch

        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        return torch.empty(size, dtype=torch.uint8, device="cuda") if size else None, *events

    def elapsed(self) -> float:
        return float(self.begin.elapsed_time(self.end))


class CleanTorchClock(TorchClock):
    """A clock with events and memory of torch that flushes the L2 cache by reading, as CleanEventClock does."""

    def fill(self) -> None:
        """Reads the buffer."""
        self.flush.max()
