"""Every value that a partial evaluation knows is the one that the interpreter computes, for every program and iteration."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from kernels import CASES
from kernels.base import copied, host_address, parameters

import blocknb
import blocknb.language as tl
from blocknb.analysis.partial_evaluation.evaluator import Batch, Observer, PartialEvaluator, Policy, Undecided
from blocknb.analysis.partial_evaluation.factored_tiles import whole
from blocknb.ir import interp, interp_tile
from blocknb.ir.core import Func, Op

#: Kernels with a loop or a branch that depends on loaded data.
CONTROLLED_BY_DATA = {
    "chained", "combining", "gemm_grouped", "gemm_grouped_wgmma", "grouped_product", "limit_in_memory", "locked", "mapped", "newton_root",
    "returns_in_inner_arms", "returns_in_inner_arms1", "scalars", "tickets",
}  # fmt: skip
Values = dict[tuple[tuple[int, ...], int], list[np.ndarray]]


def interpreted(func: Func, values: list[Any], grid: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Values:
    """The results of each op of the tile IR by program, in the order of execution."""
    found: Values = defaultdict(list)
    plain = interp_tile.Machine.step
    outside = {op.id for op in func.body.ops} | {
        inner.id for op in func.ops() if op.name in ("for", "if", "while") for block in op.blocks for inner in block.ops
    }

    def step(machine: Any, op: Op, args: list) -> tuple:
        results = plain(machine, op, args)
        if results and op.id in outside:
            found[tuple(machine.program), op.id].append(np.asarray(results[0]))
        return results

    monkeypatch.setattr(interp_tile.Machine, "step", step)
    interp.run(func, values, grid)
    monkeypatch.undo()
    return found


class Compared(Observer):
    """Compares each known value with the next one of the interpreter."""

    def __init__(self, expected: Values):
        self.expected, self.seen, self.known = expected, defaultdict(int), 0

    def event(self, op: Op, batch: Batch) -> None:
        if not op.results or not hasattr(op.results[0].type, "shape"):
            return
        value, known = op.results[0], batch.env.get(op.results[0])
        if isinstance(known, tuple):
            array = np.broadcast_to(whole(known), (batch.size, *value.type.shape))
        for i, program in enumerate(zip(*(axis.tolist() for axis in batch.ids), strict=True)):
            number = self.seen[program, op.id]
            self.seen[program, op.id] += 1
            expected = self.expected[program, op.id][number]
            if isinstance(known, tuple) and not from_addresses(op):
                assert equal(array[i], expected), f"{op.name} in program {program}: {array[i]}, not {expected}"
                self.known += 1


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind not in "biu":  # NumPy does not know the NaN of fp8
        one, other = one.astype(np.float64), other.astype(np.float64)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def from_addresses(op: Op) -> bool:
    """Whether a value is an address: the interpreter puts the arrays at other places."""
    return op.results[0].type.is_pointer or any(arg.type.is_pointer for arg in op.args)


def compared(func: Func, values: list[Any], grid: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Compared:
    scalars = {
        hint.name: v for hint, p, v in zip(func.hints, func.params, values, strict=True) if not p.type.is_pointer
    }
    found = Compared(interpreted(func, values, grid, monkeypatch))
    evaluator = PartialEvaluator(func, scalars, (*grid, 1, 1)[:3], Policy("refuse"), lambda op: op.args)
    evaluator.follow(np.arange(math.prod(grid)), found)
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", sorted(CASES))
def test_known_values_are_those_of_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    arguments = case.make(np.random.default_rng(7))
    func = case.parse(arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    if name in CONTROLLED_BY_DATA:
        with pytest.raises(Undecided, match="depends on loaded data"):
            compared(func, parameters(func, got), case.grid, monkeypatch)
        return
    found = compared(func, parameters(func, got), case.grid, monkeypatch)
    assert found.known
    assert {key: len(values) for key, values in found.expected.items() if values} == {
        key: number for key, number in found.seen.items() if number
    }


@blocknb.kernel
def data_dependent(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    for i in range(tl.load(x).to(tl.int32)):
        if i < n:
            tl.store(out + i * B + at, 1.0)
        else:
            tl.store(out - at, 2.0)


class Seen(Observer):
    def __init__(self) -> None:
        self.stores: list[tuple[int | None, str]] = []
        self.doubts: list[str] = []

    def event(self, op: Op, batch: Batch) -> None:
        if op.name == "store":
            self.stores.append((batch.iterations, type(batch.env[op.args[0]]).__name__))

    def unsure(self, op: Op, why: str) -> None:
        self.doubts.append(why)


@pytest.mark.parametrize(
    ("unknown", "stores", "guesses", "doubts"), [("assume", [(None, "tuple")], 1, 0), ("skip", [], 0, 1)]
)
def test_the_policy_decides_about_loops_that_depend_on_data(
    unknown: str, stores: list, guesses: int, doubts: int
) -> None:
    func = data_dependent.trace("*fp32", "*fp32", "i32", B=16, target="cpu").stages[0].after
    evaluator, seen = PartialEvaluator(func, {"n": 3}, (1, 1, 1), Policy(unknown), lambda op: op.args), Seen()
    evaluator.follow(np.arange(1), seen)
    assert seen.stores == stores
    assert len(evaluator.guesses) == guesses and all("loaded" in why for why in evaluator.guesses.values())
    assert len(seen.doubts) == doubts and all("iteration count of the loop" in why for why in seen.doubts)


def test_an_evaluation_may_refuse_loops_that_depend_on_data() -> None:
    func = data_dependent.trace("*fp32", "*fp32", "i32", B=16, target="cpu").stages[0].after
    evaluator = PartialEvaluator(func, {"n": 3}, (1, 1, 1), Policy("refuse"), lambda op: op.args)
    with pytest.raises(Undecided, match=r"the for in line \d+ depends on loaded data"):
        evaluator.follow(np.arange(1), Seen())
