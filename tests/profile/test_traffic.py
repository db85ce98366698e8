"""Sectors, cache lines and bank conflicts: textbook cases, and a count by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts import tables
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import conflicts, row_major, swizzled, vector_access
from blocknb.profile import tiles
from blocknb.profile.addresses import TracedAccess
from blocknb.target import Target

LANES = np.arange(32)
quick = settings(max_examples=60, deadline=None)


def one_request(starts, width, on=None):
    on = np.ones(32, bool) if on is None else on
    return tiles.request_traffic(np.asarray(starts)[None], on[None], width)


@pytest.mark.parametrize(
    ("starts", "width", "sectors", "ideal", "lines"),
    [
        (LANES * 4, 4, 4, 4, 1),  # neighbours
        (LANES * 4 + 4, 4, 5, 4, 2),  # neighbours that begin one element late
        (LANES * 8, 4, 8, 4, 2),  # every other element
        (LANES * 128, 4, 32, 4, 32),  # a column of a row-major matrix
        (LANES * 0, 4, 1, 1, 1),  # one element for all
        (LANES * 16, 16, 16, 16, 4),  # 128-bit vectors
        (LANES * 2, 2, 2, 2, 1),  # halves
        ((31 - LANES) * 4, 4, 4, 4, 1),  # backwards
        (LANES * 4 - 64, 4, 4, 4, 2),  # before the array
    ],
)
def test_sectors_of_a_request_are_what_the_textbook_says(starts, width, sectors, ideal, lines):
    found = one_request(starts, width)
    assert (found.sectors, found.ideal, found.lines, found.requests) == (sectors, ideal, lines, 1)


def test_lanes_that_are_masked_off_ask_for_nothing():
    assert one_request(LANES * 128, 4, LANES < 3).sectors == 3
    assert one_request(LANES * 128, 4, LANES < 0).requests == 0


def test_lanes_that_meet_at_one_address_are_counted():
    assert one_request(LANES // 8 * 4, 4).together == 8
    assert one_request(LANES * 4, 4).together == 1
    assert one_request(LANES * 0, 4, LANES < 5).together == 5


@quick
@given(st.data())
def test_requests_are_counted_as_by_hand(data):
    width = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    rows = data.draw(st.integers(1, 4))
    unit = st.integers(-40, 200)
    starts = np.array(data.draw(st.lists(st.lists(unit, min_size=32, max_size=32), min_size=rows, max_size=rows)))
    starts *= data.draw(st.sampled_from([1, width]))
    on = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=32, max_size=32), min_size=rows, max_size=rows)))
    found = tiles.request_traffic(starts, on, width)
    sectors, lines, together = [], 0, []
    for row, mask in zip(starts.tolist(), on.tolist(), strict=True):
        active = [start for start, is_on in zip(row, mask, strict=True) if is_on]
        if not active:
            continue
        sectors.append(len({(s + i) // 32 for s in active for i in range(width)}))
        lines += len({(s + i) // 128 for s in active for i in range(width)})
        together.append(max(map(active.count, active)))
    assert found.requests == len(sectors)
    assert found.sectors == sum(sectors)
    assert found.lines == lines
    assert (found.most, found.least, found.together) == (
        (max(sectors), min(sectors), max(together)) if sectors else (0, 0, 0)
    )


def access(layout: Layout, offsets: np.ndarray, name: str = "load") -> TracedAccess:
    pointer = Value(t.Tile(t.Pointer(t.float32), layout.shape, layout))
    op = Op(name, (pointer, pointer) if name == "store" else (pointer,))
    return TracedAccess(op, "x", offsets, np.ones(layout.shape, bool))


def test_a_tile_walked_along_its_rows_is_ideal_and_along_its_columns_takes_a_sector_a_lane():
    offsets = np.arange(32 * 32).reshape(32, 32) * 4
    for order, each in (((1, 0), 4), ((0, 1), 32)):
        layout = tables.blocked((32, 32), order, 1, 4)
        groups = [(register,) for register in range(layout.num_registers)]
        found = tiles.traffic(access(layout, offsets), layout, groups, 4)
        assert (found.requests, found.sectors, found.ideal) == (32, 32 * each, 32 * 4)


def test_a_store_writes_each_element_once_and_a_load_reads_it_in_every_replica():
    layout = tables.blocked((64,), (0,), 1, 4)  # two warps hold what the other two hold
    offsets, groups = np.arange(64) * 4, [(0,)]
    assert tiles.traffic(access(layout, offsets, "store"), layout, groups, 4).requests == 2
    assert tiles.traffic(access(layout, offsets), layout, groups, 4).requests == 4


# -- shared memory


def shared_load(layout: Layout, buffer, dtype=t.float32) -> Op:
    value = Value(t.Buffer(dtype, layout.shape, buffer))
    return Op("local_load", (value,), (Value(t.Tile(dtype, layout.shape, layout)),), {"layout": layout})


def test_the_columns_of_a_tile_stored_in_rows_conflict_32_ways_and_with_a_swizzle_less():
    columns = tables.blocked((32, 32), (0, 1), 1, 4)
    plain = tiles.shared_traffic(shared_load(columns, row_major((32, 32))), Target.parse("sm_90a"))
    assert (plain.ways, plain.wavefronts, plain.ideal, plain.how) == (32, 256, 8, "32-bit")
    better = tiles.shared_traffic(shared_load(columns, swizzled((32, 32), 32)), Target.parse("sm_90a"))
    assert better.ways == 4
    rows = tables.blocked((32, 32), (1, 0), 1, 4)
    assert tiles.shared_traffic(shared_load(rows, row_major((32, 32))), Target.parse("sm_90a")).ways == 1


def test_operands_of_tensor_cores_go_through_ldmatrix_where_there_is_one():
    instruction = tables.find_mma("fp16", "fp32", 90)
    layout = tables.operand_a((64, 32), instruction, (4, 1))
    op = shared_load(layout, swizzled((64, 32), 16), t.float16)
    assert tiles.shared_traffic(op, Target.parse("sm_90a")).how == "ldmatrix.x4"
    assert tiles.shared_traffic(op, Target.parse("sm_90a")).ways == 1
    assert tiles.shared_traffic(shared_load(layout, row_major((64, 32)), t.float16), Target.parse("sm_80")).ways == 4


@quick
@given(
    st.sampled_from([8, 16, 32, 64]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([(1, 0), (0, 1)]), st.booleans()
)
def test_the_formula_of_conflicts_agrees_with_counting_banks(bits, vec, order, swizzle):
    layout = tables.blocked((32, 64), order, vec, 4)
    shared = swizzled((32, 64), bits) if swizzle else row_major((32, 64))
    width = min(vector_access(layout, shared, bits).vector, 128 // bits)
    starts = [shared.offset(layout.index(0, lane, 0)) * bits // 8 for lane in range(32)]
    counted, parts = tiles.wavefronts(
        [start // (width * bits // 8) * (width * bits // 8) for start in starts], width * bits // 8
    )
    assert (counted, parts) == conflicts(layout, shared, bits, width)
