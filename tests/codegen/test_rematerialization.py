"""Rematerialization: 16-bit rows stay packed and are widened again after each reduction, with the same bits in fewer registers."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import seeds
from fuzz import reports
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb.analysis import affine
from blocknb.codegen.gpu import rematerialization
from blocknb.ir.core import uses
from blocknb.kernels.norms import norm_kernel
from blocknb.kernels.softmax import softmax_kernel

DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def outputs(kernel, arguments: dict, grid: tuple, **options) -> dict[str, np.ndarray]:
    """The arrays after a run with packed rows. Raises AssertionError unless a run without them gives the same bits."""
    found = []
    for packed in (False, True):
        own = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        case = Case("again", kernel, lambda rng: own, None, grid)
        func, _ = case.lower(own, "sm_90a", **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rematerialization, "pays", lambda func, packed=packed: packed)
            reports.run(func, own, grid)
        found.append({k: v for k, v in own.items() if isinstance(v, np.ndarray)})
    for name, array in found[0].items():
        np.testing.assert_array_equal(array.view(np.uint8), found[1][name].view(np.uint8), err_msg=name)
    return found[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "warps"), [(1024, 1), (781, 1), (2048, 2), (512, 1)])
def test_softmax_and_norms_keep_every_bit(dtype, n, warps):
    rng = seeds.rng()
    x = rng.standard_normal((2, n)).astype(DTYPES[dtype])
    x[0, : rng.integers(3)] = rng.choice([np.inf, -np.inf, np.nan])
    block = blocknb.next_power_of_2(n)
    poison = np.full((2, n), 7.0, DTYPES[dtype])
    row = {"x": x, "y": poison, "x_stride": n, "y_stride": n, "n": n, "BLOCK": block}
    outputs(softmax_kernel, row, (2, 1, 1), num_warps=warps)
    weights = {k: rng.standard_normal(n).astype(DTYPES[dtype]) for k in ("weight", "bias")}
    kept = {k: np.zeros(2, np.float32) for k in ("mean", "rstd")}
    for centred in (True, False):
        norm = {"x": x, **weights, "y": poison, **kept, "x_row": n, "y_row": n, "m": 2, "n": n, "eps": 1e-5}
        more = {"CENTRED": centred, "ROWS": 1, "BLOCK": block}
        outputs(norm_kernel, norm | more, (2, 1, 1), num_warps=warps)


@blocknb.kernel
def mixed(x, other, out, places, sums, B: bl.constexpr):
    """Rows that are combined with others, stored, and reduced to several numbers."""
    at = bl.arange(0, B)
    row = bl.load(x + at).to(bl.float32)
    second = bl.load(x + B + at).to(bl.float32)
    fixed = bl.load(other + at).to(bl.float32)
    both = row + second
    top = bl.max(row, axis=0)
    spread = (row - top) * 2.0 + second
    total = bl.sum(spread, axis=0)
    bl.store(places, bl.argmax(row - total, axis=0))
    bl.store(places + 1, bl.argmin(second * row, axis=0))
    scaled = row * total + fixed
    bl.store(out + at, scaled)
    bl.store(out + B + at, both - total)
    bl.store(sums, bl.sum(scaled, axis=0) + bl.sum(both, axis=0))


@blocknb.kernel
def looped(x, out, n, B: bl.constexpr):
    """A row that a loop uses is widened once, before it."""
    at = bl.arange(0, B)
    row = bl.load(x + at).to(bl.float32)
    total = bl.sum(row, axis=0)
    for i in range(n):
        total += bl.sum(row * i, axis=0)
        bl.store(out + i * B + at, row - total)


def test_rows_in_branches_and_loops_keep_every_bit():
    rng = seeds.rng()
    x, other = (rng.integers(-1, 2, shape).astype(np.float16) for shape in ((2, 1024), 1024))
    zeros = {"out": np.zeros((2, 1024), np.float16), "places": np.zeros(2, np.int32), "sums": np.zeros(1, np.float32)}
    for sign in (1, -1):
        got = outputs(mixed, {"x": x * np.float16(sign), "other": other, **zeros, "B": 1024}, (1, 1, 1), num_warps=1)
        wide = x.astype(np.float64) * sign
        total = ((wide[0] - wide[0].max()) * 2 + wide[1]).sum()
        np.testing.assert_array_equal(got["out"][0], (wide[0] * total + other).astype(np.float16))
        assert got["places"][1] == (wide[1] * wide[0]).argmin()
    got = outputs(
        looped, {"x": x[0], "out": np.zeros((3, 1024), np.float32), "n": 3, "B": 1024}, (1, 1, 1), num_warps=1
    )
    totals = x[0].astype(np.float64).sum() * np.array([1, 2, 4])
    np.testing.assert_array_equal(got["out"], x[0].astype(np.float64) - totals[:, None])


def test_packed_row_leaves_registers_for_more_programs():
    row = {**dict.fromkeys(("x", "y"), "*fp16:16"), **dict.fromkeys(("x_stride", "y_stride", "n"), "i32:16")}
    packed = softmax_kernel.trace(**row, BLOCK=32768, num_warps=16)
    assert packed.resources.registers <= 64 and packed.resources.spill_bytes == 0
    shorter = softmax_kernel.trace(**row, BLOCK=16384, num_warps=16)
    counts = [len(re.findall(r"ex2\.", trace.ptx)) for trace in (shorter, packed)]
    assert counts == [32, 128]  # of 64 elements: once for the sum and once for the quotients
    weighted = {**dict.fromkeys(("x", "weight", "y"), "*fp16:16"), **dict.fromkeys(("x_row", "y_row", "n"), "i32:16")}
    nothing = dict.fromkeys(("bias", "mean", "rstd"))
    norm = {**weighted, **nothing, "m": "i32", "eps": "fp32", "CENTRED": False, "ROWS": 1}
    assert not packed_rows(norm_kernel, norm)  # a row that is multiplied by its weights
    assert packed_rows(softmax_kernel, row) == 1
    assert not packed_rows(softmax_kernel, row | dict.fromkeys(("x", "y"), "*fp32:16"))


def packed_rows(kernel, arguments: dict) -> int:
    func = kernel.trace(**arguments, BLOCK=16384, num_warps=8).stages[-1].after
    plan = rematerialization.RematerializationPlan(func, affine.analyze(func), uses(func), frozenset())
    return len(plan.loads)
