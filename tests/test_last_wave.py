"""Products in tiles of 192 columns, and products whose last wave of tiles is split along K. They run on the CPU as by a small GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import seeds

import blocknb.language as bl
from blocknb.kernels import last_wave, wide_tiles
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import TileShape
from blocknb.kernels.strides import Device

FEW = Device(5, 90, 227 << 10)  # 5 multiprocessors


def stored(rows: int, columns: int, transposed: bool) -> np.ndarray:
    found = seeds.rng().standard_normal((columns, rows) if transposed else (rows, columns)).astype(np.float16)
    return found.T if transposed else found


def check(p: MatmulProblem, expected: np.ndarray) -> None:
    assert np.abs(p.out.astype(np.float64) - expected).max() <= 2e-3 * np.abs(expected).max()  # NaN fails


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["nn", "tt"])
@pytest.mark.parametrize("width", [192, 96, 256, 208])
@pytest.mark.parametrize("whole_rows", [True, False])
def test_split_last_waves_and_wide_tiles_match_float64(monkeypatch: pytest.MonkeyPatch, order, width, whole_rows):
    monkeypatch.setattr(last_wave, "device", lambda array: FEW)
    m, n, k = (
        200,
        520,
        328,
    )  # 2 by 3 tiles of 128 by 192: 5 whole ones, and one that is split; or 3 pairs, of which 2 are whole
    a, b = stored(m, k, order[0] == "t"), stored(k, n, order[1] == "t")
    bias = seeds.rng().standard_normal(n).astype(np.float32)
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    kernels = [last_wave.by_last_wave] * (width != 208) + [wide_tiles.by_wide_tiles] * (width != 256)
    for compute, cluster in itertools.product(kernels, (1, 2)):
        out = np.full((m, n), np.nan, np.float16) if whole_rows else np.full((n, m), np.nan, np.float16).T
        p = MatmulProblem.of(a, b, out, bias=bias, activation="relu")
        assert not isinstance(p.operand_blocks, str)
        assert compute(p, TileShape(128, width, 64, 8, 4, 3, cluster), 8) is out
        check(p, expected)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["nn", "tt"])
@pytest.mark.parametrize("tile", [(208, 128), (96, 256), (80, 64), (176, 128)], ids=str)
@pytest.mark.parametrize("whole_rows", [True, False])
def test_tiles_of_transposed_results_match_float64(order, tile, whole_rows):
    m, n, k = 600, 264, 200
    a, b = stored(m, k, order[0] == "t"), stored(k, n, order[1] == "t")
    bias = seeds.rng().standard_normal(n).astype(np.float32)
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    for cluster in (1, 2):
        out = np.full((m, n), np.nan, np.float16) if whole_rows else np.full((n, m), np.nan, np.float16).T
        p = MatmulProblem.of(a, b, out, bias=bias, activation="relu")
        assert wide_tiles.by_wide_tiles(p, TileShape(*tile, 64, 8, 3, 1, cluster), 8, swapped=True) is out
        check(p, expected)


@pytest.mark.parametrize("width", [256, 192, 208])
def test_parts_of_the_last_wave_are_stored_without_a_buffer_for_the_whole_tile(width):
    a, b, c = (np.zeros(shape, np.float16) for shape in ((4096, 4096), (4096, 3072), (4096, 3072)))
    compiled = last_wave.last_wave_kernel.compile(
        a, b, c, 4096, 3072, 4096, 4096, 3072, 3072, np.zeros(1, np.float32), 132, 60, 252, 2048,
        BLOCK_M=128, BLOCK_N=256, WIDTH=width, BLOCK_K=64, GROUP=8, PROGRAMS=132, SUM=bl.float32, num_warps=8, num_stages=4,
    )  # fmt: skip
    notes = [note.text for stage in compiled.trace.stages for note in stage.notes]
    assert any("4 stages of 32768 bytes" in text for text in notes), "a buffer for the tile would leave room for two"
    assert compiled.n_spills == 0
