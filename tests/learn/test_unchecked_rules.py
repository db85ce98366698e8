"""A rule that cannot be checked is named: without a footprint, the answer is not accepted; without ptxas, the verdict has a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from learn.examples import GEMM, SOFTMAX

from blocknb import learn
from blocknb.errors import LaunchError
from blocknb.footprint.access_log import Budget
from blocknb.learn import checking, running
from blocknb.learn.running import Attempt, TimeUp

ADD = learn.exercise("add-1")


def said_of(exercise: learn.Exercise, **more: Any) -> str:
    verdict = learn.check(exercise, exercise.solution, seed=1, devices=("cpu",), **more)
    assert all(case.passed for case in verdict.cases), verdict
    assert not verdict.passed
    return verdict.headline


def test_a_rule_without_a_footprint_refuses_the_answer_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise LaunchError("no extent is known")

    monkeypatch.setattr("blocknb.runtime.footprints.footprint", fails)
    said = said_of(replace(SOFTMAX, rules=(learn.stored_once,)))
    assert said.startswith("not accepted, although 3 of 3 cases give the right result")
    rule = '"One program stores each element of the output, and stores it once."'
    assert f"could not check the rule {rule} because its footprint fails: no extent is known" in said


def test_a_footprint_of_a_sample_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BUDGET", Budget(seconds=2, runs=3))
    assert learn.check(SOFTMAX, SOFTMAX.solution, seed=1, devices=("cpu",)).passed, "a second look has more time"
    monkeypatch.setattr(running, "WHOLE", Budget(seconds=2, runs=3))
    for rule in (learn.stored_once, learn.no_race, learn.bytes_once, learn.first_programs_load(2, at_most=10**9)):
        assert "programs only" in said_of(replace(SOFTMAX, rules=(rule,))), rule


def test_a_footprint_that_takes_too_long_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def late(seconds: float) -> Iterator[None]:
        raise TimeUp
        yield

    made = learn.launch(SOFTMAX, SOFTMAX.solution)
    monkeypatch.setattr(running, "limited", late)
    found = checking.broken_rules([made])
    assert "because its footprint takes more than 5 seconds" in found[0].text


def test_without_ptxas_a_note_names_the_rules_that_nobody_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from blocknb.learn import code_rules
    from blocknb.trace import Resources

    real = code_rules._compiled

    def bare(*given: object) -> Any:
        made = real(*given)
        trace = replace(made.compiled.trace, resources=Resources())
        return replace(made, compiled=replace(made.compiled, trace=trace))

    monkeypatch.setattr(code_rules, "_compiled", bare)
    rules = (learn.no_spills, learn.programs_per_multiprocessor(2))
    verdict = learn.check(replace(GEMM, rules=rules), GEMM.solution, seed=1, devices=("cpu",))
    assert verdict.passed
    assert len(verdict.notes) == 2
    assert '"No register is spilled to memory." because ptxas is not installed' in str(verdict)


# ---- GPUs ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of all launches. Those on a GPU happen on the CPU."""
    found: list[str] = []
    real = running._launch

    def launch(made: Attempt, seconds: float) -> None:
        found.append(made.device)
        device, made.device = made.device, "cpu" if made.device == "gpu" else made.device
        real(made, seconds)
        made.device = device

    monkeypatch.setattr(running, "_launch", launch)
    monkeypatch.setattr(running, "SECONDS", 0.5)
    monkeypatch.setattr(checking, "SECONDS", 0.5)
    return found


def test_a_kernel_passes_on_the_cpu_before_it_runs_on_a_gpu(launches: list[str]) -> None:
    assert learn.check(ADD, ADD.solution, devices=("gpu",)).passed
    cases = len(ADD.cases)
    assert launches[: 2 * cases] == ["cpu"] * cases + ["gpu"] * cases
    launches.clear()
    endless = ADD.solution.replace("    at =", "    at = 0\n    while at < 1:\n        at = at * 1\n    at =", 1)
    verdict = learn.check(ADD, endless, devices=("gpu", "cpu"))
    assert "does every loop end?" in verdict.headline
    assert "gpu" not in launches


@pytest.mark.parametrize(
    ("loop", "runs"),
    [
        ("    left = 1\n    while left > 0:\n        left -= 1\n", True),
        ("    while tl.atomic_add(out, 0.0, mask=n < 0) > 0:\n        pass\n", False),
        ("    while tl.load(out) > 1e30:\n        pass\n", False),
        ("    left = 1.0\n    while left > 0.1:\n        left = left * tl.load(x)\n        left = 0.0\n", False),
    ],
)
def test_a_loop_that_may_not_end_on_a_gpu_does_not_run_there(loop: str, runs: bool, launches: list[str]) -> None:
    head, body = ADD.solution.split(":\n", 1)
    verdict = learn.check(replace(ADD, rules=()), f"{head}:\n{loop}{body}", devices=("gpu",))
    assert verdict.passed, verdict
    assert ("gpu" in launches) == runs
    said = [note for note in verdict.notes if note.startswith("not launched on the GPU: the `while` loop in line ")]
    assert len(said) == (not runs)
