"""NaNs and signed zeros in maxima and minima give one result: compiled for CPUs and GPUs, interpreted and debugged."""

from __future__ import annotations

import math

import everywhere
import numpy as np
import pytest
import seeds
import zeros_everywhere as zeros
from host_cpus import NEWER, OLDER
from kernels.base import Case

import blocknb
import blocknb.language as tl
from blocknb.codegen.cpu.reduction_kinds import identity_of_places

QUICK = ("eager", NEWER, "cpu", "simt sm_90a")


def parameters(quick: tuple[str, ...], dtypes: tuple[str, ...]) -> list:
    return [(d, QUICK) for d in quick] + [pytest.param(d, everywhere.WAYS, marks=pytest.mark.full) for d in dtypes]


@pytest.mark.parametrize(("dtype", "ways"), parameters(("float32", "float8_e5m2"), (*zeros.FLOATS, *zeros.EIGHT)))
def test_maximum_and_minimum_follow_ieee_754(dtype: str, ways: tuple[str, ...]) -> None:
    arguments, wanted = zeros.of_pairs(dtype, seeds.rng())
    everywhere.check(zeros.pairs, arguments, wanted, ways)


@pytest.mark.parametrize(("dtype", "ways"), parameters(("float64", "bfloat16"), zeros.FLOATS))
def test_row_extrema_ignore_nan_and_return_the_first_index(dtype: str, ways: tuple[str, ...]) -> None:
    rng = seeds.rng()
    arguments, wanted = zeros.of_rows(dtype, rng, 16, int(2 ** rng.integers(3, 7)))
    everywhere.check(zeros.rows, arguments, wanted, ways)


@pytest.mark.parametrize("target", [*OLDER, "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extrema_of_ragged_rows_have_the_right_sign_of_zero(dtype: str, target: str) -> None:
    @blocknb.kernel
    def ragged(x, top, low, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(top, tl.max(tl.load(x + at, mask=at < n, other=-float("inf")), 0))
        tl.store(low, tl.min(tl.load(x + at, mask=at < n, other=float("inf")), 0))

    rng = seeds.rng()
    for _ in range(2):
        n = int(rng.integers(1, 300))
        values = rng.choice([0.0, -0.0], n, p=[1 / n, 1 - 1 / n] if rng.integers(2) else [1 - 1 / n, 1 / n]).astype(
            dtype
        )
        negative = np.signbit(values)
        zero = np.zeros(1, dtype)
        wanted = {"top": -zero if negative.all() else zero, "low": -zero if negative.any() else zero}
        arguments = {"x": values, "top": zero + 7, "low": zero + 7, "n": n, "BLOCK": 512}
        everywhere.check(ragged, arguments, wanted, (target,))


@pytest.mark.parametrize(("x", "y"), [(0.0, -0.0), (-0.0, 0.0), (math.nan, 1.0), (1.0, math.nan), (-2.0, 3.0)])
def test_constants_are_compared_like_run_time_values(x: float, y: float) -> None:
    @blocknb.kernel
    def constants(out, X: tl.constexpr, Y: tl.constexpr):
        tl.store(out, tl.maximum(X, Y))
        tl.store(out + 1, tl.minimum(X, Y))
        tl.store(out + 2, tl.maximum(X, Y, propagate_nan=tl.PropagateNan.ALL))
        tl.store(out + 3, tl.minimum(tl.full((), X, tl.float32), Y))

    wanted = [zeros.extreme(x, y, True, False), zeros.extreme(x, y, False, False), zeros.extreme(x, y, True, True)]
    wanted.append(wanted[1])
    arguments = {"out": np.full(4, 7, np.float32), "X": x, "Y": y}
    everywhere.check(constants, arguments, {"out": np.array(wanted, np.float32)}, ("eager", "ir", "passes cpu"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint32"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin_have_an_identity_on_the_cpu(name: str, dtype: str) -> None:
    @blocknb.kernel
    def places(x, out, NAME: tl.constexpr):
        v = tl.load(x + tl.arange(0, 64))
        tl.store(out, tl.argmax(v, 0) if NAME == "argmax" else tl.argmin(v, 0))

    case = Case("places", places, dict, dict)
    func = case.parse({"x": np.zeros(64, dtype), "out": np.zeros(1, np.int32), "NAME": name})
    (reduction,) = (op for op in func.ops() if op.name == "reduce")
    assert identity_of_places(reduction) is not None
