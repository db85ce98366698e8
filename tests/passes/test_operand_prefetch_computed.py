"""Operand prefetch for computed operands: during which product they are computed, from which stage, and when not."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, copied, parameters
from kernels.prepared import prepared

from blocknb.codegen import gpu
from blocknb.errors import CompilerBug
from blocknb.ir.build import rebuild
from blocknb.ir.core import Func, Op, walk, within
from blocknb.target import Target

HALF = np.float16


def reference(arguments: dict) -> dict:
    k = arguments["k"]
    x, w, line = (arguments[name].astype(float) for name in ("x", "w", "line"))
    x, w = x.reshape(arguments["rows"], -1)[:, :k], w.reshape(arguments["columns"], -1)[:, :k]
    if arguments["WAY"] == "weights":
        return {"y": x @ (w * line[:, None]).T}
    return {"y": (x * line[:k]) @ w.T / np.sqrt((x * x).sum(axis=1) + 1.0)[:, None]}


def lowered(way: str, k: int, target: str = "sm_90a", rows: int = 200, num_warps: int = 8, **options):
    rng, columns = np.random.default_rng(k), 48
    arguments = {
        "x": rng.standard_normal((rows, max(k, 16))).astype(HALF),
        "w": rng.integers(-128, 128, (columns, max(k, 16))).astype(np.int8)
        if way == "weights"
        else rng.standard_normal((columns, max(k, 16))).astype(HALF),
        "line": (rng.random(columns if way == "weights" else max(k, 16)) / (64 if way == "weights" else 1)).astype(np.float32),
        "y": np.full((rows, columns), np.nan, np.float32),
        "rows": rows, "columns": columns, "k": k, "WAY": way, "BM": 128, "BN": 32, "BK": 64,
    }  # fmt: skip
    case = Case("prepared", prepared, dict, reference, grid=(2, 2, 1), rtol=5e-3, atol=5e-2)
    func, stages = case.lower(arguments, target, num_warps=num_warps, **options)
    notes = {stage.name: [note.text for note in stage.notes] for stage in stages}
    return case, func, notes.get("mma_softmax_overlap", []), arguments


def product_of(func: Func) -> list[Op]:
    """The ops of the body of the loop with products."""
    (roles,) = (op for op in func.body.ops if op.name == "roles")
    loops = (op for op in walk(roles.blocks[0]) if op.name == "for")
    return next(list(op.blocks[0].ops) for op in loops if any(x.name == "dot" for x in op.blocks[0].ops))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("way", "side"), [("weights", "b"), ("normed", "a")])
def test_next_operand_is_computed_during_the_product(way: str, side: str) -> None:
    _, func, notes, _ = lowered(way, 192)
    assert notes == [f"operand {side}: computed an iteration ahead, while a product runs"]
    body = product_of(func)
    order = [op.name for op in body if op.name in ("fence", "local_store", "dot", "if", "dot_wait", "arrive")]
    assert order == ["local_store", "fence", "dot", "if", "dot_wait", "arrive", "arrive"]
    (reading,) = (op for op in body if op.name == "if")
    assert [op.name for op in reading.blocks[0].ops][:3] == ["await", "stage", "local_load"]
    assert sum(op.name == "mul" for op in reading.blocks[0].ops) == 1
    assert not any(op.name == "local_load" for op in body) or way == "normed"


@pytest.mark.sampled(4, each=["k", "way", "target"])
@pytest.mark.parametrize("k", [0, 48, 64, 144, 400])
@pytest.mark.parametrize("way", ["weights", "normed"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_any_number_of_iterations_gives_right_results(target: str, way: str, k: int) -> None:
    case, func, notes, arguments = lowered(way, k, target, num_stages=2 + k % 3)
    assert len(notes) == (target == "sm_90a")
    assert any(op.name in ("copy_async", "copy_bulk") for op in func.ops())
    case.interpret(func, arguments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [{"num_warps": 4}, {"num_stages": 1}, {"without": ("mma_softmax_overlap",)}, {"without": ("operand_staging",)}],
    ids=str,
)
@pytest.mark.parametrize("way", ["weights", "normed"])
def test_results_are_right_without_operand_prefetch(way: str, options: dict) -> None:
    """With four warps, another CTA multiplies meanwhile; a single stage cannot be released in time."""
    case, func, notes, arguments = lowered(way, 144, **options)
    assert not any("ahead" in note for note in notes)
    case.interpret(func, arguments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["weights", "normed"])
def test_generated_code_gives_the_same_results(way: str) -> None:
    case, func, _, arguments = lowered(way, 144, rows=128, num_stages=2)
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), case.grid)
    case.check(arguments, got)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["await", "fence", "dot_wait", "barrier"])
def test_removing_any_synchronization_of_operand_prefetch_is_detected(name: str) -> None:
    case, func, _, arguments = lowered("weights", 400, num_stages=2)
    inside = {x.id for op in product_of(func) for x in within(op)}
    found = [op.id for op in func.ops() if op.name == name and op.id in inside]
    assert found
    for wanted in found:
        mutant = rebuild(
            func,
            lambda op, _, wanted=wanted: op.args[: len(op.results)] if op.id == wanted else NotImplemented,
            "mutant",
        )
        with pytest.raises((CompilerBug, AssertionError)):
            for seed in range(3):
                case.interpret(mutant, arguments, seed=seed)
