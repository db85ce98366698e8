"""The pass `pointers`: scalar bases, loop-invariant offsets, and the tiles that must stay general."""

from __future__ import annotations

import pytest
from frontend_helpers import ir, kernel
from short_kernels import counts, passed, report, same, texts

import blocknb.language as bl
from blocknb.language.types import Pointer
from blocknb.passes import run
from blocknb.target import Target


@kernel
def strip(x, y, n, stride, B: bl.constexpr, ADVANCE: bl.constexpr):
    """Sums B x B blocks from left to right, with pointers that advance as in a matrix product."""
    row = (bl.program_id(0) * B + bl.arange(0, B)) % n
    column = bl.arange(0, B)
    ptrs = x + row[:, None] * stride + column[None, :]
    total = bl.zeros((B, B), bl.float32)
    for k in range(3, n):
        total += bl.load(ptrs, mask=column[None, :] < n - k)
        ptrs += ADVANCE * stride + 1
    out = bl.program_id(0) * B * B + bl.arange(0, B)[:, None] * B + column[None, :]
    bl.store(y + out, total)


SCALARS = {"scalars": (9, 20)}


def strips(*names, advance=2):
    return same(strip, *names, x="*f32", y="*f32", n="i32", stride="i32", B=8, ADVANCE=advance, **SCALARS)


def test_pointers_with_a_uniform_step_are_carried_as_a_scalar(golden):
    before, after, notes = strips("simplify", "pointers")
    (loop,) = (op for op in after.ops() if op.name == "for")
    carried = [r.type for r in loop.blocks[0].args[1:]]
    assert [(bool(x.shape), isinstance(x.dtype, Pointer)) for x in carried] == [(False, True), (True, False)]
    assert "the loop carries a scalar instead of the tile: ptrs" in texts(notes)
    assert "address = scalar base + loop-invariant int32 offsets" in texts(notes)
    golden("pointers/strip.ir", report(before, after, "pointers", notes))


def test_pass_works_without_simplify():
    _, after, _ = strips("pointers")
    (loop,) = (op for op in after.ops() if op.name == "for")
    assert not any(a.type.is_pointer and a.type.shape for a in loop.blocks[0].args)


def test_uniform_part_of_an_offset_moves_into_the_scalar_pointer():
    _, after, _ = strips("simplify", "pointers")
    makers = {r: op for op in after.ops() for r in op.results}
    (store,) = (op for op in after.ops() if op.name == "store")
    address = makers[store.args[0]]
    assert address.name == "ptradd" and makers[address.args[0]].name == "splat"
    assert program_ids(address.args[1], makers) == 0
    assert program_ids(address.args[0], makers) == 1


def program_ids(value, makers):
    """How many program_id ops a value depends on."""
    seen, work = set(), [value]
    while work:
        op = makers.get(work.pop())
        if op is not None and op not in seen:
            seen.add(op)
            work.extend(op.args)
    return sum(op.name == "program_id" for op in seen)


@kernel
def fans_out(x, y, n):
    at = bl.arange(0, 32)
    ptrs = x + at
    total = bl.zeros((32,), bl.float32)
    for _ in range(n):
        total += bl.load(ptrs)
        ptrs += at  # each element has another step
    bl.store(y + at, total)


def test_pointers_with_different_steps_stay_a_tile_and_get_a_note():
    before, after, notes = same(fans_out, "simplify", "pointers", x="*f32", y="*f32", n="i32", scalars=(5,))
    assert counts(after)["ptradd"] == counts(before)["ptradd"]
    missed = [n for n in notes if n.kind == "missed"]
    assert "the loop carries ptrs as a tile of pointers: its pointers advance by different amounts" in texts(missed)
    assert "address = a tile of pointers that a loop carries" in texts(missed)
    assert all(n.loc is not None for n in missed)


@kernel
def walks_twice(x, y, n, m, START: bl.constexpr):
    at = bl.arange(START, START + 16)
    offs = at * 2
    ptrs = x + offs
    total = bl.zeros((16,), bl.float32)
    for i in range(n):
        for j in range(m):
            total += bl.load(ptrs + offs, mask=offs < 40)
            ptrs += 3
            offs = offs - 1
        ptrs += n
        offs += 2 * i
    bl.store(y + at, total + bl.load(ptrs))


@pytest.mark.parametrize("start", [0, 16])
def test_carried_pointers_are_split_in_nested_loops(start):
    _, after, notes = same(
        walks_twice, "simplify", "pointers", x="*f32", y="*f32", n="i32", m="i32", START=start, scalars=(3, 4)
    )
    loops = [op for op in after.ops() if op.name == "for"]
    assert [sum(bool(a.type.shape) for a in loop.blocks[0].args) for loop in loops] == [1, 1]  # the sum itself
    assert sum("carries a scalar" in text for text in texts(notes)) == 2


@kernel
def wide_offsets(x, y, n):
    at = bl.arange(0, 16)
    ptrs = x + at.to(bl.int64) * n
    for _ in range(2):
        bl.store(y + at, bl.load(ptrs + at))
        ptrs += bl.full((16,), 1, bl.int8).to(bl.uint8)


def test_offsets_of_two_widths_promote_to_the_wider_one():
    _, after, notes = same(wide_offsets, "simplify", "pointers", x="*f32", y="*f32", n="i32", scalars=(5,))
    assert "address = scalar base + loop-invariant int64 offsets" in texts(notes)
    (loop,) = (op for op in after.ops() if op.name == "for")
    assert not any(a.type.shape for a in loop.blocks[0].args)


@kernel
def backwards(x, y, n):
    at = bl.arange(0, 16)
    bl.store(y + at, bl.load(x + (n - 1 - at) * 2))


def test_subtracted_offset_keeps_its_sign():
    _, after, notes = same(backwards, "simplify", "pointers", x="*f32", y="*f32", n="i32", scalars=(20,))
    assert counts(after)["neg"] == 1
    assert set(texts(notes)) == {"address = scalar base + int32 offsets"}


@kernel
def chosen(x, y, z, n):
    at = bl.arange(0, 16)
    bl.store(z + at, bl.load(bl.where(at < n, x + at, y + at)))


def test_pointers_selected_per_element_stay_general():
    _, _, notes = same(chosen, "simplify", "pointers", x="*f32", y="*f32", z="*f32", n="i32", scalars=(5,))
    assert ("missed", "address = a tile of pointers from select, which have no common base") in [
        (n.kind, n.text) for n in notes
    ]


def test_offset_with_a_contiguity_hint_is_not_split():
    @kernel
    def promising(x, y, n):
        at = bl.max_contiguous(bl.program_id(0) * n + bl.arange(0, 16), 16)
        bl.store(y + at, bl.load(x + at))

    _, after, _ = same(promising, "simplify", "pointers", x="*f32", y="*f32", n="i32", scalars=(16,))
    assert sum("max_contiguous" in op.attrs for op in after.ops()) == 1


def test_without_the_pass_64_bit_addresses_are_added_per_element_and_iteration():
    """The pass changes this number: elements of pointer arithmetic in loop-carried values."""

    def carried(without=()):
        func = ir(strip, x="*f32", y="*f32", n="i32", stride="i32", B=64, ADVANCE=2)
        func, _ = run(func, Target.parse("cpu:x86-64"), without)
        (loop,) = (op for op in func.ops() if op.name == "for")
        return sum(a.type.size for a in loop.blocks[0].args if a.type.is_pointer)

    assert carried() == 1
    assert carried(without={"pointers"}) == 64 * 64


def test_running_the_pass_twice_changes_nothing():
    _, after, _ = strips("simplify", "pointers")
    again, _ = passed(after, "pointers")
    assert counts(again) == counts(after)
