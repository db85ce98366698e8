"""Pairs of stages, targets, versions and settings of knobs, compiled without LLVM, for the tests of `blocknb.ir_diff`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from kernels import CASES
from kernels.base import Case

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.ir_diff import Matching, match_stages, match_traces, sentences
from blocknb.target import Target
from blocknb.trace import Stage, Stages, Trace


@blocknb.kernel
def rows(x, out, n, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(n):
        total += tl.load(x + row * stride + at)
    tl.store(out + at, total)


first_rows = rows


@blocknb.kernel
def rows(x, out, n, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(0, n, 2):
        total += tl.load(x + row * stride + at) * 0.5
    tl.store(out + at, total)


second_rows = rows


@blocknb.kernel
def unrolled(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(4):
        total += tl.load(x + row * BLOCK + at)
    tl.store(out + at, total)


def _case(kernel: Any, **arguments: Any) -> Case:
    return Case(kernel.__name__, kernel, lambda rng: dict(arguments), lambda given: {})


X = np.zeros(4096, np.float32)
OWN = {
    "first_rows": _case(first_rows, x=X, out=X, n=8, stride=256, BLOCK=256),
    "second_rows": _case(second_rows, x=X, out=X, n=8, stride=256, BLOCK=256),
    "unrolled": _case(unrolled, x=X, out=X, BLOCK=256),
}


@functools.cache
def trace(name: str, target: str = "sm_90a", **options: Any) -> Trace:
    """The Trace of a kernel of the tests without machine code; constants and options by name."""
    case = OWN.get(name) or CASES[name]
    arguments = case.make(np.random.default_rng(0))
    given = {key: options.pop(key) for key in [*options] if key in arguments}
    func = case.parse(arguments | given, Target.parse(target), **options)
    _, stages = passes.run(func, Target.parse(target))
    front = Stage("parse", "", "", func, func, (), 0.0)
    source = case.kernel.source
    found = Trace(name, Target.parse(target), source.text, source.file, source.first_line, {}, {}, {})
    found.stages = Stages(lambda: (front, *stages))
    return found


def stage_pair(name: str, target: str, stage: str) -> Matching:
    """The ops before and after a pass."""
    made = trace(name, target).stages[stage]
    return match_stages(made.before, made.after)


def told(matching: Matching, compared: bool = False) -> list[str]:
    """The sentences of a pair, without the lines, which differ with the files of the tests."""
    return [sentence.text.partition(" (line")[0] for sentence in sentences(matching, compared)]


def compared(a: Trace, b: Trace, stage: int = -1) -> Matching:
    """The ops of two compilations after their last stages, or after another one of both."""
    return match_traces(a, b, stage, stage)
