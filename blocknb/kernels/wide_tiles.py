"""Products in tiles whose columns are no power of two, such as 208: the tile in registers is wider than the tile of the result.

The sizes of tiles are powers of two, so a tile of 128 by 208 is the first 208 columns of a product of 128 by 256. The kernel stores them
block by block: 128, 64 and 16 columns, which `tl.split` takes out of the product. The compiler sees that nothing uses the other columns,
and wgmma does not compute them. More widths of tiles let more shapes fill whole waves of CTAs.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.descriptors import arguments
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import TileShape
from blocknb.kernels.tiling import finish, operand_descriptor, place_of_pair, programs


@blocknb.kernel
def store_block(c, m, n, c_step, c_column, row, column, total):
    """Stores a block of the (m, n) result at a row and column."""
    ROWS: bl.constexpr = total.shape[0]
    COLUMNS: bl.constexpr = total.shape[1]
    if c_column is None:
        blocks = bl.make_tensor_descriptor(c, [m, n], [c_step, 1], [ROWS, COLUMNS])
        blocks.store([row, column], total)
    else:
        rows, columns = row + bl.arange(0, ROWS), column + bl.arange(0, COLUMNS)
        to = c + rows[:, None].to(bl.int64) * c_step + columns[None, :].to(bl.int64) * c_column
        bl.store(to, total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@blocknb.kernel
def store_columns(c, m, n, c_step, c_column, row, column, total, WIDTH: bl.constexpr):
    """Stores the first WIDTH columns of a tile of the (m, n) result, in blocks whose widths are powers of two."""
    ROWS: bl.constexpr = total.shape[0]
    rest, at = total, column
    if WIDTH == total.shape[1]:
        store_block(c, m, n, c_step, c_column, row, at, rest)
    for bit in bl.static_range(8):
        HALF: bl.constexpr = 128 >> bit
        if rest.shape[1] > HALF and WIDTH % (2 * HALF):
            left, right = bl.split(bl.permute(bl.reshape(rest, (ROWS, 2, HALF)), (0, 2, 1)))
            rest = left
            if WIDTH & HALF:
                store_block(c, m, n, c_step, c_column, row, at, left)
                at += HALF
                rest = right


@blocknb.kernel
def matmul_wide_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, WIDTH: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", c_column=None, CLUSTER: bl.constexpr = 1,
):  # fmt: skip
    """Computes a tile of BLOCK_M by WIDTH per program, in a product of BLOCK_M by BLOCK_N. See `matmul_descriptor_kernel`."""
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    tile_m, tile_n = place_of_pair(bl.program_id(0), m, n, BLOCK_M, WIDTH, GROUP, CLUSTER)
    row, column = tile_m * BLOCK_M, tile_n * WIDTH
    total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
    for inner in range(0, k, BLOCK_K):
        x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
        y = b_blocks.load([column, inner]).T if TRANS_B else b_blocks.load([inner, column])
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION).to(c.dtype.element_ty)
    store_columns(c, m, n, c_step, c_column, row, column, total, WIDTH)


def by_wide_tiles(p: MatmulProblem, t: TileShape, group: int) -> Any:
    """Computes a single non-empty product of described operands with tiles of t.m by t.n, t.n being no power of two; returns its result."""
    given, named = arguments(p)
    matmul_wide_kernel[programs(p.m, p.n, t),](
        *given, **named, BLOCK_M=t.m, BLOCK_N=blocknb.next_power_of_2(t.n), WIDTH=t.n, BLOCK_K=t.k, GROUP=group, CLUSTER=t.cluster,
        **t.options,
    )  # fmt: skip
    return p.out
