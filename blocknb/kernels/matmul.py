"""Matrix multiplication in tiles of pointers, for any strides and shapes.

Programs that run together share rows and columns in the L2 cache (program swizzle). Rows and columns beyond the result wrap around to its
beginning (`% m`), so loads need no mask there, and are not stored. A mask covers the end of K. On a CPU masks cover all ends: a row that
wraps around would be gathered element by element.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import TileShape
from blocknb.kernels.strides import on_host
from blocknb.kernels.tiling import finish


@blocknb.kernel
def matmul_kernel(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, c_column,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr,
    a_batch=None, b_batch=None, c_batch=None, bias=None, a_scale=None, b_scale=None, BY_ROW: bl.constexpr = False,
    ACTIVATION: bl.constexpr = "", SUM: bl.constexpr = bl.float32, PRECISION: bl.constexpr = "tf32", FAR: bl.constexpr = False,
    MASKED: bl.constexpr = False,
):  # fmt: skip
    pid = bl.program_id(0)
    width = GROUP * bl.cdiv(n, BLOCK_N)
    first = pid // width * GROUP
    rows_in_group = min(bl.cdiv(m, BLOCK_M) - first, GROUP)
    tile_m = first + (pid % width) % rows_in_group
    tile_n = (pid % width) // rows_in_group
    rows = tile_m * BLOCK_M + bl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + bl.arange(0, BLOCK_N)
    if not MASKED:
        rows, columns = rows % m, columns % n
    inner = bl.arange(0, BLOCK_K)
    if a_batch is not None:
        batch = bl.program_id(1).to(bl.int64)
        a += batch * a_batch
        b += batch * b_batch
        c += batch * c_batch
    if FAR:  # offsets do not fit 32 bits
        rows, columns, inner = rows.to(bl.int64), columns.to(bl.int64), inner.to(bl.int64)
    a_tile = a + rows[:, None] * a_row + inner[None, :] * a_column
    b_tile = b + inner[:, None] * b_row + columns[None, :] * b_column
    total = bl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
    for step in range(0, bl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        inside_a, inside_b = inner[None, :] < left, inner[:, None] < left
        if MASKED:
            inside_a, inside_b = inside_a & (rows[:, None] < m), inside_b & (columns[None, :] < n)
        x = bl.load(a_tile, mask=inside_a, other=0.0)
        y = bl.load(b_tile, mask=inside_b, other=0.0)
        total = bl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        a_tile += BLOCK_K * a_column
        b_tile += BLOCK_K * b_row
    rows = tile_m * BLOCK_M + bl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + bl.arange(0, BLOCK_N)
    if FAR:
        rows, columns = rows.to(bl.int64), columns.to(bl.int64)
    total = finish(total, rows, columns, m, n, bias, a_scale, b_scale, BY_ROW, ACTIVATION)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    bl.store(c + rows[:, None] * c_row + columns[None, :] * c_column, total, mask=inside)


def arguments(p: MatmulProblem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and named arguments of `matmul_kernel`, without tile and options."""
    strides = (*p.a_strides[1:], *p.b_strides[1:], *p.out_strides[1:])
    named = {"SUM": getattr(bl, p.sum), "PRECISION": p.precision, "FAR": p.far, "MASKED": on_host(p.a)}
    return (p.a, p.b, p.out, p.m, p.n, p.k, *strides), {**p.batches, **p.epilogue, **named}


def by_pointers(p: MatmulProblem, t: TileShape, group: int) -> Any:
    """Computes a non-empty product with these tiles; returns its result."""
    given, named = arguments(p)
    grid = (blocknb.cdiv(p.m, t.m) * blocknb.cdiv(p.n, t.n), p.batch)
    matmul_kernel[grid](*given, **named, BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=t.k, GROUP=group, **t.options)
    return p.out


def matmul_pointers(
    a: Any, b: Any, out: Any = None, *, tile: tuple[int, ...] | TileShape | None = None, group: int = 8,
    num_warps: int | None = None, num_stages: int | None = None, **rest: Any,
) -> Any:  # fmt: skip
    """Computes out = a @ b with the kernel of pointers, for arrays with any strides; arguments as for `matmul`. Returns `out`."""
    p = MatmulProblem.of(a, b, out, **rest)
    return p.out if p.empty else by_pointers(p, p.tile(tile, num_warps, num_stages), group)
