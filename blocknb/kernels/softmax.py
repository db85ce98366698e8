"""Softmax over rows: one program a row, which is read once and written once."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import strides


@blocknb.kernel
def softmax_kernel(x, y, x_stride, y_stride, n, BLOCK: bl.constexpr):
    row = bl.program_id(0)
    columns = bl.arange(0, BLOCK)
    inside = columns < n
    values = bl.load(x + row * x_stride + columns, mask=inside, other=-float("inf")).to(bl.float32)
    powers = bl.exp(values - bl.max(values, axis=0))
    bl.store(y + row * y_stride + columns, powers / bl.sum(powers, axis=0), mask=inside)


def softmax(x: Any, out: Any, *, num_warps: int | None = None) -> Any:
    """Softmax along the last axis of a matrix of shape (M, N), in fp32 arithmetic; rows may have any stride, columns none.

    Returns `out`, of the same shape. Raises ValueError for other shapes.
    """
    if x.shape != out.shape or len(x.shape) != 2:
        raise ValueError(f"softmax takes two matrices of one shape, not {x.shape} and {out.shape}")
    rows, n = x.shape
    block = blocknb.next_power_of_2(n)
    warps = num_warps or min(max(block // 512, 1), 16)
    softmax_kernel[(rows,)](x, out, strides(x)[0], strides(out)[0], n, BLOCK=block, num_warps=warps)
    return out
