"""Helpers for tests of register prefetch: kernels lowered with stages, checks by the interpreter, and notes."""

from __future__ import annotations

from typing import Any

import numpy as np
import seeds
from kernels.base import Case, parameters
from support import check_pipeline

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.ir.core import Func, Op
from blocknb.target import Target
from blocknb.trace import Stage

ITERATION_COUNTS = (0, 1, 2, 3, 7)
kernel = blocknb.kernel(
    do_not_specialize=("first", "last", "step", "m", "n", "k")
)  # so that one iteration suffices for a prefetch


def parsed(kernel: Any, arguments: dict[str, Any], **options: Any) -> Func:
    return Case(kernel.__name__, kernel, dict, dict).parse(arguments, **options)


def pipelined(kernel: Any, arguments: dict[str, Any], grid: int = 1, target: str = "sm_90a", **options: Any) -> Stage:
    """The pass's stage. Checks that each pass keeps the results of the kernel."""
    func = parsed(kernel, arguments, **({"num_warps": 2} | options))
    _, stages = check_pipeline(func, parameters(func, arguments), grid, target)
    return next(stage for stage in stages if stage.name == "register_prefetch")


def only(kernel: Any, arguments: dict[str, Any], **options: Any) -> Stage:
    """The pass's stage, without a run of the interpreter."""
    func = parsed(kernel, arguments, **({"num_warps": 2} | options))
    _, stages = passes.run(func, Target.parse("sm_90a"))
    return next(stage for stage in stages if stage.name == "register_prefetch")


def loops(func: Func) -> list[Op]:
    return [op for op in func.ops() if op.name == "for"]


def loads(loop: Op) -> int:
    return sum(op.name == "load" for op in loop.blocks[0].ops)


def texts(stage: Stage, kind: str) -> list[str]:
    assert all(note.loc is not None for note in stage.notes)
    return [note.text for note in stage.notes if note.kind == kind]


def refused(kernel: Any, arguments: dict[str, Any], why: str, grid: int = 1, **options: Any) -> Stage:
    """Checks that nothing is prefetched, and that every note gives this reason at its load."""
    stage = pipelined(kernel, arguments, grid, **({"num_stages": 2} | options))
    assert stage.after is stage.before
    assert texts(stage, "missed") and all(why in text for text in texts(stage, "missed")), texts(stage, "missed")
    assert texts(stage, "info") == []
    return stage


def floats(*shape: int) -> np.ndarray:
    return seeds.rng().standard_normal(shape).astype(np.float32)


@kernel
def rows(x, out, first, last, step, B: bl.constexpr, STAGES: bl.constexpr):
    """`step` may have any sign, which is unknown at compile time."""
    at = bl.arange(0, B)
    for row in bl.range(first, last, step, num_stages=STAGES):
        values = bl.load(x + row * B + at)
        bl.store(out + row * B + at, values - bl.max(values, 0))


@blocknb.kernel
def shared_rows(x, out, m, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for row in range(bl.program_id(0), m, bl.num_programs(0)):
        values = bl.load(x + row * n + at, mask=at < n, other=-float("inf"))
        power = bl.exp(values - bl.max(values, 0))
        bl.store(out + row * n + at, power / bl.sum(power, 0), mask=at < n)
