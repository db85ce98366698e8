"""Thread-local reduction: which sums leave the loop, that the loop has no exchange left, and that results are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, copied, parameters

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu
from blocknb.ir.core import Func, walk
from blocknb.target import Target

ROWS, BLOCK = 16, 128


@blocknb.kernel
def folded(x, out, n, HOW: bl.constexpr, ROWS: bl.constexpr, BLOCK: bl.constexpr, AXIS: bl.constexpr):
    """Reduces each row in a loop over its blocks, which lie along AXIS."""
    rows = bl.arange(0, ROWS)
    found = bl.zeros((ROWS,), x.dtype.element_ty)
    if HOW == "begun":
        found += (rows + 1).to(found.dtype)
    if HOW == "max":
        found += -100
    seen = found
    for start in range(0, n, BLOCK):
        columns = start + bl.arange(0, BLOCK)
        if AXIS == 1:
            block = bl.load(x + rows[:, None] * n + columns[None, :])
        else:
            block = bl.load(x + rows[None, :] * n + columns[:, None])
        if HOW == "max":
            found = bl.maximum(found, bl.max(block, axis=AXIS))
        elif HOW == "xor":
            found = bl.xor_sum(block, axis=AXIS) ^ found
        elif HOW == "scaled" or HOW == "begun":
            found = found * ((rows % 3).to(found.dtype) - 1) + bl.sum(block, axis=AXIS)
        else:
            found = bl.sum(block, axis=AXIS) + found
        if HOW == "looked at":
            seen += found
    bl.store(out + rows, found + seen if HOW == "looked at" else found)


@blocknb.kernel
def whole(x, out, n, BLOCK: bl.constexpr):
    """Reduces one row to a number: the loop carries a scalar."""
    total = 3.0
    for start in range(0, n, BLOCK):
        total = total * 0.5 + bl.sum(bl.load(x + start + bl.arange(0, BLOCK)))
    bl.store(out, total)


def reference(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    x, n, how = arguments["x"], arguments["n"], arguments["HOW"]
    rows = np.arange(ROWS)
    found = np.zeros(ROWS) if x.dtype.kind == "f" else np.zeros(ROWS, x.dtype)
    found = found + (rows + 1) * (how == "begun") - 100 * (how == "max")
    seen = found
    for start in range(0, n, BLOCK):
        block = x[:, start : start + BLOCK]
        match how:
            case "max":
                found = np.maximum(found, block.max(axis=1))
            case "xor":
                found = found ^ np.bitwise_xor.reduce(block, axis=1)
            case "scaled" | "begun":
                found = found * (rows % 3 - 1) + block.sum(axis=1)
            case _:
                found = found + block.sum(axis=1, dtype=found.dtype)
        seen = seen + found
    return {"out": found + seen if how == "looked at" else found}


def case(how: str, dtype: Any, axis: int = 1, iterations: int = 3) -> tuple[Case, dict[str, Any]]:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = rng.integers(-50, 50, (ROWS, iterations * BLOCK)).astype(dtype)
        out = np.full(ROWS, 77, dtype)
        return {"x": x, "out": out, "n": iterations * BLOCK, "HOW": how, "ROWS": ROWS, "BLOCK": BLOCK, "AXIS": axis}

    found = Case(f"folded_{how}", folded, make, reference)
    return found, make(np.random.default_rng(5))


def lowered(found: Case, arguments: Mapping[str, Any], **options: Any) -> tuple[Func, list[str]]:
    func, stages = found.lower(arguments, "sm_90a", **options)
    return func, [note.text for stage in stages if stage.name == "thread_local_reduction" for note in stage.notes]


def exchanges(func: Func) -> int:
    """The reductions between threads in a loop, and their exchanges."""
    loop = next(op for op in func.ops() if op.name == "for")
    between = [
        op
        for op in walk(loop.blocks[0])
        if op.name == "reduce" and any(op.args[0].type.layout.axis_bits(op.attrs["axis"])[1:])
    ]
    return len(between) + sum(op.name in ("barrier", "warp_barrier", "local_store") for op in walk(loop.blocks[0]))


def run(found: Case, func: Func, arguments: Mapping[str, Any]) -> None:
    """Runs a case in the interpreter and as GPU code."""
    found.interpret(func, arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), found.grid)
    found.check(arguments, got)


@pytest.mark.sampled(2, each=["warps", "how", "dtype"])
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize(
    ("how", "dtype", "axis"),
    [
        ("plain", np.float32, 1),
        ("plain", np.int32, 0),
        ("plain", np.float64, 1),
        ("scaled", np.float32, 0),
        ("scaled", np.int32, 1),
        ("begun", np.float32, 1),
        ("max", np.float32, 1),
        ("max", np.int64, 0),
        ("xor", np.int32, 1),
    ],
)
def test_an_accumulator_is_reduced_after_the_loop(how: str, dtype: Any, axis: int, warps: int) -> None:
    found, arguments = case(how, dtype, axis)
    before = lowered(found, arguments, num_warps=warps, without=("thread_local_reduction",))[0]
    func, notes = lowered(found, arguments, num_warps=warps)
    assert len(notes) == 1 and "partial results in the loop, combined after it" in notes[0]
    assert exchanges(before) > exchanges(func) == 0
    run(found, func, arguments)


@pytest.mark.parametrize(("how", "dtype"), [("looked at", np.float32), ("plain", np.float16)])
def test_sum_that_is_read_or_rounded_in_the_loop_is_reduced_in_the_loop(how: str, dtype: Any) -> None:
    found, arguments = case(how, dtype)
    func, notes = lowered(found, arguments)
    assert not notes and exchanges(func)
    found.interpret(func, arguments)


@pytest.mark.parametrize("iterations", [0, 1])
@pytest.mark.parametrize("how", ["begun", "max"])
def test_loop_of_zero_or_one_iterations_gives_right_results(how: str, iterations: int) -> None:
    found, arguments = case(how, np.float32, iterations=iterations)
    if not iterations:
        arguments["x"] = np.zeros((ROWS, BLOCK), np.float32)  # unused
    run(found, lowered(found, arguments)[0], arguments)


@pytest.mark.parametrize("warps", [1, 4])
def test_a_scalar_sum_is_reduced_after_the_loop_too(warps: int) -> None:
    def expected(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
        total = 3.0
        for block in arguments["x"].reshape(-1, BLOCK):
            total = total * 0.5 + block.sum()
        return {"out": np.array([total])}

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = rng.integers(-9, 9, 4 * BLOCK).astype(np.float32)
        return {"x": x, "out": np.zeros(1, np.float32), "n": 4 * BLOCK, "BLOCK": BLOCK}

    found = Case("whole", whole, make, expected)
    arguments = make(np.random.default_rng(1))
    func, notes = lowered(found, arguments, num_warps=warps)
    assert notes == [f"add: {min(BLOCK, 32 * warps)} partial results in the loop, combined after it"]
    assert not exchanges(func)
    run(found, func, arguments)
