"""Products whose last wave of tiles is split along K, so that all multiprocessors have work until the end.

The tiles of a product rarely fill whole waves. Whole waves compute one tile per program. The tiles of the last wave, fewer than there are
multiprocessors, are split along K, and a second launch adds up their parts. Source: Osama et al., "Stream-K" (PPoPP 2023), its hybrid of
whole tiles and split tiles.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.descriptors import arguments
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import TileShape
from blocknb.kernels.strides import device, empty
from blocknb.kernels.tiling import finish, operand_descriptor, place
from blocknb.kernels.wide_tiles import store_part

ROWS = 4  # of a tile, per program of the second launch


@blocknb.kernel(do_not_specialize=("m", "whole", "split", "units", "length"))
def last_wave_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step, parts, whole, split, units, length,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, WIDTH: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    PROGRAMS: bl.constexpr, TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", c_column=None, CLUSTER: bl.constexpr = 1,
):  # fmt: skip
    """Loops over `units`: first `whole` tiles of the result, then the parts along K of the last `split` tiles.

    Tiles are BLOCK_M by WIDTH, in products of BLOCK_M by BLOCK_N. A part of `length` elements of K goes to `parts`, of (parts * BLOCK_M)
    rows by WIDTH columns. Part i belongs to the tile whole + i % split. With a CLUSTER of 2, a unit is two tiles below each other, for
    programs 2i and 2i + 1.
    """
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    rank = bl.program_id(0) % CLUSTER
    for unit in bl.range(bl.program_id(0) // CLUSTER, units, PROGRAMS // CLUSTER):
        part, tile, first, last = unit - whole, unit, 0, k
        if part >= 0:
            tile = whole + part % split
            first = part // split * length
            last = min(first + length, k)
        tile_m, tile_n = place(tile, m, n, CLUSTER * BLOCK_M, WIDTH, GROUP // CLUSTER)
        row, column = (tile_m * CLUSTER + rank) * BLOCK_M, tile_n * WIDTH
        total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
        for inner in range(first, last, BLOCK_K):
            x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
            y = b_blocks.load([column, inner]).T if TRANS_B else b_blocks.load([inner, column])
            total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        if part >= 0:
            kept = parts + (part.to(bl.int64) * CLUSTER + rank) * (BLOCK_M * WIDTH)
            store_part(kept, BLOCK_M, WIDTH, WIDTH, 1, 0, 0, total, WIDTH)
        else:
            rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
            out = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION).to(c.dtype.element_ty)
            store_part(c, m, n, c_step, c_column, row, column, out, WIDTH)


@blocknb.kernel(do_not_specialize=("m", "whole", "split", "splits"))
def last_wave_sum_kernel(
    parts, c, m, n, whole, split, splits, c_row, c_column, bias, a_scale, b_scale, BY_ROW: bl.constexpr,
    ACTIVATION: bl.constexpr, BLOCK_M: bl.constexpr, WIDTH: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr,
    GROUP: bl.constexpr, SUM: bl.constexpr, AHEAD: bl.constexpr = 4, CLUSTER: bl.constexpr = 1,
):  # fmt: skip
    """Computes ROWS rows of a tile of c = epilogue(sum of its parts). COLUMNS is a power of two, not below WIDTH."""
    which = bl.program_id(1)
    tile_m, tile_n = place(whole + which // CLUSTER, m, n, CLUSTER * BLOCK_M, WIDTH, GROUP // CLUSTER)
    high, across = bl.program_id(0) * ROWS + bl.arange(0, ROWS), bl.arange(0, COLUMNS)
    rows, columns = (tile_m * CLUSTER + which % CLUSTER) * BLOCK_M + high, tile_n * WIDTH + across
    inside = (rows[:, None] < m) & ((across < WIDTH) & (columns < n))[None, :]
    tile = parts + (which.to(bl.int64) * BLOCK_M + high)[:, None] * WIDTH + across[None, :]
    total = bl.zeros((ROWS, COLUMNS), SUM)
    for i in bl.range(splits, num_stages=AHEAD):
        total += bl.load(tile + i * split.to(bl.int64) * (CLUSTER * BLOCK_M * WIDTH), mask=inside, other=0.0)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    bl.store(c + rows[:, None].to(bl.int64) * c_row + columns[None, :].to(bl.int64) * c_column, total, mask=inside)


def by_last_wave(p: MatmulProblem, t: TileShape, group: int) -> Any:
    """Computes a single non-empty product of described operands; returns its result. The tiles of the last wave, or all tiles if they
    fill no wave, have `t.splits` parts along K at most."""
    together = device(p.a).processors // t.cluster  # clusters
    given, named = arguments(p)
    tiles = blocknb.cdiv(p.m, t.cluster * t.m) * blocknb.cdiv(p.n, t.n)  # of a cluster
    whole = tiles // together * together
    split = tiles - whole
    length = blocknb.cdiv(blocknb.cdiv(p.k, t.k), t.splits) * t.k
    splits = blocknb.cdiv(p.k, length)
    parts = empty(p.a, (max(1, t.cluster * split * splits * t.m * t.n),), p.sum)
    units = whole + split * splits
    last_wave_kernel[t.cluster * min(together, units),](
        *given, parts, whole, split, units, length, **named, BLOCK_M=t.m, BLOCK_N=blocknb.next_power_of_2(t.n), WIDTH=t.n,
        BLOCK_K=t.k, GROUP=group, PROGRAMS=t.cluster * together, CLUSTER=t.cluster, **t.options,
    )  # fmt: skip
    if split:
        last_wave_sum_kernel[t.m // ROWS, t.cluster * split](
            parts, p.out, p.m, p.n, whole, split, splits, *p.out_strides[1:], **p.epilogue, BLOCK_M=t.m, WIDTH=t.n, ROWS=ROWS,
            COLUMNS=blocknb.next_power_of_2(t.n), GROUP=group, SUM=named["SUM"], CLUSTER=t.cluster, num_warps=4,
        )  # fmt: skip
    return p.out
