"""The analysis proves that the sum of an online softmax is at least one, for online softmaxes only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_helpers import ir, kernel
from kernels import CASES

import blocknb.language as bl
from blocknb.passes.tile.range_based_float_simplification import range_based_float_simplification
from blocknb.target import Target
from blocknb.trace import Notes

STARTS_WITH_ONE = bl.constexpr(1)
SCALED = bl.constexpr(2)
MASKED = bl.constexpr(3)
STARTS_AT_ZERO = bl.constexpr(4)
STARTS_BELOW_ZERO = bl.constexpr(5)
SCALED_TWICE = bl.constexpr(6)
OTHER_ELEMENTS = bl.constexpr(7)
LARGER = bl.constexpr(8)
THE_WRONG_WAY = bl.constexpr(9)
SOMETHING_ELSE_IS_CARRIED = bl.constexpr(10)
LOOKED_AT = bl.constexpr(11)


@kernel
def rows(x, y, scale, n, start, WAY: bl.constexpr, R: bl.constexpr, B: bl.constexpr):
    """Sums of exponentials of differences to the maximum. Every WAY but the first ones breaks one step of the proof."""
    row, column = bl.arange(0, R), bl.arange(0, B)
    top = bl.full((R,), 0.0 if WAY == STARTS_AT_ZERO else -float("inf"), bl.float32)
    total = bl.full((R,), 1.0 if WAY == STARTS_WITH_ONE else -1.0 if WAY == STARTS_BELOW_ZERO else 0.0, bl.float32)
    for at in range(0, n, B):
        s = bl.load(x + row[:, None] * n + at + column[None, :])
        if WAY == SCALED:
            new = bl.maximum(top, bl.max(s, 1) * scale)
            p = bl.exp(s * scale - new[:, None])
        elif WAY == SCALED_TWICE:
            new = bl.maximum(top, bl.max(s, 1) * scale)
            p = bl.exp(s * start - new[:, None])
        elif WAY == OTHER_ELEMENTS:
            new = bl.maximum(top, bl.max(s + 1, 1))
            p = bl.exp(s - new[:, None])
        elif WAY == MASKED:
            s = bl.where(column[None, :] < start, s, -float("inf"))
            new = bl.maximum(top, bl.max(s, 1))
            p = bl.exp(s - new[:, None])
        elif WAY == LARGER:
            new = bl.maximum(top, bl.max(s, 1)) + 1
            p = bl.exp(s - new[:, None])
        else:
            new = bl.maximum(top, bl.max(s, 1))
            p = bl.exp(s - new[:, None])
        factor = bl.exp(new - top) if WAY == THE_WRONG_WAY else bl.exp(top - new)
        more = bl.sum(p, 1)
        total = more + total * factor
        if WAY == SOMETHING_ELSE_IS_CARRIED:
            top = bl.maximum(new, 0.0)
        else:
            top = new
        if WAY == LOOKED_AT:
            bl.store(y + row, more)
    bl.store(y + row, total)


def flushed(k: Any, **arguments: Any) -> int:
    notes = Notes("range_based_float_simplification")
    func = range_based_float_simplification(ir(k, **arguments), Target.parse("sm_90a"), notes)
    return sum(bool(op.attrs.get("flush_denormals")) for op in func.ops() if op.name in ("exp", "exp2"))


GIVEN = {"x": "*f32", "y": "*f32", "scale": "f32", "n": "i32", "start": "f32", "R": 16, "B": 64}


@pytest.mark.parametrize("way", [0, STARTS_WITH_ONE, SCALED, MASKED])
def test_subnormal_exponential_may_be_flushed_if_the_sum_is_at_least_one(way: Any) -> None:
    assert flushed(rows, WAY=getattr(way, "value", way), **GIVEN) == 1


WRONG = (
    STARTS_AT_ZERO,
    STARTS_BELOW_ZERO,
    SCALED_TWICE,
    OTHER_ELEMENTS,
    LARGER,
    THE_WRONG_WAY,
    SOMETHING_ELSE_IS_CARRIED,
    LOOKED_AT,
)


@pytest.mark.parametrize("way", WRONG)
def test_nothing_is_flushed_if_the_sum_may_be_small(way: Any) -> None:
    assert flushed(rows, WAY=getattr(way, "value", way), **GIVEN) == 0


@kernel
def twice(x, y, n, m, KEEP: bl.constexpr, R: bl.constexpr, B: bl.constexpr):
    """The second loop continues the sums of the first one, as in causal attention."""
    row, column = bl.arange(0, R), bl.arange(0, B)
    top, total = bl.full((R,), -float("inf"), bl.float32), bl.zeros((R,), bl.float32)
    for at in range(0, n, B):
        s = bl.load(x + row[:, None] * n + at + column[None, :])
        new = bl.maximum(top, bl.max(s, 1))
        total = total * bl.exp(top - new) + bl.sum(bl.exp(s - new[:, None]), 1)
        top = new
    if not KEEP:
        total = total * 0.0
    for at in range(n, m, B):
        s = bl.load(x + row[:, None] * n + at + column[None, :])
        new = bl.maximum(top, bl.max(s, 1))
        total = total * bl.exp(top - new) + bl.sum(bl.exp(s - new[:, None]), 1)
        top = new
    bl.store(y + row, total)


@pytest.mark.parametrize(("keep", "count"), [(True, 2), (False, 1)])
def test_second_loop_continues_the_online_softmax_of_the_first(keep: bool, count: int) -> None:
    assert flushed(twice, KEEP=keep, x="*f32", y="*f32", n="i32", m="i32", R=16, B=64) == count


def test_attention_needs_one_instruction_per_exponential() -> None:
    case = CASES["attention"]
    func, _ = case.lower(case.make(np.random.default_rng(0)), "sm_90a")
    # P, and one number per row. Each of both exists for the first iteration, whose products `mma_softmax_overlap` begins before the loop,
    # and for the loop. The loop computes its weights after a wait.
    assert [bool(op.attrs.get("flush_denormals")) for op in func.ops() if op.name == "exp"] == [
        True,
        False,
        False,
        True,
    ]
