"""Matrix multiplication in tiles, programs grouped so that those that run together share rows and columns in the L2 cache."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import on_host, strides


@blocknb.kernel
def matmul_kernel(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, c_column,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
):  # fmt: skip
    pid = bl.program_id(0)
    width = GROUP * bl.cdiv(n, BLOCK_N)
    first = pid // width * GROUP
    rows_in_group = min(bl.cdiv(m, BLOCK_M) - first, GROUP)
    tile_m = first + (pid % width) % rows_in_group
    tile_n = (pid % width) // rows_in_group
    rows = (tile_m * BLOCK_M + bl.arange(0, BLOCK_M)) % m
    columns = (tile_n * BLOCK_N + bl.arange(0, BLOCK_N)) % n
    inner = bl.arange(0, BLOCK_K)
    a_tile = a + rows[:, None] * a_row + inner[None, :] * a_column
    b_tile = b + inner[:, None] * b_row + columns[None, :] * b_column
    total = bl.zeros((BLOCK_M, BLOCK_N), dtype=bl.float32)
    for step in range(0, bl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        x = bl.load(a_tile, mask=inner[None, :] < left, other=0.0)
        y = bl.load(b_tile, mask=inner[:, None] < left, other=0.0)
        total = bl.dot(x, y, total)
        a_tile += BLOCK_K * a_column
        b_tile += BLOCK_K * b_row
    rows = tile_m * BLOCK_M + bl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + bl.arange(0, BLOCK_N)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    bl.store(c + rows[:, None] * c_row + columns[None, :] * c_column, total, mask=inside)


LARGE = 512  # of a matrix with enough tiles, of the size that suits a CPU, for several threads


def matmul(
    a: Any, b: Any, out: Any, *, tile: tuple[int, int, int] | None = None, group: int = 8, num_warps: int = 4
) -> Any:
    """out = a @ b for matrices of shapes (M, K), (K, N) and (M, N), of one floating-point dtype, with any strides; returns `out`.

    `tile` is (M, N, K) of a program; by default what its device's caches hold. Raises ValueError when the shapes do not fit.
    """
    (m, k), (k_b, n) = a.shape, b.shape
    tile = tile or ((256, 128, 128) if on_host(a) and min(m, n, k) >= LARGE else (128, 128, 64))
    if k != k_b or out.shape != (m, n):
        raise ValueError(f"cannot multiply {a.shape} by {b.shape} into {out.shape}")
    grid = (blocknb.cdiv(m, tile[0]) * blocknb.cdiv(n, tile[1]),)
    blocks = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    matmul_kernel[grid](
        a, b, out, m, n, k, *strides(a), *strides(b), *strides(out), **blocks, GROUP=group, num_warps=num_warps
    )
    return out
