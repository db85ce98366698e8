"""Answers to predictions with units: "0.36 ms" is 360 µs."""

from __future__ import annotations

import pytest

from blocknb import learn
from blocknb.learn.predictions import value_of
from blocknb.learn.quantities import without_units


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("360 µs", "µs", 360),
        ("360us", "µs", 360),
        ("0.36 ms", "µs", 360),
        ("3.6e-4 s", "µs", 360),
        ("360_000 ns", "µs", 360),
        ("300 + 60", "µs", 360),
        ("300 µs + .06 ms", "µs", 360),
        ("2.88 MB", "B", 2_880_000),
        ("2880 kB", "B", 2_880_000),
        ("50 %", "%", 50),
        ("50%", "%", 50),
    ],
)
def test_numbers_get_the_unit_of_the_answer(text: str, unit: str, value: float) -> None:
    asked = learn.Prediction("predict-unit", "Unit", question="?", answer=value, accepts=1e-9, unit=unit)
    assert learn.check(asked, value_of(asked, text, {})).passed
    assert not learn.check(asked, value_of(asked, f"1 + {text}", {})).passed


@pytest.mark.parametrize(("text", "unit"), [("360 µs", ""), ("360 KB", "µs"), ("360 msec", "µs"), ("x2s3", "µs")])
def test_other_words_stay(text: str, unit: str) -> None:
    assert without_units(text, unit) == text


def test_an_answer_without_a_shell_is_never_run() -> None:
    asked = learn.Prediction("predict-unit", "Unit", question="?", answer=3, unit="B")
    text = "__import__('os').getpid() * 0 + 3"
    assert value_of(asked, text) == text
    assert not learn.check(asked, value_of(asked, text)).passed


def test_several_numbers_may_have_one_unit() -> None:
    ring = learn.exercise("predict-ring")
    assert isinstance(ring, learn.Prediction)
    assert value_of(ring, "96 KB, 2") == ring.value
    assert learn.check("predict-time", "358 µs").passed
