"""Layouts of rows that a loop loads and reduces: no conversion between types of two widths, and few partial results to exchange."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernels.base import Case, parameters
from support import check_pipeline

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.ir.core import Func, walk
from blocknb.layouts.linear import Layout
from blocknb.passes.support.layout_facts import exchanges
from blocknb.target import Target


@blocknb.kernel(do_not_specialize=["m"])
def weighted_sums(x, g, out, m, last, H: tl.constexpr, K: tl.constexpr):
    """The sums of rows in 16 bits times rows in fp32, for each step of a loop that runs in a branch."""
    if last > 0:
        h = tl.arange(0, H)
        at = h[:, None] * K + tl.arange(0, K)[None, :]
        first = tl.load(g + at)
        for step in range(m):
            now = tl.load(x + step * H * K + at).to(tl.float32)
            weight = tl.load(g + step * H * K + at)
            tl.store(out + step * H + h, tl.sum(now * (first - weight), axis=1))


@blocknb.kernel
def joined(x, g, out, last, H: tl.constexpr, K: tl.constexpr):
    """A tile in 16 bits and one in fp32, both loaded in a branch."""
    if last > 0:
        at = tl.arange(0, H)[:, None] * K + tl.arange(0, K)[None, :]
        tl.store(out + at, tl.load(x + at).to(tl.float32) + tl.load(g + at))


def arguments(m: int, h: int, k: int, dtype=ml_dtypes.bfloat16) -> dict:
    rng = np.random.default_rng(m + h + k)
    x, g = (rng.integers(-4, 5, (max(m, 1), h, k)) for _ in range(2))
    out = np.full((max(m, 1), h), 7, np.float32)
    return {"x": x.astype(dtype), "g": g.astype(np.float32), "out": out, "m": m, "last": 2, "H": h, "K": k}


def distributed(kernel, given: dict, num_warps: int) -> Func:
    func = Case(kernel.__name__, kernel, dict, dict).parse(given, num_warps=num_warps)
    stages = passes.run(func, Target.parse("sm_90a"), ())[1]
    return next(stage.after for stage in stages if stage.name == "layout_assignment")


def converted(func: Func) -> int:
    """The elements of the converted tiles of floats."""
    return sum(op.result.type.size for op in func.ops() if op.name == "convert" and op.result.type.dtype.is_float)


@pytest.mark.parametrize(("m", "h", "k", "warps"), [(0, 4, 128, 1), (3, 4, 128, 1), (2, 8, 64, 2), (2, 2, 256, 1)])
def test_rows_of_two_types_give_the_right_sums(m, h, k, warps):
    given = arguments(m, h, k)
    func = Case("weighted_sums", weighted_sums, dict, dict).parse(given, num_warps=warps)
    check_pipeline(func, parameters(func, given), 1, "sm_90a")


def test_a_loop_that_reduces_rows_of_two_types_converts_none_of_them():
    func = distributed(weighted_sums, arguments(3, 4, 128), 1)
    (loop,) = (op for op in func.ops() if op.name == "for")
    assert not [op for op in walk(loop.blocks[0]) if op.name == "convert"]
    (reduced,) = (op.args[0].type.layout for op in func.ops() if op.name == "reduce")
    assert reduced.contiguous_registers(1) == 8 and exchanges(reduced, 1) == 8  # not 20, as with 4 elements per thread


def test_rows_of_one_type_keep_whole_sectors_per_access():
    func = distributed(weighted_sums, arguments(3, 4, 128, np.float32), 1)
    assert {op.result.type.layout.contiguous_registers(1) for op in func.ops() if op.name == "load"} == {4}


def test_a_load_in_a_branch_takes_half_width_vectors_instead_of_a_conversion():
    given = {name: value for name, value in arguments(1, 16, 128).items() if name != "m"}
    assert not converted(distributed(joined, given | {"out": np.zeros((16, 128), np.float32)}, 4))


def test_exchanges_are_counted_for_each_line_of_a_thread():
    narrow = Layout.parse("<4x128: reg 1,2,128,256 lane 4,8,16,32,64 warp ->")
    wide = Layout.parse("<4x128: reg 1,2,4,256 lane 8,16,32,64,128 warp ->")
    assert (exchanges(narrow, 1), exchanges(wide, 1), exchanges(wide, 0)) == (20, 8, 8)
