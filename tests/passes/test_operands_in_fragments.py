"""Operands that threads unpack in registers: renumbered fragments, joined tiles, and copies by TMA before an atomic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.ir.core import Func
from blocknb.kernels import quantized
from blocknb.layouts import tables
from blocknb.layouts.linear import Layout
from blocknb.target import Target

FRAGMENTS = tables.MMA_BY_NAME["m16n8k16"]


@pytest.mark.parametrize("run", [4, 8, 16, 32])
def test_a_renumbered_operand_has_neighbours_along_k_in_each_thread(run):
    for axis, layout in (
        (1, tables.operand_a((32, 128), FRAGMENTS, (2, 1))),
        (0, tables.operand_b((128, 16), FRAGMENTS, (2, 1))),
    ):
        assert layout is not None
        moved = tables.neighbours_along_k(layout, axis, run)
        held = {moved.coords(1, 5, register)[axis] for register in range(moved.num_registers)}
        first = min(held)
        assert first % run == 0 and held >= set(range(first, first + run))
        assert tables.original_k(moved, axis, run) == layout


def test_a_run_that_exceeds_k_is_refused():
    layout = tables.operand_a((16, 32), FRAGMENTS, (1, 1))
    assert layout is not None
    with pytest.raises(ValueError, match="16 neighbours do not fit 32 elements"):
        tables.neighbours_along_k(layout, 1, 16)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_broadcast_layout_has_the_operands_layout_as_its_inverse(axis):
    shape = [8, 4, 16]
    small = [1 if i == axis else n for i, n in enumerate(shape)]
    layout = tables.blocked(small, (2, 1, 0), 2, 2)
    whole = layout.broadcast(shape)
    assert whole.broadcast_inverse(small) == Layout(tuple(small), layout.reg, layout.lane, layout.warp)
    assert whole.num_registers == layout.num_registers * shape[axis]


def compiled(kernel: Any, arguments: dict[str, Any], **options: Any) -> tuple[Func, list[str]]:
    """The memory IR for sm_90a, and all notes."""
    func = Case(kernel.__name__, kernel, dict, dict).parse(arguments, target := Target.parse("sm_90a"), **options)
    func, stages = passes.run(func, target, ())
    return func, [note.text for stage in stages for note in stage.notes]


def int8_arguments(**more: Any) -> dict[str, Any]:
    x, out, w = np.zeros((16, 512), np.float16), np.zeros((16, 64), np.float16), np.zeros((64, 512), np.int8)
    arrays = {"x": x, "w": w, "scale": np.zeros(64, np.float32), "out": out, "parts": np.zeros(4096, np.float32)}
    sizes = {
        "m": 16,
        "n": 64,
        "k": 512,
        "length": 2,
        "x_row": 512,
        "w_row": 512,
        "out_row": 64,
        "BM": 16,
        "BN": 64,
        "BK": 128,
        "KEEP": "",
    }
    return arrays | {"tickets": np.zeros(1, np.int32)} | sizes | more


def test_weights_go_from_memory_to_fragments_without_shared_memory():
    by_warps = int8_arguments(AHEAD=1, SPLITS=1, WARPS=4, BN=16)
    func, notes = compiled(quantized.int8_by_warps, by_warps, num_warps=4, num_stages=1)
    dots = [op for op in func.ops() if op.name == "dot"]
    assert [(op.attrs["run"], op.attrs["stacked"], op.attrs["warps"]) for op in dots] == [(16, 4, (4, 1))]
    stored = [op.args[1].type.dtype.name for op in func.ops() if op.name == "local_store"]
    assert "int8" not in stored and stored.count("fp16") <= 1  # the result
    loads = [op for op in func.ops() if op.name == "load" and op.result.type.dtype.name == "int8"]
    assert {op.attrs["vec"] for op in loads} == {16}
    assert any("neighbours of A along K" in text for text in notes)


def int4_arguments(k: int) -> dict[str, Any]:
    """Random weights of 4 bits for a program of two warps that copy them ahead, with scales per 128."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, k)).astype(np.float16), rng.integers(0, 256, (32, k // 2), dtype=np.uint8)
    scale = rng.random((32, k // 128)).astype(np.float16)
    arrays = {"x": x, "w": w, "scale": scale, "zero": None, "out": np.full((5, 32), np.nan, np.float16), "parts": None}
    sizes = {"m": 5, "n": 32, "k": k, "words": k // 2, "length": k // 256, "x_row": k, "w_row": k // 2, "out_row": 32}
    steps = {"s_row": k // 128, "s_group": 1, "z_row": 0, "z_group": 0, "BM": 8, "BN": 16, "BK": 128, "GROUP": 128}
    return arrays | sizes | steps | {"tickets": None, "AHEAD": 0, "SPLITS": 1, "WARPS": 2, "KEEP": "evict_first"}


def test_each_warp_waits_only_for_the_words_that_it_copies():
    func, notes = compiled(quantized.int4_by_warps, int4_arguments(1536), num_warps=2, num_stages=4)
    names = [op.name for loop in func.ops() if loop.name == "for" for op in loop.blocks[0].ops]
    assert names.count("copy_async") == names.count("warp_barrier") == 1
    assert "barrier" not in names
    assert any("each thread loads 32 neighbours of A along K" in text for text in notes)


def test_warps_that_wait_only_for_their_own_copies_have_no_race():
    given = int4_arguments(1536)
    numbers = np.stack([given["w"] & 15, given["w"] >> 4], 2).reshape(32, 12, 128).astype(float) - 8
    weights = (numbers * given["scale"].astype(float)[:, :, None]).reshape(32, 1536)
    exact = (given["x"].astype(float) @ weights.T).astype(np.float16)
    case = Case("int4", quantized.int4_by_warps, dict, lambda arguments: {"out": exact}, (2,), rtol=2e-2, atol=0.5)
    func, _ = case.lower(given, "sm_90a", num_warps=2, num_stages=4)
    for seed in range(3):
        case.interpret(func, given, seed=seed)


def test_warps_that_share_activations_multiply_by_wgmma():
    for rows in (32, 128):
        func, _ = compiled(quantized.int8_kernel, int8_arguments(SPLITS=1, BM=rows), num_warps=4, num_stages=3)
        assert [op.attrs["instr"][:5] for op in func.ops() if op.name == "dot"] == ["wgmma"]


def test_tma_copies_tiles_before_an_acquiring_atomic():
    _, notes = compiled(quantized.int8_kernel, int8_arguments(SPLITS=2), num_warps=4, num_stages=4)
    assert sum("copied by TMA" in text for text in notes) == 2
    assert any(text.startswith("not persistent: the atomic") for text in notes)


@blocknb.kernel
def unpacked(x, w, out, k, words, BN: bl.constexpr, BK: bl.constexpr):
    rows, columns, inner = bl.arange(0, 64), bl.arange(0, BN), bl.arange(0, BK)
    total = bl.zeros((BN, 64), bl.float32)
    for start in range(k // BK):
        packed = bl.load(w + columns[:, None] * words + (start * (BK // 2) + bl.arange(0, BK // 2))[None, :])
        a = bl.load(x + rows[:, None] * k + (start * BK + inner)[None, :])
        y = bl.join(packed & 15, packed >> 4).reshape(BN, BK)
        total = bl.dot(y.to(bl.float16) - 8.0, a.T, total)
    bl.store(out + columns[:, None] * 64 + rows[None, :], total)


def test_joined_halves_stay_in_the_threads_that_have_loaded_them():
    arguments = {
        "x": np.zeros((64, 512), np.float16),
        "w": np.zeros((64, 256), np.uint8),
        "out": np.zeros((64, 64), np.float32),
    }
    func, notes = compiled(unpacked, arguments | {"k": 512, "words": 256, "BN": 64, "BK": 128}, num_warps=4)
    stored = [op.args[1].type for op in func.ops() if op.name == "local_store"]
    assert [kind.shape for kind in stored if kind.dtype.name == "fp16"] == [(64, 128)]  # the operand, once
    assert not any("conversion of a tile" in text or "conversion of y" in text for text in notes)
