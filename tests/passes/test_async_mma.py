"""Several products of a trip under way at a time: which begin first, where each is waited for, and that all of it is still right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fuzz import simt
from kernels import CASES
from kernels.base import copied, parameters

from blocknb import passes
from blocknb.codegen import gpu
from blocknb.ir.core import Func, Op, walk
from blocknb.target import Target

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
def test_products_that_need_no_other_begin_first_and_each_is_waited_for_where_it_is_needed(name, expected):
    *_, func, _ = lowered(name)
    found = [op for op in walk(innermost(func).blocks[0]) if op.name in ("dot", "dot_wait")]
    told = [f"{'wait' if op.name == 'dot_wait' else 'dot'} {op.attrs.get('in_flight')}" for op in found]
    assert told == expected


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_slot_is_given_back_when_the_product_that_reads_it_is_done(name):
    *_, func, _ = lowered(name)
    relevant = [op for op in walk(innermost(func).blocks[0]) if op.name in ("dot", "dot_wait", "arrive")]
    behind = [before for before, op in itertools.pairwise(relevant) if op.name == "arrive"]
    assert behind and all(
        op.name == "dot_wait" or not op.attrs.get("in_flight") for op in behind if op.name != "arrive"
    )


@pytest.mark.parametrize("without", [(), ("warp_specialization",), ("warp_specialization", "software_pipelining")])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_what_they_were(name, without):
    case, arguments, func, _ = lowered(name, without)
    case.interpret(func, arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    simt.run(gpu.generate(func, HOPPER), parameters(func, got), case.grid)
    case.check(arguments, got)


def test_a_product_that_is_used_before_it_is_waited_for_is_noticed():
    from passes.test_wgmma_choice import edited

    from blocknb.errors import CompilerBug
    from blocknb.ir.verify import verify

    *_, func, _ = lowered("attention_key_gradients")
    wait = next(op for op in func.ops() if op.name == "dot_wait")
    early = dict(zip(wait.results, wait.args, strict=True))

    def change(op: Op) -> Op | None:
        return None if op.id == wait.id else op.replace(args=tuple(early.get(x, x) for x in op.args))

    with pytest.raises(CompilerBug, match="may be under way"):
        verify(edited(func, change))


@pytest.mark.parametrize("name", ["wgmma_gated", "wgmma_attention", "wgmma_fp16"])
def test_fewer_products_stay_where_they_are(name):
    *_, stages = lowered(name)
    stage = next(stage for stage in stages if stage.name == "async_mma")
    assert not stage.notes


def test_results_that_take_many_registers_are_waited_for_one_after_the_other():
    case = CASES["attention_key_gradients"]
    arguments = case.make(np.random.default_rng(0)) | {"ROWS": 128, "COLUMNS": 128}
    func = case.parse(arguments, num_warps=4)
    _, stages = passes.run(func, Target.parse("sm_90a"))
    assert not next(stage for stage in stages if stage.name == "async_mma").notes
