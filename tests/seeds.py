"""Random numbers for tests: the report of a failed test names the seed, which repeats the numbers.

Each test has one fresh seed, for `rng`, Hypothesis, and the global generators of Python, NumPy and PyTorch. The environment variable
BLOCKNB_SEED sets it, for one test or for all of them. CI derives it from the commit: a second run of a commit repeats the numbers.
tests/conftest.py loads this module as a pytest plugin. It needs only NumPy and pytest, so that it also runs on a GPU machine.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

#: The seed of the running test, and the generators that the test has drawn from it.
_sequence = np.random.SeedSequence(0)


def rng() -> np.random.Generator:
    """A generator of random numbers. The generators of one test are independent of each other."""
    (child,) = _sequence.spawn(1)
    return np.random.default_rng(child)


def cupy_random() -> Any:
    """The module `cupy.random`, with a seed that `rng` draws."""
    import cupy

    cupy.random.seed(int(rng().integers(1 << 32)))
    return cupy.random


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis has its own option for the seed, and leaves it out of examples that it stored."""
    begin()
    if os.environ.get("BLOCKNB_SEED") and hasattr(config.option, "hypothesis_seed"):
        config.option.hypothesis_seed = config.option.hypothesis_seed or os.environ["BLOCKNB_SEED"]


def begin() -> None:
    """Draws a seed, or takes that of BLOCKNB_SEED, and seeds all generators of this process with it."""
    global _sequence
    _sequence = np.random.SeedSequence(int(os.environ.get("BLOCKNB_SEED") or secrets.randbits(32)))
    number = int(_sequence.generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number)


def pytest_runtest_logstart() -> None:
    """Begins a new test, before its fixtures."""
    begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Adds the seed to the report of a failed test."""
    report = yield
    if report.failed:
        report.sections.append(("Seed of the random numbers", f"BLOCKNB_SEED={_sequence.entropy}"))
    return report
