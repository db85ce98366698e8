"""The roof of a launch: the ceiling that bounds its work first (the roofline model, Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

from typing import Any

from blocknb.language.types import FLOAT8
from blocknb.profile.ceilings import Ceilings
from blocknb.profile.work import Work


def nearest(work: Work, milliseconds: float, compiled: Any, limits: Ceilings) -> tuple[str | None, float | None]:
    """The ceiling that bounds this work first, and the percentage of it that a time reaches."""
    bounds: dict[str, float] = {}  # milliseconds that each ceiling needs
    if work.unique_bytes and (memory := limits.memory_ms(sum(work.read.values()), sum(work.written.values()))):
        bounds["memory"] = memory
    if work.flops and (unit := limits.get(arithmetic(compiled))):
        bounds[unit.name] = work.flops / unit.value / 1e9
    if not bounds:
        return None, None
    name = max(bounds, key=lambda n: bounds[n])
    return name, round(100 * bounds[name] / milliseconds, 1)


def arithmetic(compiled: Any) -> str:
    """The arithmetic ceiling for a kernel: tensor cores if a pass selected them, by the type of the operands."""
    if compiled.target.is_gpu:
        for stage in reversed(compiled.trace.stages):
            for op in stage.after.ops():
                if op.name == "dot" and op.attrs.get("instr"):
                    dtype = op.args[0].type.dtype
                    return f"tensor {'fp8' if dtype in FLOAT8 else 'tf32' if dtype.name == 'fp32' else dtype.name}"
            break
    return "FP32"
