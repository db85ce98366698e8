"""`learn.check`: right answers pass, wrong ones get a verdict with one clear sentence."""

from __future__ import annotations

import pytest

from blocknb import learn

ADD = learn.exercise("add-1")


@pytest.mark.parametrize("source", [ADD.solution, *ADD.alternatives])
def test_right_answers_pass(source: str) -> None:
    assert learn.check(ADD, source).passed


def test_the_skeleton_is_refused_with_the_line_of_its_first_blank() -> None:
    verdict = learn.check("add-1", ADD.skeleton)
    assert not verdict.passed
    assert verdict.findings[0].line == 4
