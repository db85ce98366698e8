"""Every operator agrees with the newest Triton for all pairs of dtypes. The table is recorded by `scripts/compare_triton.py record`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sampling import chosen

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def compare():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import compare_triton
    finally:
        sys.path.remove(str(SCRIPTS))
    return compare_triton


def test_a_sample_of_the_cases_agrees(compare):
    table = compare.read()
    sample = [key for key in table["cases"] if chosen(key, 24)]
    assert len(sample) > 450
    assert compare.compare(table, sample) == {}


@pytest.mark.full
def test_all_cases_agree(compare):
    table = compare.read()
    assert len(table["cases"]) == len(list(compare.pairs.cases()))
    assert compare.compare(table) == {}


def test_a_wrong_result_is_found(compare):
    case = ("+", "int8", "uint8")
    right = compare.outcome(*case)
    assert compare.differs(case, right) is None
    assert compare.differs(case, {**right, "type": "int8"}) == "uint8, not int8"
    assert "not" in compare.differs(case, {**right, "bits": ["0"] * 8})
