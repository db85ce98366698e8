"""Layer norm and RMS norm over rows, in fp32 arithmetic; their gradients are in `norm_gradients`.

y = (x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps); RMS norm has no mean and no bias, and the mean square
for the variance (Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019).
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, rows_with_weights, tile, vector
from blocknb.kernels.strides import contiguous, on_host, strides

#: Per warp: 16 registers per thread of weight and bias. On an H200, as many CTAs run at once with them.
EARLY_BYTES = 32 * 64


@blocknb.kernel
def norm_kernel(
    x, weight, bias, y, mean, rstd, x_row, y_row, m, n, eps,
    CENTRED: bl.constexpr, ROWS: bl.constexpr, BLOCK: bl.constexpr, residual=None, added=None, ROUND: bl.constexpr = False,
    OFFSET: bl.constexpr = 0.0, EARLY: bl.constexpr = False,
):  # fmt: skip
    """The norm of ROWS rows. With EARLY, the loads of weight and bias do not wait for the reductions, and take registers meanwhile."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    columns = bl.arange(0, BLOCK)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    values = bl.load(x + rows[:, None].to(bl.int64) * x_row + columns[None, :], mask=inside, other=0.0).to(WIDE)
    if EARLY and weight is not None:
        factor = bl.load(weight + columns, mask=columns < n, other=0.0)
    if EARLY and bias is not None:
        shift = bl.load(bias + columns, mask=columns < n, other=0.0)
    if residual is not None:  # the sum is rounded to what is stored
        at = rows[:, None].to(bl.int64) * n + columns[None, :]
        values += bl.load(residual + at, mask=inside, other=0.0).to(WIDE)
        values = values.to(x.dtype.element_ty).to(WIDE)
        bl.store(added + at, values, mask=inside)
    if CENTRED:
        average = bl.sum(values, axis=1) / n
        values = bl.where(inside, values - average[:, None], 0.0)
        if mean is not None:
            bl.store(mean + rows, average, mask=rows < m)
    scale = bl.rsqrt(bl.sum(values * values, axis=1) / n + eps)
    if rstd is not None:
        bl.store(rstd + rows, scale, mask=rows < m)
    values *= scale[:, None]
    if ROUND:
        values = values.to(x.dtype.element_ty).to(WIDE)
    if weight is not None:
        if not EARLY:
            factor = bl.load(weight + columns, mask=columns < n, other=0.0)
        factor = factor.to(WIDE)
        if OFFSET != 0.0:
            factor += OFFSET
        values *= factor[None, :]
    if bias is not None:
        if not EARLY:
            shift = bl.load(bias + columns, mask=columns < n, other=0.0)
        values += shift.to(WIDE)[None, :]
    bl.store(y + rows[:, None].to(bl.int64) * y_row + columns[None, :], values, mask=inside)


def layer_norm(
    x: Any, weight: Any, bias: Any, out: Any, *, eps: float = 1e-5, mean: Any = None, rstd: Any = None,
    num_warps: int | None = None,
) -> Any:  # fmt: skip
    """out = (x - mean) / sqrt(variance + eps) * weight + bias along the last axis of a matrix (M, N); returns `out`.

    `weight` and `bias` are vectors of N or None; `mean` and `rstd`, fp32 vectors of M, are written where given, for the backward
    pass. Raises ValueError for other shapes, rows that are not contiguous or longer than 65536.
    """
    _forward(x, weight, bias, out, eps, mean, rstd, num_warps, CENTRED=True)
    return out


def rms_norm(
    x: Any, weight: Any, out: Any, *, eps: float = 1e-6, rstd: Any = None, residual: Any = None, added: Any = None,
    rounded: bool = False, offset: float = 0.0, num_warps: int | None = None,
) -> Any:  # fmt: skip
    """out = x / sqrt(mean(x^2) + eps) * weight along the last axis of a matrix (M, N); otherwise as `layer_norm`.

    With `residual`, a contiguous matrix like x, the sum x + residual is normalised, and written to `added`, another such matrix.
    `rounded` rounds the normalised values to x's dtype before the weight multiplies them, as Hugging Face's Llama does. `offset` is added
    to the weight in fp32, as Hugging Face's Gemma adds 1.
    """
    for array, name in ((residual, "residual"), (added, "added")):
        if array is not None:
            matrix(array, name, like=x)
            if not contiguous(array):
                raise ValueError(f"{name} must be contiguous; its strides are {strides(array)}")
    if (residual is None) != (added is None):
        raise ValueError("residual and added are given together, or neither of them")
    _forward(
        x, weight, None, out, eps, None, rstd, num_warps, CENTRED=False, residual=residual, added=added, ROUND=rounded, OFFSET=offset
    )  # fmt: skip
    return out


def _forward(
    x: Any, weight: Any, bias: Any, out: Any, eps: float, mean: Any, rstd: Any, num_warps: int | None, **more: Any
) -> None:
    m, n = matrix(x, "x")
    matrix(out, "out", like=x)
    for array, name, length in ((weight, "weight", n), (bias, "bias", n), (mean, "mean", m), (rstd, "rstd", m)):
        vector(array, name, length)
    shape = tile(x, num_warps, rows_with_weights)
    loaded = sum(int(array.dtype.itemsize) for array in (weight, bias) if array is not None) * shape["BLOCK"]
    more["EARLY"] = not on_host(x) and loaded <= EARLY_BYTES * shape["num_warps"]
    norm_kernel[(blocknb.cdiv(m, shape["ROWS"]),)](
        x, weight, bias, out, mean, rstd, strides(x)[0], strides(out)[0], m, n, eps, **more, **shape
    )
