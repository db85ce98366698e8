"""Group norm (Wu, He 2018) of channels, and its gradients, in fp32 arithmetic. The groups may have any length.

An array is (N, C, S), with S elements per channel. Several programs share the elements of a group. They add up its channels one by one, and
a few small sums give the statistics of the groups. So a batch of one image still occupies a GPU. The variance is that of the channels'
means plus that within channels (Chan et al. 1979), which loses nothing where the mean is large.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import contiguous, on_host, strides

LONG = 1024  # elements that a program reads per iteration


@blocknb.kernel
def channel_statistics_kernel(x, means, squares, channels, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """The mean of each channel, and the sum of the squares of the differences from it.

    The corrected two-pass algorithm (Chan, Golub, LeVeque 1983): the differences add up to n times the error of the first mean."""
    WIDE: bl.constexpr = means.dtype.element_ty
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    line = x + rows.to(bl.int64)[:, None] * n
    total = bl.zeros((ROWS, BLOCK), WIDE)
    for first in range(0, n, BLOCK):
        at = first + bl.arange(0, BLOCK)
        inside = (rows < channels)[:, None] & (at < n)[None, :]
        total += bl.load(line + at[None, :], mask=inside, other=0.0).to(WIDE)
    mean = bl.sum(total, axis=1) / n
    squared = bl.zeros((ROWS, BLOCK), WIDE)
    rest = bl.zeros((ROWS, BLOCK), WIDE)
    for first in range(0, n, BLOCK):
        at = first + bl.arange(0, BLOCK)
        inside = (rows < channels)[:, None] & (at < n)[None, :]
        away = bl.load(line + at[None, :], mask=inside, other=0.0).to(WIDE) - mean[:, None]
        away = bl.where(inside, away, 0.0)
        squared += away * away
        rest += away
    total_rest = bl.sum(rest, axis=1)
    off = total_rest / n
    bl.store(means + rows, mean + off, mask=rows < channels)
    around = bl.maximum(
        bl.sum(squared, axis=1) - off * total_rest, 0.0
    )  # of equal elements, the difference is a rounding error
    bl.store(squares + rows, around, mask=rows < channels)


@blocknb.kernel
def channel_gradients_kernel(
    x, dy, totals, products, mean, rstd, channels, size, n, ROWS: bl.constexpr, BLOCK: bl.constexpr
):
    """The sums of dy and of dy z of each channel; a group has `size` channels."""
    WIDE: bl.constexpr = totals.dtype.element_ty
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    start = rows.to(bl.int64)[:, None] * n
    centre = bl.load(mean + rows // size, mask=rows < channels, other=0.0)[:, None]
    factor = bl.load(rstd + rows // size, mask=rows < channels, other=0.0)[:, None]
    total = bl.zeros((ROWS, BLOCK), WIDE)
    product = bl.zeros((ROWS, BLOCK), WIDE)
    for first in range(0, n, BLOCK):
        at = first + bl.arange(0, BLOCK)
        inside = (rows < channels)[:, None] & (at < n)[None, :]
        given = bl.load(dy + start + at[None, :], mask=inside, other=0.0).to(WIDE)
        z = (bl.load(x + start + at[None, :], mask=inside, other=0.0).to(WIDE) - centre) * factor
        total += given
        product += given * z
    bl.store(totals + rows, bl.sum(total, axis=1), mask=rows < channels)
    bl.store(products + rows, bl.sum(product, axis=1), mask=rows < channels)


@blocknb.kernel
def group_norm_kernel(
    x, dy, y, weight, bias, mean, rstd, totals, products, channels, size, per_sample, n, blocks, ROWS: bl.constexpr,
    BLOCK: bl.constexpr,
):  # fmt: skip
    """y of one block of ROWS channels, or, given dy, the gradient of x; `totals` and `products` are then those of the groups."""
    WIDE: bl.constexpr = mean.dtype.element_ty
    rows = bl.program_id(0) // blocks * ROWS + bl.arange(0, ROWS)
    at = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    inside = (rows < channels)[:, None] & (at < n)[None, :]
    place = rows.to(bl.int64)[:, None] * n + at[None, :]
    group = rows // size
    factor = bl.load(rstd + group, mask=rows < channels, other=0.0)[:, None]
    z = (
        bl.load(x + place, mask=inside, other=0.0).to(WIDE)
        - bl.load(mean + group, mask=rows < channels, other=0.0)[:, None]
    ) * factor
    scale = bl.full((ROWS,), 1.0, WIDE)
    if weight is not None:
        scale = bl.load(weight + rows % per_sample, mask=rows < channels, other=0.0).to(WIDE)
    if dy is None:
        result = z * scale[:, None]
        if bias is not None:
            result += bl.load(bias + rows % per_sample, mask=rows < channels, other=0.0).to(WIDE)[:, None]
    else:
        given = bl.load(dy + place, mask=inside, other=0.0).to(WIDE) * scale[:, None]
        total = bl.load(totals + group, mask=rows < channels, other=0.0)[:, None]
        result = (given - total - z * bl.load(products + group, mask=rows < channels, other=0.0)[:, None]) * factor
    bl.store(y + place, result, mask=inside)


def _tile(x: Any, channels: int, n: int) -> dict[str, int]:
    block = min(LONG, blocknb.next_power_of_2(max(n, 1)))
    rows = min(LONG // block, blocknb.next_power_of_2(max(channels, 1)))
    return {"ROWS": rows, "BLOCK": block, "num_warps": 1 if on_host(x) else 4}


def _sizes(x: Any, *others: Any) -> tuple[int, int]:
    """The channels of all samples and the elements of each. Raises ValueError unless all are contiguous (N, C, S) of one shape."""
    for array in (x, *others):
        if len(array.shape) != 3 or tuple(array.shape) != tuple(x.shape) or not contiguous(array):
            raise ValueError(
                f"group norm takes contiguous arrays (N, C, S) of one shape, not {tuple(array.shape)} with the strides {strides(array)}"
            )
    return int(x.shape[0] * x.shape[1]), int(x.shape[2])


def channel_statistics(x: Any, means: Any, squares: Any) -> None:
    """Writes the mean of each channel of x (N, C, S), and its sum of squares of differences from the mean, (N, C) in fp32."""
    channels, n = _sizes(x)
    if channels * n:
        tile = _tile(x, channels, n)
        channel_statistics_kernel[(blocknb.cdiv(channels, tile["ROWS"]),)](x, means, squares, channels, n, **tile)


def channel_gradients(x: Any, dy: Any, mean: Any, rstd: Any, groups: int, totals: Any, products: Any) -> None:
    """Writes the sums of dy, and of dy (x - mean) rstd, of each channel, (N, C) in fp32; mean and rstd are those of N * groups."""
    channels, n = _sizes(x, dy)
    if channels * n:
        tile = _tile(x, channels, n)
        channel_gradients_kernel[(blocknb.cdiv(channels, tile["ROWS"]),)](
            x, dy, totals, products, mean, rstd, channels, x.shape[1] // groups, n, **tile
        )


def normalized_groups(
    x: Any, y: Any, weight: Any, bias: Any, mean: Any, rstd: Any, groups: int, dy: Any = None, totals: Any = None,
    products: Any = None,
) -> None:  # fmt: skip
    """Writes y = (x - mean) rstd weight + bias for (N, C, S). Given dy, it writes the gradient of x instead. `totals` then has the means of
    `dy weight` of the groups, and `products` those of `dy weight (x - mean) rstd`."""
    channels, n = _sizes(x, y)
    if channels * n:
        tile = _tile(x, channels, n)
        blocks = blocknb.cdiv(n, tile["BLOCK"])
        group_norm_kernel[(blocknb.cdiv(channels, tile["ROWS"]) * blocks,)](
            x,
            dy,
            y,
            weight,
            bias,
            mean,
            rstd,
            totals,
            products,
            channels,
            x.shape[1] // groups,
            x.shape[1],
            n,
            blocks,
            **tile,
        )
