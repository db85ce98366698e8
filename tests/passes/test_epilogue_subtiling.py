"""Epilogue subtiling: the subtiles, the resulting stores, and the remaining barriers."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from fuzz import reports
from fuzz.races import Race
from kernels import CASES
from kernels.base import copied

from blocknb.analysis import affine
from blocknb.errors import CompilerBug
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.layouts import tables, wgmma
from blocknb.layouts.convert import within_warps
from blocknb.passes.memory.barriers import barriers
from blocknb.target import Target
from blocknb.trace import Notes

HOPPER = Target.parse("sm_90a")
SAMPLE = "wgmma_fp16_parts"


def lowered(target="sm_90a", without=(), **options):
    case = CASES[SAMPLE]
    return case.lower(case.make(np.random.default_rng(0)), target, without, **options)


def count(func: Func, name: str) -> int:
    return sum(op.name == name for op in func.ops())


def after(stages, name: str) -> Func:
    return next(stage.after for stage in stages if stage.name == name)


def accumulator(m: int, n: int, num_warps: int):
    row = wgmma.find("fp16", "fp16", "fp32")
    groups = wgmma.split((m, n), num_warps)
    return wgmma.result_layout((m, n), wgmma.columns(row, n // groups[1]), groups)


# -- subtiles of layouts


@pytest.mark.parametrize("parts", [2, 4])
def test_subtile_has_the_elements_of_its_part_of_the_tile(parts):
    layout = accumulator(64, 128, 4)
    part = layout.part(1, parts)
    wide = 128 // parts
    for index in range(parts):
        row, column = np.divmod(layout.indices()[:, :, list(layout.part_registers(1, index, parts))], 128)
        np.testing.assert_array_equal(part.indices(), row * wide + column - index * wide)


def test_subtile_of_an_accumulator_is_an_accumulator_of_fewer_columns():
    assert accumulator(128, 256, 8).part(1, 4) == accumulator(128, 64, 8)


def test_subtiles_that_some_threads_lack_are_refused():
    layout = tables.blocked((16, 256), (1, 0), 8, 4)  # all columns in one warp's lanes
    with pytest.raises(ValueError, match="no thread has its own of 2 parts along axis 1"):
        layout.part(1, 2)
    assert layout.part(0, 4).shape == (4, 256)


@pytest.mark.parametrize(
    ("m", "n", "warps", "vec"), [(64, 64, 4, 8), (128, 256, 8, 8), (64, 32, 4, 4), (256, 64, 8, 2)]
)
def test_per_warp_store_layout_keeps_elements_in_their_warp(m, n, warps, vec):
    source = accumulator(m, n, warps)
    layout = tables.stored_by_warp(source, 1, vec, 8 * vec)
    assert within_warps(source, layout) and within_warps(layout, source)
    assert layout.contiguous_registers(1) >= vec and layout.consecutive(1, vec) == min(n, 8 * vec)
    for warp in range(warps):
        assert set(source.indices()[warp].flat) == set(layout.indices()[warp].flat)


def test_within_warps_detects_movement_between_warps():
    source = accumulator(64, 64, 4)
    assert not within_warps(source, tables.blocked((64, 64), (1, 0), 8, 4))
    everywhere = source.replace(warp=(0, 0), reg=(*source.reg, *source.warp))
    assert not within_warps(everywhere, everywhere)


# -- the op


PARTED = """
#a = <32x64: reg 1,2,1024,16,32 lane 4,8,64,128,256 warp 512>

func @f(%x: ptr<f16>, %stride: i32, %n: i32) memory {num_warps=2} {
  %rows = arange 0 32 : tile<32xi32, <32: reg 16 lane 0,0,1,2,4 warp 8>>
  %columns = arange 3 67 : tile<64xi32, <64: reg 1,2,16,32 lane 4,8,0,0,0 warp 0>>
  %s = splat %stride : tile<32xi32, <32: reg 16 lane 0,0,1,2,4 warp 8>>
  %scaled = mul %rows, %s : tile<32xi32, <32: reg 16 lane 0,0,1,2,4 warp 8>>
  %r = expand_dims %scaled {axis=1} : tile<32x1xi32, <32x1: reg 16 lane 0,0,1,2,4 warp 8>>
  %c = expand_dims %columns {axis=0} : tile<1x64xi32, <1x64: reg 1,2,16,32 lane 4,8,0,0,0 warp 0>>
  %rr = broadcast %r : tile<32x64xi32, #a>
  %cc = broadcast %c : tile<32x64xi32, #a>
  %offsets = add %rr, %cc : tile<32x64xi32, #a>
  %base = splat %x : tile<32x64xptr<f16>, #a>
  %pointers = ptradd %base, %offsets : tile<32x64xptr<f16>, #a>
  %part = part %pointers {axis=1, index=1, count=4}
  %lower = part %part {axis=0, index=1, count=2}
}
"""


def parted() -> tuple[Func, dict[str, Value]]:
    func = parse_func(PARTED)
    return func, {value.name: value for op in func.ops() for value in op.results}


def test_function_with_subtiles_verifies_and_survives_its_text_form():
    func, _ = parted()
    verify(func)
    assert print_func(parse_func(print_func(func))) == print_func(func)


def test_axis_info_of_a_subtile_follows_from_the_tile():
    func, values = parted()
    facts, part, lower = affine.analyze(func), values["part"], values["lower"]
    assert part.type.shape == (32, 16) and lower.type.shape == (16, 16)
    assert str(facts.form(part)) == str(facts.form(values["pointers"])).replace("+ 3", "+ 19")
    assert str(facts.form(lower)) == "d0*stride + d1 + 16*stride + 19"
    assert facts.base(lower) is func.params[0] and facts.stride(lower, 1) == 1
    assert facts.contiguity(values["pointers"], 1) == 64 and facts.contiguity(lower, 1) == 16


# -- stores


def test_product_is_stored_in_subtiles_through_a_small_buffer():
    func, stages = lowered()
    assert count(after(stages, "layout_assignment"), "store") == 1
    assert count(func, "store") == 2
    buffers = {op.result.type.bytes for op in func.ops() if op.name == "alloc" and op.result.type.shape == (64, 64)}
    assert buffers == {64 * 64 * 2}
    (note,) = next(stage.notes for stage in stages if stage.name == "epilogue_subtiling")
    assert note.text == "store: in 2 parts of 64x64, through 8192 bytes of shared memory, each warp its own"


def test_without_the_pass_the_product_is_stored_as_one_tile():
    func, _ = lowered(without=("epilogue_subtiling",))
    assert count(func, "store") == 1
    assert any(op.name == "alloc" and op.result.type.shape == (64, 128) for op in func.ops())


def test_epilogue_has_only_warp_barriers_after_the_operands_are_read():
    func, _ = lowered()
    ops = func.body.ops
    behind = ops[1 + max(i for i, op in enumerate(ops) if op.name in ("for", "dot_wait")) :]
    names = [op.name for op in behind if op.name in ("barrier", "warp_barrier", "local_store", "local_load", "store")]
    once = ["local_store", "warp_barrier", "local_load", "store"]
    assert names == ["barrier", *once, "warp_barrier", *once]


def test_accumulators_of_mma_sync_are_stored_as_one_tile():
    func, _ = lowered("sm_80")
    assert count(func, "warp_barrier") == 0 and count(func, "store") == 1


def test_small_result_is_not_subtiled():
    """A small result goes through 8 kB of shared memory once, in rows of 128 bytes."""
    case = CASES["wgmma_fp16"]
    func, _ = case.lower(case.make(np.random.default_rng(0)), "sm_90a")
    assert count(func, "part") == 0 and count(func, "store") == 1


# -- generated code


def edited(func: Func, change) -> Func:
    def block(old: Block) -> Block:
        new = [change(op.replace(blocks=tuple(map(block, op.blocks))) if op.blocks else op) for op in old.ops]
        return Block(old.args, tuple(op for op in new if op is not None))

    return func.replace(body=block(func.body))


def run(func: Func) -> None:
    case = CASES[SAMPLE]
    arguments = case.make(seeds.rng())
    got = {name: copied(value) for name, value in arguments.items()}
    reports.run(func, got, case.grid)
    case.check(arguments, got)


def test_generated_code_of_subtiles_stores_right_results():
    run(lowered()[0])


def test_removing_warp_barriers_is_detected_as_a_race():
    func, _ = lowered()

    def drop(op: Op) -> Op | None:
        return None if op.name == "warp_barrier" else op

    with pytest.raises(Race, match="two threads at one place"):
        run(edited(func, drop))


def test_exchange_between_warps_gets_barriers():
    """The same exchange with a layout that takes elements of another warp."""
    func, stages = lowered()
    before = next(stage.before for stage in stages if stage.name == "barriers")
    whole = tables.blocked((64, 64), (1, 0), 8, 4)
    loads = {op.result: op for op in before.ops() if op.name == "local_load" and op.result.type.shape == (64, 64)}
    assert loads

    def shift(op: Op) -> Op:
        if op.results and op.results[0] in loads:
            results = (Value(op.result.type.with_layout(whole)),)
            return op.replace(attrs={**op.attrs, "layout": whole}, results=results)
        return op

    changed = edited(before, shift)
    changed = edited(changed, lambda op: None if op.name == "store" else op)  # with other layouts than the loaded tiles
    made = barriers(changed, HOPPER, Notes("barriers"))
    assert count(made, "warp_barrier") == 0
    assert count(made, "barrier") > count(func, "barrier")


def test_interpreter_detects_a_race_between_warps():
    """The barrier that frees the operands' memory for the subtiles is necessary."""
    func, _ = lowered()
    last = [op.id for op in func.body.ops if op.name == "barrier"][-1]
    with pytest.raises(CompilerBug, match="warp"):
        CASES[SAMPLE].interpret(
            edited(func, lambda op: None if op.id == last else op), CASES[SAMPLE].make(np.random.default_rng(0))
        )
