"""Layer norm and RMS norm over rows, in fp32 arithmetic; their gradients are in `norm_gradients`.

y = (x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps); RMS norm has no mean and no bias, and the mean square
for the variance (Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019).
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, tile, vector, weighted
from blocknb.kernels.strides import strides


@blocknb.kernel
def norm_kernel(
    x, weight, bias, y, mean, rstd, x_row, y_row, m, n, eps,
    CENTRED: bl.constexpr, ROWS: bl.constexpr, BLOCK: bl.constexpr,
):  # fmt: skip
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    values = bl.load(x + rows[:, None].to(bl.int64) * x_row + columns[None, :], mask=inside, other=0.0).to(bl.float32)
    if CENTRED:
        average = bl.sum(values, axis=1) / n
        values = bl.where(inside, values - average[:, None], 0.0)
        if mean is not None:
            bl.store(mean + rows, average, mask=rows < m)
    scale = bl.rsqrt(bl.sum(values * values, axis=1) / n + eps)
    if rstd is not None:
        bl.store(rstd + rows, scale, mask=rows < m)
    values *= scale[:, None]
    if weight is not None:
        values *= bl.load(weight + columns, mask=columns < n, other=0.0).to(bl.float32)[None, :]
    if bias is not None:
        values += bl.load(bias + columns, mask=columns < n, other=0.0).to(bl.float32)[None, :]
    bl.store(y + rows[:, None].to(bl.int64) * y_row + columns[None, :], values, mask=inside)


def layer_norm(
    x: Any, weight: Any, bias: Any, out: Any, *, eps: float = 1e-5, mean: Any = None, rstd: Any = None,
    num_warps: int | None = None,
) -> Any:  # fmt: skip
    """out = (x - mean) / sqrt(variance + eps) * weight + bias along the last axis of a matrix (M, N); returns `out`.

    `weight` and `bias` are vectors of N or None; `mean` and `rstd`, fp32 vectors of M, are written where given, for the backward
    pass. Raises ValueError for other shapes, rows that are not contiguous or longer than 65536.
    """
    _forward(x, weight, bias, out, eps, mean, rstd, True, num_warps)
    return out


def rms_norm(
    x: Any, weight: Any, out: Any, *, eps: float = 1e-6, rstd: Any = None, num_warps: int | None = None
) -> Any:
    """out = x / sqrt(mean(x^2) + eps) * weight along the last axis of a matrix (M, N); otherwise as `layer_norm`."""
    _forward(x, weight, None, out, eps, None, rstd, False, num_warps)
    return out


def _forward(
    x: Any, weight: Any, bias: Any, out: Any, eps: float, mean: Any, rstd: Any, centred: bool, num_warps: int | None
) -> None:
    m, n = matrix(x, "x")
    matrix(out, "out", like=x)
    for array, name, length in ((weight, "weight", n), (bias, "bias", n), (mean, "mean", m), (rstd, "rstd", m)):
        vector(array, name, length)
    shape = tile(x, num_warps, weighted)
    norm_kernel[(blocknb.cdiv(m, shape["ROWS"]),)](
        x, weight, bias, out, mean, rstd, strides(x)[0], strides(out)[0], m, n, eps, CENTRED=centred, **shape
    )
