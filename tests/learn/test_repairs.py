"""A change of one place that mends a wrong kernel is its cause; and a note tells where Triton defines less than blocknb."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learn.examples import SOFTMAX

from blocknb import learn
from blocknb.learn.notes import UNDEFINED

ADD, HISTOGRAM, SUM = (learn.exercise(name) for name in ("add-1", "histogram-1", "sum-1"))
PLAIN = {exercise.name: replace(exercise, mistakes=()) for exercise in (ADD, HISTOGRAM, SUM)}


def refused(name: str, *patches: tuple[str, str]) -> learn.Verdict:
    """The verdict on a patched solution of an exercise without mistakes, interpreted."""
    source = PLAIN[name].solution
    for old, new in patches:
        assert old in source
        source = source.replace(old, new)
    verdict = learn.check(PLAIN[name], source, seed=1, devices=("interpreted",))
    assert not verdict.passed
    return verdict


@pytest.mark.parametrize(
    ("name", "old", "new", "cause"),
    [
        ("add-1", "at < n", "at < n - 1", "`inside = at < n - 1` is the cause: with `inside = at < n` instead"),
        ("add-1", "at < n", "at > n", "`inside = at > n` is the cause: with `inside = at < n` instead"),
        ("add-1", "pid * BLOCK", "pid * 1024", "with `at = pid * BLOCK + tl.arange(0, BLOCK)` instead"),
        ("add-1", "at < n", "tl.arange(0, BLOCK) < n", "is the cause: with `inside = at < n` instead"),
        ("histogram-1", "atomic_add", "atomic_xchg", "is the cause: with `tl.atomic_add(counts + "),
        ("histogram-1", ", mask=inside)\n", ")\n", "is missing in `tl."),
        ("sum-1", "row * columns", "row * columns // 2", "` is the cause: with `"),
    ],
)
def test_the_place_is_named_whose_change_mends_a_kernel(name: str, old: str, new: str, cause: str) -> None:
    verdict = refused(name, (old, new))
    assert cause in verdict.cause
    assert verdict.cause.endswith("every case gives the right result")
    assert verdict.findings[0].line is not None


def test_no_change_is_named_if_none_mends_the_kernel() -> None:
    """Two errors at once need two changes."""
    verdict = refused("add-1", ("at < n", "at < n - 1"), ("tl.load(y", "2 * tl.load(y"))
    assert "every case gives the right result" not in str(verdict)


def test_a_change_that_breaks_a_rule_is_no_cause() -> None:
    """Atomics on poison: a minimum drops NaN, but the exercise wants stores."""
    verdict = refused("sum-1", ("tl.store(", "tl.atomic_add("))
    assert verdict.cause == "an atomic changes `out`, which holds nothing before the launch: tl.store"


def test_the_search_for_a_change_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blocknb.learn.repairs.SECONDS", 0.0)
    assert "every case gives the right result" not in str(refused("add-1", ("at < n", "at < n - 1")))


def test_an_exponential_that_overflows_is_named() -> None:
    source = SOFTMAX.solution.replace("tl.exp(values - ", "tl.exp(-50 * values - ")
    verdict = learn.check(replace(SOFTMAX, mistakes=()), source, seed=1, devices=("interpreted",))
    assert "is too large for fp32, and becomes inf" in verdict.cause


def test_a_promise_that_does_not_hold_is_named() -> None:
    exercise = learn.exercise("pad-1")
    verdict = learn.check(exercise, exercise.solution.replace("at < room", "at < tl.multiple_of(n, 16)"), seed=1)
    assert "the promise multiple_of(n, 16) does not hold" in verdict.cause


@pytest.mark.parametrize(("exercise", "noted"), [(SUM, True), (ADD, False)])
def test_a_right_answer_that_needs_zeros_in_masked_lanes_has_a_note(exercise: learn.Exercise, noted: bool) -> None:
    source = exercise.solution.replace(", other=0.0", "")
    verdict = learn.check(exercise, source, seed=1, devices=("interpreted",))
    assert verdict.passed
    assert (UNDEFINED in verdict.headline) == noted
    assert UNDEFINED not in str(learn.check(exercise, exercise.solution, seed=1, devices=("interpreted",)))


def test_predictions_are_explained_by_the_number_that_errs() -> None:
    assert "9 programs cover 9,216 elements" in learn.check("predict-blocks", (9, 0)).cause
    assert "The third one is stored" in learn.check("predict-time", 238.8).cause
    assert learn.check("predict-blocks", (3, 5)).cause == ""
