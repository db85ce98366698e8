"""The autotuner's race of configurations: when one is eliminated, what is timed, interrupts, and the table of results."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.errors import OutOfResources, StaticAssertionFailed
from blocknb.profile.timing import LEAST_ROUNDS
from blocknb.runtime import cuda as driver_api
from blocknb.runtime import job
from blocknb.tune import Autotuner, race
from blocknb.tune.race import FINAL, FINALISTS, LEAST, ROUNDS, Entrant, Race, eliminated
from blocknb.tune.tuning import LEFT_OUT, MEASURED, NOT_MEASURED, STOPPED, Trial, Tuning

X = np.arange(1000, dtype=np.float32)


# ---- elimination


def test_25_percent_slower_in_each_of_four_rounds_eliminates() -> None:
    best, slow, near = [1.0, 1.1, 0.9, 1.0], [1.4, 1.5, 1.3, 1.3], [1.2, 1.3, 1.1, 1.2]
    assert eliminated({"best": best, "slow": slow, "near": near}) == {"slow": pytest.approx(1.35)}
    assert eliminated({"best": best[:3], "slow": slow[:3]}) == {}
    assert eliminated({"best": best, "slow": [*slow[:3], 1.2]}) == {}, "one round said otherwise"


def test_common_noise_and_one_disturbed_round_in_eight_do_not_matter() -> None:
    quiet, busy = [1.0] * 8, [1.0] * 7 + [9.0]
    assert eliminated({"a": [1.0, 5.0, 1.0, 5.0], "b": [1.1, 5.2, 1.1, 5.2]}) == {}
    assert set(eliminated({"best": busy, "slow": [1.5] * 8})) == {"slow"}
    assert eliminated({"best": [1.0] * 6 + [9.0] * 2, "slow": [1.5] * 8}) == {}
    assert eliminated({"a": quiet, "b": quiet}) == {}


def test_10_percent_slower_eliminates_after_ten_rounds() -> None:
    times = {"best": [1.0] * 10, "near": [1.15] * 10, "nearer": [1.05] * 10}
    assert set(eliminated(times)) == {"near"}
    assert eliminated({name: values[:9] for name, values in times.items()}) == {}


def test_two_rounds_eliminate_a_much_slower_configuration() -> None:
    assert eliminated({"best": [1.0] * 2, "slow": [60.0] * 2, "slower": [20.0] * 2}) == {"slow": 60.0}
    assert eliminated({"best": [1.0], "slow": [1e6]}) == {}
    assert eliminated({"best": [40.0] * 2, "slow": [100.0] * 2}) == {}, "slower by 60 ms, and not by a factor of three"


def test_a_single_or_unmeasured_configuration_is_never_eliminated() -> None:
    assert eliminated({}) == {} == eliminated({"a": []}) == eliminated({"a": [1.0] * 20})


# ---- the race


class Track:
    """Entrants whose launches take the milliseconds in `speeds` on a simulated clock; `log` records the events."""

    def __init__(self, speeds: dict[int, float], monkeypatch: pytest.MonkeyPatch):
        self.speeds, self.log = speeds, []
        self.now: float = 0.0
        monkeypatch.setattr(race, "clock_of", lambda gpu: self.clock)

    def clock(self, launch: Callable[[], Any]) -> float:
        launch()
        self.log.append("timed")
        return self.now

    def launch(self, block: int) -> None:
        self.log.append(block)
        self.now = self.speeds[block]

    def entrants(self) -> list[Entrant]:
        return [
            Entrant(
                Config({"BLOCK": block}),
                lambda: self.log.append("before"),
                lambda block=block: self.launch(block),
                lambda error: self.log.append("after" if error is None else type(error).__name__),
            )
            for block in self.speeds
        ]

    def run(self, found: Race, rep: float = 1e6) -> list[str]:
        told: list[str] = []
        found.run(self.entrants(), gpu=None, warmup=0, rep=rep, step=told.append)
        return told

    def launched(self, block: int) -> int:
        return self.log.count(block)


def test_eliminated_configurations_get_no_further_rounds_and_a_reason(monkeypatch) -> None:
    track, found = Track({64: 1.05, 128: 1.0, 256: 2.0, 512: 90.0}, monkeypatch), Race("k")
    told = track.run(found)
    extra = 2  # the first run, and a warm-up round
    assert [track.launched(b) - extra for b in (64, 128, 256, 512)] == [ROUNDS, ROUNDS, 4, 2]
    assert found.trial(Config({"BLOCK": 512})).reason == "90 times the best after 2 rounds"
    trials = [found.trial(entrant.config) for entrant in track.entrants()]
    assert [t.status for t in trials] == [MEASURED, MEASURED, STOPPED, STOPPED]
    assert trials[2].times == (2.0, 2.0, 2.0) and trials[2].rounds == 4
    assert told[0] == "first run of 1 of 4" and told[4:7] == [
        "round 1, 4 of 4 left",
        "round 2, 4 of 4 left",
        "round 3, 3 of 4 left",
    ]


def test_configurations_alternate_and_only_the_launch_is_timed(monkeypatch) -> None:
    track = Track({1: 1.0, 2: 1.0}, monkeypatch)
    track.run(Race("k"))
    rounds = track.log[track.log.index("timed") - 2 :]
    assert rounds[:8] == ["before", 1, "timed", "after", "before", 2, "timed", "after"]


def test_the_race_ends_with_one_configuration_left(monkeypatch) -> None:
    track, found = Track({1: 1.0, 2: 3.0}, monkeypatch), Race("k")
    track.run(found)
    assert found.trial(Config({"BLOCK": 1})).rounds == LEAST


def test_when_the_time_is_over_the_fastest_enter_a_final(monkeypatch) -> None:
    speeds = {block: 1.0 + block / 100 for block in range(1, 7)}
    now, seconds = [0.0], 0.01
    monkeypatch.setattr(race, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    track, found = Track(speeds, monkeypatch), Race("k")
    normal = track.launch

    def launch(block: int) -> None:
        now[0] += seconds
        normal(block)

    monkeypatch.setattr(track, "launch", launch)
    told = track.run(
        found, rep=40
    )  # 0.24 s together: four rounds of 0.06 s; then another 0.24 s, which are six rounds of four
    trials = [found.trial(entrant.config) for entrant in track.entrants()]
    assert [t.rounds for t in trials] == [FINAL] * FINALISTS + [4] * 2
    assert trials[-1].status == STOPPED and "not among the 4 fastest after 4 rounds" in trials[-1].reason
    assert told[-1] == "round 10, 4 of 6 left"
    seconds, found = 0.5, Race("k")
    track.run(found, rep=40)  # long launches: three rounds have a spread, and one of the final
    assert [found.trial(entrant.config).rounds for entrant in track.entrants()] == [4] * FINALISTS + [3] * 2


def test_finalists_have_ten_rounds_and_three_if_the_time_is_over(monkeypatch) -> None:
    track, found = Track({1: 1.0, 2: 1.01}, monkeypatch), Race("k", finalists=True)
    track.run(found)  # with much time
    assert [found.trial(entrant.config).rounds for entrant in track.entrants()] == [FINAL] * 2
    found = Race("k", finalists=True)
    track.run(found, rep=0)
    assert [found.trial(entrant.config).rounds for entrant in track.entrants()] == [LEAST_ROUNDS] * 2


def test_a_part_of_the_time_decides_what_enters_a_final_elsewhere(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(race, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    track = Track({1: 1.0, 2: 1.01}, monkeypatch)
    normal = track.launch

    def launch(block: int) -> None:
        now[0] += 0.01
        normal(block)

    monkeypatch.setattr(track, "launch", launch)
    rounds = []
    for rep, share in ((100, 1.0), (100, 0.5), (10, 0.5)):  # 20 ms per round of two
        found = Race("k", final=False, share=share)
        track.run(found, rep=rep)
        rounds.append({found.trial(entrant.config).rounds for entrant in track.entrants()})
    assert rounds == [{10}, {5}, {LEAST}]


def test_on_a_gpu_the_clock_uses_the_device_and_the_stream_of_the_launches(monkeypatch) -> None:
    inside: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def within(what: str, number: int) -> Iterator[None]:
        inside.append((what, number))
        yield
        inside.remove((what, number))

    cuda = SimpleNamespace(
        Device=lambda number: within("device", number),
        ExternalStream=lambda handle: within("stream", handle),
        get_current_stream=lambda: SimpleNamespace(ptr=1234),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(driver_api, "_cupy", lambda: sys.modules["cupy"])  # an earlier test may have found none
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    track, found, asked = Track({1: 1.0, 2: 1.2}, monkeypatch), Race("k"), []

    def clock_of(gpu: bool) -> Callable[[Callable[[], Any]], float]:
        asked.append((gpu, list(inside)))
        return track.clock

    monkeypatch.setattr(race, "clock_of", clock_of)
    found.run(track.entrants(), gpu=3, warmup=0, rep=1e6, step=lambda what: None)
    assert asked == [(True, [("device", 3), ("stream", 1234)])] and inside == []
    assert found.trial(Config({"BLOCK": 2})).status == STOPPED


def test_a_configuration_that_cannot_run_is_dropped_at_its_first_run(monkeypatch) -> None:
    track, found = Track({1: 1.0, 2: 1.0}, monkeypatch), Race("k")
    first, second = track.entrants()

    def refused() -> None:
        raise OutOfResources("it needs 300000 bytes\n of shared memory")

    found.run([first, replace(second, launch=refused)], gpu=None, warmup=0, rep=1e6, step=lambda what: None)
    assert found.trial(second.config) == Trial(
        second.config, status=LEFT_OUT, reason="out of resources: it needs 300000 bytes"
    )
    assert "OutOfResources" in track.log and isinstance(found.failure, OutOfResources)


def test_heavily_spilling_configurations_are_dropped_unless_all_spill() -> None:
    a, b, c = (Config({"BLOCK": block}) for block in (1, 2, 3))
    found = Race("k")
    found.refuse_spilling({a: 0, b: 4000, c: 200})
    assert found.out == {b: (LEFT_OUT, "4000 bytes of spills a thread")}
    found = Race("k")
    found.refuse_spilling({b: 4000, c: 5000})
    assert found.out == {}


def test_an_interrupt_keeps_complete_rounds_and_the_race_continues_from_there(monkeypatch) -> None:
    track, found = Track({1: 1.0, 2: 1.05, 3: 2.0}, monkeypatch), Race("k")
    normal, count = track.launch, 0

    def interrupted(block: int) -> None:
        nonlocal count
        count += block == 2
        if count == 9:
            raise KeyboardInterrupt
        normal(block)

    monkeypatch.setattr(track, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        track.run(found)
    configs = [entrant.config for entrant in track.entrants()]
    first, second, third = (found.trial(c).rounds for c in configs)
    assert first in (6, 7) and (second, third) == (6, 4) and track.log[-1] == "KeyboardInterrupt"
    assert found.trial(configs[2]).status == STOPPED
    monkeypatch.setattr(track, "launch", normal)
    track.log.clear()
    told = track.run(found)
    assert track.launched(3) == 0 and told[2] == "round 7, 2 of 2 left"
    assert [found.trial(c).rounds for c in configs] == [ROUNDS, ROUNDS, 4]


# ---- in an autotuner


def increment(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 512, "too long")
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def tuned(*blocks: int, **options: Any) -> Autotuner:
    given = {"key": ["n"], "restore_value": ["x"], "warmup": 0, "rep": 1, "cache_results": False, **options}
    return blocknb.autotune([Config({"BLOCK": b}) for b in blocks], **given)(blocknb.kernel(increment))


@pytest.fixture
def begun(monkeypatch) -> list[int]:
    """The BLOCKs of all compilations that have started."""
    seen, real = [], job.Job.begin

    def begin(one: job.Job) -> None:
        seen.append(one.request.kinds["BLOCK"].constant[0])
        real(one)

    monkeypatch.setattr(job.Job, "begin", begin)
    return seen


def test_a_compile_failure_drops_a_configuration_and_warns_if_unexpected(begun) -> None:
    kernel, x = tuned(64, 100, 1024), X.copy()
    with pytest.warns(RuntimeWarning, match="autotuning increment leaves out BLOCK=100: type mismatch") as told:
        kernel[grid](x, 1000)
    assert len(told) == 1 and told[0].filename == __file__
    np.testing.assert_array_equal(x, X + 1)
    first, broken, long = kernel.tuning.trials
    assert (first.status, broken.status, long.status) == (MEASURED, LEFT_OUT, LEFT_OUT)
    assert "not a power of two" in broken.reason and "too long" in long.reason
    assert kernel.configs_timings[kernel.configs[1]] == [math.inf] * 3
    assert kernel.best_config is kernel.configs[0]
    assert begun.count(100) == begun.count(1024) == 1, "no trial repeats a configuration that cannot be compiled"


def test_when_nothing_can_run_the_launch_raises_and_the_table_has_the_reason() -> None:
    kernel = tuned(1024, 2048)
    with pytest.raises(StaticAssertionFailed, match="too long"):
        kernel[grid](X.copy(), 1000)
    assert [t.status for t in kernel.tuning.trials] == [LEFT_OUT] * 2 and kernel.tuning.best is None
    assert "too long" in kernel.tuning.text()


def test_heavily_spilling_configurations_are_not_timed(monkeypatch) -> None:
    real = Autotuner.compile_ahead

    def compiled(self: Autotuner, *args: Any) -> Any:
        made = real(self, *args)
        for config, one in made.items():
            one.trace.resources = replace(one.trace.resources, spill_bytes=8 * config.kwargs["BLOCK"])
        return made

    monkeypatch.setattr(Autotuner, "compile_ahead", compiled)
    kernel = tuned(32, 64, 512)
    kernel[grid](X.copy(), 1000)
    assert [t.status == LEFT_OUT for t in kernel.tuning.trials] == [False, False, True]
    assert kernel.tuning.trials[2].reason == "4096 bytes of spills a thread"


def test_an_interrupt_restores_arrays_and_keeps_the_times_for_the_next_launch() -> None:
    x, calls = X.copy(), []

    def interrupting(call: Callable[[], Any], quantiles: Any) -> list[float]:
        call()
        calls.append(0)
        if len(calls) == 2:
            x[:] = 7  # like a kernel that is interrupted half-way
            raise KeyboardInterrupt
        return [1.0 + len(calls)] * 3

    kernel = tuned(64, 128, 256, do_bench=interrupting)
    with pytest.raises(KeyboardInterrupt):
        kernel[grid](x, 1000)
    assert [t.status for t in kernel.tuning.trials] == [
        MEASURED,
        NOT_MEASURED,
        NOT_MEASURED,
    ] and kernel.tuning.best is None
    assert "interrupted, 1 of 3 measured" in kernel.tuning.text() and kernel.cache == {}
    assert kernel.configs_timings[kernel.configs[0]] == [2.0] * 3
    kernel[grid](x, 1000)
    assert len(calls) == 4 and [t.median for t in kernel.tuning.trials] == [2, 4, 5]
    assert kernel.best_config is kernel.configs[0]


def test_an_interrupted_launch_leaves_restored_arrays_as_they_were() -> None:
    x, runs = X.copy(), []

    def hook(arguments: dict[str, Any]) -> None:
        arguments["x"][:5] = -1  # changes by a configuration's hook count as the kernel's
        runs.append(0)
        if len(runs) == 3:
            raise KeyboardInterrupt

    kernel = tuned(64, 128)
    kernel.configs = [Config({"BLOCK": b}, pre_hook=hook) for b in (64, 128)]
    with pytest.raises(KeyboardInterrupt):
        kernel[grid](x, 1000)
    np.testing.assert_array_equal(x, X)


def test_a_subclass_may_override_the_measurement() -> None:
    class Mine(Autotuner):
        def _bench(self, *args: Any, config: Config, **meta: Any) -> list[float]:
            return [abs(config.kwargs["BLOCK"] - 128) + 1.0] * 3

    kernel = blocknb.kernel(increment)
    configs = [Config({"BLOCK": b}) for b in (64, 128, 256)]
    mine = Mine(kernel, kernel.arg_names, configs, ["n"])
    mine[grid](X.copy(), 1000)
    assert mine.best_config is configs[1] and mine.configs_timings[configs[0]] == [65.0] * 3


def test_rounds_are_bounded_by_the_budget_and_each_configuration_has_its_times() -> None:
    kernel = tuned(64, 128, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[grid](X.copy(), 1000)
    for trial in kernel.tuning.trials:
        median, low, high = trial.times
        assert 0 < low <= median <= high and 3 <= trial.rounds <= ROUNDS
    assert kernel.bench_time == kernel.tuning.seconds > 0


# ---- the table


def test_the_table_lists_the_fastest_first_and_the_reasons_of_the_others() -> None:
    a, b, c, d = (
        Config({"BLOCK": block, "EVEN": True}, num_warps=w) for block, w in ((64, 4), (128, 8), (256, 4), (512, 4))
    )
    trials = (
        Trial(a, (2.0, 1.9, 2.2), 30),
        Trial(b, (1.0, 0.9, 1.25), 30),
        Trial(c, (9.0, 8.0, 10.0), 4, STOPPED, "9 times the best after 4 rounds"),
        Trial(d, status=LEFT_OUT, reason="out of resources: too much"),
    )
    made = Tuning("add", {"n": 1000, "dtype": "float32"}, trials, b, 1.25)
    assert str(made).splitlines() == [
        "add, n = 1000, dtype = float32: BLOCK=128, EVEN=True, num_warps=8 (1 ms), the best of 4; 1 stopped early; 1 left out; 1.2 s",
        "  BLOCK  num_warps  ms  20 %  80 %  ratio  rounds",
        "    128          8   1   0.9  1.25   1.00      30  the best",
        "     64          4   2   1.9   2.2   2.00      30",
        "    256          4   9     8    10   9.00       4  stopped early: 9 times the best after 4 rounds",
        "    512          4                                 left out: out of resources: too much",
    ]
    assert made.timings[a] == [2.0, 1.9, 2.2] and made.timings[d] == [math.inf] * 3
    assert "from disk" in replace(made, from_disk=True).headline


def test_times_of_a_benchmark_that_gives_one_number_are_shown() -> None:
    config = Config({}, num_warps=8)
    made = Tuning("add", {}, (Trial(config, 0.5),), config, 0.1)
    assert "num_warps=8 (0.5 ms), the best of 1" in made.headline and made.rows()[1][-2:] == ["", "the best"]
    assert made.timings == {config: 0.5}


def test_an_environment_variable_prints_the_table(monkeypatch, capsys) -> None:
    kernel = tuned(64, 128, do_bench=lambda call, quantiles: [1.0] * 3)
    kernel[grid](X.copy(), 1000)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    kernel[grid](X.copy(), 999)
    assert capsys.readouterr().out == f"{kernel.tuning.text()}\n"
