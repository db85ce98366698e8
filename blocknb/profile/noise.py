"""Decides whether two measured times differ: the ratio of launches in turns, with its confidence interval, and signs of a busy machine.

Both sides of a comparison run in turns, so that a group of rounds gives one ratio under the same load. Load only adds to a time, so a group
takes the fastest launch of each side. The median of the ratios has a confidence interval from order statistics (a sign test). This assumes
no distribution, because load makes the times of launches skewed. A difference counts only if the interval excludes 1 by more than
`LEAST_EFFECT`. The placement of code and data in memory alone changes times by a percent or two. Source: Conover, "Practical Nonparametric
Statistics" (1999), chapter 3.2.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.profile.timing import Timing

CONFIDENCE = 0.998  # of the interval: a person turns a knob many times, and should not see one gain that is noise
LEAST_EFFECT = 0.02
PRECISION = 0.02  # the measurement ends when the interval is no wider to either side
LEAST_PAIRS, MOST_ROUNDS = 12, 2000
MOST_GROUPED, FEWEST_GROUPS = 10, 18
WIDE = 0.4  # an interquartile range of this share of the median is a sign of other work on the machine


@dataclass(frozen=True)
class TimeRatio:
    """The time of a candidate divided by that of its base: the median over `pairs` of times, from `low` to `high` with CONFIDENCE."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """ "faster", "slower", or "noise" if the interval does not exclude 1."""
        if self.high < 1 - LEAST_EFFECT:
            return "faster"
        return "slower" if self.low > 1 + LEAST_EFFECT else "noise"

    @property
    def entry(self) -> dict[str, Any]:
        """The ratio as a document holds it. An interval that is unknown has no ends."""
        ends = {"low": self.low, "high": self.high} if math.isfinite(self.high) else {"low": None, "high": None}
        rounded = {name: None if x is None else float(f"{x:.4g}") for name, x in {"value": self.value, **ends}.items()}
        return {**rounded, "pairs": self.pairs, "verdict": self.verdict}


def ratio(candidate: Timing, base: Timing) -> TimeRatio:
    """The ratio of two candidates that were timed in turns. Few rounds give an interval from 0 to infinity."""
    return ratio_of(candidate.values, base.values)


def ratio_of(candidate: Sequence[float], base: Sequence[float]) -> TimeRatio:
    """The ratio of two lists of times; equal positions belong to one round."""
    found = sorted(a / b for a, b in zip(*map(_fastest, (candidate, base)), strict=False) if a > 0 and b > 0)
    if not found:
        return TimeRatio(1.0, 0.0, math.inf, 0)
    outside = _outside(len(found))
    low, high = (0.0, math.inf) if outside < 0 else (found[outside], found[-1 - outside])
    return TimeRatio(statistics.median(found), low, high, len(found))


def _fastest(times: Sequence[float]) -> Sequence[float]:
    """The fastest time of each group of rounds. The groups grow with the rounds, up to MOST_GROUPED."""
    group = max(1, min(MOST_GROUPED, len(times) // FEWEST_GROUPS))
    return [min(times[i : i + group]) for i in range(0, len(times) - group + 1, group)]


@functools.cache
def _outside(count: int) -> int:
    """How many of the sorted ratios lie outside of the interval on each side; -1 if so few ratios give no interval."""
    total, number = 0.0, 0
    while number < count // 2:
        total += math.comb(count, number) * 0.5**count
        if total > (1 - CONFIDENCE) / 2:
            break
        number += 1
    return number - 1


def until_precise(base: str, candidate: str) -> Callable[[Mapping[str, Sequence[float]]], Sequence[str]]:
    """The `going` of `timing.interleaved` that measures two candidates until their ratio is precise.

    It looks at the width of the interval only. A measurement that ended as soon as the interval excludes 1 would find differences in
    noise."""

    def going(times: Mapping[str, Sequence[float]]) -> Sequence[str]:
        rounds = len(times[base])
        if rounds >= LEAST_PAIRS and rounds % 16 == 0:
            found = ratio_of(times[candidate], times[base])
            if found.high - found.low <= 2 * PRECISION * found.value:
                return ()
        return () if rounds >= MOST_ROUNDS else (base, candidate)

    return going


def busy(timings: Sequence[Timing] = ()) -> str:
    """Why times may be wrong: the load of the machine, or the spread of the times; "" on a quiet machine."""
    found = []
    cores = os.cpu_count() or 1  # of the machine, as the load average is: a quota or an affinity mask bounds neither
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 1.25 * cores:
        found.append(f"the load average is {load:.1f} on {cores} core{'s' * (cores > 1)}")
    spread = max(((t.high - t.low) / t.median for t in timings if t.runs >= LEAST_PAIRS and t.median), default=0.0)
    if spread > WIDE:
        found.append(f"the middle half of the times spans {100 * spread:.0f} % of the median")
    return f"the machine is busy: {', and '.join(found)}" if found else ""
