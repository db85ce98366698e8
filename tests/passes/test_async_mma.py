"""Asynchronous MMA: the order of several products in flight, where each is awaited, and right results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fuzz import simt
from kernels import CASES
from kernels.base import Case, copied, parameters
from passes.test_select_wgmma import edited

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir.core import Func, Op, walk
from blocknb.passes.memory.async_mma import async_mma
from blocknb.passes.memory.barriers import barriers
from blocknb.passes.memory.shared_memory_allocation import shared_memory_allocation
from blocknb.target import Target
from blocknb.trace import Notes

HOPPER = Target.parse("sm_90a")
GRADIENTS = ("attention_key_gradients", "attention_query_gradients")


def lowered(name: str, without=(), **options):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(7))
    return case, arguments, *passes.run(case.parse(arguments, **options), HOPPER, without)


def innermost(func: Func) -> Op:
    return next(op for op in func.ops() if op.name == "for" and any(x.name == "dot" for x in op.blocks[0].ops))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("attention_key_gradients", ["dot 1", "dot 2", "wait 1", "dot 2", "wait 1", "dot 2", "wait 0"]),
        ("attention_query_gradients", ["dot 1", "dot 2", "wait 1", "wait 0", "dot None"]),
    ],
)
def test_independent_products_are_issued_early_and_waits_late(name, expected):
    *_, func, _ = lowered(name)
    found = [op for op in walk(innermost(func).blocks[0]) if op.name in ("dot", "dot_wait")]
    order = [f"{'wait' if op.name == 'dot_wait' else 'dot'} {op.attrs.get('in_flight')}" for op in found]
    assert order == expected


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_stage_is_released_when_the_product_that_reads_it_completes(name):
    *_, func, _ = lowered(name)
    relevant = [op for op in walk(innermost(func).blocks[0]) if op.name in ("dot", "dot_wait", "arrive")]
    behind = [before for before, op in itertools.pairwise(relevant) if op.name == "arrive"]
    assert behind and all(
        op.name == "dot_wait" or not op.attrs.get("in_flight") for op in behind if op.name != "arrive"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("without", [(), ("warp_specialization",), ("warp_specialization", "software_pipelining")])
@pytest.mark.parametrize("name", GRADIENTS)
def test_results_of_attention_gradients_are_unchanged(name, without):
    case, arguments, func, _ = lowered(name, without)
    case.interpret(func, arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    simt.run(gpu.generate(func, HOPPER), parameters(func, got), case.grid)
    case.check(arguments, got)


def test_using_a_product_before_its_wait_is_detected():
    from blocknb.errors import CompilerBug
    from blocknb.ir.verify import verify

    *_, func, _ = lowered("attention_key_gradients")
    wait = next(op for op in func.ops() if op.name == "dot_wait")
    early = dict(zip(wait.results, wait.args, strict=True))

    def change(op: Op) -> Op | None:
        return None if op.id == wait.id else op.replace(args=tuple(early.get(x, x) for x in op.args))

    with pytest.raises(CompilerBug, match="may be in flight"):
        verify(edited(func, change))


@pytest.mark.parametrize("name", ["wgmma_gated", "wgmma_attention", "wgmma_fp16"])
def test_one_or_two_products_are_not_reordered(name):
    *_, stages = lowered(name)
    stage = next(stage for stage in stages if stage.name == "async_mma")
    assert not stage.notes


def test_products_with_large_results_are_awaited_in_sequence():
    case = CASES["attention_key_gradients"]
    arguments = case.make(np.random.default_rng(0)) | {"ROWS": 128, "COLUMNS": 128}
    func = case.parse(arguments, num_warps=4)
    _, stages = passes.run(func, Target.parse("sm_90a"))
    notes = next(stage for stage in stages if stage.name == "async_mma").notes
    assert notes and all(note.text.startswith("dot: waited for at once: the results of") for note in notes)


@blocknb.kernel
def three_products(a, b, y):
    i = tl.arange(0, 64)
    at = i[:, None] * 64 + i[None, :]
    first = tl.dot(tl.load(a + at), tl.load(b + at))
    second = tl.dot(tl.load(a + 4096 + at), tl.load(b + 4096 + at))
    third = tl.dot(tl.load(a + 8192 + at), tl.load(b + 8192 + at))
    tl.store(y + at, first * second)
    tl.store(y + 4096 + at, third)


def three_operands(rng: np.random.Generator) -> dict[str, np.ndarray]:
    made = {name: rng.standard_normal((3, 64, 64)).astype(np.float16) for name in "ab"}
    return made | {"y": np.full((2, 64, 64), np.nan, np.float32)}


def three_results(arguments: dict) -> dict[str, np.ndarray]:
    first, second, third = arguments["a"].astype(float) @ arguments["b"].astype(float)
    return {"y": np.stack([first * second, third])}


def with_shared_buffer(func: Func, side: int, earlier: int, later: int) -> Func:
    """The function with one buffer for the same operand of two products."""
    products = [op for op in func.ops() if op.name == "dot"]
    old, new = (products[number].args[side] for number in (later, earlier))

    def change(op: Op) -> Op | None:
        return None if old in op.results else op.replace(args=tuple(new if x is old else x for x in op.args))

    return edited(func, change)


def finished(func: Func) -> Func:
    return barriers(
        shared_memory_allocation(func, HOPPER, Notes("shared_memory_allocation")), HOPPER, Notes("barriers")
    )


@pytest.mark.parametrize("side", [0, 1], ids=["a", "b"])
@pytest.mark.parametrize("reused", [0, 1], ids=["first", "second"])
def test_a_product_is_awaited_before_its_operand_is_overwritten(side, reused):
    """The third product's operand takes the buffer of an earlier product, which may still run."""
    case = Case("three_products", three_products, three_operands, three_results, rtol=1e-2, atol=1e-2)
    arguments = three_operands(np.random.default_rng(7))
    before = next(stage.before for stage in case.lower(arguments, "sm_90a")[1] if stage.name == "async_mma")
    buffer = [op for op in before.ops() if op.name == "dot"][reused].args[side]
    func = async_mma(with_shared_buffer(before, side, reused, 2), HOPPER, Notes("async_mma"))
    relevant = [
        op for op in func.ops() if op.name in ("dot", "dot_wait") or (op.name == "local_store" and op.args[0] is buffer)
    ]
    order = [f"{op.name} {op.attrs['in_flight']}" if "in_flight" in op.attrs else op.name for op in relevant]
    first = ["local_store", "dot 1"] if reused == 0 else ["dot 1", "local_store"]
    assert order[:5] == [*first, "dot 2", f"dot_wait {1 - reused}", "local_store"], order
    case.interpret(finished(func), arguments)


@blocknb.kernel
def three_products_in_a_loop(a, b, y, n):
    i = tl.arange(0, 64)
    at = i[:, None] * 64 + i[None, :]
    sums = tl.zeros((64, 64), tl.float32)
    for _ in range(n):
        first = tl.dot(tl.load(a + at), tl.load(b + at))
        second = tl.dot(tl.load(a + 4096 + at), tl.load(b + 4096 + at))
        sums += first * second + tl.dot(tl.load(a + 8192 + at), tl.load(b + 8192 + at))
    tl.store(y + at, sums)


@pytest.mark.parametrize(("side", "later"), [(0, 1), (1, 2)])
def test_a_store_to_the_buffer_of_an_earlier_product_keeps_its_place(side, later):
    def reference(arguments: dict) -> dict[str, np.ndarray]:
        product, third = three_results(arguments)["y"]
        return {"y": np.stack([2 * (product + third), np.full((64, 64), np.nan)])}

    case = Case("in_a_loop", three_products_in_a_loop, three_operands, reference, rtol=1e-2, atol=1e-2)
    arguments = three_operands(np.random.default_rng(7)) | {"n": 2}
    before = next(stage.before for stage in case.lower(arguments, "sm_90a")[1] if stage.name == "async_mma")
    notes = Notes("async_mma")
    func = async_mma(with_shared_buffer(before, side, 0, later), HOPPER, notes)
    assert notes.list[0].text.startswith("dot: not moved: the local_store at line")
    case.interpret(finished(func), arguments)
