"""Layouts against their definition: NumPy checks each property over all places or all elements."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_strategies import layouts, shapes

from blocknb.layouts import gf2
from blocknb.layouts.linear import Layout, collect, distribute

quick = settings(max_examples=80, deadline=None)


def tile(shape):
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


@given(st.lists(st.integers(0, 255), max_size=7), st.integers(0, 255))
@quick
def test_gf2_solver_agrees_with_exhaustive_search(vectors, target):
    sums = {}
    for mask in range(1 << len(vectors)):
        sums.setdefault(gf2.apply(vectors, mask), mask)
    assert 1 << gf2.rank(vectors) == len(sums)
    mask = gf2.solve(vectors, target)
    assert (mask is None) == (target not in sums)
    if mask is not None:
        assert gf2.apply(vectors, mask) == target
    span = gf2.Span(vectors)
    assert len(span.kernel) == len(vectors) - span.rank
    assert all(gf2.apply(vectors, mask) == 0 and mask for mask in span.kernel)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.integers(0, (1 << n) - 1), min_size=n, max_size=n)))
@quick
def test_a_matrix_times_its_inverse_is_the_identity(columns):
    if gf2.rank(columns) < len(columns):
        with pytest.raises(ValueError):
            gf2.inverse(columns)
    else:
        inverse = gf2.inverse(columns)
        assert all(gf2.apply(columns, gf2.apply(inverse, x)) == x for x in range(1 << len(columns)))


@given(layouts())
@quick
def test_indices_are_the_xor_of_the_basis_vectors(layout):
    indices = layout.indices()
    assert indices.shape == (layout.num_warps, layout.num_lanes, layout.num_registers)
    for (warp, lane, reg), index in np.ndenumerate(indices):
        expected = 0
        for kind, position, basis in layout.bits():
            if {"warp": warp, "lane": lane, "reg": reg}[kind] >> position & 1:
                expected ^= basis
        assert index == expected == layout.index(warp, lane, reg)
        assert layout.coords(warp, lane, reg) == tuple(map(int, np.unravel_index(index, layout.shape)))
    assert layout.register_indices == tuple(indices[0, 0])


@given(layouts())
@quick
def test_text_reads_back_as_the_same_layout(layout):
    again = Layout.parse(str(layout))
    assert again == layout and hash(again) == hash(layout) and str(again) == str(layout)


def test_the_text_form_is_one_compact_line():
    layout = Layout((128, 64), (1, 2, 4, 1024, 2048, 4096), (8, 16, 32, 64, 128), (256, 512))
    assert str(layout) == "<128x64: reg 1,2,4,1024,2048,4096 lane 8,16,32,64,128 warp 256,512>"
    assert str(Layout((), (), (0,) * 5, ())) == "<(): reg - lane 0,0,0,0,0 warp ->"
    with pytest.raises(ValueError):
        Layout.parse("<128x64>")


@pytest.mark.parametrize(
    "fields",
    [
        ((4, 6), (1, 2, 4), (8,), ()),  # not a power of two
        ((4,), (1,), (0,), ()),  # no register holds element 2
        ((4,), (1, 2, 3), (), ()),  # a register repeats another
        ((4,), (1,), (2, 4), ()),  # outside the tile
    ],
)
def test_maps_that_are_not_layouts_are_refused(fields):
    with pytest.raises(ValueError):
        Layout(*fields)


def test_register_bits_of_zero_are_dropped():
    assert Layout((4,), (0, 1, 0), (2,), ()) == Layout((4,), (1,), (2,), ())


@given(layouts())
@quick
def test_owners_hold_every_element_exactly_once(layout):
    warps = [w for w in range(layout.num_warps) if w & layout.replicated_warp_bits == 0]
    lanes = [t for t in range(layout.num_lanes) if t & layout.replicated_lane_bits == 0]
    owned = layout.indices()[np.ix_(warps, lanes, range(layout.num_registers))]
    assert sorted(owned.ravel()) == list(range(layout.size))
    assert layout.is_replicated == (layout.indices().size > layout.size)


@given(layouts())
@quick
def test_collect_undoes_distribute(layout):
    array = tile(layout.shape)
    assert np.array_equal(collect(distribute(array, layout), layout), array)


@given(layouts(), st.data())
@quick
def test_collect_refuses_replicas_that_disagree(layout, data):
    values = distribute(tile(layout.shape), layout)
    place = tuple(data.draw(st.integers(0, extent - 1)) for extent in values.shape)
    values[place] += 1
    if (layout.indices() == layout.indices()[place]).sum() > 1:
        with pytest.raises(ValueError, match="disagree"):
            collect(values, layout)
    else:
        assert collect(values, layout).sum() == tile(layout.shape).sum() + 1


def test_equal_nans_are_agreeing_replicas_and_signed_zeros_are_not():
    layout = Layout((2,), (1,), (0,), ())
    nan = np.full((1, 2, 2), np.nan, np.float32)
    assert np.isnan(collect(nan, layout)).all()
    with pytest.raises(ValueError):
        collect(np.array([[[0.0, 1.0], [-0.0, 1.0]]], np.float32), layout)


@given(layouts(), st.data())
@quick
def test_slice_gives_each_thread_the_row_that_its_elements_reduce_into(layout, data):
    if not layout.shape:
        return
    axis = data.draw(st.integers(-len(layout.shape), len(layout.shape) - 1))
    result, registers = layout.slice(axis), layout.slice_registers(axis)
    # the position in the result of the row that each place of the operand holds
    rows = np.expand_dims(tile(result.shape), axis % len(layout.shape))
    rows_of_elements = distribute(np.broadcast_to(rows, layout.shape), layout)
    assert np.array_equal(result.indices()[:, :, registers], rows_of_elements)


@given(layouts(), st.data())
@quick
def test_broadcasting_an_operand_in_the_inverse_layout_moves_nothing(layout, data):
    operand_shape = tuple(data.draw(st.sampled_from([1, extent])) for extent in layout.shape)
    operand = layout.broadcast_inverse(operand_shape)
    held = distribute(tile(operand_shape), operand)
    wide = distribute(np.broadcast_to(tile(operand_shape), layout.shape), layout)
    assert np.array_equal(held[:, :, layout.broadcast_registers(operand_shape)], wide)


def test_only_broadcast_layouts_are_inverted():
    layout = Layout((4, 4), (1, 2, 4, 8), (), ())
    with pytest.raises(ValueError):
        layout.broadcast_inverse((2, 4))
    with pytest.raises(ValueError):
        layout.broadcast_inverse((4,))


@given(layouts(), st.data())
@quick
def test_transposing_and_reshaping_move_nothing(layout, data):
    perm = data.draw(st.permutations(range(len(layout.shape))))
    held = distribute(tile(layout.shape), layout)
    assert np.array_equal(held, distribute(tile(layout.shape).transpose(perm), layout.trans(perm)))
    assert layout.trans(perm).trans_inverse(perm) == layout
    flat = layout.reshape((layout.size,))
    assert (
        np.array_equal(held, distribute(tile(layout.shape).reshape(-1), flat)) and flat.reshape(layout.shape) == layout
    )
    axis = data.draw(st.integers(0, len(layout.shape)))
    wider = layout.expand_dims(axis)
    assert np.array_equal(held, distribute(np.expand_dims(tile(layout.shape), axis), wider))
    assert wider.expand_dims_inverse(axis) == layout


@given(shapes())
@quick
def test_axis_bits_partition_the_index(shape):
    layout = Layout(shape, tuple(1 << bit for bit in range(int(np.prod(shape)).bit_length() - 1)), (), ())
    bits = itertools.chain.from_iterable(layout.dim_bits(axis) for axis in reversed(range(len(shape))))
    assert list(bits) == list(range(layout.index_bits))
    assert [1 << len(layout.dim_bits(axis)) for axis in range(len(shape))] == list(shape)


@given(layouts(), st.data())
@quick
def test_contiguous_registers_hold_neighbours_along_the_axis(layout, data):
    if not layout.shape:
        return
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    count = layout.contiguous_registers(axis)
    start = layout.coords(0, 0, 0)

    def walks(registers):
        return all(
            reg < layout.num_registers and layout.coords(0, 0, reg) == (*start[:axis], reg, *start[axis + 1 :])
            for reg in range(registers)
        )

    assert walks(count) and not walks(2 * count)


@given(layouts(), st.data())
@quick
def test_reduction_over_the_axis_bits_covers_every_element_of_a_row_once(layout, data):
    if not layout.shape:
        return
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    try:
        reg_mask, lane_mask, warp_mask = layout.axis_bits(axis)
    except ValueError:
        return  # the bits mix axes: an error instead of a wrong sum
    for warp, lane, reg in itertools.product(*map(range, layout.indices().shape)):
        row = [
            layout.coords(warp ^ w, lane ^ t, reg ^ r)
            for w, t, r in itertools.product(_submasks(warp_mask), _submasks(lane_mask), _submasks(reg_mask))
        ]
        here = layout.coords(warp, lane, reg)
        expected = [(*here[:axis], x, *here[axis + 1 :]) for x in range(layout.shape[axis])]
        assert sorted(row) == expected
        if (warp, lane, reg) > (0, 3, 1):
            break


@given(layouts(), st.data())
@quick
def test_reduction_has_one_partial_result_per_warp_along_the_axis(layout, data):
    if not layout.shape:
        return
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    try:
        partial = layout.slice_partial(axis)
    except ValueError:
        return
    values = distribute(np.ones(layout.shape, np.int64) << tile(layout.shape), layout) if layout.size < 60 else None
    reg_mask, lane_mask, warp_mask = layout.axis_bits(axis)
    assert partial.shape[axis] == len(_submasks(warp_mask))
    assert partial.slice(axis) == layout.slice(axis)
    if values is None:
        return
    total = np.zeros_like(values)
    for reg, lane in itertools.product(_submasks(reg_mask), _submasks(lane_mask)):
        total += values[:, np.arange(values.shape[1])[:, None] ^ lane, np.arange(values.shape[2]) ^ reg]
    registers = [list(layout.slice_registers(axis)).index(new) for new in range(partial.num_registers)]
    parts = collect(total[:, :, registers], partial)
    assert np.array_equal(parts.sum(axis), (np.ones(layout.shape, np.int64) << tile(layout.shape)).sum(axis))


def _submasks(mask):
    return [value for value in range(mask + 1) if value & ~mask == 0]


def test_reduction_over_bits_that_mix_axes_is_refused():
    with pytest.raises(ValueError, match="tangled"):
        Layout((2, 2), (3,), (1,), ()).axis_bits(1)
    with pytest.raises(ValueError, match="tangled"):
        Layout((2, 2), (1, 2), (1,), ()).axis_bits(1)
