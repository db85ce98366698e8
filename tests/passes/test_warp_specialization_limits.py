"""Kernels that are not warp-specialized on Hopper: one for each reason, which its note gives; results are right all the same."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import CASES
from kernels.base import Case, copied, parameters

import blocknb
import blocknb.language as bl
from blocknb.ir import interp


@blocknb.kernel
def product(a, b, c, flag, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, HOW: bl.constexpr):
    """c = a b^T with whole tiles, and one obstacle to warp specialization."""
    row, column = bl.program_id(0) * BM, bl.program_id(1) * BN
    rows, columns, inner = row + bl.arange(0, BM), column + bl.arange(0, BN), bl.arange(0, BK)
    total = bl.zeros((BM, BN), bl.float32)
    if HOW == "while":
        while bl.load(flag, volatile=True) == 0:
            pass
    for start in bl.range(0, BK if HOW == "once" else k, BK, warp_specialize=True):
        if HOW == "joined":
            fewer, longer = bl.arange(0, BM // 2), bl.arange(0, 2 * BK)
            x = bl.load(a + (row // 2 + fewer)[:, None] * k + start + longer[None, :]).reshape(BM, BK)
        else:
            x = bl.load(a + rows[:, None] * k + start + inner[None, :])
        y = bl.load(b + columns[:, None] * k + start + inner[None, :])
        if HOW == "branch":
            if bl.load(flag) > 0:
                total = bl.dot(x, y.T, total)
        else:
            total = bl.dot(x, y.T, total)
    place = c + rows[:, None] * n + columns[None, :]
    if HOW == "cached":
        bl.store(place, total.to(c.dtype.element_ty), cache_modifier=".cs")
    else:
        bl.store(place, total.to(c.dtype.element_ty))


def lowered(
    how: str, tile: tuple[int, int, int] = (64, 64, 32), n: int = 64, k: int = 96, target: str = "sm_90a", **options
):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, k)).astype(np.float16) for rows in (128, n))
    arguments = {"a": a, "b": b, "c": np.zeros((128, n), np.float16), "flag": np.ones(1, np.int32), "n": n, "k": k}
    arguments |= dict(zip(("BM", "BN", "BK"), tile, strict=True)) | {"HOW": how}
    case = Case(how, product, dict, dict, grid=(128 // tile[0], n // tile[1]))
    func, stages = case.lower(arguments, target, **options)
    got = {name: copied(x) for name, x in arguments.items()}
    interp.run(func, parameters(func, got), case.grid)
    if how == "joined":  # each row of a tile is half of a row that is twice as long
        row, (rows, _, inner) = np.arange(128), tile
        first = (row // rows * rows // 2 + row % rows // 2) * k + row % 2 * inner
        a = a.reshape(-1)[first[:, None] + np.arange(k)]
    np.testing.assert_array_equal(got["c"], a.astype(float) @ b.astype(float).T)
    return func, {note.text for stage in stages for note in stage.notes}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("while", "may wait for other programs"),
        ("branch", "it is not always used"),
        ("joined", "its axes are joined or split on their way"),
    ],
)
def test_loads_that_no_producer_warp_can_copy(how, why):
    _, notes = lowered(how)
    assert any(text.startswith("not pipelined by TMA: ") and text.endswith(why) for text in notes), notes


@pytest.mark.parametrize(
    ("how", "options", "why"),
    [
        ("cached", {}, "it has a cache modifier"),
        ("plain", {"tile": (64, 8, 32)}, "its rows have 16 bytes"),
        (
            "plain",
            {"tile": (64, 256, 32), "n": 256, "k": 160, "num_stages": 5, "without": ("persistent_grid",)},
            "shared memory has no room for its buffers",
        ),
    ],
)
def test_stores_that_tma_cannot_perform(how, options, why):
    func, notes = lowered(how, **options)
    assert f"store: not by TMA: {why}" in notes, notes
    assert not any(op.name == "store_bulk" for op in func.ops())


def test_kernel_that_distributes_its_own_work_is_not_made_persistent():
    case = CASES["gemm_persistent"]
    func, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a")
    notes = {note.text for stage in stages if stage.name == "persistent_grid" for note in stage.notes}
    assert notes == {"not persistent: the kernel loops over programs itself"}
    assert not func.attrs.get("persistent") and any(op.name == "roles" for op in func.ops())


def test_copies_that_no_loop_repeats_need_no_producer_warp():
    _, notes = lowered("once", k=32)
    assert "not pipelined by TMA: no loop of several iterations repeats a copy" in notes


@pytest.mark.parametrize(
    ("how", "target", "why"),
    [
        ("plain", "sm_80", "blocknb does this on sm_90a only, and the target is sm_80"),
        ("while", "sm_90a", "no load in it is copied by TMA; the notes on its loads say why"),
        ("plain", "sm_90a", ""),
    ],
)
def test_a_request_for_warp_specialization_that_is_not_met_gets_a_note(how, target, why):
    _, notes = lowered(how, target=target)
    found = [text.removeprefix("not warp-specialized: ") for text in notes if text.startswith("not warp-specialized")]
    assert found == [why] * bool(why)
