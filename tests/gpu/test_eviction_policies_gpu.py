"""Eviction policies of asynchronous copies (cp.async) on a GPU: a product keeps its results under each policy, with and without a mask.

An H200 reported an illegal instruction when cp.async had a policy, so from sm_90 on it has none (`NO_POLICY_FROM`).
Integers as fp16 make the fp32 sums exact, so every order of the additions gives the same result.
"""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as bl
from blocknb.passes.pipelining.stages import NO_POLICY_FROM

cupy = pytest.importorskip("cupy")
BLOCK = 64


@blocknb.kernel
def hinted_product(a, b, out, m, n, k, A_POLICY: bl.constexpr, B_POLICY: bl.constexpr, BLOCK: bl.constexpr):
    """out (m, n) fp32 = a (m, k) b (k, n), fp16."""
    at = bl.arange(0, BLOCK)
    row, col = bl.program_id(0) * BLOCK + at, bl.program_id(1) * BLOCK + at
    total = bl.zeros((BLOCK, BLOCK), bl.float32)
    for start in range(0, k, BLOCK):
        inner = start + at
        inside = (row[:, None] < m) & (inner[None, :] < k)
        x = bl.load(a + row[:, None] * k + inner[None, :], mask=inside, other=0.0, eviction_policy=A_POLICY)
        inside = (inner[:, None] < k) & (col[None, :] < n)
        y = bl.load(b + inner[:, None] * n + col[None, :], mask=inside, other=0.0, eviction_policy=B_POLICY)
        total = bl.dot(x, y, total)
    bl.store(out + row[:, None] * n + col[None, :], total, mask=(row[:, None] < m) & (col[None, :] < n))


@pytest.mark.parametrize(("m", "n", "k"), [(256, 512, 1024), (200, 136, 328)])
@pytest.mark.parametrize(
    ("first", "second"), [("", ""), ("evict_first", ""), ("evict_last", "evict_first"), ("evict_first", "evict_last")]
)
def test_copies_with_eviction_policies_bring_the_same_data(first, second, m, n, k):
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    arrays = cupy.asarray(a), cupy.asarray(b), cupy.full((m, n), np.nan, np.float32)
    options = {
        "A_POLICY": first,
        "B_POLICY": second,
        "BLOCK": BLOCK,
        "num_stages": 3,
        "without": ("warp_specialization",),
    }
    made = hinted_product.compile(*arrays, m, n, k, **options)
    copies = [line for line in made.asm["ptx"].splitlines() if "cp.async.c" in line]
    hinted = bool(first or second) and made.target.capability < NO_POLICY_FROM
    assert copies and any("L2::cache_hint" in line for line in copies) == hinted
    grid = blocknb.cdiv(m, BLOCK), blocknb.cdiv(n, BLOCK)
    for _ in range(3):
        arrays[2].fill(np.nan)
        hinted_product[grid](*arrays, m, n, k, **options)
        assert np.array_equal(cupy.asnumpy(arrays[2]), a.astype(np.float32) @ b.astype(np.float32))
