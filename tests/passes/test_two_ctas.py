"""One consumer warpgroup with many registers: `setmaxnreg` shares them out so that an SM has room for two CTAs."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.base import Case, parameters, poison

from blocknb.bench.suite.staged_gradients import TUTORIAL, staged_gradients_kernel
from blocknb.codegen.gpu.warp_specialization import resident, threads
from blocknb.ir import interp
from blocknb.ir.core import Func, Op, walk
from blocknb.ir.verify import verify
from blocknb.passes.memory.warp_specialization import SETMAXNREG
from blocknb.passes.pipelining.warp_plan import HALF
from blocknb.passes.support import invariant_operands

TOKENS, HEAD = 256, 64


def arguments(causal: bool) -> dict:
    """One head; logs and deltas are those of float64."""
    rng = np.random.default_rng(3)
    q, k, v, dout = (rng.standard_normal((TOKENS, HEAD)).astype(np.float16) for _ in range(4))
    scores = exact_scores(q, k, causal)
    sums = np.exp2(scores).sum(axis=1)
    out = np.exp2(scores) / sums[:, None] @ v.astype(float)
    deltas = (out * dout).sum(axis=1).astype(np.float32)
    found = {"q": q, "k": k, "v": v, "scale": 0.125, "dout": dout}
    found |= {name: poison(q.shape, np.float16) for name in ("dq", "dk", "dv")}
    found |= {"logs": np.log2(sums).astype(np.float32), "deltas": deltas}
    found |= {"batch_stride": TOKENS * HEAD, "heads_stride": TOKENS * HEAD, "row_stride": HEAD, "head_stride": 1}
    found |= {"heads": 1, "tokens": TOKENS, "HEAD": HEAD, "CAUSAL": causal, "SLICES": 2}
    return found | {name: size for name, size in TUTORIAL.items() if name.startswith("BLOCK")}


def exact_scores(q: np.ndarray, k: np.ndarray, causal: bool) -> np.ndarray:
    """q k^T in float64; k is scaled already, by scale / ln(2), so the kernel's dk is that of the unscaled k."""
    scores = q.astype(float) @ k.astype(float).T / 16
    return np.where(np.tri(TOKENS) > 0, scores, -np.inf) if causal else scores


def lowered(causal: bool, **options: int) -> tuple[Func, dict, list[str]]:
    found = arguments(causal)
    found["k"] = (found["k"] / np.float16(16)).astype(np.float16)
    chosen = {"num_warps": TUTORIAL["num_warps"], "num_stages": TUTORIAL["num_stages"]} | options
    func, stages = Case("staged", staged_gradients_kernel, dict, dict).lower(found, "sm_90a", **chosen)
    return func, found, [note.text for stage in stages if stage.name == "warp_specialization" for note in stage.notes]


def roles(func: Func) -> Op:
    return next(op for op in func.ops() if op.name == "roles")


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.full)])
def test_two_ctas_fit_a_multiprocessor_and_results_are_right(causal: bool) -> None:
    func, given, notes = lowered(causal)
    assert roles(func).attrs["registers"] == SETMAXNREG[4] and roles(func).attrs["warps"] == (4, 4)
    assert func.attrs["shared_bytes"] <= HALF and resident(func, threads(func)) == 2
    assert any(text.endswith("so that an SM has room for two CTAs") for text in notes)
    verify(func)
    interp.run(func, parameters(func, given), (TOKENS // 128, 1, 1))
    q, v, dout = (given[name].astype(float) for name in ("q", "v", "dout"))
    p = np.exp2(exact_scores(q, given["k"].astype(float) * 16, causal) - given["logs"].astype(float)[:, None])
    ds = p * (dout @ v.T - given["deltas"][:, None])
    exact = {"dq": ds @ given["k"] * np.log(2), "dk": ds.T @ q * 0.125, "dv": p.T @ dout}
    for name, right in exact.items():
        np.testing.assert_allclose(given[name].astype(float), right, rtol=0, atol=2e-2 * np.abs(right).max())


def test_blocks_that_are_read_one_after_another_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """q and dout take the memory of k and v, which the loops before have read. Eight warps keep them apart. (Without the limit, they would
    be in registers.)"""
    monkeypatch.setattr(invariant_operands, "MOST", 0)
    four, eight = (lowered(False, num_warps=warps)[0] for warps in (4, 8))
    for func, count in ((four, 2), (eight, 4)):
        copied = {op.args[0] for op in walk(roles(func).blocks[1]) if op.name == "copy_bulk"}
        whole = {x for x in copied if x.type.shape == (128, HEAD)}
        views = {op.args[0] for op in walk(roles(func).blocks[1]) if op.name == "stage" and op.results[0] in whole}
        assert len(views) == count
