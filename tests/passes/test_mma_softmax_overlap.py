"""MMA and softmax overlap: the remaining ops of the iteration keep their order when a product is delayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fuzz import simt
from kernels import CASES
from kernels.base import Case, copied, parameters

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.target import Target

ROWS, COLUMNS, WIDTH, KEYS = 64, 64, 64, 192


@blocknb.kernel
def attention(
    q, k, v, kept, out, seen, keys, ROWS: bl.constexpr, COLUMNS: bl.constexpr, WIDTH: bl.constexpr, KEEPS: bl.constexpr
):
    """exp2(q k^T - largest) v; `seen` is the sum of the weights of all blocks; with KEEPS they go through memory."""
    key = bl.make_tensor_descriptor(k, [keys, WIDTH], [WIDTH, 1], [COLUMNS, WIDTH])
    value = bl.make_tensor_descriptor(v, [keys, WIDTH], [WIDTH, 1], [COLUMNS, WIDTH])
    rows, columns, inner = bl.arange(0, ROWS)[:, None], bl.arange(0, COLUMNS)[None, :], bl.arange(0, WIDTH)[None, :]
    queries = bl.load(q + rows * WIDTH + inner)
    largest = bl.full((ROWS,), float("-inf"), bl.float32)
    total, weights = bl.zeros((ROWS, WIDTH), bl.float32), bl.zeros((ROWS, COLUMNS), bl.float32)
    for start in range(0, keys, COLUMNS):
        scores = bl.dot(queries, key.load([start, 0]).T)
        after = bl.maximum(largest, bl.max(scores, axis=1))
        powers = bl.exp2(scores - after[:, None])
        if KEEPS:
            bl.store(kept + rows * COLUMNS + columns, powers)
            weights += bl.load(kept + rows * COLUMNS + columns)
        else:
            weights += powers
        total = total * bl.exp2(largest - after)[:, None]
        total = bl.dot(powers.to(bl.float16), value.load([start, 0]), total)
        largest = after
    bl.store(out + rows * WIDTH + inner, total)
    bl.store(seen + rows * COLUMNS + columns, weights)


def made(rng: np.random.Generator, keeps: bool) -> dict[str, Any]:
    q, k, v = (rng.standard_normal((n, WIDTH)).astype(np.float16) / 4 for n in (ROWS, KEYS, KEYS))
    kept, seen = (np.full((ROWS, COLUMNS), np.nan, np.float32) for _ in range(2))
    arrays = {"q": q, "k": k, "v": v, "kept": kept, "out": np.full((ROWS, WIDTH), np.nan, np.float32), "seen": seen}
    return arrays | {"keys": KEYS, "ROWS": ROWS, "COLUMNS": COLUMNS, "WIDTH": WIDTH, "KEEPS": keeps}


def reference(given: dict[str, Any]) -> dict[str, np.ndarray]:
    q, k, v = (given[name].astype(float) for name in "qkv")
    largest, total, seen = np.full(ROWS, -np.inf), np.zeros((ROWS, WIDTH)), np.zeros((ROWS, COLUMNS))
    for start in range(0, KEYS, COLUMNS):
        scores = q @ k[start : start + COLUMNS].T
        after = np.maximum(largest, scores.max(axis=1))
        powers = np.exp2(scores - after[:, None])
        total = total * np.exp2(largest - after)[:, None] + powers @ v[start : start + COLUMNS]
        largest, seen = after, seen + powers
    return {"out": total, "seen": seen}


@pytest.mark.parametrize("keeps", [False, True])
def test_load_after_a_store_in_one_iteration_reads_the_stored_value(keeps):
    """Uses of the weights move after the delayed product. A store does not, because a later load would overtake it."""
    case = Case("attention", attention, dict, reference, rtol=1e-2, atol=1e-2)
    arguments = made(np.random.default_rng(0), keeps)
    func, stages = case.lower(arguments, "sm_90a", num_warps=4)
    assert any("delayed by one iteration" in note.text for stage in stages for note in stage.notes)
    case.interpret(func, arguments)
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), case.grid)
    case.check(arguments, got)


@pytest.mark.parametrize(("stages", "delayed"), [(1, False), (2, True)])
def test_a_product_is_delayed_only_if_its_operand_has_two_stages(stages: int, delayed: bool) -> None:
    case = CASES["wgmma_attention"]
    func = case.parse(case.make(np.random.default_rng(0)), num_stages=stages)
    _, made = passes.run(func, Target.parse("sm_90a"))
    (note,) = next(stage for stage in made if stage.name == "mma_softmax_overlap").notes
    assert note.text.startswith("dot: delayed" if delayed else "dot: not delayed by one iteration: its operand has no")
