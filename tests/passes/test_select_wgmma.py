"""wgmma selection: when wgmma is chosen, the notes otherwise, and what later passes do with the operands."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import CASES

from blocknb.errors import CompilerBug
from blocknb.ir.core import Block, Func, Op, walk
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.language.types import Buffer
from blocknb.target import Target

HOPPER = Target.parse("sm_90a")


ASIDE = frozenset({"warp_specialization", "epilogue_subtiling"})  # other tests cover these passes


def lowered(name: str, target: str = "sm_90a", without=frozenset(), **options):
    case = CASES[name]
    return case.lower(case.make(np.random.default_rng(0)), target, ASIDE | without, **options)


def instructions(func: Func) -> list[str]:
    return [op.attrs.get("instr", "") for op in func.ops() if op.name == "dot"]


def notes(stages, name: str) -> list[str]:
    return [note.text for stage in stages if stage.name == name for note in stage.notes]


def edited(func: Func, change) -> Func:
    """The function with every op replaced by `change(op)`; None removes it."""

    def block(old: Block) -> Block:
        new = [change(op.replace(blocks=tuple(map(block, op.blocks))) if op.blocks else op) for op in old.ops]
        return Block(old.args, tuple(op for op in new if op is not None))

    return func.replace(body=block(func.body))


@pytest.mark.parametrize(
    ("target", "options"), [("sm_90", {}), ("sm_100a", {}), ("sm_80", {}), ("sm_90a", {"without": {"select_wgmma"}})]
)
def test_without_wgmma_products_use_mma_sync(target, options):
    func, _ = lowered("wgmma_fp16", target, **options)
    assert instructions(func) == ["m16n8k16"]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("matmul_float16", {"num_warps": 2}, "it takes 4 warps together, and the program has 2"),
        ("matmul_tf32_tt", {}, "M = 32 is smaller than 64"),
        ("wgmma_bf16_narrow", {"num_warps": 16}, "N = 8 gives 2 groups of 4 warps fewer than 8 columns each"),
    ],
)
def test_a_note_explains_why_wgmma_is_not_chosen(name, options, why):
    func, stages = lowered(name, **options)
    assert not any("wgmma" in x for x in instructions(func))
    assert any(why in text for text in notes(stages, "select_wgmma"))


def test_8_bit_floats_are_multiplied_without_conversion():
    func, _ = lowered("wgmma_product_fp8e4nv_fp8e5")
    dot = next(op for op in func.ops() if op.name == "dot")
    assert [x.type.dtype.name for x in dot.args[:2]] == ["fp8e4nv", "fp8e5"]


def test_p_of_attention_stays_in_registers_and_q_is_stored_before_the_loop():
    func, stages = lowered("wgmma_attention_wide", num_stages=1)
    loop = next(op for op in func.ops() if op.name == "for")
    first, second = (op for op in walk(loop.blocks[0]) if op.name == "dot")
    assert isinstance(first.args[0].type, Buffer) and second.attrs["registers"]
    assert not isinstance(second.args[0].type, Buffer)
    inside = [op.args[0] for op in walk(loop.blocks[0]) if op.name == "local_store"]
    assert first.args[0] not in inside and first.args[1] in inside
    made = next(stage.after for stage in stages if stage.name == "layout_assignment")
    assert not [op for op in made.ops() if op.name == "convert" and op.args[0].name.startswith("p")]


def test_an_operand_of_two_products_is_stored_once():
    func, _ = lowered("wgmma_chain_fp16")
    stores = [op for op in func.ops() if op.name == "local_store" and op.args[0].name.startswith("tb")]
    assert len(stores) == 1


@pytest.mark.sampled(2, each=["num_stages", "name"])
@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("name", ["wgmma_fp16", "wgmma_attention", "wgmma_fp16_narrow_nn", "wgmma_chain_fp16_split"])
def test_removing_any_barrier_or_fence_is_detected(name, num_stages):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(5))
    func, _ = case.lower(arguments, "sm_90a", ASIDE, num_stages=num_stages)
    assert {"fence", "barrier"} <= {op.name for op in func.ops()}
    # Data fenced before a loop are fenced again with the stores of its first iteration.
    loops = [op for op in func.ops() if op.name == "for"]
    fences = [
        op.id for block in [loop.blocks[0] for loop in loops] or [func.body] for op in walk(block) if op.name == "fence"
    ]
    for removed in [*fences, *(op.id for op in func.ops() if op.name == "barrier")]:
        without = edited(func, lambda op, removed=removed: None if op.id == removed else op)
        with pytest.raises((CompilerBug, AssertionError)):
            for seed in range(4):
                case.interpret(without, arguments, seed=seed)


def test_a_fence_after_the_barrier_is_detected_as_too_late():
    case = CASES["wgmma_fp16"]
    arguments = case.make(np.random.default_rng(5))
    func, _ = case.lower(arguments, "sm_90a", ASIDE, num_stages=1)
    block = next(op for op in func.ops() if op.name == "for").blocks[0]
    position = next(i for i, op in enumerate(block.ops) if op.name == "fence")
    assert block.ops[position + 1].name == "barrier"
    fence, barrier = block.ops[position : position + 2]

    def swap(op: Op) -> Op:
        return {fence.id: barrier, barrier.id: fence}.get(op.id, op)

    with pytest.raises(CompilerBug, match="fence"):
        case.interpret(edited(func, swap), arguments)


def test_verifier_requires_buffers_that_a_descriptor_can_address():
    func, _ = lowered("wgmma_fp16")

    def plain(op: Op) -> Op:
        if op.name == "alloc" and "align" in op.attrs:
            return op.replace(attrs={**op.attrs, "offset": op.attrs["offset"] + 128})
        return op

    with pytest.raises(CompilerBug, match="is not a multiple of 1024"):
        verify(edited(func, plain))
    text = print_func(func)
    assert print_func(parse_func(text)) == text
    swizzle = next(op.result.type.layout for op in func.ops() if op.name == "alloc" and "align" in op.attrs)
    spoilt = text.replace(str(swizzle), str(swizzle).replace("72,144", "64,128"))
    with pytest.raises(CompilerBug, match="no matrix descriptor for operand"):
        verify(parse_func(spoilt))


# -- products in flight


def rotated(name: str, **options) -> tuple[Func, Op, Op]:
    """A kernel, its loop, and the product in it."""
    func, _ = lowered(name, **options)
    loop = next(op for op in func.ops() if op.name == "for")
    return func, loop, next(op for op in walk(loop.blocks[0]) if op.name == "dot")


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_product_stays_in_flight_and_copies_wait_for_the_previous_one(num_stages):
    func, loop, dot = rotated("wgmma_fp16", num_stages=num_stages)
    assert dot.attrs["in_flight"] == 1
    assert {op.result.type.stages for op in func.ops() if op.name == "alloc" and "align" in op.attrs} == {num_stages}
    order = [
        op.name for op in loop.blocks[0].ops if op.name in ("wait", "fence", "barrier", "dot", "copy_async", "commit")
    ]
    assert order == ["wait", "fence", "barrier", "dot", "barrier", "copy_async", "copy_async", "commit"]
    assert [op.name for op in func.body.ops[func.body.ops.index(loop) :]][1] == "dot_wait"


def test_product_read_in_its_iteration_is_awaited_there():
    func, loop, _ = rotated("wgmma_attention")
    dots = [op for op in walk(loop.blocks[0]) if op.name == "dot"]
    assert len(dots) == 2 and not any(op.attrs.get("in_flight") for op in dots)
    assert not any(op.name == "dot_wait" for op in func.ops())


def test_two_products_per_iteration_are_both_in_flight():
    func, loop, _ = rotated("wgmma_gated")
    assert [op.attrs["in_flight"] for op in walk(loop.blocks[0]) if op.name == "dot"] == [2, 2]
    (wait,) = (op for op in func.ops() if op.name == "dot_wait")
    assert len(wait.args) == 2


def test_without_a_circular_buffer_no_product_stays_in_flight():
    assert not rotated("wgmma_fp16", num_stages=1)[2].attrs.get("in_flight")


def test_a_product_in_flight_for_too_long_is_detected():
    case = CASES["wgmma_fp16"]
    arguments = case.make(np.random.default_rng(5))
    func, _ = case.lower(arguments, "sm_90a", ASIDE)
    case.interpret(func, arguments)

    def longer(op: Op) -> Op:
        return op.replace(attrs={**op.attrs, "in_flight": 2}) if op.name == "dot" else op

    with pytest.raises(CompilerBug, match="copy to it is in flight|overwritten|writes shared memory"):
        for seed in range(4):
            case.interpret(edited(func, longer), arguments, seed=seed)


def test_the_verifier_rejects_uses_of_products_in_flight():
    func, _, _ = rotated("wgmma_fp16")
    wait = next(op for op in func.ops() if op.name == "dot_wait")
    users = {op.id for op in func.ops() if wait.result in op.args}

    def early(op: Op) -> Op | None:
        if op is wait or op.id == wait.id:
            return None
        args = tuple(wait.args[0] if x is wait.result else x for x in op.args)
        return op.replace(args=args) if op.id in users else op

    with pytest.raises(CompilerBug, match="a product that may be in flight"):
        verify(edited(func, early))


def test_transposed_tf32_operands_have_no_bank_conflicts():
    func, stages = lowered("wgmma_tf32_tn", num_stages=1)
    messages = notes(stages, "lower_conversions")
    (stored,) = (x for x in messages if "dot operand b" in x)  # transposed on its way to the buffer
    assert "16-byte accesses, no bank conflicts" in stored and not any("dot operand a" in x for x in messages)
    (read,) = (x for x in messages if "read as" in x)  # the layout of A in registers
    assert "4-byte accesses, no bank conflicts" in read
    plain, _ = lowered("wgmma_tf32", num_stages=1)
    assert [op.attrs["vec"] for op in func.ops() if op.name == "load"] == [4, 1]
    assert {op.attrs["vec"] for op in plain.ops() if op.name == "load"} == {4}
