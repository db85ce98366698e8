"""Products of a row vector by a matrix of contiguous columns, which read each element of the matrix once: memory bandwidth is the limit.

Decoding with a batch of one is such a product. A program computes some elements of the result: it multiplies columns of the matrix by the
vector, and adds up along K in fp32. A matrix of contiguous rows is faster with the kernel of few rows (`shapes.plan`), whose copies by
TMA need no threads.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.tiling import STREAMED, finish

COLUMNS, MOST_DEPTH = 2, 4096  # of a program's tile
#: Passes that are switched off. `early_loads` raises the registers per thread from 126 to 180, which lowers the occupancy: on an H200 the
#: kernel was 15 to 24 % slower.
SWITCHED_OFF = ("early_loads",)


@blocknb.kernel
def matvec_kernel(
    a, b, c, n, k, a_column, b_column, c_column, bias, a_scale, b_scale, BY_ROW: bl.constexpr, ACTIVATION: bl.constexpr,
    BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, KEEP: bl.constexpr,
):  # fmt: skip
    """Computes BLOCK_N elements of c = epilogue(a @ b)."""
    columns, inner = bl.program_id(0) * BLOCK_N + bl.arange(0, BLOCK_N), bl.arange(0, BLOCK_K)
    total = bl.zeros((BLOCK_N, BLOCK_K), bl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + inner
        x = bl.load(a + at * a_column, mask=at < k, other=0.0).to(bl.float32)
        tile = b + columns[:, None].to(bl.int64) * b_column + at[None, :]
        y = bl.load(tile, mask=(columns[:, None] < n) & (at[None, :] < k), other=0.0, eviction_policy=KEEP)
        total += x[None, :] * y.to(bl.float32)
    row = finish(bl.sum(total, 1)[None, :], bl.arange(0, 1), columns, 1, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    bl.store(c + columns[None, :].to(bl.int64) * c_column, row.to(c.dtype.element_ty), mask=columns[None, :] < n)


def matvec(p: MatmulProblem) -> Any:
    """Computes a product whose first operand is one row (`MatmulProblem.is_vector`); returns its result."""
    depth = max(64, min(MOST_DEPTH, blocknb.next_power_of_2(p.k)))
    matvec_kernel[blocknb.cdiv(p.n, COLUMNS),](
        p.a, p.b, p.out, p.n, p.k, p.a_strides[2], p.b_strides[2], p.out_strides[2], **p.epilogue,
        BLOCK_N=COLUMNS, BLOCK_K=depth, KEEP=STREAMED, num_warps=4, without=SWITCHED_OFF,
    )  # fmt: skip
    return p.out
