"""Buffers in shared memory: swizzles by address arithmetic, conflicts by counting banks, ldmatrix by moving bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import layouts, shapes

from blocknb.layouts import gf2, tables
from blocknb.layouts.linear import Layout, distribute
from blocknb.layouts.shared import (
    SharedLayout,
    conflicts,
    ldmatrix_plan,
    matrix_cost,
    row_major,
    swizzled,
    swizzled_rows,
    vector_access,
    vector_cost,
)

quick = settings(max_examples=60, deadline=None)
FP16 = tables.find_mma("fp16", "fp32", 90)
TF32 = tables.find_mma("tf32", "fp32", 90)
INT8 = tables.find_mma("int8", "int32", 90)


@st.composite
def buffers(draw, shape):
    """Any invertible linear map of the tile into a buffer."""
    bits = int(np.prod(shape)).bit_length() - 1
    basis = list(draw(st.permutations([1 << bit for bit in range(bits)])))
    for _ in range(draw(st.integers(0, 4)) if bits > 1 else 0):
        i, j = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
        if i != j:
            basis[i] ^= basis[j]
    return SharedLayout(shape, tuple(basis))


def banked(layout, shared, element_bits, vec):
    """Counts the wavefronts of one access: for each part of the warp, the different words per bank."""
    lane_bytes = vec * element_bits // 8
    lanes = {8: 16, 16: 8}.get(lane_bytes, 32)
    total = 0
    for part in range(0, 32, lanes):
        words = [set() for _ in range(32)]
        for lane in range(part, part + lanes):
            start = shared.offset(layout.index(0, lane, 0)) * element_bits // 8
            for byte in range(start, start + lane_bytes):
                words[byte // 4 % 32].add(byte // 4)
        total += max(map(len, words))
    return total


@pytest.mark.parametrize(("limit", "low", "high"), [(128, 3, 0b1110000000), (64, 2, 0b110000000), (32, 1, 0b10000000)])
@pytest.mark.parametrize("element_bits", [8, 16, 32])
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_swizzles_match_the_address_xor_of_tma_and_wgmma(limit, low, high, element_bits, order):
    shape = (64, 256) if order == (1, 0) else (256, 64)
    shared = swizzled(shape, element_bits, order, limit)
    size = element_bits // 8
    panel_columns = limit // size
    offsets = shared.offsets()
    rows, columns = shape[order[1]], shape[order[0]]
    for row, column in itertools.product(range(0, rows, 5), range(0, columns, 7)):
        panel, within = divmod(column, panel_columns)
        address = panel * rows * limit + row * limit + within * size
        address ^= (address & high) >> 3
        index = (row, column) if order == (1, 0) else (column, row)
        assert offsets[index] * size == address
    assert bin(high).count("1") == low


def test_swizzle_width_follows_the_row_length():
    assert swizzled((64, 32), 16) == swizzled((64, 32), 16, row_bytes_limit=64)
    assert swizzled((64, 8), 16) == row_major((64, 8))
    assert swizzled((64,), 16) == row_major((64,))


@given(shapes().flatmap(buffers))
@quick
def test_every_element_has_its_own_offset_and_the_text_reads_back(shared):
    offsets = shared.offsets()
    assert sorted(offsets.ravel()) == list(range(shared.size))
    assert [shared.offset(index) for index in range(shared.size)] == list(offsets.ravel())
    assert SharedLayout.parse(str(shared)) == shared


def test_buffers_in_which_elements_collide_are_refused():
    with pytest.raises(ValueError):
        SharedLayout((4,), (1, 1))
    with pytest.raises(ValueError):
        SharedLayout((4,), (1, 4))


@given(
    layouts(shape=(16, 16), lane_bits=5, warp_bits=1).flatmap(
        lambda layout: st.tuples(st.just(layout), buffers(layout.shape))
    ),
    st.sampled_from([8, 16, 32, 64]),
)
@quick
def test_vectors_are_the_widest_contiguous_ones_in_the_buffer(pair, element_bits):
    layout, shared = pair
    access = vector_access(layout, shared, element_bits)
    assert sorted(itertools.chain.from_iterable(access.groups)) == list(range(layout.num_registers))
    offsets = np.asarray(shared.offsets()).reshape(-1)[layout.indices()]

    def fits(groups):
        return all(
            (offsets[:, :, group[0]] % len(group) == 0).all()
            and (offsets[:, :, list(group)] == offsets[:, :, group[0], None] + np.arange(len(group))).all()
            for group in groups
        )

    assert fits(access.groups) and access.vector * element_bits <= 128
    wider = 2 * access.vector
    if wider * element_bits <= 128 and wider <= layout.num_registers:
        runs = [tuple(np.argsort(offsets[0, 0])[i : i + wider]) for i in range(0, layout.num_registers, wider)]
        assert not fits(runs)
    assert (access.wavefronts, len(access.groups)) == vector_cost(layout, shared, element_bits)


@given(
    layouts(shape=(16, 32), lane_bits=5, warp_bits=1).flatmap(
        lambda layout: st.tuples(st.just(layout), buffers(layout.shape))
    ),
    st.sampled_from([8, 16, 32, 64]),
)
@quick
def test_number_of_wavefronts_is_the_maximum_of_words_per_bank(pair, element_bits):
    layout, shared = pair
    vec = vector_access(layout, shared, element_bits).vector
    wavefronts, ideal = conflicts(layout, shared, element_bits, vec)
    assert wavefronts == banked(layout, shared, element_bits, vec)
    assert ideal == {8: 2, 16: 4}.get(vec * element_bits // 8, 1)


@pytest.mark.parametrize(("limit", "ways"), [(None, 8), (32, 1), (64, 1), (128, 1)])
def test_swizzle_removes_eightfold_bank_conflicts_of_fragment_stores(limit, ways):
    shared = row_major((64, 64)) if limit is None else swizzled((64, 64), 16, row_bytes_limit=limit)
    wavefronts, ideal = conflicts(tables.accumulator((64, 64), FP16, (2, 2)), shared, 16, 2)
    assert wavefronts // ideal == ways


@pytest.mark.parametrize(("limit", "ways"), [(32, 4), (64, 2), (128, 1)])
def test_sixteen_byte_row_stores_need_the_widest_swizzle(limit, ways):
    rows = tables.blocked((64, 64), (1, 0), 8, 4)
    wavefronts, ideal = conflicts(rows, swizzled((64, 64), 16, row_bytes_limit=limit), 16, 8)
    assert wavefronts // ideal == ways


# -- ldmatrix, byte by byte


def ldmatrix(memory, addresses, count, trans):
    """Runs ldmatrix on `memory` (bytes); returns 32-bit registers [lane, matrix] as 4 bytes each (PTX ISA)."""
    registers = np.zeros((32, count, 4), np.uint8)
    for matrix in range(count):
        assert all(address % 16 == 0 for address in addresses[8 * matrix : 8 * matrix + 8])
        rows = np.stack([memory[address : address + 16] for address in addresses[8 * matrix : 8 * matrix + 8]])
        halves = rows.reshape(8, 8, 2)
        if trans:
            halves = halves.transpose(1, 0, 2)
        for lane in range(32):
            registers[lane, matrix] = halves[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].reshape(4)
    return registers


def load_by_plan(plan, layout, shared, array):
    """Runs the plan on a buffer that holds `array`; the values of every place."""
    memory = np.zeros(array.size, array.dtype)
    memory[shared.offsets().reshape(-1)] = array.reshape(-1)
    memory = memory.view(np.uint8)
    values = np.zeros((layout.num_warps, 32, layout.num_registers), array.dtype)
    filled = np.zeros(layout.num_registers, int)
    for warp, step in itertools.product(range(layout.num_warps), plan.steps):
        bases = [gf2.apply(plan.lane, lane) ^ gf2.apply(plan.warp, warp) ^ step.base for lane in range(32)]
        addresses = [shared.offset(index) * array.itemsize for index in bases]
        registers = ldmatrix(memory, addresses, plan.count, plan.trans)
        for matrix, destination in enumerate(step.registers):
            values[warp][:, list(destination)] = np.ascontiguousarray(registers[:, matrix]).view(array.dtype)
            filled[list(destination)] += 1
    assert (filled == layout.num_warps).all()
    return values


OPERANDS = [
    ("A, K contiguous", tables.operand_a((64, 64), FP16, (2, 2)), (1, 0), "u2", False),
    ("A, M contiguous", tables.operand_a((64, 64), FP16, (2, 2)), (0, 1), "u2", True),
    ("B, K contiguous", tables.operand_b((64, 64), FP16, (2, 2)), (0, 1), "u2", False),
    ("B, N contiguous", tables.operand_b((64, 64), FP16, (2, 2)), (1, 0), "u2", True),
    ("tf32 A, K contiguous", tables.operand_a((32, 32), TF32, (2, 1)), (1, 0), "u4", False),
    ("tf32 B, K contiguous", tables.operand_b((32, 32), TF32, (1, 2)), (0, 1), "u4", False),
    ("int8 A, K contiguous", tables.operand_a((32, 128), INT8, (1, 1)), (1, 0), "u1", False),
    ("int8 B, K contiguous", tables.operand_b((64, 32), INT8, (1, 2)), (0, 1), "u1", False),
    ("one matrix pair", tables.operand_b((16, 8), FP16, (1, 1)), (0, 1), "u2", False),
    ("a single matrix", tables.operand_b((8, 8), tables.find_mma("fp16", "fp32", 75), (1, 1)), (0, 1), "u2", False),
    ("an accumulator of 16 bits", tables.accumulator((64, 64), FP16, (2, 2)), (1, 0), "u2", False),
]


@pytest.mark.parametrize("place", [swizzled, row_major])
@pytest.mark.parametrize(("name", "layout", "order", "dtype", "trans"), OPERANDS, ids=[row[0] for row in OPERANDS])
def test_ldmatrix_plans_load_every_byte_into_its_register(name, layout, order, dtype, trans, place):
    bits = 8 * np.dtype(dtype).itemsize
    shared = swizzled(layout.shape, bits, order) if place is swizzled else row_major(layout.shape, order)
    array = np.random.default_rng(0).integers(0, 256, layout.size * bits // 8, np.uint8).view(dtype)
    array = array.reshape(layout.shape)
    plan = ldmatrix_plan(layout, shared, bits)
    assert plan.trans == trans
    assert np.array_equal(load_by_plan(plan, layout, shared, array), distribute(array, layout))
    assert (plan.wavefronts, len(plan.steps)) == matrix_cost(layout, shared, bits)
    if place is swizzled:  # one wavefront per matrix: no conflicts
        assert plan.wavefronts == plan.count * len(plan.steps)


@given(
    st.permutations(range(9)),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=4),
    st.sampled_from(["u1", "u2", "u4"]),
)
@settings(max_examples=60, deadline=None)
def test_ldmatrix_plans_of_random_buffers_are_correct(positions, mixes, dtype):
    """The low bits and the row bits are unchanged, so that plans exist; the others are permuted and mixed."""
    layout = tables.operand_a((16, 32), FP16, (1, 1)) if dtype == "u2" else Layout((16, 32), *_fragment(dtype), ())
    bits = 8 * np.dtype(dtype).itemsize
    order = [1 << position for position in range(9)]
    low = {"u1": 4, "u2": 3, "u4": 2}[dtype]
    basis = order[:low] + [order[position] for position in positions if position >= low]
    for i, j in mixes:
        if i != j and i >= low and j >= low:
            basis[i] ^= basis[j]
    shared = SharedLayout((16, 32), tuple(basis))
    plan = ldmatrix_plan(layout, shared, bits)
    assert plan is not None
    array = np.arange(512).astype(dtype).reshape(16, 32)
    assert np.array_equal(load_by_plan(plan, layout, shared, array), distribute(array, layout))


def _fragment(dtype):
    """Register and lane bits of a 16 x 32 tile whose rows ldmatrix reads, for one-byte and four-byte elements."""
    if dtype == "u1":
        return (1, 2, 16, 256), (4, 8, 32, 64, 128)
    return (4, 8, 16, 256), (1, 2, 32, 64, 128)


def test_layouts_that_ldmatrix_cannot_read_have_no_plan():
    b = tables.operand_b((32, 32), TF32, (1, 1))
    assert ldmatrix_plan(b, row_major((32, 32)), 32) is None  # would have to transpose 32-bit elements
    blocked = tables.blocked((64, 64), (1, 0), 8, 4)
    assert ldmatrix_plan(blocked, row_major((64, 64)), 16) is None
    a = tables.operand_a((64, 64), FP16, (1, 1))
    assert ldmatrix_plan(a, row_major((64, 64)), 64) is None
    shuffled = SharedLayout((64, 64), (1, 2, 8, 4, *(1 << bit for bit in range(4, 12))))
    assert ldmatrix_plan(a, shuffled, 16) is None


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("shape", [(16, 16), (8, 64), (32, 32), (64, 8), (16, 256)])
def test_rows_are_swizzled_within_themselves(shape, bits):
    """An index along the row contributes itself, and chunks of 16 bytes of neighbouring rows are in different banks."""
    offsets = swizzled_rows(shape, bits).offsets()
    assert (offsets[0] == np.arange(shape[1])).all()
    assert (offsets // shape[1] == np.arange(shape[0])[:, None]).all()
    assert len({int(offset) * bits // 8 % 128 // 16 for offset in offsets[:8, 0]}) == 8
