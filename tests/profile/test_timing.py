"""Timing alternates between candidates, keeps within its budget, and keeps its results when it is interrupted."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError
from blocknb.profile import timing
from blocknb.profile.timing import Timing, interleaved, llc_bytes, summary
from blocknb.runtime import launch_context


def test_candidates_alternate_after_the_warm_up() -> None:
    order: list[str] = []
    found = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, gpu=False, rounds=9, warmup=1)
    rounds = ["".join(order[at : at + 2]) for at in range(0, 20, 2)]
    assert rounds[0] == "ab" and {*rounds} == {"ab", "ba"} and found["a"].runs == 9 and not found.cancelled


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
    assert found.cancelled and found["a"].runs in (2, 3) and found["b"].runs == 2


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


def test_who_goes_on_is_asked_before_each_round_and_nobody_is_the_end() -> None:
    asked: list[dict[str, list[float]]] = []

    def going(times: dict[str, list[float]]) -> list[str]:
        asked.append({name: list(values) for name, values in times.items()})
        return [["a", "b"], ["b"], []][len(asked) - 1]

    ticks = iter([1.0, 2.0, 3.0])
    calls = {"a": lambda: None, "b": lambda: None}
    found = interleaved(calls, gpu=False, warmup=0, clock=lambda call: next(ticks), going=going)
    assert asked == [{"a": [], "b": []}, {"a": [1.0], "b": [2.0]}, {"a": [1.0], "b": [2.0, 3.0]}]
    assert (found["a"].values, found["b"].values) == ((1.0,), (2.0, 3.0)) and not found.cancelled


def test_warming_up_may_have_a_budget_of_its_own() -> None:
    calls: list[int] = []
    found = interleaved({"a": lambda: calls.append(0)}, gpu=False, rounds=9, warmup=50, warmup_seconds=0, cold=False)
    assert found["a"].runs == 9 and len(calls) == 10


def test_the_buffer_that_cools_a_cpu_is_larger_than_its_last_cache() -> None:
    from blocknb.profile.timing import _Cpu

    assert _Cpu(cold=True).flush.nbytes >= 2 * llc_bytes() - 8 and _Cpu(cold=False).flush is None


def test_the_size_of_the_last_cache_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKNB_LLC_BYTES", "4096")
    assert llc_bytes.__wrapped__() == 4096
    monkeypatch.setenv("BLOCKNB_LLC_BYTES", "32 MB")
    with pytest.raises(LaunchError, match="BLOCKNB_LLC_BYTES is '32 MB', which is not a number of bytes"):
        llc_bytes.__wrapped__()
    monkeypatch.delenv("BLOCKNB_LLC_BYTES")
    assert llc_bytes.__wrapped__() >= 16 << 20


class Device:
    """Stands in for CuPy: fills take a millisecond of the GPU and none of the host's; everything that is queued is noted."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.cuda = SimpleNamespace(Event=self.event, get_elapsed_time=self.elapsed)
        self.uint8, self.int32 = np.uint8, np.int32
        self.events = 0

    def empty(self, size: int, dtype: object) -> SimpleNamespace:
        return SimpleNamespace(fill=lambda value: self.queue.append("fill"))

    def zeros(self, size: object, dtype: object) -> SimpleNamespace:
        return SimpleNamespace(max=lambda out: self.queue.append("fill"))

    def event(self) -> SimpleNamespace:
        self.events += 1
        name = f"event {self.events}"
        return SimpleNamespace(record=lambda: self.queue.append(name), synchronize=lambda: self.queue.append("wait"))

    def elapsed(self, begin: object, end: object) -> float:
        names = [name for name in self.queue if name.startswith("event") or name == "fill"]
        return 1.0 if names[-2] == "fill" else 0.5


def test_on_a_gpu_the_cache_is_written_over_until_the_host_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    device, now = Device(), [0.0]
    monkeypatch.setitem(sys.modules, "cupy", device)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow() -> None:
        device.queue.append("slow")
        now[0] += 0.005

    calls = {"quick": lambda: device.queue.append("quick"), "slow": slow}
    found = interleaved(calls, gpu=True, rounds=2, warmup=1)
    assert found["quick"].values == found["slow"].values == (0.5, 0.5)
    runs = " ".join(device.queue).split("wait")
    timed = {name: [run.split() for run in runs if name in run][-1] for name in calls}
    assert timed["quick"] == ["fill", "event", "1", "quick", "event", "2"]
    # 5 ms of the host and half as much again, in fills of a millisecond
    assert timed["slow"].count("fill") == 8 and timed["slow"][-5:] == ["event", "1", "slow", "event", "2"]
    device.queue.clear()
    interleaved(calls, gpu=True, rounds=2, warmup=0, cold=False)
    assert "fill" not in device.queue


def test_a_clean_cache_is_flushed_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setitem(sys.modules, "cupy", device)
    monkeypatch.setattr(device, "empty", lambda size, dtype: pytest.fail("there is a buffer to write"))
    interleaved({"one": lambda: device.queue.append("one")}, gpu=True, rounds=1, warmup=0, clean=True)
    assert device.queue[-5:] == ["fill", "event 1", "one", "event 2", "wait"]


def test_what_is_timed_is_not_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    @blocknb.kernel
    def double(x):
        tl.store(x + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)) * 2.0)

    seen: list[object] = []
    monkeypatch.setattr(launch_context, "observers", [seen.append])
    x = np.ones(16, np.float32)
    interleaved({"a": lambda: double[(1,)](x)}, gpu=False, rounds=2, warmup=0, cold=False)
    assert x[0] == 4 and not seen


def test_an_environment_variable_scales_the_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKNB_TIMING_SCALE", "0.01")
    call = {"sleep": lambda: time.sleep(0.001)}
    found = interleaved(call, gpu=False, rounds=10_000, seconds=20, cold=False)
    assert found["sleep"].runs <= 201  # a call takes at least a millisecond, and the last round begins within 0.2 s
    monkeypatch.setenv("BLOCKNB_TIMING_SCALE", "fast")
    with pytest.raises(LaunchError, match="BLOCKNB_TIMING_SCALE is 'fast', which is not a number"):
        interleaved({"nothing": lambda: None}, gpu=False)
