"""Every racy kernel of the corpus is found, in several runs and numbers of threads, and no right one is accused."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from sampling import chosen

import blocknb
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.language.types import from_numpy
from races import plain_races, right_kernels, synchronization_races
from races.corpus import RACY, RIGHT, RaceCase, check, launch
from races.simulated import simulated

assert plain_races and synchronization_races and right_kernels
THREADS = (1, 2, 4, 7)
SEVERAL = ("arrays_that_overlap", "lock_of_the_scope_cta")  # the interpreter stops at another race of the kernel


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    """How often a test launches each kernel with each number of threads."""
    return 20 if request.config.getoption("--full") else 2


def sampled(names: Iterable[str], one_in: int) -> list[Any]:
    """Test parameters: one in so many belongs to the quick run."""
    return [pytest.param(name, marks=() if chosen(name, one_in) else pytest.mark.full) for name in names]


def threads_of(case: RaceCase) -> list[int]:
    return [n for n in THREADS if n in (2, 4) or not case.concurrent]


#: Races because an atomic is relaxed, which the interpreter of Python cannot know: it may wait in a loop.
RELAXED = ("message_read_after_a_relaxed_look", "last_program_without_acquire", "atomics_and_a_plain_store")
#: The kernels whose programs may run one after another.
ALONE = [name for name, case in {**RACY, **RIGHT}.items() if not case.concurrent]
#: The kernels that the simulator of GPU code knows: it has no volatile loads.
SIMULATED = [name for name in ALONE if "volatile" not in inspect.getsource({**RACY, **RIGHT}[name].kernel.fn)]


@pytest.mark.parametrize("name", RACY)
def test_a_race_is_found_by_any_number_of_threads(name, runs, monkeypatch):
    for threads in threads_of(RACY[name]):
        monkeypatch.setenv("BLOCKNB_NUM_THREADS", str(threads))
        for _ in range(runs):
            check(RACY[name], launch(RACY[name]))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_not_accused(name, runs, monkeypatch):
    for threads in threads_of(RIGHT[name]):
        monkeypatch.setenv("BLOCKNB_NUM_THREADS", str(threads))
        for _ in range(runs):
            assert launch(RIGHT[name]) is None


@pytest.mark.parametrize("name", RIGHT)
def test_the_footprint_of_a_right_kernel_has_no_accusation(name):
    case = RIGHT[name]
    assert not case.kernel.footprint(case.grid)(**case.make()).problems


def test_the_corpus_is_large():
    assert len(RACY) >= 40
    assert len(RIGHT) >= 25


def test_a_gpu_holds_all_programs_that_wait_for_each_other():
    waiting = [case for case in (*RACY.values(), *RIGHT.values()) if "while " in inspect.getsource(case.kernel.fn)]
    assert len(waiting) >= 20
    assert all(math.prod(case.grid) <= 8 for case in waiting)


@pytest.mark.parametrize("name", sampled((name for name in ALONE if name in RACY), 8))
def test_the_interpreter_of_the_ir_finds_the_race_after_every_pass(name):
    case = RACY[name]
    for target in ("cpu", "sm_90a"):
        for stage in stages_of(case, target):
            with pytest.raises(blocknb.RaceError) as caught:
                interpret(stage, case)
            if name not in SEVERAL:
                assert caught.value.array == case.array
                assert {caught.value.loc.line, caught.value.other_loc.line} & case.lines


@pytest.mark.parametrize("name", sampled((name for name in ALONE if name in RIGHT), 8))
def test_the_interpreter_of_the_ir_accuses_no_right_kernel(name):
    for target in ("cpu", "sm_90a"):
        for stage in stages_of(RIGHT[name], target):
            interpret(stage, RIGHT[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in ALONE if name in RACY])
def test_an_interpreted_launch_finds_the_race(name):
    case = RACY[name]
    if name in RELAXED:  # interpreted atomics always acquire
        case.kernel.interpret(case.grid)(**case.make(), checked="race")
        return
    with pytest.raises(blocknb.RaceError) as caught:
        case.kernel.interpret(case.grid)(**case.make(), checked="race")
    if name not in SEVERAL:
        assert caught.value.array == case.array
        assert {caught.value.loc.line, caught.value.other_loc.line} & case.lines


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in ALONE if name in RIGHT])
def test_an_interpreted_launch_accuses_no_right_kernel(name):
    RIGHT[name].kernel.interpret(RIGHT[name].grid)(**RIGHT[name].make(), checked="race")


def stages_of(case: RaceCase, target: str) -> list[Func]:
    """The IR after the pass that adds the checks, and after the last pass."""
    # Only a launch knows that arrays overlap, so the trace has the code for such a launch.
    without = ("unshared_loads",) if case.kernel.__name__ == "arrays_that_overlap" else ()
    trace = case.kernel.trace(*spelled(case).values(), target=target, checked="race", without=without)
    stages = list(trace.stages)
    added = next(stage for stage in stages if stage.name == "race_checks")
    return [added.after, stages[-1].after]


def spelled(case: RaceCase) -> dict[str, object]:
    """The arguments, with type texts in place of arrays and numbers, so that the target may be a GPU."""
    names = [p.name for p in case.kernel.source.parameters]
    made = case.make()
    texts = {n: f"*{from_numpy(x.dtype).short}" for n, x in made.items() if isinstance(x, np.ndarray)}
    texts |= {n: "i32" for n, x in made.items() if isinstance(x, int) and n == "n"}
    return {n: texts.get(n, made[n]) for n in names}


def interpret(func: Func, case: RaceCase) -> None:
    made = case.make()
    interp.run(func, [made[hint.name] for hint in func.hints], case.grid, seed=3)


@pytest.mark.parametrize("name", sampled((name for name in SIMULATED if name in RACY), 6))
def test_simulated_gpu_code_finds_the_race(name):
    case = RACY[name]
    for target in ("sm_80", "sm_90a"):
        trace = case.kernel.trace(*spelled(case).values(), target=target, checked="race")
        error = simulated(case, trace, target).error
        assert error is not None
        if name not in SEVERAL:
            assert error.array == case.array
            assert {error.loc.line, error.other_loc.line} & case.lines


@pytest.mark.parametrize("name", sampled((name for name in SIMULATED if name in RIGHT), 12))
def test_simulated_gpu_code_accuses_no_right_kernel(name):
    for target in ("sm_80", "sm_90a"):
        trace = RIGHT[name].kernel.trace(*spelled(RIGHT[name]).values(), target=target, checked="race")
        found = simulated(RIGHT[name], trace, target)
        assert found.error is None
        assert found.calls
