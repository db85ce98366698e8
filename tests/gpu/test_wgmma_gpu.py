"""Products on Hopper with typical tiles, against float64: orders, partial tiles, stages, attention.

They use wgmma with operands copied by a producer warp or by all warps, and mma.sync. tests/kernels contains small cases of every dtype.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import seeds
from kernels.products import attention, matmul

import blocknb

cupy = pytest.importorskip("cupy")
TILES = [((128, 128, 64), 4), ((128, 128, 64), 8), ((128, 256, 64), 8), ((64, 128, 128), 4), ((64, 256, 64), 8)]
SHAPES = [(512, 768, 640), (333, 257, 200), (1, 70, 64), (130, 24, 1030)]
TOLERANCE = {"float16": 2e-3, "float32": 2e-3, "int8": 0.0}  # of the largest element


@pytest.fixture(autouse=True)
def on_hopper():
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("wgmma is Hopper's")


def operand(shape, transposed, dtype):
    shape = shape[::-1] if transposed else shape
    numbers = seeds.cupy_random().standard_normal(shape, dtype=cupy.float32)
    made = (numbers * 30 if dtype == "int8" else numbers).astype(dtype)
    return made.T if transposed else made


WAYS = ((), ("warp_specialization",), ("select_wgmma",))  # the excluded combinations
#: Every tile, order and number of stages with some dtype and way; all of them together with --full.
ORDERS = ("nn", "nt", "tn", "tt")
ALL = [(*x, *tile, n, way) for *x, tile, n, way in itertools.product(TOLERANCE, ORDERS, TILES, (1, 2, 4), WAYS)]
SOME = [pytest.param(*x, marks=() if i % 16 == 0 else pytest.mark.full) for i, x in enumerate(ALL)]


@pytest.mark.parametrize(("dtype", "order", "tile", "num_warps", "num_stages", "without"), SOME)
def test_products_match_float64(dtype, order, tile, num_warps, num_stages, without):
    bm, bn, bk = (*tile[:2], tile[2] // 2) if dtype == "float32" else tile
    for m, n, k in SHAPES:
        a, b = operand((m, k), order[0] == "t", dtype), operand((k, n), order[1] == "t", dtype)
        c = cupy.full((m, n), -7, {"int8": "int32"}.get(dtype, dtype))
        strides = [x // array.itemsize for array in (a, b, c) for x in array.strides]
        grid = (blocknb.cdiv(m, bm) * blocknb.cdiv(n, bn),)
        constants = {"BM": bm, "BN": bn, "BK": bk, "GROUP": 4, "LEAKY": False, "PRECISION": "tf32"}
        options = {"num_warps": num_warps, "num_stages": num_stages, "without": without}
        matmul[grid](a, b, c, m, n, k, *strides, **constants, **options)
        expected = a.astype(cupy.float64) @ b.astype(cupy.float64)
        error = float(cupy.abs(c - expected).max() / cupy.abs(expected).max())
        assert error <= TOLERANCE[dtype], (m, n, k)


@pytest.mark.parametrize(
    ("columns", "head", "num_warps", "num_stages"), [(64, 64, 4, 3), (128, 64, 8, 2), (128, 128, 8, 2)]
)
@pytest.mark.parametrize("rows", [1024, 1000])
@pytest.mark.parametrize("without", WAYS)
def test_attention_matches_float64(rows, columns, head, num_warps, num_stages, without):
    q, k, v = (operand((rows, head), False, "float16") for _ in range(3))
    out = cupy.full((rows, head), np.nan, np.float32)
    grid = (blocknb.cdiv(rows, 128),)
    options = {"num_warps": num_warps, "num_stages": num_stages, "without": without}
    attention[grid](q, k, v, out, rows, head**-0.5, 128, columns, head, **options)
    scores = q.astype(cupy.float64) @ k.astype(cupy.float64).T * head**-0.5
    weights = cupy.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ v.astype(cupy.float64)
    assert float(cupy.abs(out - expected).max()) < 2e-3
