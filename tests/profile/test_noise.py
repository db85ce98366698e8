"""A ratio of times shows a difference beyond noise only, and a stop by precision does not favour a difference."""

from __future__ import annotations

import math
import random

import pytest

from blocknb import cpus
from blocknb.profile import noise
from blocknb.profile.timing import summary


def skewed(seed: int, count: int, scale: float = 1.0) -> list[float]:
    """Times of launches under load: a floor, and delays of many sizes above it."""
    rng = random.Random(seed)
    return [scale * (1 + 0.02 * rng.random() + rng.choice((0.0, 0.0, rng.expovariate(2)))) for _ in range(count)]


def test_equal_times_under_load_are_noise_nearly_always():
    verdicts = [noise.ratio_of(skewed(2 * i, 200), skewed(2 * i + 1, 200)).verdict for i in range(300)]
    assert verdicts.count("noise") >= 298


@pytest.mark.parametrize(("scale", "verdict"), [(1 / 1.15, "faster"), (1.15, "slower"), (1.005, "noise")])
def test_a_difference_of_15_percent_is_found_under_load_and_one_of_half_a_percent_is_not_shown(scale, verdict):
    found = [noise.ratio_of(skewed(i, 200, scale), skewed(1000 + i, 200)) for i in range(50)]
    assert [r.verdict for r in found].count(verdict) >= 49
    assert all(r.low <= r.value <= r.high for r in found)


def test_few_rounds_have_no_interval_and_are_noise():
    found = noise.ratio_of([1.0] * 6, [2.0] * 6)
    assert (found.value, found.low, found.high, found.verdict) == (0.5, 0.0, math.inf, "noise")
    assert found.entry == {"value": 0.5, "low": None, "high": None, "pairs": 6, "verdict": "noise"}


def test_the_interval_covers_the_true_ratio_with_its_confidence():
    rng = random.Random(1)
    outside = 0
    for _ in range(1000):
        found = noise.ratio_of([math.exp(rng.gauss(0, 0.3)) for _ in range(23)], [1.0] * 23)
        outside += not found.low <= 1 <= found.high
    assert outside <= 12  # 2 are expected


def test_a_measurement_goes_on_until_the_interval_is_narrow():
    going = noise.until_precise("a", "b")
    assert going({"a": [], "b": []}) == ("a", "b")
    assert going({"a": [1.0] * 16, "b": [1.0] * 16}) == ()
    assert going({"a": skewed(1, 16), "b": skewed(2, 16)}) == ("a", "b")
    assert going({"a": skewed(1, noise.MOST_ROUNDS), "b": skewed(2, noise.MOST_ROUNDS)}) == ()


def test_a_busy_machine_shows_in_its_load_and_in_the_spread(monkeypatch):
    monkeypatch.setattr(noise.os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    calm, wild = summary([1.0 + i / 1000 for i in range(20)]), summary([1.0, 2.0] * 10)
    assert noise.busy([calm]) == ""
    assert noise.busy([calm, wild]) == "the machine is busy: the middle half of the times spans 67 % of the median"
    monkeypatch.setattr(noise.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(noise.os, "cpu_count", lambda: 64)
    assert noise.busy() == "the machine is busy: the load average is 99.0 on 64 cores"


def test_the_load_of_other_users_is_compared_with_all_cpus_of_the_machine(monkeypatch):
    """A learner with a quota of two CPUs on a host of 64 sees the load of all learners."""
    monkeypatch.setattr(noise.os, "getloadavg", lambda: (30.0, 0.0, 0.0))
    monkeypatch.setattr(noise.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(noise.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(cpus, "_own_quota", lambda: 2.0)
    assert noise.busy() == ""
