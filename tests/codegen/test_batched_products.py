"""Batched products with one pair of matrices per warp: when the front end makes them, the numbers, and their layouts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case, parameters

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.layouts import tables
from blocknb.target import Target

SM90 = Target.parse("sm_90a")


@blocknb.kernel
def batched(a, b, c, out, W: bl.constexpr, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr):
    """out = a @ b + c of W matrices, in two steps along K."""
    w, m, n, k = bl.arange(0, W), bl.arange(0, M), bl.arange(0, N), bl.arange(0, K)
    here = w[:, None, None] * (M * N) + m[None, :, None] * N + n[None, None, :]
    total = bl.load(c + here)
    for start in range(0, 2 * K, K):
        x = bl.load(a + w[:, None, None] * (M * 2 * K) + m[None, :, None] * (2 * K) + start + k[None, None, :])
        y = bl.load(b + w[:, None, None] * (2 * K * N) + (start + k)[None, :, None] * N + n[None, None, :])
        total = bl.dot(x, y, total)
    bl.store(out + here, total)


def arguments_of(w: int, m: int, n: int, k: int, dtype: Any = np.float16) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((w, m, 2 * k), (w, 2 * k, n)))
    c, out = rng.standard_normal((w, m, n)).astype(np.float32), np.full((w, m, n), np.nan, np.float32)
    return {"a": a, "b": b, "c": c, "out": out, "W": w, "M": m, "N": n, "K": k}


def parsed(arguments: dict[str, Any], target: Target | None = SM90, **options: Any) -> Func:
    return Case("batched", batched, dict, dict).parse(arguments, target, **options)


def close(given: dict[str, Any]) -> None:
    exact = given["a"].astype(float) @ given["b"].astype(float) + given["c"]
    np.testing.assert_allclose(given["out"], exact, rtol=1e-5, atol=1e-4)


def stacked(func: Func) -> list[int | None]:
    return [op.attrs.get("stacked") for op in func.ops() if op.name == "dot"]


@pytest.mark.parametrize("without", [(), ("select_mma",)], ids=["mma", "fma"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 16, 8, 32), np.float16), pytest.param((2, 32, 16, 64), ml_dtypes.bfloat16, marks=pytest.mark.full)],
    ids=["fp16", "bf16"],
)
def test_each_warp_multiplies_its_pair(shape, dtype, without):
    given = arguments_of(*shape, dtype)
    tile = parsed(given, num_warps=shape[0])
    assert stacked(tile) == [shape[0]]
    func, _ = passes.run(tile, SM90, without)
    assert {op.attrs.get("instr") for op in func.ops() if op.name == "dot"} == {None if without else "m16n8k16"}
    reports.run(func, given, (1, 1, 1), "sm_90a")
    close(given)


@pytest.mark.parametrize("target", [SM90, None], ids=["gpu", "cpu"])
def test_the_interpreter_multiplies_pairs(target):
    given = arguments_of(4, 16, 8, 32)
    func = parsed(given, target, num_warps=4)
    assert set(stacked(func)) == {4 if target else None}
    interp.run(func, parameters(func, given), (1, 1, 1))
    close(given)


@pytest.mark.parametrize(
    ("shape", "warps", "arch"),
    [((4, 16, 8, 32), 8, "sm_90a"), ((4, 16, 32, 32), 4, "sm_90a"), ((4, 16, 8, 32), 4, "sm_75")],
    ids=["warps", "wide", "old"],
)
def test_other_batches_share_the_warps(shape, warps, arch):
    found = stacked(parsed(arguments_of(*shape), Target.parse(arch), num_warps=warps))
    assert set(found) == {None}


def test_the_layout_of_the_second_operand_has_a_part_per_warp():
    row = tables.MMA_BY_NAME["m16n8k16"]
    one, found = tables.operand_b((32, 8), row, (1, 1)), tables.stacked_operand_b((128, 8), row, 4)
    assert one is not None and found is not None
    for warp in range(4):
        rows = {found.coords(warp, lane, register)[0] for lane in range(32) for register in range(found.num_registers)}
        assert rows == set(range(32 * warp, 32 * warp + 32))
    assert found.num_registers == one.num_registers
    assert tables.stacked_operand_b((32, 8), row, 4) is None
