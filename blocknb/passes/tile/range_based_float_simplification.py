"""Strength reduction of float arithmetic where a range analysis allows it.

The full-range forms of division and exp2 scale their operands, for divisors near the ends of fp32 and for results below 2^-126. That takes
two and three more instructions per element. Where `analysis.float_ranges` proves that no such number occurs, or that it cannot change a
result, the short forms suffice. The note names the range. Source: PTX ISA, div.full, rcp.approx and ex2.approx.
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.float_ranges import FloatRanges
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, uses
from blocknb.language import types as t
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

TINY = 2.0**-126  # the least normal number of fp32
SAFE = (2.0**-120, 2.0**120)  # divisors far from the limits of the range, so that intermediate rounding does not matter


@gpu_pass(optional=True)
def range_based_float_simplification(func: Func, target: Target, notes: Notes) -> Func:
    """Removes the scaling of divisions and exponentials whose operands cannot need it

    When: the divisor of an fp32 division is proved to be neither huge nor tiny. Or results of an exponential below 2^-126 cannot change any
    stored value.

    What: such a quotient becomes a product with one reciprocal, and such an exponential a single instruction. As in Triton, exp2 always is
    that instruction. Its results below 2^-126 are zero.

    Why: the full-range forms scale their operands, which takes two and three more instructions per element. Softmax has both: the largest
    element is subtracted, so the sum of the exponentials is at least 1.

    Limits: the proof uses ranges of values, not the data. Without one the full-range form stays.

    Before:

        %e = exp %shifted : tile<1024xf32>
        %s = reduce %e {axis=0} add : f32
        %all = splat %s : tile<1024xf32>
        %y = div %e, %all : tile<1024xf32>

    After:

        %e = exp %shifted {flush_denormals=True} : tile<1024xf32>
        %s = reduce %e {axis=0} add : f32
        %all = splat %s : tile<1024xf32>
        %y = div %e, %all {normal=True} : tile<1024xf32>
    """
    magnitudes = FloatRanges(affine.analyze(func), uses(func))
    originals = {op.id: op for op in func.ops() if op.name in ("div", "exp", "exp2")}

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name not in ("div", "exp", "exp2") or op.result.type.dtype != t.float32:
            return NotImplemented
        old = originals[op.id]
        if op.name == "div":
            if op.attrs.get("nearest"):
                return NotImplemented
            low, high = magnitudes.bounds(old.args[1])
            apart = (SAFE[0] <= low and high <= SAFE[1]) or (-SAFE[1] <= low and high <= -SAFE[0])
            if not apart and not magnitudes.is_integer_valued(old.args[1]):
                return NotImplemented
            new = revised(op, attrs={**op.attrs, "normal": True})
            what = f"lies between {low:g} and {high:g}" if apart else "is a whole number"
            text = f"the divisor {what}: multiplies by its reciprocal instead of dividing"
        else:
            least = magnitudes.negligible_magnitude(old.result)
            if least < TINY and op.name == "exp":
                return NotImplemented
            new = revised(op, attrs={**op.attrs, "flush_denormals": True})
            text = f"results below {least:.2g} do not change any stored value, so results below 2^-126 may become zero"
            if least < TINY:
                text = (
                    "uses the GPU's own exp2, which makes results below 2^-126 zero; no stored value depends on those"
                )
        rebuild.builder.append(new)
        notes(new, text)
        return new.results

    return rebuild(func, visit) if originals else func
