"""Outlining on the CPU: a long kernel becomes several short functions with the same results as one function."""

import re

import numpy as np
import pytest
from frontend_helpers import kind
from kernels import CASES
from kernels.base import copied, host_address, parameters
from native import run_native

from blocknb import passes
from blocknb.bench import scaling
from blocknb.codegen import cpu
from blocknb.codegen.cpu import outlining
from blocknb.errors import AccessError
from blocknb.frontend.parse import Constant, parse
from blocknb.target import Target

CPU = Target.parse("cpu")


def functions(name: str, count: int) -> list[int]:
    """The lines of each function that a kernel of `count` statements becomes."""
    kernel = scaling.kernel(name, count)
    types = {"x_ptr": kind("*f32"), "out_ptr": kind("*f32"), "n": kind("i32"), "COUNT": Constant(count)}
    func, _ = passes.run(parse(kernel.source, types, {}), CPU)
    text = cpu.generate(func, CPU).text
    return [body.count("\n") for body in re.findall(r"^define .*?^}", text, re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize("name", ["memory", "reductions", "nested"])
def test_longer_kernels_have_more_functions_of_bounded_length(name, monkeypatch):
    monkeypatch.setattr(outlining, "LINES", 400)
    short, long = functions(name, 120), functions(name, 240)
    assert max(long) < 2 * 400
    assert sum(long) < 2.2 * sum(short)
    assert len(long) > 1.5 * len(short) > 4


def test_short_kernels_have_one_function(monkeypatch):
    kernel = scaling.kernel("memory", 8)
    types = {"x_ptr": kind("*f32"), "out_ptr": kind("*f32"), "n": kind("i32"), "COUNT": Constant(1)}
    func, _ = passes.run(parse(kernel.source, types, {}), CPU)
    assert ".part" not in cpu.generate(func, CPU).text


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", CASES)
def test_one_function_per_loop_nest_gives_the_same_results(name, monkeypatch):
    monkeypatch.setattr(outlining, "LINES", 1)
    case = CASES[name]
    arguments = case.make(np.random.default_rng(7))
    func = case.parse(arguments)
    got = {n: copied(value) for n, value in arguments.items()}
    case.link(got, host_address)
    run_native(func, parameters(func, got), case.grid)
    case.check(arguments, got)


def test_out_of_bounds_access_in_an_outlined_function_ends_the_kernel(monkeypatch):
    monkeypatch.setattr(outlining, "LINES", 1)
    kernel = scaling.kernel("memory", 8)
    types = {"x_ptr": kind("*f32"), "out_ptr": kind("*f32"), "n": kind("i32"), "COUNT": Constant(1)}
    out = np.zeros(128, np.float32)
    with pytest.raises(AccessError, match="element 64 of"):
        run_native(parse(kernel.source, types, {}), [np.zeros(64, np.float32), out, 128], 1)
    assert not out.any()
