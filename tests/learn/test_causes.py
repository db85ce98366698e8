"""A verdict names the cause of a wrong answer where it is known, and none where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from learn.examples import GEMM, SOFTMAX, rows

from blocknb import learn

FLAT = learn.Case("12x64", lambda rng: rows(12, 64, 64)(rng) | {"out": np.empty(12, np.float32)})
ADD = learn.exercise("add-1")


@pytest.fixture(autouse=True)
def _without_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other searches find; test_repairs.py tests the search for a change that mends the kernel."""
    monkeypatch.setattr("blocknb.learn.repairs.SECONDS", 0.0)


@pytest.mark.parametrize(
    ("exercise", "number"), [(exercise, i) for exercise in (SOFTMAX, GEMM) for i in range(len(exercise.mistakes))]
)
def test_a_mistake_is_named(exercise: learn.Exercise, number: int) -> None:
    mistake = exercise.mistakes[number]
    verdict = learn.check(exercise, mistake.applied(exercise.solution), seed=1)
    assert not verdict.passed
    assert verdict.cause == mistake.says


def test_a_mistake_is_named_in_other_words_and_names() -> None:
    own = """\
@blocknb.kernel
def rows(matrix, result, width, SIZE: tl.constexpr):
    columns = tl.arange(0, SIZE)
    place = tl.program_id(0) * width + columns
    line = tl.load(matrix + place, mask=width > columns, other=0.0)
    line = tl.exp(line - tl.max(line, 0))
    line = line / tl.sum(line, 0)
    tl.store(result + place, line, mask=width > columns)
"""
    verdict = learn.check(SOFTMAX, own, seed=1)
    assert verdict.cause == SOFTMAX.mistakes[0].says


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("tl.store(out + row * n", "tl.store(out + row * BLOCK", ""),
        ("lanes < n", "lanes < n - 5", "`out`[:, 59:64] never stored"),
        ('other=-float("inf")', "other=float('nan')", ""),
        ("tl.exp(values - ", "tl.exp2(values - ", ""),
        ("tl.exp(values - ", "2.0 * tl.exp(values + 0.01 - ", None),
    ],
)
def test_other_wrong_answers_get_no_false_cause(old: str, new: str, cause: str | None) -> None:
    """Of None, the answer is right: a factor cancels."""
    verdict = learn.check(SOFTMAX, SOFTMAX.solution.replace(old, new), seed=1)
    assert verdict.passed == (cause is None), verdict
    assert not any(finding.kind == "mistake" for finding in verdict.findings), verdict
    assert (cause or "") in verdict.headline


def test_without_time_to_compare_all_mistakes_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blocknb.learn.mistake_matching.SECONDS", 0.0)
    verdict = learn.check(SOFTMAX, SOFTMAX.mistakes[1].applied(SOFTMAX.solution), seed=77)
    assert verdict.findings
    assert not any(finding.kind == "mistake" for finding in verdict.findings), verdict


def test_of_two_mistakes_with_one_error_the_source_decides() -> None:
    """No mask and a mask that lets element n pass fail alike: program 7 loads element 1000."""
    missing, wide = ADD.mistakes[0], ADD.mistakes[2]
    for mistake in (missing, wide):
        assert learn.check(ADD, mistake.applied(ADD.solution)).cause == mistake.says


def test_exchanged_axes_and_missing_divisions_are_seen_in_the_numbers() -> None:
    turned = GEMM.solution.replace("c + i[:, None] * N + j[None, :]", "c + j[None, :] * N + i[:, None]")
    verdict = learn.check(GEMM, turned, seed=1)
    assert "rows and columns are exchanged" in str(verdict)
    twice = GEMM.solution.replace("total, mask", "total * 2.0, mask")
    assert "every element of `c` is 2 times the right one" in str(learn.check(GEMM, twice, seed=1))


def test_masked_lanes_are_seen_without_a_list_of_mistakes() -> None:
    verdict = learn.check(replace(SOFTMAX, mistakes=()), SOFTMAX.mistakes[0].applied(SOFTMAX.solution), seed=1)
    assert verdict.cause == 'lanes that the load masks off count as 0 in the maximum: other=-float("inf")?'


def test_a_missing_division_by_an_argument_is_named() -> None:
    mean = replace(SOFTMAX, reference=lambda x: {"out": x.astype(np.float64)}, mistakes=())
    source = SOFTMAX.solution.replace("powers / tl.sum(powers, axis=0)", "values * n")
    verdict = learn.check(mean, source, seed=1)
    assert verdict.cause == "every element of `out` is `n` = 64 times too large: is the division by `n` missing?"


def test_another_reduction_is_named() -> None:
    largest = replace(
        SOFTMAX, reference=lambda x: {"out": x.max(axis=1).astype(np.float64)}, mistakes=(), rules=(), cases=(FLAT,)
    )
    source = SOFTMAX.solution.replace(
        "out + row * n + lanes, powers / tl.sum(powers, axis=0), mask=inside", "out + row, tl.{}(values, axis=0)"
    )
    assert learn.check(largest, source.format("max")).passed
    assert learn.check(largest, source.format("min"), seed=1).cause == "`out` holds the minimum of each row of `x`"


def test_errors_alike_are_no_cause_without_the_source() -> None:
    """pid * n leaves the same elements alone as a missing program id, but the source is neither."""
    missing = replace(ADD, mistakes=(ADD.mistakes[4],))
    verdict = learn.check(missing, ADD.solution.replace("pid * BLOCK", "pid * n"), seed=1)
    assert verdict.findings[0].kind == "footprint", verdict


def test_a_mistake_with_the_same_numbers_is_not_named_if_the_source_still_has_what_it_replaces() -> None:
    """Both descriptors end `K` at 40: the shape of `a` is wrong here, and that of `b` in the mistake."""
    exercise = learn.exercise("descriptor-1")
    verdict = learn.check(
        exercise, exercise.solution.replace("a, [M, K]", "a, [M, N]"), seed=1, devices=("interpreted",)
    )
    assert verdict.cause.startswith("no program loads `a`[:, 40:48]"), verdict


def test_of_two_mistakes_with_the_same_numbers_the_source_decides() -> None:
    exercise = learn.exercise("reverse-1")
    twice = exercise.solution.replace("out + at", "out + n - 1 - at")
    assert learn.check(exercise, twice, seed=1).cause == "load and store are both reversed, so nothing changes"


def test_an_error_is_nearly_none_only_by_the_size_of_the_numbers() -> None:
    exercise = learn.exercise("online-1")
    wrong = exercise.solution.replace("tl.exp(values - new_largest)", "tl.exp(values)")
    verdict = learn.check(exercise, wrong, seed=1)
    assert not verdict.passed
    assert "never updated" not in str(verdict)
    assert "nearly right" not in str(verdict)


def test_an_exception_of_the_search_is_kept_and_the_answer_stays_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("blocknb.runtime.footprints.footprint", fails)
    verdict = learn.check(replace(SOFTMAX, mistakes=()), SOFTMAX.mistakes[1].applied(SOFTMAX.solution), seed=1)
    assert not verdict.passed
    assert "`out`[0, 0] is " in verdict.headline
    assert "the search for the cause raised ZeroDivisionError" in str(verdict)
    assert isinstance(verdict.findings[-1].raised, ZeroDivisionError)
    assert verdict.findings[-1].raised.__traceback__ is not None


def test_an_empty_grid_is_refused_with_the_sizes() -> None:
    own = replace(ADD, grid=None, cases=ADD.cases[:1], mistakes=())
    source = ADD.solution + "\ngrid = lambda n, BLOCK: (n // (1000 * BLOCK),)\n"
    cause = learn.check(own, source, seed=1).cause
    assert cause.startswith("the grid has 0 programs for n=")
    assert cause.endswith(": round up with blocknb.cdiv")
    assert (
        learn.check(own, ADD.solution + "\ngrid = (0,)\n").cause
        == "the grid has 0 programs: round up with blocknb.cdiv"
    )


def test_an_address_outside_is_blamed_before_a_mask_that_tests_another_value() -> None:
    exercise = replace(learn.exercise("reverse-1"), mistakes=())
    said = str(learn.check(exercise, exercise.solution.replace("x + (n - 1 - at)", "x + (n - at)"), seed=1))
    assert "if that is right, correct the address `x + (n - at)`, which is that of element 4096" in said
    add = replace(ADD, mistakes=())
    said = str(learn.check(add, add.solution.replace("at < n", "at <= n"), seed=1))
    assert "which is true for this element: it must be false outside of the array" in said
