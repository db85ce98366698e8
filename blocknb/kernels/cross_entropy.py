"""The cross entropy of logits and classes, row by row, and its gradient: losses[i] = log(sum_j exp(x[i, j])) - x[i, class_i].

The gradient is dlosses[i] (softmax(x[i]) - one at class_i), from the logarithm of the sum that the forward pass kept.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, tile, vector
from blocknb.kernels.strides import strides

IGNORED = -100


@blocknb.kernel
def cross_entropy_kernel(x, classes, losses, logsums, x_row, m, n, ignored, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    start = rows.to(bl.int64) * x_row
    logits = bl.load(x + start[:, None] + columns[None, :], mask=inside, other=-float("inf")).to(bl.float32)
    largest = bl.max(logits, axis=1)
    logsum = bl.log(bl.sum(bl.exp(logits - largest[:, None]), axis=1)) + largest
    wanted = bl.load(classes + rows, mask=rows < m, other=0)
    counted = wanted != ignored
    logit = bl.load(x + start + wanted, mask=(rows < m) & counted, other=0.0).to(bl.float32)
    bl.store(losses + rows, bl.where(counted, logsum - logit, 0.0), mask=rows < m)
    bl.store(logsums + rows, logsum, mask=rows < m)


@blocknb.kernel
def cross_entropy_backward_kernel(
    x, classes, dlosses, logsums, dx, x_row, dx_row, m, n, ignored, ROWS: bl.constexpr, BLOCK: bl.constexpr
):
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    at = rows[:, None].to(bl.int64)
    logits = bl.load(x + at * x_row + columns[None, :], mask=inside, other=-float("inf")).to(bl.float32)
    logsum = bl.load(logsums + rows, mask=rows < m, other=0.0)
    wanted = bl.load(classes + rows, mask=rows < m, other=0)
    given = bl.load(dlosses + rows, mask=rows < m, other=0.0).to(bl.float32)
    chosen = bl.where(columns[None, :] == wanted[:, None], 1.0, 0.0)
    gradient = given[:, None] * (bl.exp(logits - logsum[:, None]) - chosen)
    gradient = bl.where((wanted != ignored)[:, None], gradient, 0.0)
    bl.store(dx + at * dx_row + columns[None, :], gradient, mask=inside)


def cross_entropy(
    x: Any, classes: Any, losses: Any, logsums: Any, *, ignored: int = IGNORED, num_warps: int | None = None
) -> Any:
    """The losses of logits x (M, N) for integer classes (M); returns `losses`, fp32 (M).

    `logsums`, fp32 (M), are written for the backward pass; a row whose class is `ignored` has no loss. Classes must be below N: they
    are not looked at here. Raises ValueError for other shapes, rows that are not contiguous or longer than 65536.
    """
    m, n = matrix(x, "x")
    for array, name in ((classes, "classes"), (losses, "losses"), (logsums, "logsums")):
        vector(array, name, m)
    shape = tile(x, num_warps)
    cross_entropy_kernel[(blocknb.cdiv(m, shape["ROWS"]),)](
        x, classes, losses, logsums, strides(x)[0], m, n, ignored, **shape
    )
    return losses


def cross_entropy_backward(
    x: Any, classes: Any, dlosses: Any, logsums: Any, dx: Any, *, ignored: int = IGNORED, num_warps: int | None = None
) -> Any:
    """dx (M, N), which may be `x` itself, from the losses' gradient dlosses (M); returns `dx`. Raises as `cross_entropy` does."""
    m, n = matrix(x, "x")
    matrix(dx, "dx", like=x)
    for array, name in ((classes, "classes"), (dlosses, "dlosses"), (logsums, "logsums")):
        vector(array, name, m)
    shape = tile(x, num_warps)
    cross_entropy_backward_kernel[(blocknb.cdiv(m, shape["ROWS"]),)](
        x, classes, dlosses, logsums, dx, strides(x)[0], strides(dx)[0], m, n, ignored, **shape
    )
    return dx
