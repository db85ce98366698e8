"""A row's index that serves all columns: it is loaded once per thread, and rows move in vectors, also into sums."""

from __future__ import annotations

import re

import pytest

import blocknb
import blocknb.language as tl
from blocknb.analysis.accesses import equal_registers
from blocknb.analysis.affine import Facts

COLUMNS = 4096


@blocknb.kernel
def gather_rows(rows, x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + i // 4096)
    row = tl.where(row < 0, row + 2048, row)
    tl.device_assert((row >= 0) & (row < 2048), "index out of bounds")
    tl.store(out + i, tl.load(x + (i % 4096 + 4096 * row)))


@blocknb.kernel
def add_rows(rows, x, out, n, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    row = tl.load(rows + i // COLUMNS, mask=inside, other=0)
    tl.atomic_add(out + (i % COLUMNS + COLUMNS * row), tl.load(x + i, mask=inside), mask=inside, sem="relaxed")


@blocknb.kernel
def volatile_rows(rows, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(rows + i // 4096, volatile=True))


@pytest.mark.parametrize("debug", [None, "trap"])
def test_a_gather_of_rows_moves_vectors_and_loads_one_index(debug):
    options = {} if debug is None else {"debug": debug}
    ptx = gather_rows.compile("*i64:16", "*bf16:16", "*bf16:16", 1024, **options).asm["ptx"]
    assert len(re.findall(r"ld\.global[\w.:]*\.v4\.[bu]32", ptx)) == 1
    assert len(re.findall(r"ld\.global[\w.:]*[bu]64", ptx)) == 1
    assert "ld.shared" not in ptx


@pytest.mark.parametrize(("dtype", "vector"), [("bf16", "noftz.v8.bf16"), ("fp16", "noftz.v8.f16"), ("fp32", "v4.f32")])
def test_sums_into_rows_load_one_index_and_add_vectors(dtype, vector):
    ptx = add_rows.compile("*i64:16", f"*{dtype}:16", f"*{dtype}:16", "i32:16", 1024, COLUMNS).asm["ptx"]
    adds = re.findall(r"red\.relaxed\.gpu\.global\.add\.([\w.]+)", ptx)
    vectors = 2 if dtype == "fp32" else 1  # whose masks may differ
    assert adds == [vector] * vectors
    assert len(re.findall(r"ld\.global[\w.:]*[bu]64", ptx)) == vectors
    assert "ld.shared" not in ptx


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_rows_of_an_odd_length_add_single_numbers(target):
    ptx = add_rows.compile("*i64:16", "*fp16:16", "*fp16:16", "i32:16", 1024, 4095, target=target).asm["ptx"]
    assert re.findall(r"red\.relaxed\.gpu\.global\.add\.([\w.]+)", ptx) == ["noftz.f16"] * 8


def test_a_volatile_load_is_issued_for_each_element():
    ptx = volatile_rows.compile("*i64:16", "*i64:16", 1024).asm["ptx"]
    assert len(re.findall(r"ld\.volatile\.global", ptx)) == 8


@pytest.mark.parametrize("block", [256, 1024, 8192])
@pytest.mark.parametrize("columns", [8, 64, 4096])
def test_equal_registers_hold_elements_of_one_row(block, columns):
    trace = add_rows.trace("*i64:16", "*bf16:16", "*bf16:16", "i32:16", block, columns)
    func = trace.stages["layout_assignment"].after
    load = next(op for op in func.ops() if op.name == "load" and op.result.type.dtype.bits == 64)
    layout, bits = load.args[0].type.layout, equal_registers(Facts(func), load)
    assert bits or layout.num_registers == 1 or columns == 8
    for thread in range(128):
        for register in range(layout.num_registers):
            places = [place_of(layout, r, thread) for r in (register, register & ~bits)]
            assert len({place // columns for place in places}) == 1


def place_of(layout, register, thread):
    place = 0
    for bases, number in ((layout.reg, register), (layout.lane, thread % 32), (layout.warp, thread // 32)):
        for i, base in enumerate(bases):
            place ^= base if number >> i & 1 else 0
    return place


@blocknb.kernel
def look_up(places, table, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(table + tl.load(places + i))
    tl.store(out + i, found.to(tl.bfloat16))


def test_scattered_numbers_are_loaded_in_the_layout_of_their_addresses():
    ptx = look_up.compile("*i64:16", "*i64:16", "*bf16:16", 1024).asm["ptx"]
    assert not re.findall(r"st\.shared\S*b64", ptx)
