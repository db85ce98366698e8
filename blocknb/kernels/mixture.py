"""Mixtures of experts: the weighted sum of a token's experts, its gradients, and the gradients of grouped products.

Tokens are sorted by their expert, so each expert multiplies consecutive rows (MegaBlocks: Gale et al. 2022). `places` says where the rows
of a token are. A token gathers its rows, so nothing is added up in memory, and the results are the same in every run.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import contiguous, dtype_name, on_host, strides

BLOCK = 1024  # columns per program, at most
#: (rows per iteration, BLOCK_M, BLOCK_N, num_warps, num_stages) of the gradients of matrices: 16 bits, more, and a CPU's.
TILES, EXACT_TILES, HOST = (64, 128, 128, 8, 3), (16, 64, 64, 8, 2), (64, 64, 64, 4, 1)


@blocknb.kernel
def combine_kernel(y, weights, places, out, y_row, most, n, blocks, BLOCK: bl.constexpr):
    """Adds up the rows of one token, in one block of columns; `most` rows per token."""
    WIDE: bl.constexpr = bl.float64 if y.dtype.element_ty == bl.float64 else bl.float32
    token = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    total = bl.zeros((BLOCK,), WIDE)
    for i in range(most):
        row = bl.load(places + token * most + i).to(bl.int64)
        values = bl.load(y + row * y_row + columns, mask=columns < n, other=0.0).to(WIDE)
        if weights is not None:
            values *= bl.load(weights + token * most + i).to(WIDE)
        total += values
    bl.store(out + token * n + columns, total, mask=columns < n)


@blocknb.kernel
def combine_backward_kernel(y, weights, places, dout, dy, dweights, y_row, most, n, BLOCK: bl.constexpr):
    """Computes the gradients of one row of one token, and of its weight."""
    WIDE: bl.constexpr = bl.float64 if y.dtype.element_ty == bl.float64 else bl.float32
    at = bl.program_id(0).to(bl.int64)
    row = bl.load(places + at).to(bl.int64)
    weight = bl.load(weights + at).to(WIDE)
    product = bl.zeros((BLOCK,), WIDE)
    for first in range(0, n, BLOCK):
        columns = first + bl.arange(0, BLOCK)
        given = bl.load(dout + at // most * n + columns, mask=columns < n, other=0.0).to(WIDE)
        product += given * bl.load(y + row * y_row + columns, mask=columns < n, other=0.0).to(WIDE)
        bl.store(dy + row * n + columns, given * weight, mask=columns < n)
    bl.store(dweights + at, bl.sum(product, axis=0))


@blocknb.kernel
def grouped_gradients_kernel(
    a, dout, db, ends, k, n, a_row, a_column, dout_row, dout_column, db_group, db_row, db_column,
    STEP: bl.constexpr, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, PRECISION: bl.constexpr,
):  # fmt: skip
    """Computes one tile of the gradient of one group's matrix: the product over the rows of the group."""
    WIDE: bl.constexpr = bl.float64 if a.dtype.element_ty == bl.float64 else bl.float32
    group = bl.program_id(1)
    across = bl.cdiv(n, BLOCK_N)
    inner = bl.program_id(0) // across * BLOCK_M + bl.arange(0, BLOCK_M)
    columns = bl.program_id(0) % across * BLOCK_N + bl.arange(0, BLOCK_N)
    begin = bl.load(ends + group - 1, mask=group > 0, other=0)
    end = bl.load(ends + group)
    total = bl.zeros((BLOCK_M, BLOCK_N), WIDE)
    for start in range(begin, end, STEP):
        rows = start + bl.arange(0, STEP)
        far = rows.to(bl.int64)
        x_mask = (inner < k)[:, None] & (rows < end)[None, :]
        x = bl.load(a + far[None, :] * a_row + inner[:, None] * a_column, mask=x_mask, other=0.0)
        y_mask = (rows < end)[:, None] & (columns < n)[None, :]
        y = bl.load(dout + far[:, None] * dout_row + columns[None, :] * dout_column, mask=y_mask, other=0.0)
        total = bl.dot(x, y, total, input_precision=PRECISION)
    to = (
        db
        + group.to(bl.int64) * db_group
        + inner[:, None].to(bl.int64) * db_row
        + columns[None, :].to(bl.int64) * db_column
    )
    bl.store(to, total.to(db.dtype.element_ty), mask=(inner < k)[:, None] & (columns < n)[None, :])


def _width(n: int) -> dict[str, int]:
    block = min(BLOCK, blocknb.next_power_of_2(max(n, 1)))
    return {"BLOCK": block, "num_warps": max(1, block // 256)}


def _check(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if array is not None and (tuple(array.shape) != shape or not contiguous(array)):
        raise ValueError(
            f"{name} must be contiguous, of shape {shape}, not {tuple(array.shape)} with strides {strides(array)}"
        )


def combine(y: Any, weights: Any, places: Any, out: Any) -> Any:
    """Computes `out[t] = sum over i of weights[t, i] y[places[t, i]]` in fp32, and returns `out`. y is (R, N) with contiguous rows, weights
    and integer places are (T, I), and out is (T, N). `weights` None are ones. Raises ValueError for other shapes and strides."""
    (tokens, most), n = places.shape, y.shape[1]
    _check("places", places, (tokens, most))
    _check("weights", weights, (tokens, most))
    _check("out", out, (tokens, n))
    shape = _width(n)
    blocks = blocknb.cdiv(n, shape["BLOCK"])
    if tokens * n:
        combine_kernel[(tokens * blocks,)](y, weights, places, out, strides(y)[0], most, n, blocks, **shape)
    return out


def combine_backward(y: Any, weights: Any, places: Any, dout: Any, dy: Any, dweights: Any) -> tuple[Any, Any]:
    """Writes dy (R, N) and dweights (T, I) from dout (T, N), if each row of y has one place; returns them. Raises as `combine` does."""
    (tokens, most), n = places.shape, y.shape[1]
    for name, array in (("places", places), ("weights", weights), ("dweights", dweights)):
        _check(name, array, (tokens, most))
    _check("dout", dout, (tokens, n))
    _check("dy", dy, (y.shape[0], n))
    if tokens * most:
        combine_backward_kernel[(tokens * most,)](
            y, weights, places, dout, dy, dweights, strides(y)[0], most, n, **_width(n)
        )
    return dy, dweights


def grouped_matmul_gradients(a: Any, dout: Any, ends: Any, db: Any, *, input_precision: str = "tf32") -> Any:
    """db[g] = a[rows of g]^T dout[rows of g] for the gradient of b in `grouped_matmul`; returns `db`.

    a is (M, K), dout (M, N), ends G non-decreasing int32, and db (G, K, N), all with any strides. Raises ValueError for other shapes.
    """
    groups, k, n = db.shape
    if (
        tuple(a.shape) != (dout.shape[0], k)
        or dout.shape[1] != n
        or tuple(ends.shape) != (groups,)
        or dtype_name(ends) != "int32"
    ):
        raise ValueError(
            f"a {tuple(a.shape)}, dout {tuple(dout.shape)} and ends {tuple(ends.shape)} do not fit db {tuple(db.shape)}: they are "
            "(M, K), (M, N), G int32 and (G, K, N)"
        )
    if not groups * k * n:
        return db
    if on_host(a):
        step, m, columns, warps, stages = HOST
    else:
        step, m, columns, warps, stages = TILES if a.dtype.itemsize == 2 else EXACT_TILES
    grouped_gradients_kernel[(blocknb.cdiv(k, m) * blocknb.cdiv(n, columns), groups)](
        a, dout, db, ends, k, n, *strides(a), *strides(dout), *strides(db), STEP=step, BLOCK_M=m, BLOCK_N=columns,
        PRECISION="tf32" if a.dtype.itemsize == 2 else "ieee" if a.dtype.itemsize == 8 else input_precision,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return db
