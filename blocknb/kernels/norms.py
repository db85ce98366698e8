"""Layer norm and RMS norm over rows, forward and backward, in fp32 arithmetic.

Forward: y = (x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps); RMS norm has no mean and no bias, and the mean square
for the variance (Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019). Backward, with g = dy weight and z = (x - mean) rstd:
dx = rstd (g - mean(g) - z mean(g z)), dweight = sum over rows of dy z, dbias = sum over rows of dy; RMS norm leaves mean(g) out.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix, tile, vector, weighted
from blocknb.kernels.strides import empty, strides


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


@blocknb.kernel
def norm_backward_kernel(
    x, weight, dy, mean, rstd, dx, dweights, dbiases, x_row, dy_row, dx_row, m, n,
    CENTRED: bl.constexpr, ROWS: bl.constexpr, BLOCK: bl.constexpr,
):  # fmt: skip
    """Programs walk over the rows together; each leaves its part of dweight and dbias, (programs, N) in fp32."""
    columns = bl.arange(0, BLOCK)
    dweight = bl.zeros((BLOCK,), bl.float32)
    dbias = bl.zeros((BLOCK,), bl.float32)
    factor = bl.full((BLOCK,), 1.0, bl.float32)
    if weight is not None:
        factor = bl.load(weight + columns, mask=columns < n, other=0.0).to(bl.float32)
    for first in range(bl.program_id(0) * ROWS, m, bl.num_programs(0) * ROWS):
        rows = first + bl.arange(0, ROWS)
        inside = (rows < m)[:, None] & (columns < n)[None, :]
        at = rows[:, None].to(bl.int64)
        z = bl.load(x + at * x_row + columns[None, :], mask=inside, other=0.0).to(bl.float32)
        given = bl.load(dy + at * dy_row + columns[None, :], mask=inside, other=0.0).to(bl.float32)
        scale = bl.load(rstd + rows, mask=rows < m, other=0.0)[:, None]
        if CENTRED:
            z -= bl.load(mean + rows, mask=rows < m, other=0.0)[:, None]
        z = bl.where(inside, z * scale, 0.0)
        g = given * factor[None, :]
        result = g - z * (bl.sum(g * z, axis=1) / n)[:, None]
        if CENTRED:
            result -= (bl.sum(g, axis=1) / n)[:, None]
        bl.store(dx + at * dx_row + columns[None, :], result * scale, mask=inside)
        dweight += bl.sum(given * z, axis=0)
        dbias += bl.sum(given, axis=0)
    if dweights is not None:
        bl.store(dweights + bl.program_id(0) * n + columns, dweight, mask=columns < n)
    if dbiases is not None:
        bl.store(dbiases + bl.program_id(0) * n + columns, dbias, mask=columns < n)


@blocknb.kernel
def sum_columns_kernel(parts, out, programs, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    columns = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    total = bl.zeros((ROWS, BLOCK), bl.float32)
    for first in range(0, programs, ROWS):
        rows = first + bl.arange(0, ROWS)
        inside = (rows < programs)[:, None] & (columns < n)[None, :]
        total += bl.load(parts + rows[:, None] * n + columns[None, :], mask=inside, other=0.0)
    bl.store(out + columns, bl.sum(total, axis=0), mask=columns < n)


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


def layer_norm_backward(
    x: Any, weight: Any, dy: Any, mean: Any, rstd: Any, dx: Any, dweight: Any = None, dbias: Any = None, *,
    programs: int = 264, num_warps: int | None = None,
) -> Any:  # fmt: skip
    """Writes dx (M, N), and dweight and dbias (N) where given, from dy (M, N) and what `layer_norm` kept; returns `dx`.

    `programs` share the rows, and each needs scratch memory of N fp32 numbers for each of the two sums. Raises ValueError as
    `layer_norm` does.
    """
    _backward(x, weight, dy, mean, rstd, dx, dweight, dbias, programs, num_warps)
    return dx


def rms_norm_backward(
    x: Any, weight: Any, dy: Any, rstd: Any, dx: Any, dweight: Any = None, *, programs: int = 264,
    num_warps: int | None = None,
) -> Any:  # fmt: skip
    """Writes dx (M, N), and dweight (N) where given, from dy (M, N) and what `rms_norm` kept; as `layer_norm_backward`."""
    _backward(x, weight, dy, None, rstd, dx, dweight, None, programs, num_warps)
    return dx


def _backward(
    x: Any, weight: Any, dy: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, programs: int,
    num_warps: int | None,
) -> None:  # fmt: skip
    m, n = matrix(x, "x")
    matrix(dy, "dy", like=x)
    matrix(dx, "dx", like=x)
    for array, name, length in (
        (weight, "weight", n), (mean, "mean", m), (rstd, "rstd", m), (dweight, "dweight", n), (dbias, "dbias", n),
    ):  # fmt: skip
        vector(array, name, length)
    shape = tile(x, num_warps)
    programs = max(1, min(programs, blocknb.cdiv(m, shape["ROWS"])))
    sums = [None if wanted is None else empty(x, (programs, n), "float32") for wanted in (dweight, dbias)]
    norm_backward_kernel[(programs,)](
        x, weight, dy, mean, rstd, dx, *sums, strides(x)[0], strides(dy)[0], strides(dx)[0], m, n,
        CENTRED=mean is not None, **shape,
    )  # fmt: skip
    for parts, wanted in zip(sums, (dweight, dbias), strict=True):
        if wanted is not None:
            sum_columns_kernel[(blocknb.cdiv(n, 64),)](parts, wanted, programs, n, ROWS=32, BLOCK=64)
