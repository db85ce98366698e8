"""Random numbers for tests: the report of a failed test names the seed, which repeats the numbers.

Each test that calls `rng` has one fresh seed. The environment variable BLOCKNB_SEED sets it, for one test or for all of them.
tests/conftest.py loads this module as a pytest plugin. It needs only NumPy and pytest, so that it also runs on a GPU machine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

#: The seed of the running test, and the generators that the test has drawn from it; None before its first call of `rng`.
_sequence: np.random.SeedSequence | None = None


def rng() -> np.random.Generator:
    """A generator of random numbers. The generators of one test are independent of each other."""
    global _sequence
    if _sequence is None:
        _sequence = np.random.SeedSequence(int(os.environ.get("BLOCKNB_SEED") or secrets.randbits(32)))
    (child,) = _sequence.spawn(1)
    return np.random.default_rng(child)


def cupy_random() -> Any:
    """The module `cupy.random`, with a seed that `rng` draws."""
    import cupy

    cupy.random.seed(int(rng().integers(1 << 32)))
    return cupy.random


def pytest_runtest_logstart() -> None:
    """Begins a new test, before its fixtures: the next call of `rng` draws a new seed."""
    global _sequence
    _sequence = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Adds the seed to the report of a failed test."""
    report = yield
    if report.failed and _sequence is not None:
        report.sections.append(("Seed of the random numbers", f"BLOCKNB_SEED={_sequence.entropy}"))
    return report
