"""A failed random test names its seed, and BLOCKNB_SEED repeats its numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import seeds

SAMPLE = """
import random
import numpy as np
import pytest
import seeds

@pytest.fixture
def number():
    return seeds.rng().integers(1 << 40)

def test_fails(number):
    pytest.fail(f"numbers {number} {seeds.rng().integers(1 << 40)}")

def test_with_global_generators_fails():
    pytest.fail(f"numbers {random.getrandbits(40)} {np.random.randint(1 << 40)}")

def test_fails_without_random_numbers():
    pytest.fail("constant")

def test_passes():
    seeds.rng()
"""


def failures(path: Path, seed: str = "") -> list[tuple[str, str]]:
    """(numbers, seed) of each failed test of the sample."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "BLOCKNB_SEED": seed}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "seeds", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True)
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    report, _, _ = done.stdout.partition("short test summary")
    assert report.count("BLOCKNB_SEED=") == 3
    return re.findall(r"Failed: numbers ([\d ]+)$.*?BLOCKNB_SEED=(\d+)", report, re.DOTALL | re.MULTILINE)


def test_failure_report_names_a_seed_that_repeats_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "test_sample.py"
    path.write_text(SAMPLE)
    first, second = failures(path)
    assert first[1] != second[1]
    assert failures(path, first[1])[0] == first
    assert failures(path, second[1])[1] == second


def test_generators_of_one_test_differ() -> None:
    assert seeds.rng().integers(1 << 60) != seeds.rng().integers(1 << 60)
