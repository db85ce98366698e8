"""Program packing on a GPU: results, reports, and the numbers of programs per CTA."""

from __future__ import annotations

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as bl
from blocknb.errors import KernelError

cupy = pytest.importorskip("cupy")


@blocknb.kernel(num_warps=1)
def softmax_rows(x, out, who, n, BLOCK: bl.constexpr):
    row = bl.program_id(0) + bl.num_programs(0) * bl.program_id(1)
    columns = bl.arange(0, BLOCK)
    values = bl.load(x + row * n + columns, mask=columns < n, other=-float("inf"))
    powers = bl.exp(values - bl.max(values, 0))
    bl.store(out + row * n + columns, powers / bl.sum(powers, 0), mask=columns < n)
    bl.atomic_add(who + row, 1 + bl.num_programs(0))


@blocknb.kernel(num_warps=1)
def careful(x, n):
    at = bl.program_id(0)
    bl.device_assert(bl.load(x + at) < n, "too large")


@pytest.mark.parametrize("grid", [(4096,), (4098,), (4097,), (2048, 3), (16,)])
def test_packed_programs_give_the_same_results(grid: tuple[int, ...]) -> None:
    count, n = int(np.prod(grid)), 250
    x = cupy.asarray(seeds.rng().standard_normal((count, n)).astype(np.float32))
    packed, alone = (cupy.full_like(x, np.nan) for _ in range(2))
    who = cupy.zeros(count, np.int32)
    compiled = softmax_rows[grid](x, packed, who, n, BLOCK=256)
    assert compiled.code.programs == 8
    assert (who == 1 + grid[0]).all()
    softmax_rows[grid](x, alone, who, n, BLOCK=256, without={"program_packing"})
    assert (packed == alone).all()


def test_assertion_in_a_packed_program_names_its_program_id() -> None:
    x = cupy.zeros(4096, np.int32)
    x[2345] = 9
    with pytest.raises(KernelError, match=r"2345"):
        careful[4096,](x, 5, debug=True)
