"""Integer range narrowing: kernels with int64 indices compute masks and offsets in int32, and give the same results."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case

import blocknb
import blocknb.language as bl


@blocknb.kernel
def long_rows(x, y, n, BLOCK: bl.constexpr, COLUMNS: bl.constexpr):
    i = bl.program_id(0).to(bl.int64)
    at = i // 2 * 2 * BLOCK + i % 2 * BLOCK + bl.arange(0, BLOCK)
    column = bl.arange(0, COLUMNS)
    inside = (at < n)[:, None] & (column < COLUMNS - 3)[None, :]
    place = at[:, None] * COLUMNS + column[None, :]
    bl.store(y + place, bl.load(x + place, mask=inside, other=0) * 2.0, mask=inside)


KINDS = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "BLOCK": 64, "COLUMNS": 64, "num_warps": 4}


def stage(trace):
    return next((stage for stage in trace.stages if stage.name == "int_range_narrowing"), None)


def wide(func, name):
    return [
        op for op in func.ops() if op.name == name and op.args[0].type.shape and str(op.args[0].type.dtype) == "int64"
    ]


def test_masks_and_offsets_of_tiles_are_narrowed():
    found = stage(long_rows.trace(**KINDS))
    assert wide(found.before, "cmp") and not wide(found.after, "cmp")
    assert not [
        op
        for op in found.after.ops()
        if op.name == "ptradd" and op.args[1].type.dtype == bl.int64 and op.args[1].type.shape
    ]
    texts = [note.text for note in found.notes]
    assert any("in int32: their ranges fit" in text for text in texts)
    assert any("the bound less the tile's start" in text for text in texts)


def test_machine_code_has_fewer_comparisons():
    few, many = (long_rows.trace(**KINDS, without=off) for off in ((), ("int_range_narrowing",)))
    assert few.sass.text.count("ISETP") < 0.75 * many.sass.text.count("ISETP")
    assert "setp.lt.s64" in many.ptx and "setp.lt.s64" not in few.ptx


def test_kernels_without_int64_have_no_such_stage():
    @blocknb.kernel
    def copied(x, y, BLOCK: bl.constexpr):
        at = bl.arange(0, BLOCK)
        bl.store(y + at, bl.load(x + at))

    assert stage(copied.trace("*fp32:16", "*fp32:16", BLOCK=1024)) is None


@pytest.mark.parametrize("n", [0, 1, 63, 64, 100, 256])
def test_the_simulated_code_computes_the_same(n):
    x = np.random.default_rng(n).standard_normal((256, 64)).astype(np.float32)
    y = np.zeros_like(x)
    arguments = {"x": x, "y": y, "n": n, "BLOCK": 64, "COLUMNS": 64}
    case = Case(
        "long_rows", long_rows, lambda rng: dict(arguments), lambda arguments: {}, grid=(4,), options={"num_warps": 4}
    )
    func, stages = case.lower(arguments, "sm_90a")
    assert any(stage.name == "int_range_narrowing" for stage in stages)
    reports.run(func, arguments, case.grid)
    expected = np.zeros_like(x)
    expected[:n, :61] = 2 * x[:n, :61]
    assert np.array_equal(y, expected)
