"""Knobs do not mislead: the trials of scripts/knob_trials.py, a few in the quick tier, all of them under load with `--full`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "knob_trials.py"


@pytest.fixture(scope="module")
def trials():
    spec = importlib.util.spec_from_file_location("knob_trials", SCRIPT)
    module = sys.modules["knob_trials"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_knob_away_and_back_is_within_noise(trials):
    assert [trials.away_and_back(number)["verdict"] for number in range(2)] == ["noise", "noise"]


def test_a_wrong_configuration_is_never_a_gain(trials):
    changes = trials.wrong_knobs(12)
    assert {trials.wrong(change)["verdict"] for change in changes} == {"wrong"}
    assert len({tuple(change.constants.items()) for change in changes}) > 4


@pytest.mark.full
def test_on_a_loaded_machine_noise_is_no_gain_and_a_gain_is_shown(trials, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["knob_trials"])
    assert trials.main() == 0
