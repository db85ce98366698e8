"""Whole kernels on the CPU: the shared cases on machines old and new, and random programs against the interpreter."""

import random

import numpy as np
import pytest
from host_cpus import BASELINE, NEWER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels import CASES
from kernels.base import copied, host_address, parameters
from native import TARGETS, run_native
from random_programs import Generator

from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.verify import verify

# What differs between the older machines is conversions, fused operations, and the width of vectors.
EVERYWHERE = [(name, target) for name in CASES for target in ("cpu", BASELINE)]
SOME = [(name, NEWER) for name in CASES if name.startswith(("functions", "casts", "matmul_float16", "attention"))]


def computes_what_numpy_does(name, target, opt):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(7))
    func = case.parse(arguments)
    got = {n: copied(value) for n, value in arguments.items()}
    case.link(got, host_address)
    run_native(func, parameters(func, got), case.grid, target, opt=opt)
    case.check(arguments, got)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "target"), [*((name, BASELINE) for name in CASES), *SOME])
def test_the_kernels_compute_what_numpy_does_on_old_cpus(name, target):
    """The code that LLVM receives, without optimization. The next test optimizes it, which takes four times as long."""
    computes_what_numpy_does(name, target, opt=0)


@pytest.mark.full
@pytest.mark.parametrize(("name", "target"), EVERYWHERE + SOME)
def test_the_kernels_compute_what_numpy_does_on_every_cpu_when_optimised(name, target):
    computes_what_numpy_does(name, target, opt=2)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_the_passes_for_the_cpu_change_no_result(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(8))
    func, _ = case.lower(arguments, "cpu")
    got = {n: copied(value) for n, value in arguments.items()}
    case.link(got, host_address)
    run_native(func, parameters(func, got), case.grid)
    case.check(arguments, got)


def agrees(func: Func, arguments: list, target: str) -> None:
    """Machine code and the interpreter leave the same bits behind."""
    expected, found = ([a.copy() if isinstance(a, np.ndarray) else a for a in arguments] for _ in range(2))
    run(func, expected, 3)
    run_native(func, found, 3, target)
    for param, wanted, actual in zip(func.params, expected, found, strict=True):
        if isinstance(wanted, np.ndarray):
            wide = [x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (wanted, actual)]
            np.testing.assert_array_equal(wide[1], wide[0], err_msg=param.name)


@given(st.randoms(use_true_random=False), st.sampled_from(TARGETS), st.integers(0, 3))
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_random_programs_agree_with_the_interpreter_to_the_bit(rng, target, seed):
    generator = Generator(rng)
    func = generator.function()
    verify(func)
    agrees(func, generator.arguments(seed), target)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(400))
def test_many_random_programs_agree_with_the_interpreter(seed):
    generator = Generator(random.Random(seed))
    agrees(generator.function(), generator.arguments(seed), TARGETS[seed % len(TARGETS)])
