"""Products in tiles whose columns are no power of two, such as 192: each step along K multiplies two or three blocks of columns.

A tile of 128 by 192 is two results in registers, 128 by 128 and 128 by 64, which share the first operand; 208 columns are a third one, 128
by 16. More widths of tiles let more
shapes fill whole waves of CTAs. wgmma reads fewer bytes of shared memory per product for wider tiles.
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
def store_block(c, c_step, c_column, row, column, total, epilogue):
    """Stores a block of the result at a row and column; `epilogue` has the arguments of `finish` from the size of the result on."""
    ROWS: bl.constexpr = total.shape[0]
    COLUMNS: bl.constexpr = total.shape[1]
    m, n, bias, a_scale, b_scale, by_row, activation = epilogue
    rows, columns = row + bl.arange(0, ROWS), column + bl.arange(0, COLUMNS)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, by_row, activation).to(c.dtype.element_ty)
    if c_column is None:
        blocks = bl.make_tensor_descriptor(c, [m, n], [c_step, 1], [ROWS, COLUMNS])
        blocks.store([row, column], total)
    else:
        to = c + rows[:, None].to(bl.int64) * c_step + columns[None, :].to(bl.int64) * c_column
        bl.store(to, total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@blocknb.kernel
def matmul_wide_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, MORE_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", c_column=None, CLUSTER: bl.constexpr = 1,
    LAST_N: bl.constexpr = 0,
):  # fmt: skip
    """Computes one tile of BLOCK_M by BLOCK_N + MORE_N + LAST_N per program; arguments as for `matmul_descriptor_kernel`."""
    WIDTH: bl.constexpr = BLOCK_N + MORE_N + LAST_N
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    more_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, MORE_N, TRANS_B)
    tile_m, tile_n = place_of_pair(bl.program_id(0), m, n, BLOCK_M, WIDTH, GROUP, CLUSTER)
    row, column = tile_m * BLOCK_M, tile_n * WIDTH
    second, third = column + BLOCK_N, column + BLOCK_N + MORE_N
    total, more = bl.zeros((BLOCK_M, BLOCK_N), SUM), bl.zeros((BLOCK_M, MORE_N), SUM)
    if LAST_N:
        last_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, LAST_N, TRANS_B)
        last = bl.zeros((BLOCK_M, LAST_N), SUM)
    for inner in range(0, k, BLOCK_K):
        x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
        y = b_blocks.load([column, inner]).T if TRANS_B else b_blocks.load([inner, column])
        z = more_blocks.load([second, inner]).T if TRANS_B else more_blocks.load([inner, second])
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        more = bl.dot(x, z, more, input_precision=PRECISION, out_dtype=SUM)
        if LAST_N:
            u = last_blocks.load([third, inner]).T if TRANS_B else last_blocks.load([inner, third])
            last = bl.dot(x, u, last, input_precision=PRECISION, out_dtype=SUM)
    epilogue = (m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    store_block(c, c_step, c_column, row, column, total, epilogue)
    store_block(c, c_step, c_column, row, second, more, epilogue)
    if LAST_N:
        store_block(c, c_step, c_column, row, third, last, epilogue)


def blocks_of(width: int) -> tuple[int, int, int]:
    """The widths of the blocks of columns of a tile: powers of two, the largest one first. A 0 stands for each missing block."""
    found = [1 << bit for bit in reversed(range(width.bit_length())) if width >> bit & 1]
    first, more, last = found + [0] * (3 - len(found))
    return first, more, last


def by_wide_tiles(p: MatmulProblem, t: TileShape, group: int) -> Any:
    """Computes a single non-empty product of described operands with tiles of t.m by t.n, t.n being no power of two; returns its result."""
    given, named = arguments(p)
    block, more, last = blocks_of(t.n)
    matmul_wide_kernel[programs(p.m, p.n, t),](
        *given, **named, BLOCK_M=t.m, BLOCK_N=block, MORE_N=more, LAST_N=last, BLOCK_K=t.k, GROUP=group, CLUSTER=t.cluster, **t.options
    )  # fmt: skip
    return p.out
