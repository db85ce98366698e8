"""Products of a row vector by a matrix, which read each element of the matrix once: memory bandwidth is the limit, not the tensor cores.

Decoding with a batch of one is such a product. Each program computes some elements of the result. It multiplies tiles of the matrix by a
piece of the vector, and adds up along K in fp32.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.strides import device
from blocknb.kernels.tiling import finish


@blocknb.kernel
def matvec_kernel(
    a, b, c, n, k, a_column, b_row, b_column, c_column, bias, a_scale, b_scale, BY_ROW: bl.constexpr, ACTIVATION: bl.constexpr,
    BLOCK_K: bl.constexpr, BLOCK_N: bl.constexpr, ALONG_K: bl.constexpr,
):  # fmt: skip
    """Computes BLOCK_N elements of c = epilogue(a @ b). ALONG_K: b is contiguous along K, and its tiles have the shape (N, K)."""
    columns, inner = bl.program_id(0) * BLOCK_N + bl.arange(0, BLOCK_N), bl.arange(0, BLOCK_K)
    total = bl.zeros((BLOCK_N, BLOCK_K) if ALONG_K else (BLOCK_K, BLOCK_N), bl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + inner
        x = bl.load(a + at * a_column, mask=at < k, other=0.0).to(bl.float32)
        if ALONG_K:
            tile = b + columns[:, None].to(bl.int64) * b_column + at[None, :]
            y = bl.load(tile, mask=(columns[:, None] < n) & (at[None, :] < k), other=0.0)
            total += x[None, :] * y.to(bl.float32)
        else:
            tile = b + at[:, None].to(bl.int64) * b_row + columns[None, :]
            y = bl.load(tile, mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0)
            total += x[:, None] * y.to(bl.float32)
    row = bl.sum(total, 1 if ALONG_K else 0)[None, :]
    row = finish(row, bl.arange(0, 1), columns, 1, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    bl.store(c + columns[None, :].to(bl.int64) * c_column, row.to(c.dtype.element_ty), mask=columns[None, :] < n)


def matvec(p: MatmulProblem) -> Any:
    """Computes a product whose first operand is one row (`MatmulProblem.is_vector`); returns its result."""
    along_k = p.b_strides[1] == 1
    options = {"num_warps": 4, "num_stages": 4}
    if along_k:
        block_n, block_k = 2, max(64, min(4096, blocknb.next_power_of_2(p.k)))
        del options["num_stages"]
    elif p.n >= 64 * device(p.a).processors:
        block_n, block_k = 64, 64
    else:
        block_n, block_k, options["num_warps"] = 32, 256, 8
    matvec_kernel[blocknb.cdiv(p.n, block_n),](
        p.a, p.b, p.out, p.n, p.k, p.a_strides[2], *p.b_strides[1:], p.out_strides[2], **p.epilogue,
        BLOCK_K=block_k, BLOCK_N=block_n, ALONG_K=along_k, **options,
    )  # fmt: skip
    return p.out
