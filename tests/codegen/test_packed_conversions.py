"""Pairs of converted integers in GPU code: the numbers, by `simt`, and the instructions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir.core import Func
from blocknb.kernels import quantized
from blocknb.kernels.tiling import STREAMED
from blocknb.target import Target


@blocknb.kernel
def convert(x, y, SHIFT: bl.constexpr, MASK: bl.constexpr, MINUS: bl.constexpr, N: bl.constexpr):
    at = bl.arange(0, N)
    v = bl.load(x + at)
    if MASK:
        v = (v >> SHIFT) & MASK
    bl.store(y + at, v.to(y.dtype.element_ty) - MINUS)


def lowered(kernel: Any, arguments: dict[str, Any], target: str = "sm_90a", **options: Any) -> Func:
    func = Case(kernel.__name__, kernel, dict, dict).parse(arguments, Target.parse(target), **options)
    return passes.run(func, Target.parse(target), ())[0]


MORE = pytest.mark.full
BYTES = [("uint8", 0, 0), ("int8", 0, 0), ("uint8", 4, 15)]
WORDS = [("int8", 3, 15), ("uint16", 6, 31), ("int32", 20, 127), ("int32", 7, 15)]


@pytest.mark.parametrize("result", [np.float16, pytest.param(ml_dtypes.bfloat16, marks=MORE)], ids=["fp16", "bf16"])
@pytest.mark.parametrize(("source", "shift", "mask"), [*BYTES, *(pytest.param(*each, marks=MORE) for each in WORDS)])
def test_converted_pairs_are_the_integers(source, shift, mask, result):
    bits = np.iinfo(source)
    x = np.random.default_rng(0).integers(bits.min, bits.max, 1024, dtype=source, endpoint=True)
    x[:256] = np.arange(256).astype(source)
    y = np.full(1024, np.nan, result)
    arguments = {"x": x, "y": y, "SHIFT": shift, "MASK": mask, "MINUS": 8.0, "N": 1024}
    func = lowered(convert, arguments, num_warps=1)
    reports.run(func, arguments, (1,), "sm_90a")
    exact = (x >> shift & mask if mask else x).astype(np.float32).astype(result).astype(np.float32) - 8
    np.testing.assert_array_equal(y, exact.astype(result))
    text = gpu.generate(func, Target.parse("sm_90a")).text
    signed = source == "int8" and not mask  # minus 128 and plus 128, or one of both, by the sign
    fits = result is np.float16 or (mask or 255) < 128 or signed  # bf16 has room for seven bits
    assert ("llvm.nvvm.prmt" in text) == fits


def arguments_of(m: int, n: int, k: int, dtype: Any, splits: int, ahead: int) -> dict[str, Any]:
    """The arguments of a product; with `ahead`, each of four warps has a part of K, and all have the same 16 columns."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((m, k)).astype(dtype), "out": np.full((m, n), np.nan, dtype)}
    arrays |= {"parts": np.full(1 << 15, np.nan, np.float32), "tickets": np.zeros(8, np.int32)}
    arrays |= {"AHEAD": ahead, "WARPS": 4, "BN": 16} if ahead else {"BN": 64}
    return arrays | {
        "m": m,
        "n": n,
        "k": k,
        "length": -(-k // 128 // splits // (4 if ahead else 1)),
        "x_row": k,
        "out_row": n,
        "BK": 128,
        "SPLITS": splits,
    }


def run(kernel: Any, arguments: dict[str, Any], **options: Any) -> Func:
    func = lowered(kernel, arguments, num_warps=4, **options)
    grid = -(-arguments["n"] // arguments["BN"]), arguments["SPLITS"], -(-arguments["m"] // arguments["BM"])
    reports.run(func, arguments, grid, "sm_90a")
    assert not arguments["tickets"].any()
    return func


def close(got: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 6e-3 if got.dtype == ml_dtypes.bfloat16 else 1e-3
    assert np.linalg.norm(got.astype(float) - expected) <= tolerance * np.linalg.norm(expected)


SHAPES = [
    pytest.param(np.float16, 8, 2, 2, 1, id="fp16"),
    pytest.param(ml_dtypes.bfloat16, 16, 1, 1, 1, id="bf16", marks=MORE),
    pytest.param(np.float16, 16, 1, 0, 1, id="fp16-0", marks=MORE),
    pytest.param(np.float16, 32, 2, 0, 4, id="fp16-tma", marks=MORE),
]
COPIED = [
    pytest.param(np.float16, 8, 1, 1, 4, id="fp16-copied"),
    pytest.param(ml_dtypes.bfloat16, 16, 1, 1, 3, id="bf16-copied", marks=MORE),
]


@pytest.mark.parametrize(("dtype", "rows", "splits", "ahead", "stages"), SHAPES)
def test_int8_kernel_matches_float64(dtype, rows, splits, ahead, stages):
    given = arguments_of(5, 96, 640, dtype, splits, ahead)
    rng = np.random.default_rng(1)
    given |= {
        "w": rng.integers(-128, 128, (96, 640), dtype=np.int8),
        "scale": rng.random(96).astype(np.float32),
        "w_row": 640,
    }
    kernel = quantized.int8_by_warps if ahead else quantized.int8_kernel
    func = run(kernel, given | {"BM": rows, "KEEP": STREAMED}, num_stages=stages)
    close(given["out"], given["x"].astype(float) @ (given["w"] * given["scale"][:, None].astype(float)).T)
    assert all(("run" in op.attrs) == (stages == 1) for op in func.ops() if op.name == "dot")


@pytest.mark.parametrize("zeros", [pytest.param(False, marks=MORE), True])
@pytest.mark.parametrize(("dtype", "rows", "splits", "ahead", "stages"), [*SHAPES, *COPIED])
def test_int4_kernel_matches_float64(dtype, rows, splits, ahead, stages, zeros):
    given = arguments_of(5, 96, 512, dtype, splits, ahead)
    rng = np.random.default_rng(1)
    w, z = rng.integers(0, 256, (96, 256), dtype=np.uint8), rng.integers(0, 16, (96, 4)).astype(np.uint8)
    given |= {
        "w": w,
        "scale": rng.random((96, 4)).astype(dtype),
        "zero": z if zeros else None,
        "words": 256,
        "w_row": 256,
    }
    given |= {"s_row": 4, "s_group": 1, "z_row": 4, "z_group": 1, "GROUP": 128}
    kernel = quantized.int4_by_warps if ahead else quantized.int4_kernel
    if ahead and stages > 1:  # copies run ahead instead
        given["AHEAD"] = 0
    run(kernel, given | {"BM": rows, "KEEP": STREAMED}, num_stages=stages)
    numbers = np.stack([w & 15, w >> 4], 2).reshape(96, 4, 128).astype(float) - (z[:, :, None] if zeros else 8)
    close(
        given["out"], given["x"].astype(float) @ (numbers * given["scale"].astype(float)[:, :, None]).reshape(96, 512).T
    )
