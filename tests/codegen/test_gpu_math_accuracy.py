"""The error of functions that GPU code computes with the hardware's exp2, in its code, simulated in NumPy with an exact exp2."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from frontend_helpers import kind
from fuzz import reports
from libdevice_calls import numbers, units

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.frontend.parse import parse
from blocknb.language import libdevice
from blocknb.target import Target

SM90A = Target.parse("sm_90a")
COUNT = 2048


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
