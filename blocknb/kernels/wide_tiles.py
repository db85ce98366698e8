"""Products in tiles whose columns are no power of two, such as 192: each step along K multiplies two blocks of columns.

A tile of 128 by 192 is two results in registers, 128 by 128 and 128 by 64, which share the first operand. More widths of tiles let more
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
def matmul_wide_kernel(
    a, b, c, m, n, k, a_step, b_step, c_step,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, MORE_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    TRANS_A: bl.constexpr = False, TRANS_B: bl.constexpr = False,
    bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False, ACTIVATION: bl.constexpr = "",
    SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", c_column=None, CLUSTER: bl.constexpr = 1,
):  # fmt: skip
    """Computes one tile of BLOCK_M by BLOCK_N + MORE_N per program; arguments as for `matmul_descriptor_kernel`."""
    a_blocks = operand_descriptor(a, m, k, a_step, BLOCK_M, BLOCK_K, TRANS_A)
    b_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, BLOCK_N, TRANS_B)
    more_blocks = operand_descriptor(b, k, n, b_step, BLOCK_K, MORE_N, TRANS_B)
    tile_m, tile_n = place_of_pair(bl.program_id(0), m, n, BLOCK_M, BLOCK_N + MORE_N, GROUP, CLUSTER)
    row, column = tile_m * BLOCK_M, tile_n * (BLOCK_N + MORE_N)
    second = column + BLOCK_N
    total, more = bl.zeros((BLOCK_M, BLOCK_N), SUM), bl.zeros((BLOCK_M, MORE_N), SUM)
    for inner in range(0, k, BLOCK_K):
        x = a_blocks.load([inner, row]).T if TRANS_A else a_blocks.load([row, inner])
        y = b_blocks.load([column, inner]).T if TRANS_B else b_blocks.load([inner, column])
        z = more_blocks.load([second, inner]).T if TRANS_B else more_blocks.load([inner, second])
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        more = bl.dot(x, z, more, input_precision=PRECISION, out_dtype=SUM)
    rows = row + bl.arange(0, BLOCK_M)
    columns, others = column + bl.arange(0, BLOCK_N), second + bl.arange(0, MORE_N)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION).to(c.dtype.element_ty)
    more = finish(more, rows, others, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION).to(c.dtype.element_ty)
    if c_column is None:
        c_blocks = bl.make_tensor_descriptor(c, [m, n], [c_step, 1], [BLOCK_M, BLOCK_N])
        c_blocks.store([row, column], total)
        c_more = bl.make_tensor_descriptor(c, [m, n], [c_step, 1], [BLOCK_M, MORE_N])
        c_more.store([row, second], more)
    else:
        start, step = c + rows[:, None].to(bl.int64) * c_step, c_column.to(bl.int64)
        bl.store(start + columns[None, :] * step, total, mask=(rows[:, None] < m) & (columns[None, :] < n))
        bl.store(start + others[None, :] * step, more, mask=(rows[:, None] < m) & (others[None, :] < n))


def blocks_of(width: int) -> tuple[int, int]:
    """The widths of the two blocks of columns of a tile: the larger one is a power of two, and the other is 0 if the width is one, too."""
    first = 1 << (width.bit_length() - 1)
    return first, width - first


def by_wide_tiles(p: MatmulProblem, t: TileShape, group: int) -> Any:
    """Computes a single non-empty product of described operands with tiles of t.m by t.n, t.n being no power of two; returns its result."""
    given, named = arguments(p)
    block, more = blocks_of(t.n)
    matmul_wide_kernel[programs(p.m, p.n, t),](
        *given, **named, BLOCK_M=t.m, BLOCK_N=block, MORE_N=more, BLOCK_K=t.k, GROUP=group, CLUSTER=t.cluster, **t.options
    )  # fmt: skip
    return p.out
