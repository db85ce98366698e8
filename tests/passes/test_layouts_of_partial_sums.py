"""Layouts of stream-K: a loop that adds loaded partial results to a product carries the sum in the layout of the loads."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.base import Case, parameters
from support import check_pipeline

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.ir.core import Func, Op, walk
from blocknb.target import Target


@blocknb.kernel(do_not_specialize=["n"])
def with_partial_sums(a, b, parts, out, n, WHILE: tl.constexpr, SCALE: tl.constexpr, AGAIN: tl.constexpr):
    """out (64, 64) fp32 = a b + the sum of n tiles of `parts`; `SCALE` multiplies by a row's largest sum, `AGAIN` by another product."""
    at = tl.arange(0, 64)
    square = at[:, None] * 64 + at[None, :]
    x, y = tl.load(a + square), tl.load(b + square)
    total = tl.dot(x, y)
    if WHILE:
        left = n
        while left > 0:
            left -= 1
            total += tl.load(parts + left * 4096 + square)
    else:
        for i in range(n):
            total += tl.load(parts + i * 4096 + square)
    if SCALE:
        total = total * tl.max(total, axis=1)[:, None]
    if AGAIN:
        total = tl.dot(x, y, total)
    tl.store(out + square, total)


@blocknb.kernel(do_not_specialize=["n"])
def doubled_product(a, b, out, n):
    at = tl.arange(0, 64)
    square = at[:, None] * 64 + at[None, :]
    total = tl.dot(tl.load(a + square), tl.load(b + square))
    for _ in range(n):
        total = total + total
    tl.store(out + square, total)


def given(n: int, loops: bool = True, scale: bool = False, again: bool = False) -> dict:
    """Integers, whose sums fp32 holds exactly."""
    random = np.random.default_rng(0)
    a, b = random.integers(-3, 4, (2, 64, 64)).astype(np.float16)
    parts = random.integers(-3, 4, (max(n, 1), 64, 64)).astype(np.float32)
    flags = {"WHILE": loops, "SCALE": scale, "AGAIN": again}
    return {"a": a, "b": b, "parts": parts, "out": np.full((64, 64), np.nan, np.float32), "n": n, **flags}


def parsed(arguments: dict) -> Func:
    return Case("with_partial_sums", with_partial_sums, dict, dict).parse(arguments, num_warps=4)


def conversions(arguments: dict, target: str = "sm_90a") -> tuple[int, int]:
    """The conversions of the fp32 tile in the loop over the partial results, and those outside of it."""
    stages = passes.run(parsed(arguments), Target.parse(target))[1]
    func = next(stage for stage in stages if stage.name == "layout_assignment").after
    loop = next(op for op in func.ops() if op.name in ("for", "while"))
    inside = {op for block in loop.blocks for op in walk(block)}

    def converts(op: Op) -> bool:
        return op.name == "convert" and op.result.type.shape == (64, 64) and op.result.type.dtype.bits == 32

    found = [op in inside for op in func.ops() if converts(op)]
    return found.count(True), found.count(False)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("loops", [False, True])
def test_a_product_is_converted_once_before_the_loop_that_adds_partial_results(loops, target):
    assert conversions(given(3, loops), target) == (0, 1)


@pytest.mark.parametrize(("scale", "again"), [(True, False), (False, True)])
def test_a_sum_that_is_reduced_or_multiplied_keeps_the_layout_of_the_product(scale, again):
    inside, _ = conversions(given(3, scale=scale, again=again))
    assert inside == 1


def test_a_product_to_which_no_loaded_tile_is_added_is_converted_for_the_store():
    arguments = {name: given(3)[name] for name in ("a", "b", "out", "n")}
    func = Case("doubled_product", doubled_product, dict, dict).parse(arguments, num_warps=4)
    stages = passes.run(func, Target.parse("sm_90a"))[1]
    after = next(stage for stage in stages if stage.name == "layout_assignment").after
    loop = next(op for op in after.ops() if op.name == "for")
    product = next(op for op in after.ops() if op.name == "dot")
    assert loop.results[0].type.layout == product.result.type.layout


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("loops", [False, True])
def test_each_pass_keeps_the_sum_of_a_product_and_partial_results(loops, n):
    arguments = given(n, loops)
    func = parsed(arguments)
    check_pipeline(func, parameters(func, arguments), 1, "sm_90a")
