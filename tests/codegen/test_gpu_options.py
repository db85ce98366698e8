"""Options that change the GPU's code."""

from __future__ import annotations

import blocknb
import blocknb.language as bl


@blocknb.kernel
def functions(x, y, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i)
    bl.store(y + i, bl.sin(v) / bl.sqrt(v) + bl.log2(v))


def test_only_fast_math_uses_approximate_instructions():
    fast = functions.trace("*fp32:16", "*fp32:16", BLOCK=128, fast_math=True).ptx
    plain = functions.trace("*fp32:16", "*fp32:16", BLOCK=128).ptx
    for instruction in ("sin.approx.f32", "sqrt.approx.f32", "lg2.approx.f32"):
        assert instruction in fast
        assert instruction not in plain
    assert "div.approx.f32" in fast or "rcp.approx" in fast
    assert "div.full.f32" in plain
