"""Products by the plan for devices with TMA, run on the CPU: padded copies, results stored by pointers, splits, and products of a row."""

from __future__ import annotations

import numpy as np
import pytest
import seeds

from blocknb import kernels as ready
from blocknb.kernels import gemm, operands, padding, shapes, split_k
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import OperandRows
from blocknb.kernels.strides import Device

HOPPER = Device(132, 90, 227 << 10)
LINE_ALIGNED, UNALIGNED, COPYABLE, POINTERS_ONLY = OperandRows


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gemm, split_k):
        monkeypatch.setattr(module, "device", lambda array: HOPPER)


def stored(rows: int, columns: int, transposed: bool, pitch: int = 0) -> np.ndarray:
    """A random fp16 matrix, stored row by row or column by column, with rows `pitch` elements apart."""
    outer, inner = (columns, rows) if transposed else (rows, columns)
    found = seeds.rng().standard_normal((outer, max(pitch, inner))).astype(np.float16)[:, :inner]
    return found.T if transposed else found


def close(got: np.ndarray, a: np.ndarray, b: np.ndarray, tolerance: float = 2e-3) -> None:
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert got.shape == expected.shape
    assert np.abs(got.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()  # NaN fails


@pytest.mark.sampled(3, each=["m", "order"])
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("m", "n", "k"), [(129, 257, 1001), (200, 130, 77), (30, 515, 130), (10, 72, 1032)])
def test_products_of_any_size_match_float64(m, n, k, order):
    a, b = stored(m, k, order[0] == "t"), stored(k, n, order[1] == "t")
    close(ready.matmul(a, b, np.full((m, n), np.nan, np.float16)), a, b)
    out = np.full((n, m), np.nan, np.float32).T  # stored column by column: by pointers
    bias = seeds.rng().standard_normal(n).astype(np.float32)
    ready.matmul(a, b, out, bias=bias, activation="relu")
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    np.testing.assert_allclose(out, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize(("a", "b"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("order", ["nn", "tt"])
def test_padded_operands_hold_the_same_numbers_in_whole_lines(order, a, b):
    x, y = stored(67, 301, order[0] == "t"), stored(301, 77, order[1] == "t")
    before = MatmulProblem.of(x, y)
    after = padding.padded(before, a, b)
    for copied, old, new, steps in ((a, x, after.a, after.a_strides), (b, y, after.b, after.b_strides)):
        if not copied:
            assert new is old
            continue
        view = np.lib.stride_tricks.as_strided(new, old.shape, [2 * step for step in steps[1:]])
        np.testing.assert_array_equal(view, old)
        assert 2 * max(steps[1:]) % shapes.LINE == 0


@pytest.mark.sampled(2, each=["n", "order"])
@pytest.mark.parametrize("n", [1, 7, 130, 9000])
@pytest.mark.parametrize("order", ["n", "t"])
def test_products_of_a_row_match_float64(n, order):
    for k in (1, 63, 1030):
        a, b = stored(1, k, False), stored(k, n, order == "t")
        close(ready.matmul(a, b, np.full((1, n), np.nan, np.float16)), a, b)
        close(ready.matmul(a[:, ::-1], b, np.full((1, n), np.nan, np.float32)), a[:, ::-1], b)


def test_products_of_a_row_that_matvec_does_not_take_use_the_planned_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gemm, "matvec", None)  # a call of it would raise
    a, b = stored(1, 130, False), stored(130, 70, True)
    close(ready.matmul(a, b, np.full((1, 70), np.nan, np.float16), num_warps=8), a, b)
    far = np.lib.stride_tricks.as_strided(a, (1, 130), (2, 1 << 26))  # its last offset needs more than 32 bits
    assert MatmulProblem.of(a, b).is_vector and not MatmulProblem.of(far, b).is_vector


def test_splits_of_described_operands_match_float64():
    a, b = stored(40, 4200, False), stored(4200, 72, False)
    for splits in (2, 3):
        out = ready.matmul_split(a, b, np.full((40, 72), np.nan, np.float16), splits=splits, tile=(64, 64, 64))
        close(out, a, b)


def test_rows_of_operands_are_aligned_copyable_or_for_pointers_only():
    def rows(pitch: int) -> OperandRows:
        a = stored(64, 64, False, pitch)
        return MatmulProblem.of(a, stored(64, 64, False)).operand_rows[0]

    aligned = [pitch for pitch in (64, 72, 65, 128) if operands.address(stored(64, 64, False, pitch)) % 16 == 0]
    assert aligned, "NumPy aligns arrays to 16 bytes"
    assert rows(72) is UNALIGNED and UNALIGNED.cache_lines == 2  # 144 bytes: a multiple of 16, not of 128
    assert rows(65) is COPYABLE and COPYABLE.cache_lines == 0
    steps = np.lib.stride_tricks.as_strided(stored(256, 256, False), (64, 64), (1024, 4))
    assert MatmulProblem.of(steps, stored(64, 64, False)).operand_rows[0] is POINTERS_ONLY


def test_the_plan_copies_large_operands_only():
    def copied(size: int, rows: tuple[OperandRows, OperandRows]) -> tuple[bool, bool]:
        return shapes.plan(size, size, size, 2, HOPPER, rows, True).copied

    assert copied(4096, (LINE_ALIGNED, LINE_ALIGNED)) == (False, False)
    assert copied(4096, (UNALIGNED, UNALIGNED)) != (False, False)
    assert copied(3001, (COPYABLE, COPYABLE)) == (True, True)
    assert copied(3001, (POINTERS_ONLY, COPYABLE)) == (False, False)  # no copy could help the first operand
    assert copied(128, (COPYABLE, COPYABLE)) == (False, False)


def test_the_plan_of_few_rows_reads_deep_tiles_without_a_second_launch():
    for m, rows in ((2, 16), (17, 32), (64, 64)):
        chosen = shapes.plan(m, 4096, 4096, 2, HOPPER, (LINE_ALIGNED, LINE_ALIGNED), True)
        assert (*chosen.tile[:3], chosen.swapped) == (rows, 64, 128, rows < 64)
        assert shapes.plan(m, 4096, 14336, 2, HOPPER, (LINE_ALIGNED, LINE_ALIGNED), True).tile.splits == 1
    assert (
        shapes.plan(64, 512, 8192, 2, HOPPER, (LINE_ALIGNED, LINE_ALIGNED), True).tile.splits > 1
    )  # 8 tiles leave most multiprocessors idle
