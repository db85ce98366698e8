"""Kernels in the build with redzones: no program writes next to a scratch buffer or depends on a lane that was never written.

The quick run takes a sample of the shared kernels, the zoo, and random programs; `--full` takes all.
"""

import random

import numpy as np
import pytest
from fuzz.generator import generate
from fuzz.program import check_native, checked
from host_cpus import NEWER
from kernels import CASES
from kernels.base import copied, host_address, parameters
from native import TARGETS, run_native
from random_programs import Generator
from test_cpu_programs import agrees
from zoo import ZOO
from zoo.launches import launched
from zoo.test_zoo import ON_CPU, QUICK


@pytest.fixture(autouse=True)
def with_redzones(monkeypatch):
    monkeypatch.setenv("BLOCKNB_REDZONES", "1")


def sampled(names, step):
    """All of them; only every `step`-th runs without --full."""
    return [name if at % step == 0 else pytest.param(name, marks=pytest.mark.full) for at, name in enumerate(names)]


@pytest.mark.parametrize("target", ["cpu", pytest.param(NEWER, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", sampled(CASES, 24))
def test_shared_kernels_stay_inside_their_buffers(name, target):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(17))
    func, _ = case.lower(arguments, "cpu")
    got = {n: copied(value) for n, value in arguments.items()}
    case.link(got, host_address)
    run_native(func, parameters(func, got), case.grid, target)
    case.check(arguments, got)


ZOO_QUICK = [name for name in ON_CPU if name in QUICK][::16]


@pytest.mark.parametrize("name", [n if n in ZOO_QUICK else pytest.param(n, marks=pytest.mark.full) for n in ON_CPU])
def test_the_zoo_stays_inside_its_buffers(name):
    inputs = ZOO[name].make(np.random.default_rng(18))
    with launched() as found:
        ZOO[name].check(inputs, ZOO[name].run(inputs, "numpy", "cpu"))
    assert all(".verify(" in compiled.trace.llvm for compiled in found)


@pytest.mark.parametrize("seed", sampled(range(400), 80))
def test_random_programs_stay_inside_their_buffers(seed):
    generator = Generator(random.Random(seed))
    agrees(generator.function(), generator.arguments(seed), TARGETS[seed % len(TARGETS)])


@pytest.mark.parametrize("seed", sampled(range(7000, 7400), 80))
def test_random_kernels_stay_inside_their_buffers(seed):
    checked(generate(seed), check_native)
