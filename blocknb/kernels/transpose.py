"""A transposed copy in square tiles: read along the rows of one matrix, written along the rows of the other."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import strides


@blocknb.kernel
def transpose_kernel(x, out, m, n, x_row, x_column, out_row, out_column, TILE: bl.constexpr):
    rows = bl.program_id(0) * TILE + bl.arange(0, TILE)
    columns = bl.program_id(1) * TILE + bl.arange(0, TILE)
    source = x + rows[:, None].to(bl.int64) * x_row + columns[None, :].to(bl.int64) * x_column
    values = bl.load(source, mask=(rows < m)[:, None] & (columns < n)[None, :])
    target = out + columns[:, None].to(bl.int64) * out_row + rows[None, :].to(bl.int64) * out_column
    bl.store(target, bl.trans(values), mask=(columns < n)[:, None] & (rows < m)[None, :])


def transpose(x: Any, out: Any, *, tile: int = 64, num_warps: int = 4) -> Any:
    """out[j, i] = x[i, j] for matrices (M, N) and (N, M) of one dtype, with any strides; returns `out`.

    Raises ValueError when the shapes do not fit.
    """
    if len(x.shape) != 2 or tuple(out.shape) != tuple(x.shape)[::-1]:
        raise ValueError(f"cannot transpose {tuple(x.shape)} into {tuple(out.shape)}")
    m, n = x.shape
    transpose_kernel[(blocknb.cdiv(m, tile), blocknb.cdiv(n, tile))](
        x, out, m, n, *strides(x), *strides(out), TILE=tile, num_warps=num_warps
    )
    return out
