"""How many stages `software_pipelining` chooses: by the option, the iterations, and the shared memory of one CTA or two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_software_pipelining import HALF, copied, empty, kernel, lowered, numbers, operands, product, texts

import blocknb.language as bl
from blocknb.target import Target


def test_the_default_number_of_stages() -> None:
    """The default is three stages, for loops with products only, from sm_80 on."""

    @kernel
    def unnamed(a, b, c, k, BK: bl.constexpr):
        row, column = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
        total = bl.zeros((16, 16), bl.float32)
        for start in range(0, k, BK):
            inner = start + bl.arange(0, BK)
            total = bl.dot(bl.load(a + row * 64 + inner[None, :]), bl.load(b + inner[:, None] * 16 + column), total)
        bl.store(c + row * 16 + column, total)

    arguments = {
        "a": numbers((16, 64), HALF),
        "b": numbers((64, 16), HALF),
        "c": np.zeros((16, 16), np.float32),
        "k": 64,
        "BK": 16,
    }
    assert [text.partition("registers: ")[2] for text in texts(lowered(unnamed, arguments)[1])] == [
        "3 stages of 512 bytes, 8 bytes per copy"
    ] * 2
    assert "4 stages" in texts(lowered(unnamed, arguments, num_stages=4)[1])[0]
    for options in ({"num_stages": 1}, {"num_stages": 0}, {"target": "sm_75"}, {"target": "sm_70"}):
        func, stage = lowered(unnamed, arguments, **options)
        assert stage is None and copied(func) == 0
    func, stage = lowered(unnamed, arguments, without=("software_pipelining",))
    assert stage is not None and stage.skipped and copied(func) == 0


@kernel
def wide(a, b, c, k):
    row, column = bl.arange(0, 64)[:, None], bl.arange(0, 256)[None, :]
    total = bl.zeros((64, 256), bl.float32)
    for start in range(0, k, 64):
        inner = start + bl.arange(0, 64)
        total = bl.dot(bl.load(a + row * 256 + inner[None, :]), bl.load(b + inner[:, None] * 256 + column), total)
    bl.store(c + row * 256 + column, total)


@pytest.mark.parametrize(
    ("options", "stages"),
    [({"num_warps": 4}, 2), ({"num_warps": 4, "num_stages": 3}, 3), ({"num_warps": 8}, 3)],
)
def test_a_third_stage_makes_room_for_a_second_cta_of_four_warps(options: dict[str, int], stages: int) -> None:
    """Three stages take 120 of the 228 KB of an SM. Stages that the user asks for stay, and eight warps may lack the registers."""
    arguments = {"a": numbers((64, 256), HALF), "b": numbers((256, 256), HALF), "c": empty(64, 256), "k": 256}
    _, stage = lowered(wide, arguments, "sm_90a", ("warp_specialization",), **options)
    two = "so that an SM has room for two CTAs; num_stages=3 keeps the stages, for a grid of one CTA per SM"
    ends = f"(not 3: {two})" if stages == 2 else "16 bytes per copy"
    found = [text for text in texts(stage) if "stages" in text]
    assert len(found) == 2 and all(f"{stages} stages" in text and text.endswith(ends) for text in found)


@kernel
def scores(q, keys, out, n):
    row, column, at = bl.arange(0, 64)[:, None], bl.arange(0, 64)[None, :], bl.arange(0, 64)
    left, total = bl.load(q + row * 64 + column), bl.zeros((64,), bl.float32)
    for start in range(0, n, 64):
        right = bl.load(keys + (start + at)[:, None] * 64 + column)
        total += bl.sum(bl.dot(left, bl.trans(right)), 1)
    bl.store(out + at, total)


@pytest.mark.parametrize(("stages", "needs"), [(2, 16896), (3, 25088)])
def test_copies_start_late_where_early_ones_leave_no_room_for_a_second_cta(stages: int, needs: int) -> None:
    """Copies before the queries have passed through shared memory take 8 KB more. Two such CTAs then need 512 bytes more than an SM has."""
    arguments = {"q": numbers((64, 64), HALF), "keys": numbers((256, 64), HALF), "out": empty(64), "n": 256}
    for missing, expected in ((0, needs + 8192), (512, needs)):
        shared = 2 * (needs + 8192 + 1024) - 2 * missing
        target = replace(Target.parse("sm_80"), shared_per_sm=shared, max_shared=shared - 1024)
        func, stage = lowered(scores, arguments, target, num_warps=4)
        assert not texts(stage, "missed") and func.attrs["shared_bytes"] == expected


@kernel
def short(a, b, c, k, STAGES: bl.constexpr):
    row, column = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    total = bl.zeros((16, 16), bl.float32)
    for start in bl.range(0, min(k, 32), 16, num_stages=STAGES):
        inner = start + bl.arange(0, 16)
        total = bl.dot(bl.load(a + row * 32 + inner[None, :]), bl.load(b + inner[:, None] * 16 + column), total)
    bl.store(c + row * 16 + column, total)


def test_stages_are_limited_by_iterations_and_shared_memory() -> None:
    arguments = {"a": numbers((16, 32), HALF), "b": numbers((32, 16), HALF), "c": empty(16, 16), "k": 32, "STAGES": 4}
    few = "2 stages of 512 bytes, 8 bytes per copy (not 4: the loop makes 2 iterations at most)"
    assert [text.partition("registers: ")[2] for text in texts(lowered(short, arguments)[1])] == [few] * 2
    big = operands(128, 128, 512, BM=128, BN=128, BK=128, STAGES=4, WHOLE=True)
    for target, stages in (("sm_80", 2), ("sm_90a", 3)):
        stage = lowered(product, big, target, num_warps=8, without=("warp_specialization",))[1]
        assert [text.partition("registers: ")[2] for text in texts(stage) if "stages" in text] == [
            f"{stages} stages of 32768 bytes, 16 bytes per copy (not 4: for lack of shared memory)"
        ] * 2
    huge = lowered(product, big | {"STAGES": 2}, "sm_86", num_warps=8)
    assert copied(huge[0]) == 0 and "no room for two" in texts(huge[1], "missed")[0]
