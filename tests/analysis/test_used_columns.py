"""The columns of a product that a kernel uses, and what becomes of the others: no instruction, no copy, no count of operations."""

from __future__ import annotations

import re

import numpy as np
import pytest

import blocknb
import blocknb.language as bl
from blocknb.analysis.used_columns import UsedColumns
from blocknb.kernels.wide_tiles import matmul_wide_kernel, store_part

SIZE = 1024


@blocknb.kernel
def product(a, b, k, b_row, b_column, SUM: bl.constexpr = bl.float32):
    """The product of (64, k) and (k, 128) matrices; `b_row` and `b_column` are the steps of the second in elements."""
    rows, columns, inner = bl.arange(0, 64), bl.arange(0, 128), bl.arange(0, 64)
    total = bl.zeros((64, 128), SUM)
    for start in range(0, k, 64):
        x = bl.load(a + rows[:, None] * k + start + inner[None, :])
        y = bl.load(b + (start + inner[:, None]) * b_row + columns[None, :] * b_column)
        total = bl.dot(x, y, total)
    return total


@blocknb.kernel
def halves(a, b, c, n, k, WHOLE: bl.constexpr, FIRST: bl.constexpr, BIAS: bl.constexpr):
    columns = bl.arange(0, 128)
    total = product(a, b, k, n, 1)
    if BIAS:
        total += bl.load(c + columns)[None, :]
    if WHOLE:
        total = bl.maximum(total, bl.max(total, 1)[:, None])  # needs all columns
    left, right = bl.split(bl.permute(bl.reshape(total.to(bl.float16), (64, 2, 64)), (0, 2, 1)))
    store_part(c, 64, n, n, None, 0, 0, left if FIRST else right, 48)


@blocknb.kernel
def joined_halves(a, b, c, n, k):
    """Adds the first half of the columns to the second one, which is taken from the result by an op of its own."""
    total = product(a, b, k, n, 1)
    _, right = bl.split(bl.permute(bl.reshape(total * 3, (64, 2, 64)), (0, 2, 1)))
    left, _ = bl.split(bl.permute(bl.reshape(total + 1, (64, 2, 64)), (0, 2, 1)))
    store_part(c, 64, n, n, None, 0, 0, left + right, 64)


@blocknb.kernel
def integer_columns(a, b, c, n, k, WIDTH: bl.constexpr):
    total = product(a, b, k, 1, k, bl.int32)
    store_part(c, 64, n, n, None, 0, 0, total, WIDTH)


def products(compiled):
    func = next(stage for stage in compiled.trace.stages if stage.name == "simplify").after
    return [UsedColumns(func).of(op) for op in func.ops() if op.name == "dot"]


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"FIRST": True}, 48),
        ({"FIRST": False}, 112),  # the first 64 columns lie before the used ones
        ({"FIRST": True, "BIAS": True}, 48),
        ({"FIRST": True, "WHOLE": True}, 128),
    ],
)
def test_used_columns_are_found_through_splits_and_elementwise_ops(options, used):
    a = np.zeros((SIZE, SIZE), np.float16)
    chosen = {"WHOLE": False, "BIAS": False, **options}
    compiled = halves.compile(a, a, a, SIZE, SIZE, **chosen, num_warps=4, target="sm_90a")
    assert products(compiled) == [used]
    assert set(re.findall(r"wgmma\.mma_async\.\S+\.(m64n\d+)k16", compiled.asm["ptx"])) == {f"m64n{used}"}


@blocknb.kernel
def chosen(a, am, b, bm):
    return bl.where(am, a, b), am | bm


@blocknb.kernel
def reduced_columns(a, b, c, n, k, ACROSS: bl.constexpr):
    """Reduces a product as `bl.split` does: along the axis of the marks, or across it, which takes elements of all columns."""
    rows, columns = bl.arange(0, 64), bl.arange(0, 128)
    total = product(a, b, k, n, 1)
    if ACROSS:
        marks = bl.broadcast_to((rows == 3)[:, None], 64, 128)
    else:
        marks = bl.broadcast_to((columns == 3)[None, :], 64, 128)
    value, _ = bl.reduce((total, marks), 1, chosen)
    bl.store(c + rows, value)


@pytest.mark.parametrize(("across", "used"), [(False, 4), (True, 128)])
def test_a_reduction_takes_one_column_if_its_marks_are_along_its_axis(across, used):
    a, c = np.zeros((SIZE, SIZE), np.float16), np.zeros((SIZE, SIZE), np.float32)
    compiled = reduced_columns.compile(a, a, c, SIZE, SIZE, ACROSS=across, num_warps=4, target="sm_90a")
    assert products(compiled) == [used]


def test_halves_that_an_op_joins_are_both_used():
    a = np.zeros((SIZE, SIZE), np.float16)
    compiled = joined_halves.compile(a, a, a, SIZE, SIZE, num_warps=4, target="sm_90a")
    assert products(compiled) == [128]


@pytest.mark.parametrize(("width", "columns"), [(24, 24), (40, 48), (48, 48), (104, 112)])
def test_integer_products_take_the_columns_that_their_instruction_has(width, columns):
    a, c = np.zeros((SIZE, SIZE), np.int8), np.zeros((SIZE, SIZE), np.int32)
    compiled = integer_columns.compile(a, a, c, SIZE, SIZE, WIDTH=width, num_warps=4, target="sm_90a")
    assert set(re.findall(r"wgmma\.mma_async\.\S+\.(m64n\d+)k32", compiled.asm["ptx"])) == {f"m64n{columns}"}
    assert compiled.asm["cubin"]


def wide(width: int, transposed: bool = False, **options):
    a = np.zeros((SIZE, SIZE), np.float16)
    block = blocknb.next_power_of_2(width)
    return matmul_wide_kernel.compile(
        a, a, a, *(SIZE,) * 6, BLOCK_M=128, BLOCK_N=block, WIDTH=width, BLOCK_K=64, GROUP=8, TRANS_B=transposed,
        num_warps=8, num_stages=4, target="sm_90a", **options,
    )  # fmt: skip


@pytest.mark.parametrize(("width", "transposed", "copied"), [(208, False, 256), (160, False, 192), (208, True, 208)])
def test_a_tile_of_any_width_takes_one_instruction_per_step_and_the_copies_that_it_reads(width, transposed, copied):
    ptx = wide(width, transposed).asm["ptx"]
    assert len(re.findall(rf"wgmma\.mma_async\S*m64n{width}k16", ptx)) == 4  # for 64 elements along K
    assert re.findall(r"expect_tx\S* _, \[\S+\], (\d+)", ptx) == [str((128 + copied) * 64 * 2)]


def test_a_cluster_copies_an_odd_number_of_panels_in_halves_along_k():
    ptx = wide(160, CLUSTER=2, num_ctas=2).asm["ptx"]
    assert ptx.count("multicast::cluster") == 3
    assert re.findall(r"expect_tx\S* _, \[\S+\], (\d+)", ptx) == [str((128 + 192) * 64 * 2)]


def test_a_tile_of_208_columns_is_stored_by_tma_from_one_buffer_per_shape():
    compiled = wide(208)
    notes = [note.text for stage in compiled.trace.stages if stage.name == "tma_store" for note in stage.notes]
    assert notes and all(text.startswith("store: by TMA from a buffer") for text in notes)
    assert compiled.n_spills == 0
