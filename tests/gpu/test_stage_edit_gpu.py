"""An edited stage of a Hopper product runs on a GPU: each of its results is doubled, and the kernel itself keeps its own code."""

from __future__ import annotations

import re

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.runtime import cuda

cupy = pytest.importorskip("cupy")


@blocknb.kernel
def product(a, b, out, K, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns, inner = tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((BM, N), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + k + inner[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@pytest.mark.parametrize("name", ["layout_assignment", "software_pipelining", "shared_memory_allocation", "barriers"])
def test_an_edited_stage_of_a_product_runs(name):
    target = str(cuda.target(0))
    rng = np.random.default_rng(0)
    a, b = (cupy.asarray(rng.standard_normal(shape).astype(np.float16)) for shape in ((256, 512), (512, 128)))
    out = cupy.empty((256, 128), np.float16)
    options = {"N": 128, "BM": 128, "BK": 64}
    stage = product.trace(a, b, out, 512, target=target, **options).stages[name]
    ((result, operand, layout),) = re.findall(r"(%\S+) = cast (%\S+) : tile<128x128xf16, (#\w+)>", stage.text)
    line = f"{result} = cast {operand} : tile<128x128xf16, {layout}>"
    doubled = f"%twice = add {operand}, {operand}\n  {result} = cast %twice : tile<128x128xf16, {layout}>"
    edited = stage.edit(stage.text.replace(line, doubled))
    want = a.astype(np.float32) @ b.astype(np.float32)
    edited[2](a, b, out, 512)
    cupy.testing.assert_allclose(out.astype(np.float32), 2 * want, rtol=1e-2, atol=0.2)
    product[2](a, b, out, 512, **options)
    cupy.testing.assert_allclose(out.astype(np.float32), want, rtol=1e-2, atol=0.1)
