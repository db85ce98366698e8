"""Expensive arithmetic on the results of reductions: lanes that hold the same rows share it, and the numbers stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb.layouts.linear import Layout
from blocknb.passes.distributed.spread_replicas import spread


@blocknb.kernel
def quantized_rows(x, y, scales, ROWS: bl.constexpr, COLUMNS: bl.constexpr):
    row, column = bl.arange(0, ROWS), bl.arange(0, COLUMNS)
    place = row[:, None] * COLUMNS + column[None, :]
    v = bl.load(x + place)
    most = bl.maximum(bl.max(bl.abs(v), axis=1), 1e-12).to(bl.float64)
    scale = (448.0 / most).to(bl.float32)
    bl.store(y + place, v * scale[:, None])
    bl.store(scales + row, 1.0 / scale)


KINDS = {"x": "*fp32:16", "y": "*fp32:16", "scales": "*fp32:16", "num_warps": 4}


def stage(trace):
    return next((stage for stage in trace.stages if stage.name == "spread_replicas"), None)


def divisions(func):
    return [op.result.type.layout for op in func.ops() if op.name == "div"]


def test_each_lane_divides_for_its_share_of_the_rows():
    found = stage(quantized_rows.trace(**KINDS, ROWS=32, COLUMNS=128))
    assert {x.num_registers for x in divisions(found.before)} == {8}
    assert {x.num_registers for x in divisions(found.after)} == {1}
    (note,) = found.notes
    assert note.text == "1 element per thread instead of 8: lanes with equal elements share the work"


def test_machine_code_becomes_shorter():
    few, many = (quantized_rows.trace(**KINDS, ROWS=32, COLUMNS=128, without=off) for off in ((), ("spread_replicas",)))
    assert len(few.sass.lines) < 0.8 * len(many.sass.lines)


def test_arithmetic_that_costs_little_stays():
    @blocknb.kernel
    def shifted(x, y, ROWS: bl.constexpr, COLUMNS: bl.constexpr):
        row, column = bl.arange(0, ROWS), bl.arange(0, COLUMNS)
        place = row[:, None] * COLUMNS + column[None, :]
        v = bl.load(x + place)
        bl.store(y + place, v - (bl.max(v, axis=1) * 2.0)[:, None])

    assert stage(shifted.trace("*fp32:16", "*fp32:16", ROWS=32, COLUMNS=128)) is None


def test_lanes_with_copies_take_the_highest_registers():
    layout = Layout((32,), (8, 16), (0, 0, 0, 0, 1), (2, 4))
    assert spread(layout) == Layout((32,), (), (16, 8, 0, 0, 1), (2, 4))
    assert spread(Layout((32,), (8, 16), (1, 2, 4), ())) is None
    assert spread(Layout((8,), (), (0, 0, 1, 2, 4), ())) is None


@pytest.mark.parametrize(("rows", "columns"), [(32, 128), (64, 64), (16, 512)])
def test_the_simulated_code_computes_the_same(rows, columns):
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    arguments = {"x": x, "y": np.zeros_like(x), "scales": np.zeros(rows, np.float32), "ROWS": rows, "COLUMNS": columns}
    case = Case("rows", quantized_rows, lambda rng: dict(arguments), lambda arguments: {}, options={"num_warps": 4})
    func, stages = case.lower(arguments, "sm_90a")
    assert any(stage.name == "spread_replicas" and stage.notes for stage in stages)
    reports.run(func, arguments, case.grid)
    scale = (448.0 / np.maximum(np.abs(x).max(axis=1), 1e-12).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(arguments["scales"], 1 / scale, rtol=1e-6)
    np.testing.assert_allclose(arguments["y"], x * scale[:, None], rtol=1e-6)
