"""Checked and interpreted launches warn about races, once per launch of one shape; other launches make no footprint."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.runtime import footprint_warnings
from blocknb.runtime.footprint_warnings import FootprintWarning

X = np.random.default_rng(0).standard_normal(256).astype(np.float32)


def made() -> Any:
    """A kernel in which neighbouring programs share an element."""

    @blocknb.kernel
    def overlapping(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.program_id(0), mask=at < n)

    return overlapping


LAUNCHES = {
    "checked": lambda kernel, out, n: kernel[4,](X, out, n, BLOCK=64, checked=True),
    "interpret": lambda kernel, out, n: kernel.interpret(4)(X, out, n, BLOCK=64),
    "interpret=True": lambda kernel, out, n: kernel[4,](X, out, n, BLOCK=64, interpret=True),
}


@pytest.mark.parametrize("way", LAUNCHES)
def test_a_checked_launch_warns_about_a_race_once_with_the_line_of_the_store(way: str) -> None:
    kernel, out = made(), np.zeros(256, np.float32)
    with pytest.warns(FootprintWarning, match="both store element 63 of `out`") as caught:
        LAUNCHES[way](kernel, out, 256)
    text = str(caught[0].message)
    assert text.startswith("overlapping: race: programs 0 and 1")
    assert "tl.store(out + at" in text
    assert caught[0].filename == __file__
    assert np.count_nonzero(out) > 200  # the launch ran
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LAUNCHES[way](kernel, out, 256)
        LAUNCHES[way](kernel, out, 240)  # the same shape
    with pytest.warns(FootprintWarning):
        kernel[5,](X, out, 256, BLOCK=64, checked=True)


def test_other_launches_make_no_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint_warnings, "examine", lambda *args: pytest.fail("examined"))
    kernel, out = made(), np.zeros(256, np.float32)
    for more in ({}, {"checked": False}, {"checked": None}):
        kernel[4,](X, out, 256, BLOCK=64, **more)
    kernel.interpret(4, program=1)(X, out, 256, BLOCK=64)
    with pytest.raises(pytest.fail.Exception):
        kernel[4,](X, out, 256, BLOCK=64, checked=True)


def test_a_right_launch_and_python_that_only_the_interpreter_runs_have_no_warning() -> None:
    @blocknb.kernel
    def loop(x, out, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        for _ in range(3):
            break
        tl.store(out + at, tl.load(x + at))

    out = np.zeros(256, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.interpret(4)(X, out, BLOCK=64)
    np.testing.assert_array_equal(out, X)


def test_an_access_outside_of_an_array_is_left_to_the_check_of_the_launch() -> None:
    @blocknb.kernel
    def outside(x, out, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(blocknb.AccessError):
            outside[5,](X, np.zeros(256, np.float32), BLOCK=64, checked=True)
