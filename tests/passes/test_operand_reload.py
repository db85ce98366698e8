"""Operands of a loop that are read from shared memory again, instead of being spilled: when, and with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import reports
from kernels.base import Case

import blocknb
import blocknb.language as bl


@blocknb.kernel
def scores_times_values(q, k, v, out, n, ROWS: bl.constexpr, KEYS: bl.constexpr, HEAD: bl.constexpr):
    row, key, column = bl.arange(0, ROWS), bl.arange(0, KEYS), bl.arange(0, HEAD)
    queries = bl.load(q + row[:, None] * HEAD + column[None, :])
    total = bl.zeros((ROWS, HEAD), bl.float32)
    for start in range(0, n, KEYS):
        keys = bl.load(k + (start + key)[None, :] * HEAD + column[:, None])
        values = bl.load(v + (start + key)[:, None] * HEAD + column[None, :])
        scores = bl.maximum(bl.dot(queries, keys), 0.0)
        total += bl.dot(scores.to(bl.float16), values)
    bl.store(out + row[:, None] * HEAD + column[None, :], total)


KINDS = {**dict.fromkeys("qkv", "*fp16:16"), "out": "*fp32:16", "n": "i32", "KEYS": 32, "HEAD": 64, "num_warps": 2}


def stage(trace):
    return next((stage for stage in trace.stages if stage.name == "operand_reload"), None)


def reads_in_loops(func):
    return sum(op.name == "local_load" for loop in func.ops() if loop.name == "for" for op in loop.blocks[0].ops)


def test_queries_that_do_not_fit_are_read_again_and_less_is_spilled():
    again, kept = (scores_times_values.trace(**KINDS, ROWS=128, without=x) for x in ((), ("operand_reload",)))
    found = stage(again)
    (note,) = found.notes
    assert "are free for them, and this operand takes 64" in note.text
    assert reads_in_loops(found.after) == reads_in_loops(found.before) + 1
    assert again.resources.spill_bytes < kept.resources.spill_bytes // 2


def test_queries_that_fit_stay_in_registers():
    found = stage(scores_times_values.trace(**KINDS, ROWS=64))
    assert found.after is found.before


@blocknb.kernel
def sums_times_values(k, v, out, n, ROWS: bl.constexpr, KEYS: bl.constexpr, HEAD: bl.constexpr):
    row, key, column = bl.arange(0, ROWS), bl.arange(0, KEYS), bl.arange(0, HEAD)
    ones = bl.full((ROWS, HEAD), 1.0, bl.float16)
    total = bl.zeros((ROWS, HEAD), bl.float32)
    for start in range(0, n, KEYS):
        keys = bl.load(k + (start + key)[None, :] * HEAD + column[:, None])
        values = bl.load(v + (start + key)[:, None] * HEAD + column[None, :])
        total += bl.dot(bl.dot(ones, keys).to(bl.float16), values)
    bl.store(out + row[:, None] * HEAD + column[None, :], total)


def test_an_operand_that_is_no_read_stays_in_registers():
    kinds = {name: kind for name, kind in KINDS.items() if name != "q"}
    found = stage(sums_times_values.trace(**kinds, ROWS=128))
    assert found is not None and found.after is found.before


@pytest.mark.parametrize("n", [0, 32, 96])
def test_the_simulated_code_computes_the_same(n):
    rng = np.random.default_rng(n)
    q = rng.integers(-2, 3, (128, 64)).astype(np.float16)
    k, v = (rng.integers(-2, 3, (96, 64)).astype(np.float16) for _ in range(2))
    arguments = {"q": q, "k": k, "v": v, "out": np.zeros((128, 64), np.float32), "n": n}
    arguments |= {"ROWS": 128, "KEYS": 32, "HEAD": 64}
    case = Case(
        "scores", scores_times_values, lambda rng: dict(arguments), lambda arguments: {}, options={"num_warps": 2}
    )
    func, stages = case.lower(arguments, "sm_90a")
    assert any(stage.name == "operand_reload" and stage.notes for stage in stages)
    reports.run(func, arguments, case.grid)
    wide = [x.astype(np.float64) for x in (q, k[:n], v[:n])]
    expected = np.maximum(wide[0] @ wide[1].T, 0).astype(np.float16).astype(np.float64) @ wide[2]
    np.testing.assert_allclose(arguments["out"], expected, rtol=1e-6)
