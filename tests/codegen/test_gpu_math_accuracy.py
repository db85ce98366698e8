"""The error of functions that GPU code computes with the hardware's exp2, in its code, simulated in NumPy with an exact exp2."""

from __future__ import annotations

import ctypes
import math
import re

import llvmlite.binding
import numpy as np
import pytest
from frontend_helpers import kind
from fuzz import reports
from libdevice_calls import numbers, units

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.codegen.gpu import trig
from blocknb.frontend.parse import parse
from blocknb.language import libdevice
from blocknb.target import Target

SM90A = Target.parse("sm_90a")
COUNT = 2048
DECLARED = [
    "declare float @llvm.fma.f32(float, float, float)", "declare float @llvm.fabs.f32(float)",
    "declare i64 @llvm.fshl.i64(i64, i64, i64)", "declare i128 @llvm.ctlz.i128(i128, i1)",
]  # fmt: skip


@blocknb.kernel
def exponential(x, out):
    i = tl.arange(0, 2048)
    tl.store(out + i, libdevice.exp(tl.load(x + i)))


@blocknb.kernel
def error_integral(x, out):
    i = tl.arange(0, 2048)
    tl.store(out + i, tl.erf(tl.load(x + i)))


@blocknb.kernel
def hyperbolic(x, out):
    i = tl.arange(0, 2048)
    tl.store(out + i, tl.tanh(tl.load(x + i)))


@blocknb.kernel
def sines(x, out):
    i = tl.arange(0, 2048)
    v = tl.load(x + i)
    tl.store(out + i, tl.sin(v))
    tl.store(out + 2048 + i, tl.cos(v))


def inputs(name):
    x = numbers(np.float32, COUNT)
    ends = np.linspace(-104, -86, 200) if name == "exp" else np.linspace(0.9, 1.1, 200)
    x[-200:] = ends
    x[-400:-200] = np.linspace(88, 89, 200) if name == "exp" else np.linspace(-4.5, 4.5, 200)
    return x


@pytest.mark.parametrize(
    ("name", "function", "reference"),
    [
        ("exp", exponential, np.exp),
        ("erf", error_integral, np.vectorize(math.erf, otypes=[float])),
        ("tanh", hyperbolic, np.tanh),
    ],
)
def test_code_for_a_gpu_is_within_two_units_in_the_last_place(name, function, reference):
    func = parse(function.source, {"x": kind("*f32"), "out": kind("*f32")}, {"num_warps": 4}, SM90A)
    func = passes.run(func, SM90A)[0]
    text = gpu.generate(func, SM90A).text
    assert "ex2.approx" in text and not re.search(r"\b(br i1|fdiv)\b", text)
    x, out = inputs(name), np.full(COUNT, np.nan, np.float32)
    reports.run(func, {"x": x, "out": out}, (1, 1, 1))
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble if name == "exp" else float)).astype(np.longdouble)
    assert units(out, exact) <= 2


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_of_any_number_are_within_two_units_in_the_last_place(name):
    """Their LLVM text runs on the host: the simulator of GPU code takes no divergent branches."""
    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    helpers = {}
    text = trig.define("found", name, "float", helpers).replace("internal float", "float")
    module = llvmlite.binding.parse_assembly("\n".join([*helpers.values(), text, *DECLARED]))
    machine = llvmlite.binding.Target.from_default_triple().create_target_machine()
    with llvmlite.binding.create_mcjit_compiler(module, machine) as engine:
        function = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(engine.get_function_address("found"))
        x = numbers(np.float32, COUNT)
        x[:200], x[200:203] = (
            np.linspace(-50_000, 50_000, 200),
            (np.inf, -np.inf, np.nan),
        )  # the usual way ends at 40,000
        found = np.array([function(v) for v in x], np.float32)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble))
    assert units(found, exact) <= 2 and (np.isnan(found) == np.isnan(exact)).all() and np.isnan(found).sum() >= 3


def test_the_usual_sine_and_cosine_are_in_the_code_of_the_kernel():
    """A call per element would take most of the time of a kernel of rotary embeddings."""
    ptx = sines.trace("*fp32:16", "*fp32:16", target="sm_90a").ptx
    assert "reduce" in ptx and not re.search(r"_(sin|cos)_", ptx)
