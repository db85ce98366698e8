"""A product whose operands are computed from loaded data, for operand staging and operand prefetch."""

from __future__ import annotations

import blocknb
import blocknb.language as bl


@blocknb.kernel
def prepared(x, w, line, y, rows, columns, k, WAY: bl.constexpr, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """y = x w^T. "weights": 8-bit w with a scale per row. "normed": x times a gain per column, divided by the norm of its row. "precise":
    fp32 by three tf32 products."""
    row, column = bl.program_id(0) * BM, bl.program_id(1) * BN
    left = bl.make_tensor_descriptor(x, [rows, k], [k, 1], [BM, BK])
    right = bl.make_tensor_descriptor(w, [columns, k], [k, 1], [BN, BK])
    total, squares = bl.zeros((BM, BN), bl.float32), bl.zeros((BM,), bl.float32)
    inner, across = bl.arange(0, BK), column + bl.arange(0, BN)
    if WAY == "weights":
        scale = bl.load(line + across, mask=across < columns, other=0.0)
    for start in range(0, k, BK):
        a, b = left.load([row, start]), right.load([column, start])
        if WAY == "weights":
            total = bl.dot(a, (b.to(bl.float32) * scale[:, None]).to(bl.float16).T, total)
        elif WAY == "precise":
            total = bl.dot(a, b.T, total, input_precision="tf32x3")
        else:
            wide = a.to(bl.float32)
            squares += bl.sum(wide * wide, axis=1)
            gain = bl.load(line + start + inner, mask=start + inner < k, other=0.0)
            total = bl.dot((wide * gain[None, :]).to(bl.float16), b.T, total)
    if WAY == "normed":
        total *= bl.rsqrt(squares + 1.0)[:, None]
    down = row + bl.arange(0, BM)
    places = y + down[:, None] * columns + across[None, :]
    bl.store(places, total, mask=(down[:, None] < rows) & (across[None, :] < columns))
