"""Split-K: a product whose result has too few tiles for all multiprocessors is split along K, and a second launch adds the parts.

A workspace holds the partial sums tile by tile. The second kernel adds them in the order of K, so that every run gives the same result.
Atomic additions to the result would save the second launch. But they round differently in each run, and need a zeroed fp32 result. They
also leave no place for the epilogue (activation, conversion), which the second kernel computes here.
"""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.operands import DESCRIPTORS_FROM, MatmulProblem
from blocknb.kernels.shapes import TileShape
from blocknb.kernels.strides import contiguous, device, dtype_name, empty
from blocknb.kernels.tiling import finish, operand_descriptor, place

ROWS, COLUMNS = 16, 128  # of the result, per program of the second launch


@blocknb.kernel
def split_kernel(
    a, b, parts, m, n, k, length, a_row, a_column, b_row, b_column, parts_row,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    SUM: bl.constexpr, PRECISION: bl.constexpr, FAR: bl.constexpr,
):  # fmt: skip
    """Computes parts[split] = a[:, K of the split] @ b[K of the split]; `length` is a multiple of BLOCK_K.

    Rows of parts are whole tiles.
    """
    tile_m, tile_n = place(bl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    rows, columns = tile_m * BLOCK_M + bl.arange(0, BLOCK_M), tile_n * BLOCK_N + bl.arange(0, BLOCK_N)
    inner, first = bl.arange(0, BLOCK_K), bl.program_id(1) * length
    if FAR:  # offsets do not fit 32 bits
        rows, columns, inner = rows.to(bl.int64), columns.to(bl.int64), inner.to(bl.int64)
    total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
    for start in range(first, min(first + length, k), BLOCK_K):
        at = start + inner
        a_tile = a + rows[:, None] * a_row + at[None, :] * a_column
        b_tile = b + at[:, None] * b_row + columns[None, :] * b_column
        x = bl.load(a_tile, mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        y = bl.load(b_tile, mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0)
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
    down = bl.program_id(1).to(bl.int64) * (bl.cdiv(m, BLOCK_M) * BLOCK_M) + rows
    bl.store(parts + down[:, None] * parts_row + columns[None, :], total)


@blocknb.kernel
def split_descriptor_kernel(
    a, b, parts, m, n, k, length, a_step, b_step, parts_row,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr, TRANS_B: bl.constexpr, SUM: bl.constexpr, PRECISION: bl.constexpr,
):  # fmt: skip
    """Does the same as `split_kernel` for operands that tensor descriptors describe."""
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    tile_m, tile_n = place(bl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    row, column, first = tile_m * BLOCK_M, tile_n * BLOCK_N, bl.program_id(1) * length
    total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
    for inner in range(first, min(first + length, k), BLOCK_K):
        x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
        y = b_blocks.load([column, inner]).T if TRANS_B else b_blocks.load([inner, column])
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
    down = bl.program_id(1).to(bl.int64) * (bl.cdiv(m, BLOCK_M) * BLOCK_M) + row + bl.arange(0, BLOCK_M)
    bl.store(parts + down[:, None] * parts_row + (column + bl.arange(0, BLOCK_N))[None, :], total)


@blocknb.kernel
def sum_kernel(
    parts, c, m, n, splits, parts_apart, parts_row, c_row, c_column, bias, a_scale, b_scale, BY_ROW: bl.constexpr,
    ACTIVATION: bl.constexpr, ROWS: bl.constexpr, COLUMNS: bl.constexpr, SUM: bl.constexpr,
):  # fmt: skip
    """Computes c = epilogue(sum of the parts), which lie `parts_apart` elements apart."""
    rows, columns = bl.program_id(0) * ROWS + bl.arange(0, ROWS), bl.program_id(1) * COLUMNS + bl.arange(0, COLUMNS)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tile = parts + rows[:, None].to(bl.int64) * parts_row + columns[None, :]
    total = bl.zeros((ROWS, COLUMNS), SUM)
    for _ in range(splits):
        total += bl.load(tile, mask=inside, other=0.0)
        tile += parts_apart
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    bl.store(c + rows[:, None].to(bl.int64) * c_row + columns[None, :].to(bl.int64) * c_column, total, mask=inside)


def matmul_split(
    a: Any, b: Any, out: Any = None, *, splits: int, tile: tuple[int, ...] | TileShape | None = None, group: int = 8,
    num_warps: int | None = None, num_stages: int | None = None, workspace: Any = None, **rest: Any,
) -> Any:  # fmt: skip
    """Computes out = a @ b in at most `splits` parts along K, with the same result in every run; other arguments as for `matmul`. Returns
    `out`.

    `workspace` has the dtype of the sums and `splits` times the elements of the result in whole tiles; it is allocated for None. Raises
    ValueError for batches, which are not split.
    """
    p = MatmulProblem.of(a, b, out, **rest)
    if p.batched or splits < 1:
        raise ValueError(
            f"cannot split {'a batch' if p.batched else f'a product into {splits} parts'}; use matmul, which does not split it"
        )
    return (
        p.out if p.empty else by_parts(p, p.tile(tile, num_warps, num_stages)._replace(splits=splits), group, workspace)
    )


def by_parts(p: MatmulProblem, t: TileShape, group: int, workspace: Any = None) -> Any:
    """Computes a single non-empty product with these tiles and parts; returns its result."""
    steps = max(1, blocknb.cdiv(p.k, t.k))
    length = blocknb.cdiv(steps, t.splits) * t.k
    splits = max(1, blocknb.cdiv(p.k, length))
    tiles = blocknb.cdiv(p.m, t.m), blocknb.cdiv(p.n, t.n)
    high, wide = tiles[0] * t.m, tiles[1] * t.n
    needed = splits * high * wide
    if workspace is None:
        workspace = empty(p.a, (needed,), p.sum)
    elif dtype_name(workspace) != p.sum or math.prod(workspace.shape) < needed or not contiguous(workspace):
        raise ValueError(f"the workspace must be {needed} contiguous elements of {p.sum}, not {tuple(workspace.shape)}")
    named = {
        "BLOCK_M": t.m,
        "BLOCK_N": t.n,
        "BLOCK_K": t.k,
        "GROUP": group,
        "SUM": getattr(bl, p.sum),
        "PRECISION": p.precision,
    }
    grid = tiles[0] * tiles[1], splits
    if device(p.a).capability >= DESCRIPTORS_FROM and p.itemsize == 2 and not isinstance(p.operand_blocks, str):
        left, right = p.operand_blocks
        split_descriptor_kernel[grid](
            p.a, p.b, workspace, p.m, p.n, p.k, length, left.step, right.step, wide,
            TRANS_A=left.transposed, TRANS_B=right.transposed, **named, **t.options,
        )  # fmt: skip
    else:
        split_kernel[grid](
            p.a, p.b, workspace, p.m, p.n, p.k, length, *p.a_strides[1:], *p.b_strides[1:], wide, FAR=p.far, **named, **t.options
        )  # fmt: skip
    sum_kernel[blocknb.cdiv(p.m, ROWS), blocknb.cdiv(p.n, COLUMNS)](
        workspace, p.out, p.m, p.n, splits, high * wide, wide, *p.out_strides[1:], **p.epilogue,
        ROWS=ROWS, COLUMNS=COLUMNS, SUM=getattr(bl, p.sum), num_warps=4,
    )  # fmt: skip
    return p.out
