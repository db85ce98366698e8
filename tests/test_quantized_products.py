"""Products of few rows by weights of 8 and 4 bits against float64, on the CPU, and the plan for a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import seeds

from blocknb import kernels as ready
from blocknb.kernels import quantized
from blocknb.kernels.quantized import QuantizedTile, choose_quantized
from blocknb.kernels.strides import Device

HOPPER = Device(132, 90, 227 << 10)
TOLERANCE = {np.float16: 1e-3, ml_dtypes.bfloat16: 6e-3}


def numbers(packed: np.ndarray) -> np.ndarray:
    """The integers 0 to 15 in bytes that hold two each, the lower one first."""
    return np.stack([packed & 15, packed >> 4], 2).reshape(len(packed), -1).astype(float)


def spread(per_group: np.ndarray, k: int, group: int) -> np.ndarray:
    return np.repeat(per_group.astype(float), group, 1)[:, :k]


def close(got: np.ndarray, expected: np.ndarray, dtype: Any) -> None:
    assert got.shape == expected.shape
    error = np.linalg.norm(got.astype(float) - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE[dtype]  # NaN fails


KINDS = [np.float16, pytest.param(ml_dtypes.bfloat16, marks=pytest.mark.full)]
SIZES = [
    (5, 130, 640),
    pytest.param(1, 70, 288, marks=pytest.mark.full),
    pytest.param(19, 64, 1024, marks=pytest.mark.full),
]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("ahead", "splits"),
    [(1, 2), pytest.param(0, 1, marks=pytest.mark.full), pytest.param(2, 3, marks=pytest.mark.full)],
)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_int8_weights_match_float64(m, n, k, ahead, splits, dtype):
    rng = seeds.rng()
    x, scales = rng.standard_normal((m, k)).astype(dtype), (rng.random(n) / 64).astype(np.float32)
    w = rng.integers(-128, 128, (n, k), dtype=np.int8)
    tile = QuantizedTile(16, 64, 128, ahead, splits, 4, 1)
    got = ready.matmul_int8(x, w, scales, np.full((m, n), np.nan, dtype), tile=tile)
    close(got, x.astype(float) @ (w * scales[:, None].astype(float)).T, dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("group", "zeros", "ahead", "splits"),
    [
        (128, True, 2, 3),
        pytest.param(128, False, 0, 1, marks=pytest.mark.full),
        pytest.param(256, True, 1, 2, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_int4_weights_match_float64(m, n, k, group, zeros, ahead, splits, dtype):
    rng = seeds.rng()
    groups = -(-k // group)
    x, scales = rng.standard_normal((m, k)).astype(dtype), (rng.random((groups, n)) / 8).astype(dtype).T
    w, z = rng.integers(0, 256, (n, k // 2), dtype=np.uint8), rng.integers(0, 16, (n, groups)).astype(np.int8)
    tile = QuantizedTile(16, 64, 128, ahead, splits, 4, 1)
    out = np.full((m, n), np.nan, dtype)
    got = ready.matmul_int4(x, w, scales, z if zeros else None, out, group=group, tile=tile)
    wide = (numbers(w) - (spread(z, k, group) if zeros else 8)) * spread(scales, k, group)
    close(got, x.astype(float) @ wide.T, dtype)


def test_tickets_are_zero_after_a_split_product():
    x, w = np.ones((2, 1024), np.float16), np.ones((64, 1024), np.int8)
    for _ in range(2):  # the second launch needs them
        out = ready.matmul_int8(x, w, np.ones(64, np.float32), tile=QuantizedTile(16, 64, 128, 1, 4, 4, 1))
        assert (out == 1024).all()
    assert quantized._tickets and not any(tickets.any() for tickets in quantized._tickets.values())


@pytest.mark.parametrize("stages", [1, 4])
def test_a_tile_with_stages_and_steps_ahead_multiplies_both_kinds_of_weights(stages):
    tile = QuantizedTile(16, 64, 128, 1, 2, 4, stages)
    x, scales = np.ones((2, 1024), np.float16), np.ones(64, np.float32)
    assert (ready.matmul_int8(x, np.ones((64, 1024), np.int8), scales, tile=tile) == 1024).all()
    w, groups = np.full((64, 512), 0x99, np.uint8), np.ones((64, 8), np.float16)
    assert (ready.matmul_int4(x, w, groups, tile=tile) == 1024).all()


def test_plans_give_every_multiprocessor_a_program_and_pad_few_rows():
    for m, rows in ((1, 8), (9, 16), (33, 64)):
        for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)):
            tile = choose_quantized(m, n, k, HOPPER)
            assert tile.rows == rows
            assert -(-n // tile.columns) * tile.splits >= HOPPER.processors - 8
    assert choose_quantized(1, 4096, 4096, Device(1, 0, 0)).splits == 1


X, W8, W4 = np.zeros((2, 256), np.float16), np.zeros((8, 256), np.int8), np.zeros((8, 128), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ready.matmul_int8(X, W8[:, :128], np.ones(8)), "cannot multiply"),
        (lambda: ready.matmul_int8(X.astype(np.float32), W8, np.ones(8)), "x must be float16 or bfloat16"),
        (lambda: ready.matmul_int8(X, W8, np.ones(7)), "scales must be a vector of 8 elements"),
        (lambda: ready.matmul_int8(X, np.asfortranarray(W8), np.ones(8)), "rows of w must be contiguous"),
        (lambda: ready.matmul_int8(X, W8, np.ones(8), np.zeros((2, 9), np.float16)), "out must have the shape"),
        (lambda: ready.matmul_int4(X, W4, np.ones((8, 3))), "scales must have the shape"),
        (lambda: ready.matmul_int4(X, W4, np.ones((8, 2)), np.ones((2, 8))), "zeros must have the shape"),
        (lambda: ready.matmul_int4(X, W4, np.ones((8, 4)), group=64), "groups are multiples of 128"),
    ],
)
def test_arrays_that_do_not_fit_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
