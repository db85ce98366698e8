"""Checks accuse no right kernel: the kernels of the tests, and specimens of the zoo. `--full` takes all."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import CASES
from kernels.base import copied
from sampling import chosen
from zoo import ZOO

from blocknb.runtime.launch_context import enforced

SPECIMENS = [name for name, specimen in ZOO.items() if not specimen.gpu_only]


def sampled(names, one_in):
    """Test parameters: one in so many belongs to the quick run."""
    return [pytest.param(name, marks=() if chosen(name, one_in) else pytest.mark.full) for name in names]


@pytest.mark.parametrize("name", sampled(CASES, 24))
def test_race_checks_change_no_result_and_accuse_no_kernel(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(3))
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, lambda x: x.ctypes.data)
    case.kernel[case.grid](**got, **case.options, checked="race")
    case.check(arguments, got)


@pytest.mark.parametrize("name", sampled(SPECIMENS, 60))
def test_race_checks_accuse_no_specimen_of_the_zoo(name, monkeypatch):
    monkeypatch.setitem(enforced, "checked", "race")
    inputs = ZOO[name].make(np.random.default_rng(4))
    ZOO[name].check(inputs, ZOO[name].run(inputs, "numpy", "cpu"))
