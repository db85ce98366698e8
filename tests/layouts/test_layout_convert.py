"""Layout conversions: every planned conversion gives the same result as collecting the tile and distributing it again."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import layouts, shapes

from blocknb.layouts import gf2, tables
from blocknb.layouts.convert import choose_shared, plan, price
from blocknb.layouts.linear import Layout, collect, distribute
from blocknb.layouts.shared import (
    SharedLayout,
    keeps_sectors,
    ldmatrix_plan,
    matrix_cost,
    row_major,
    vector_access,
    vector_cost,
)

FP16 = tables.find_mma("fp16", "fp32", 90)


def tile(shape):
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


def check(source, target, element_bits=32):
    conversion = plan(source, target, element_bits)
    array = tile(source.shape)
    held = distribute(array, source)
    assert np.array_equal(conversion.apply(held), distribute(array, target)), str(conversion)
    return conversion


@st.composite
def pairs(draw):
    shape = draw(shapes())
    return draw(layouts(shape)), draw(layouts(shape))


@st.composite
def pairs_within_a_warp(draw):
    """The target permutes the register and lane bits of the source, sometimes with replicas; warp bits stay."""
    shape = draw(shapes())
    source = draw(layouts(shape, lane_bits=4, warp_bits=1))
    bits = list(draw(st.permutations([*source.reg, *source.lane])))
    lane = [bits.pop() for _ in range(len(source.lane))]
    for position in range(len(lane)):
        if draw(st.integers(0, 3)) == 0:
            bits.append(lane[position])
            lane[position] = draw(st.sampled_from([0, *source.lane]))
    reg = []
    for basis in bits:
        if gf2.rank([*reg, basis]) > len(reg):
            reg.append(basis)
    try:
        return source, Layout(shape, tuple(reg), tuple(lane), source.warp)
    except ValueError:  # the drawn replica took a bit that an element needs
        return source, source


@given(pairs(), st.sampled_from([8, 16, 32, 64]))
@settings(max_examples=150, deadline=None)
def test_any_layout_converts_into_any_other(pair, element_bits):
    check(*pair, element_bits)


@given(pairs_within_a_warp())
@settings(max_examples=250, deadline=None)
def test_conversions_within_a_warp_use_at_most_one_shuffle_per_register(pair):
    conversion = check(*pair)
    if conversion.shuffle is not None:
        assert len(conversion.shuffle.rounds) == pair[1].num_registers
        assert conversion.shuffle.num_shuffles <= pair[1].num_registers


@given(layouts().flatmap(lambda layout: st.tuples(st.just(layout), st.permutations(layout.reg))))
@settings(max_examples=60, deadline=None)
def test_permuting_registers_costs_nothing(pair):
    source, registers = pair
    target = source.replace(reg=tuple(registers))
    conversion = check(source, target)
    assert conversion.kind == ("none" if source == target else "rename")
    assert price(source, target) == 0


@given(shapes().flatmap(lambda shape: layouts(shape, lane_bits=5, warp_bits=0)), st.data())
@settings(max_examples=100, deadline=None)
def test_exchanging_lane_and_register_bits_never_needs_shared_memory(source, data):
    """A bijection within the warp always has a plan, because staggering separates all conflicts. Selects are free here: their price may
    make shared memory the cheaper way."""
    if source.is_replicated:
        return
    bits = data.draw(st.permutations([*source.reg, *source.lane]))
    target = Layout(source.shape, tuple(bits[5:]), tuple(bits[:5]), ())
    plan.cache_clear()
    try:
        with mock.patch("blocknb.layouts.convert.SELECT_CYCLES", 0):
            conversion = check(source, target, 32)
    finally:
        plan.cache_clear()
    assert conversion.kind in ("none", "rename", "shuffle") or conversion.target.num_registers > 8


def test_a_two_by_two_transposition_takes_one_shuffle():
    source, target = Layout((2, 2), (1,), (2,), ()), Layout((2, 2), (2,), (1,), ())
    conversion = check(source, target)
    assert conversion.kind == "shuffle" and conversion.shuffle.num_shuffles == 1 and conversion.shuffle.is_butterfly


def test_a_replicated_thread_picks_its_element_without_a_shuffle():
    everywhere, one_each = Layout((4,), (1, 2), (0, 0), ()), Layout((4,), (), (1, 2), ())
    conversion = check(everywhere, one_each)
    assert conversion.kind == "shuffle" and conversion.shuffle.num_shuffles == 0
    assert check(one_each, everywhere).shuffle.num_shuffles == 4


def test_elements_of_other_warps_go_through_shared_memory():
    source, target = Layout((4, 2), (1,), (2,), (4,)), Layout((4, 2), (1,), (4,), (2,))
    assert check(source, target).kind == "shared"
    assert check(source.replace(reg=(1, 2, 4)), target).kind == "shuffle"  # every thread holds all of it


def test_a_warp_bit_may_select_registers_of_its_own_warp():
    source, target = Layout((4,), (1, 2), (0,), (0, 0)), Layout((4,), (), (0,), (1, 2))
    conversion = check(source, target)
    assert conversion.kind == "shuffle" and conversion.shuffle.num_shuffles == 0


def test_layouts_of_different_tiles_or_threads_do_not_convert():
    layout = Layout((4,), (1,), (2,), ())
    for other in (Layout((2, 2), (1,), (2,), ()), Layout((4,), (1,), (2,), (0,)), Layout((4,), (1,), (2, 0), ())):
        with pytest.raises(ValueError, match="differ"):
            plan(layout, other)


def test_mma_result_becomes_an_operand_without_conversion():
    p = tables.accumulator((64, 128), FP16, (4, 1))
    assert plan(p, tables.operand_a((64, 128), FP16, (4, 1))).kind == "none"


def test_costs_increase_from_rename_to_shuffle_to_shared_memory():
    lanes = tables.blocked((64, 64), (1, 0), 8, 4)
    rename = lanes.replace(reg=lanes.reg[::-1])
    shuffle = lanes.replace(lane=lanes.lane[::-1])
    shared = tables.blocked((64, 64), (0, 1), 8, 4)
    kinds = [plan(lanes, other, 32).kind for other in (lanes, rename, shuffle, shared)]
    assert kinds == ["none", "rename", "shuffle", "shared"]
    prices = [price(lanes, other, 32) for other in (lanes, rename, shuffle, shared)]
    assert prices[0] == prices[1] == 0 < prices[2] < prices[3]


# -- the buffer in between


ROWS = tables.blocked((128, 128), (1, 0), 8, 4)
COLUMNS = tables.blocked((128, 128), (0, 1), 8, 4)
RESULT = tables.accumulator((128, 128), FP16, (2, 2))
SCALARS = tables.blocked((128, 128), (1, 0), 1, 4)


@pytest.mark.parametrize("element_bits", [8, 16, 32, 64])
@pytest.mark.parametrize(
    ("source", "target"),
    [(RESULT, ROWS), (ROWS, RESULT), (ROWS, COLUMNS), (SCALARS, COLUMNS), (SCALARS, ROWS), (RESULT, COLUMNS)],
)
def test_conversion_buffer_has_no_bank_conflicts(source, target, element_bits):
    shared = choose_shared(source, target, element_bits)
    store, load = vector_access(source, shared, element_bits), vector_access(target, shared, element_bits)
    assert (store.wavefronts, load.wavefronts) == (store.ideal, load.ideal)


def test_conversion_buffer_allows_the_widest_vectors_on_both_sides():
    shared = choose_shared(RESULT, ROWS, 16)
    assert vector_access(RESULT, shared, 16).vector == 2 and vector_access(ROWS, shared, 16).vector == 8


def test_conversion_buffer_allows_ldmatrix_and_stmatrix():
    rows = tables.blocked((128, 64), (1, 0), 8, 4)
    operand = tables.operand_a((128, 64), FP16, (2, 2))
    shared = choose_shared(rows, operand, 16, load_matrix=True)
    assert ldmatrix_plan(operand, shared, 16) and vector_access(rows, shared, 16).vector == 8
    shared = choose_shared(RESULT, ROWS, 16, store_matrix=True)
    assert ldmatrix_plan(RESULT, shared, 16) and vector_access(ROWS, shared, 16).vector == 8


@pytest.mark.parametrize(
    ("shape", "warps"), [((32, 32), (2, 2)), ((64, 32), (4, 1)), ((128, 32), (2, 2)), ((64, 64), (2, 2))]
)
def test_a_buffer_of_copies_keeps_both_vectors_of_a_sector_together_at_no_cost(shape, warps):
    """Rows of 64 bytes have equally good layouts that bring the vectors apart."""
    rows, operand = tables.blocked(shape, (1, 0), 8, 4), tables.operand_a(shape, FP16, warps)
    copied, other = (choose_shared(rows, operand, 16, load_matrix=True, copied=copied) for copied in (True, False))
    assert keeps_sectors(rows, copied, 16)
    assert keeps_sectors(rows, other, 16) == (shape[1] != 32)
    costs = {(vector_cost(rows, shared, 16), matrix_cost(operand, shared, 16)) for shared in (copied, other)}
    assert len(costs) == 1


def test_sectors_are_kept_by_rows_and_lost_by_columns():
    rows, columns = tables.blocked((64, 64), (1, 0), 8, 4), tables.blocked((64, 64), (0, 1), 8, 4)
    shared, narrow = row_major((64, 64)), tables.blocked((64, 64), (1, 0), 4, 4)
    assert keeps_sectors(rows, shared, 16) and not keeps_sectors(columns, shared, 16)
    assert keeps_sectors(narrow, row_major((64, 64), (0, 1)), 16)  # it has no vectors of 16 bytes
    apart = SharedLayout((64, 64), (1, 2, 4, 16, 8, *(1 << bit for bit in range(5, 12))))
    assert not keeps_sectors(rows, apart, 16)
    turned = SharedLayout(
        (64, 64), (2, 1, 4, 8, *(1 << bit for bit in range(4, 12)))
    )  # no vector could be copied at once
    assert not keeps_sectors(rows, turned, 16)


@given(pairs(), st.sampled_from([1, 8, 16, 32, 64]))
@settings(max_examples=60, deadline=None)
def test_conversion_buffer_exists_for_any_two_layouts(pair, element_bits):
    source, target = pair
    shared = choose_shared(source, target, element_bits)
    array = tile(source.shape)
    memory = np.full(array.size, -1)
    offsets = shared.offsets().reshape(-1)
    memory[offsets[source.indices()]] = distribute(array, source)
    assert np.array_equal(collect(memory[offsets[target.indices()]], target), array)
