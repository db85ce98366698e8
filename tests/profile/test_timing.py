"""Timing takes turns, keeps within its budget, and keeps what it has when it is interrupted."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.profile.timing import Timing, interleaved, llc_bytes, summary
from blocknb.runtime import kernel as runtime


def test_candidates_alternate_after_the_warm_up() -> None:
    order: list[str] = []
    found = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, gpu=False, rounds=3, warmup=1)
    assert order == ["a", "b"] * 4 and found["a"].runs == 3 and not found.cancelled


def test_the_median_and_the_quarter_points_are_those_of_the_clock() -> None:
    ticks = iter([5.0, 1.0, 2.0, 4.0, 3.0])
    found = interleaved({"a": lambda: None}, gpu=False, rounds=5, warmup=0, clock=lambda call: next(ticks))
    assert found == {"a": Timing(3.0, 2.0, 4.0, 5)}
    assert summary([2.5]) == Timing(2.5, 2.5, 2.5, 1)


def test_an_interrupt_keeps_what_was_measured() -> None:
    calls = 0

    def second() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    found = interleaved(
        {"a": lambda: None, "b": second}, gpu=False, rounds=10, warmup=0, clock=lambda call: call() or 1.0
    )
    assert found.cancelled and (found["a"].runs, found["b"].runs) == (3, 2)


def test_an_interrupt_before_the_first_time_leaves_nothing() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    found = interleaved({"a": stop}, gpu=False)
    assert found.cancelled and not found


def test_a_budget_of_seconds_ends_it_after_a_whole_round() -> None:
    found = interleaved(
        {"a": lambda: None, "b": lambda: None}, gpu=False, rounds=10**6, warmup=1, seconds=0.02, cold=False
    )
    assert found["a"].runs == found["b"].runs < 10**6


def test_the_buffer_that_cools_a_cpu_is_larger_than_its_last_cache() -> None:
    from blocknb.profile.timing import _Cpu

    assert _Cpu(cold=True).flush.nbytes >= 2 * llc_bytes() - 8 and _Cpu(cold=False).flush is None


def test_what_is_timed_is_not_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    @blocknb.kernel
    def double(x):
        tl.store(x + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)) * 2.0)

    seen: list[object] = []
    monkeypatch.setattr(runtime, "observers", [seen.append])
    x = np.ones(16, np.float32)
    interleaved({"a": lambda: double[(1,)](x)}, gpu=False, rounds=2, warmup=0, cold=False)
    assert x[0] == 4 and not seen
