"""Products in tiles whose columns are no power of two, such as 208: the tile in registers is wider than the tile of the result.

The sizes of tiles are powers of two. So a tile of 128 by 208 is the first 208 columns of a product of 128 by 256. The kernel stores them
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

MOST_ELEMENTS = bl.constexpr(8192)  # of a block of a transposed product, so that shared memory has room for two


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
def halves(total, AXIS: bl.constexpr):
    """The two halves of a tile along an axis."""
    ROWS: bl.constexpr = total.shape[0]
    COLUMNS: bl.constexpr = total.shape[1]
    if AXIS:
        both = bl.permute(bl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1))
    else:
        both = bl.permute(bl.reshape(total, (2, ROWS // 2, COLUMNS)), (1, 2, 0))
    return bl.split(both)


@blocknb.kernel
def store_rows(c, m, n, c_step, c_column, row, column, total):
    """Stores a block, some rows at a time. Threads hold the columns of such a tile, so it goes through a buffer."""
    blocks = (total,)
    for _ in bl.static_range(3):
        if blocks[0].numel > MOST_ELEMENTS:
            smaller = ()
            for i in bl.static_range(len(blocks)):
                upper, lower = halves(blocks[i], 0)
                smaller += (upper, lower)
            blocks = smaller
    for i in bl.static_range(len(blocks)):
        store_block(c, m, n, c_step, c_column, row + i * blocks[i].shape[0], column, blocks[i])


@blocknb.kernel
def store_part(c, m, n, c_step, c_column, row, column, total, WIDTH: bl.constexpr, AXIS: bl.constexpr = 1):
    """Stores the first WIDTH columns (AXIS 1) or rows (AXIS 0) of a tile of the (m, n) result. A block has a power of two of them."""
    rest, at = total, 0
    if WIDTH == total.shape[AXIS]:
        if AXIS:
            store_block(c, m, n, c_step, c_column, row, column, rest)
        else:
            store_rows(c, m, n, c_step, c_column, row, column, rest)
    for bit in bl.static_range(8):
        HALF: bl.constexpr = 128 >> bit
        if rest.shape[AXIS] > HALF and WIDTH % (2 * HALF):
            rest, right = halves(rest, AXIS)
            if WIDTH & HALF:
                if AXIS:
                    store_block(c, m, n, c_step, c_column, row, column + at, rest)
                else:
                    store_rows(c, m, n, c_step, c_column, row + at, column, rest)
                rest, at = right, at + HALF


@blocknb.kernel
def product(
    total, a_blocks, b_blocks, row, column, k, BLOCK_K: bl.constexpr, TRANS_A: bl.constexpr, TRANS_B: bl.constexpr,
    PRECISION: bl.constexpr, TRANSPOSED: bl.constexpr = False,
):  # fmt: skip
    """Adds the product of the rows of a from `row` on and the columns of b from `column` on. TRANSPOSED: total is the transposed tile."""
    for inner in range(0, k, BLOCK_K):
        x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
        y = b_blocks.load([column, inner]).T if TRANS_B else b_blocks.load([inner, column])
        if TRANSPOSED:
            total = bl.dot(y.T, x.T, total, input_precision=PRECISION, out_dtype=total.dtype)
        else:
            total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=total.dtype)
    return total


@blocknb.kernel
def matmul_wide_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, WIDTH: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", c_column=None, CLUSTER: bl.constexpr = 1,
):  # fmt: skip
    """Computes a tile of BLOCK_M by WIDTH per program, in a product of BLOCK_M by BLOCK_N. Other arguments are as for
    `matmul_descriptor_kernel`."""
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    tile_m, tile_n = place_of_pair(bl.program_id(0), m, n, BLOCK_M, WIDTH, GROUP, CLUSTER)
    row, column = tile_m * BLOCK_M, tile_n * WIDTH
    total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
    total = product(total, a_blocks, b_blocks, row, column, k, BLOCK_K, TRANS_A, TRANS_B, PRECISION)
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    store_part(c, m, n, c_step, c_column, row, column, total.to(c.dtype.element_ty), WIDTH)


@blocknb.kernel
def matmul_high_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step,
    BLOCK_M: bl.constexpr, HEIGHT: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", c_column=None, CLUSTER: bl.constexpr = 1,
):  # fmt: skip
    """Computes a tile of HEIGHT by BLOCK_N per program, in a transposed product of BLOCK_N by BLOCK_M. Other arguments are as for
    `matmul_descriptor_kernel`."""
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    tile_m, tile_n = place_of_pair(bl.program_id(0), m, n, HEIGHT, BLOCK_N, GROUP, CLUSTER)
    row, column = tile_m * HEIGHT, tile_n * BLOCK_N
    total = bl.zeros((BLOCK_N, BLOCK_M), SUM)
    total = product(total, a_blocks, b_blocks, row, column, k, BLOCK_K, TRANS_A, TRANS_B, PRECISION, True)
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION, True)
    store_part(c, m, n, c_step, c_column, row, column, total.to(c.dtype.element_ty).T, HEIGHT, 0)


def by_wide_tiles(p: MatmulProblem, t: TileShape, group: int, swapped: bool = False) -> Any:
    """Computes a single non-empty product of described operands with tiles of t.m by t.n, and returns its result.

    t.n may be any multiple of 16 up to 256. With `swapped`, the kernel computes the transposed result, and t.m may be such a multiple."""
    given, named = arguments(p)
    named |= {"BLOCK_K": t.k, "CLUSTER": t.cluster, **t.options}
    grid = (programs(p.m, p.n, t),)
    if swapped:
        group = max(t.cluster, group // 2) if t.m > t.n else group
        matmul_high_kernel[grid](
            *given, **named, BLOCK_M=blocknb.next_power_of_2(t.m), HEIGHT=t.m, BLOCK_N=t.n, GROUP=group
        )
    else:
        matmul_wide_kernel[grid](
            *given, **named, BLOCK_M=t.m, BLOCK_N=blocknb.next_power_of_2(t.n), WIDTH=t.n, GROUP=group
        )
    return p.out
