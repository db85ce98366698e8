"""The roof of a launch: the ceiling that bounds its work first (the roofline model, Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

from typing import Any

from blocknb.language.types import FLOAT8
from blocknb.profile.ceilings import Ceilings
from blocknb.profile.work import Work


def nearest(work: Work, milliseconds: float, compiled: Any, limits: Ceilings) -> tuple[str | None, float | None]:
    """The ceiling that bounds this work first, and the percentage of it that a time reaches."""
    if not (found := bounds(work, compiled, limits)):
        return None, None
    name = max(found, key=lambda n: found[n])
    return name, round(100 * found[name] / milliseconds, 1)


def bounds(work: Work, compiled: Any, limits: Ceilings) -> dict[str, float]:
    """The least milliseconds that each ceiling allows for this work. Empty if the work or the ceilings are unknown."""
    found: dict[str, float] = {}
    if work.unique_bytes and (memory := limits.memory_ms(sum(work.read.values()), sum(work.written.values()))):
        found["memory"] = memory
    if work.flops and (unit := limits.get(arithmetic(compiled))):
        found[unit.name] = work.flops / unit.value / 1e9
    return found


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
