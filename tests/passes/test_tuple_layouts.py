"""The operands of a reduction or scan of tuples have one layout, so that none of them is converted."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as tl


@blocknb.kernel
def _weighted(a, u, b, v):
    return a + b, u * v


@blocknb.kernel
def tuples(x, out, n, SCAN: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    values = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    weights = tl.where(at < n, 1.0, 0.5)
    if SCAN:
        total, weight = tl.associative_scan((values, weights), 0, _weighted)
        tl.store(out + at, total * weight)
    else:
        total, weight = tl.reduce((values, weights), 0, _weighted)
        tl.store(out, total * weight)


@pytest.mark.parametrize("scan", [False, True])
def test_computed_operands_take_the_layout_of_the_loaded_one(scan):
    arguments = {"x": np.zeros(1024, np.float16), "out": np.zeros(1024, np.float16), "n": 1000, "SCAN": scan, "B": 1024}
    _, stages = Case("tuples", tuples, dict, dict).lower(arguments, "sm_90a", num_warps=4)
    after = next(stage for stage in stages if stage.name == "layout_assignment").after
    assert not [op for op in after.ops() if op.name == "convert"]
    (op,) = (op for op in after.ops() if op.name in ("reduce", "scan"))
    assert {x.type.layout.contiguous_registers(0) for x in op.args} == {8}
