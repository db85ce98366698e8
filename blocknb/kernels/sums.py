"""The sum of all elements: programs share the blocks and write one partial sum each, and one more program adds these.

Partial sums are fp32 and are added in a fixed order, so that the same array always gives the same sum.
"""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import empty


@blocknb.kernel
def sum_kernel(x, out, n, BLOCK: bl.constexpr):
    total = bl.zeros((BLOCK,), bl.float32)
    step = bl.num_programs(0).to(bl.int64) * BLOCK
    for first in range(bl.program_id(0).to(bl.int64) * BLOCK, n, step):
        offsets = first + bl.arange(0, BLOCK)
        total += bl.load(x + offsets, mask=offsets < n, other=0.0).to(bl.float32)
    bl.store(out + bl.program_id(0), bl.sum(total, axis=0))


def sum(x: Any, out: Any, *, block: int = 4096, programs: int = 1056, num_warps: int = 8) -> Any:
    """out[0] = the sum of all elements of the contiguous array x, in fp32 arithmetic; returns `out`, which has one element.

    At most `programs` programs share the array; scratch memory holds one fp32 number per program. Raises ValueError for another `out`.
    """
    n = math.prod(x.shape)
    if math.prod(out.shape) != 1:
        raise ValueError(f"out must have one element, not the shape {tuple(out.shape)}")
    programs = max(1, min(programs, blocknb.cdiv(n, block)))
    parts = empty(x, (programs,), "float32")
    sum_kernel[(programs,)](x, parts, n, BLOCK=block, num_warps=num_warps)
    sum_kernel[(1,)](parts, out, programs, BLOCK=blocknb.next_power_of_2(programs), num_warps=4)
    return out
