"""A choice belongs to a kind of device: launches on the host, on another model of GPU, or on torch's other device tune anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.runtime import machine
from blocknb.tune import Config, store
from blocknb.tune.fast_choice import FastChoice, FastChoices


class Tensor:
    """An array whose type does not tell its device."""

    dtype, is_cuda = "float32", True

    def __init__(self, device: str):
        self.device = device


@blocknb.kernel
def fill(out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 1, mask=at < n)


def test_the_key_names_the_device_only_where_several_kinds_can_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, out = blocknb.autotune([Config({"BLOCK": b}) for b in (16, 32)], ["n"])(fill), np.zeros(16, np.float32)
    key = tuner.tuning_key((out, 16), {})
    assert key == (16, "float32")
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert tuner.tuning_key((out, 16), {}) == (*key, "cpu")
    gpus, models = [0], ["H100", "H200"]
    monkeypatch.setattr(store, "gpu_of", lambda *call: gpus[0])
    monkeypatch.setattr(store, "device_kind", lambda gpu: models[gpu])
    for several in (False, True):
        monkeypatch.setattr(store, "several_models", lambda several=several: several)
        found = []
        for gpus[0] in (0, 1):
            found.append(tuner.tuning_key((out, 16), {}))
        assert found == [key, (*key, "H200") if several else key]


def test_a_repeated_launch_finds_no_choice_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = FastChoices(["x", "n"], ["n"])
    made = {device: FastChoice((device,), Config({}), {}) for device in ("cuda:0", "cpu")}
    assert choices.find((Tensor("cuda:0"), 4), {}) is None
    for device, choice in made.items():
        choices.keep((Tensor(device), 4), {}, choice)
    for device, choice in made.items():
        assert choices.find((Tensor(device), 4), {}) is choice
    assert choices.find((Tensor("cuda:1"), 4), {}) is None


@pytest.mark.parametrize(("several", "found"), [(False, True), (True, False)])
def test_a_machine_with_several_models_looks_at_the_device_of_any_array(monkeypatch, several, found) -> None:
    class Array:
        dtype = "float32"

        def __init__(self, device: Any):
            self.device = device

    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(store, "several_models", lambda: several)
    choices = FastChoices(["x"], [])
    choices.keep((Array(0),), {}, FastChoice((), Config({}), {}))
    assert (choices.find((Array(1),), {}) is not None) == found
