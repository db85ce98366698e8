"""A tile and its transpose share one buffer of wgmma, to which asynchronous copies bring it."""

from __future__ import annotations

import numpy as np
from kernels.base import Case, parameters

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.ir import interp
from blocknb.ir.verify import verify
from blocknb.target import Target


@blocknb.kernel
def keys_as_values(q, keys, c, n, D: bl.constexpr, B: bl.constexpr):
    """Products with a tile of keys, transposed and as it is."""
    rows, inner = bl.arange(0, 64), bl.arange(0, D)
    queries = bl.load(q + rows[:, None] * D + inner[None, :])
    total = bl.zeros((64, D), bl.float32)
    for start in range(0, n, B):
        at = start + bl.arange(0, B)
        k = bl.load(keys + at[:, None] * D + inner[None, :], mask=at[:, None] < n, other=0.0)
        scores = bl.dot(queries, bl.trans(k))
        total = bl.dot(scores.to(bl.float16), k, total)
    bl.store(c + rows[:, None] * D + inner[None, :], total)


def test_a_tile_whose_transpose_reads_the_same_buffer_is_copied_ahead():
    rng = np.random.default_rng(0)
    q, keys = (rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (64, 80))
    arguments = {"q": q, "keys": keys, "c": np.full((64, 64), np.nan, np.float32), "n": 80, "D": 64, "B": 32}
    func = Case("keys_as_values", keys_as_values, dict, dict).parse(arguments, num_warps=4)
    func, stages = passes.run(func, Target.parse("sm_90a"), ("warp_specialization",))
    verify(func)
    notes = {stage.name: [note.text for note in stage.notes] for stage in stages}
    assert any("not stored again" in text for text in notes["lower_conversions"])
    (text,) = notes["software_pipelining"]
    assert text.startswith("pipelined: copied to shared memory 2 iterations ahead")
    (loop,) = (op for op in func.ops() if op.name == "for")
    assert [op.name for op in loop.blocks[0].ops].count("copy_async") == 1
    interp.run(func, parameters(func, arguments), (1,), seed=0)
    wide = keys.astype(float)
    np.testing.assert_array_equal(arguments["c"], q.astype(float) @ wide.T @ wide)
