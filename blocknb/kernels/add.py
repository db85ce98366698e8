"""Vector addition: each program adds one block of elements."""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl


@blocknb.kernel
def add_kernel(x, y, out, n, BLOCK: bl.constexpr):
    offsets = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    inside = offsets < n
    total = bl.load(x + offsets, mask=inside) + bl.load(y + offsets, mask=inside)
    bl.store(out + offsets, total, mask=inside)


def add(x: Any, y: Any, out: Any, *, block: int = 1024, num_warps: int = 4) -> Any:
    """out = x + y, for contiguous arrays of one shape and dtype on one device; returns `out`.

    Raises ValueError when the sizes differ.
    """
    sizes = [math.prod(array.shape) for array in (x, y, out)]  # a torch tensor's `size` is a method
    if len(set(sizes)) > 1:
        raise ValueError(f"sizes differ: {', '.join(map(str, sizes))}")
    add_kernel[(blocknb.cdiv(sizes[0], block),)](x, y, out, sizes[0], BLOCK=block, num_warps=num_warps)
    return out
