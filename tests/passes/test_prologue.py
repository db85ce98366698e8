"""prologue: what operands are computed from goes through shared memory, as far as there is room for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case, poison

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.target import Target
from blocknb.trace import Stage


@blocknb.kernel
def doubled(a, b, c, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    rows, columns = bl.arange(0, BM), bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in bl.range(0, k, BK):
        inner = start + bl.arange(0, BK)
        x = bl.load(a + rows[:, None] * k + inner[None, :])
        y = bl.load(b + inner[:, None] * n + columns[None, :])
        total = bl.dot(x, (y * 2).to(bl.float16), total)
    bl.store(c + rows[:, None] * n + columns[None, :], total)


def case(m: int, n: int, step: int, trips: int = 2) -> tuple[Case, dict[str, Any]]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape) for shape in ((m, step * trips), (step * trips, n)))
    arguments = {"a": a.astype(np.float16), "b": b.astype(np.float32), "c": poison((m, n), np.float32)}
    arguments |= {"n": n, "k": step * trips, "BM": m, "BN": n, "BK": step}
    return Case("doubled", doubled, dict, lambda _: {"c": a @ (b * 2)}), arguments


def texts(stages: tuple[Stage, ...], name: str) -> list[str]:
    return [note.text for stage in stages if stage.name == name for note in stage.notes]


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90a"])
def test_a_tile_that_has_no_room_for_two_slots_stays_in_registers_and_the_other_operand_is_still_copied(target: str):
    """128 KB of b: beside what is multiplied sm_86 has no room for one of them, the others for none that is copied ahead."""
    kernel, arguments = case(64, 256, 128)
    func, stages = kernel.lower(arguments, target, num_warps=8, num_stages=2)
    assert func.attrs["shared_bytes"] <= Target.parse(target).max_shared
    assert texts(stages, "prologue") == ["not through shared memory, which has no room for two of its tiles"]
    copied = texts(stages, "specialize") + texts(stages, "pipeline")
    if target != "sm_86":
        assert sum("slots of 16384 bytes" in text for text in copied) == 1
    without, _ = passes.run(kernel.parse(arguments, num_warps=8, num_stages=2), Target.parse(target), ("prologue",))
    assert func.attrs["shared_bytes"] == without.attrs["shared_bytes"]


def test_a_smaller_one_is_copied_ahead_and_computed_with():
    kernel, arguments = case(64, 64, 32)
    for target in ("sm_86", "sm_90a"):
        func, stages = kernel.lower(arguments, target, num_warps=4)
        (told,) = texts(stages, "prologue")
        assert told.startswith("8192 bytes through shared memory")
        assert any("slots of 8192 bytes" in text for text in texts(stages, "specialize") + texts(stages, "pipeline"))
        kernel.interpret(func, arguments)
