"""Honest timing: candidates take turns in one run, after warm-up, with a cold cache, and what counts is the median.

On a GPU each call stands between two events, after a buffer larger than the L2 cache has been written; on a CPU the clock is read
around each call. Because the candidates alternate (A B A B), a change of clocks or of the neighbours' load hits all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FLUSH_BYTES = 256 << 20  # more than four times the L2 cache of an H200


@dataclass(frozen=True)
class Timing:
    """Times of one candidate in milliseconds: the median, and the quarter and three-quarter points."""

    median: float
    low: float
    high: float


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], *, gpu: bool, rounds: int = 30, warmup: int = 3
) -> dict[str, Timing]:
    """Times each candidate once a round, in turn. Returns a Timing by name, in milliseconds."""
    measure = _Gpu() if gpu else _cpu
    for _ in range(warmup):
        for call in candidates.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            times[name].append(measure(call))
    return {name: _summary(values) for name, values in times.items()}


def _summary(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high)


def _cpu(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


class _Gpu:
    """Times one call between two events on the current stream, the L2 cache cold."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.flush = cupy.empty(FLUSH_BYTES, cupy.uint8)
        self.begin, self.end = cupy.cuda.Event(), cupy.cuda.Event()

    def __call__(self, call: Callable[[], Any]) -> float:
        self.flush.fill(1)
        self.begin.record()
        call()
        self.end.record()
        self.end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(self.begin, self.end))
