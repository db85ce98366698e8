"""The layout tables against formulas from the PTX ISA, lane by lane and register by register."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocknb.layouts import tables
from blocknb.layouts.linear import Layout

ROWS = {row.name: row for row in tables.MMA_TABLE}


def fragments_of(name):
    """(row, column) of register i of lane (g, t) for A, B and C, from the figures of the PTX ISA."""
    c = lambda i, g, t: (g + 8 * (i >> 1), 2 * t + (i & 1))  # noqa: E731
    match name:
        case "m16n8k16":
            a = lambda i, g, t: (g + 8 * (i >> 1 & 1), 2 * t + (i & 1) + 8 * (i >> 2))  # noqa: E731
            b = lambda i, g, t: (2 * t + (i & 1) + 8 * (i >> 1), g)  # noqa: E731
        case "m16n8k8":
            a = lambda i, g, t: (g if i < 2 else g + 8, 2 * t + (i & 1))  # noqa: E731
            b = lambda i, g, t: (2 * t + i, g)  # noqa: E731
        case "m16n8k8.tf32":
            a = lambda i, g, t: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4)  # noqa: E731
            b = lambda i, g, t: (t if i == 0 else t + 4, g)  # noqa: E731
        case "m16n8k32.s8":
            a = lambda i, g, t: (g if i % 8 < 4 else g + 8, 4 * t + (i & 3) + (0 if i < 8 else 16))  # noqa: E731
            b = lambda i, g, t: (4 * t + (i & 3) + (0 if i < 4 else 16), g)  # noqa: E731
    return a, b, c


@pytest.mark.parametrize("name", ROWS)
def test_fragments_match_the_ptx_isa(name):
    row = ROWS[name]
    a, b, c = fragments_of(name)
    for operand, formula, layout in (
        ("a", a, tables.operand_a((row.m, row.k), row, (1, 1))),
        ("b", b, tables.operand_b((row.k, row.n), row, (1, 1))),
        ("c", c, tables.accumulator((row.m, row.n), row, (1, 1))),
    ):
        assert layout.num_registers == row.fragment_registers(operand)
        for lane, register in itertools.product(range(32), range(layout.num_registers)):
            assert layout.coords(0, lane, register) == formula(register, lane >> 2, lane & 3)


@given(
    st.sampled_from(tables.MMA_TABLE),
    st.tuples(*[st.integers(0, 2)] * 3),
    st.integers(0, 3).flatmap(lambda bits: st.tuples(st.just(bits), st.integers(0, bits))),
)
@settings(max_examples=60, deadline=None)
def test_a_tiled_product_multiplies_matching_elements_and_covers_everything(row, repeats, warps):
    m, n, k = (least << count for least, count in zip((row.m, row.n, row.k), repeats, strict=True))
    split = (1 << warps[0] - warps[1], 1 << warps[1])
    a, b = tables.operand_a((m, k), row, split), tables.operand_b((k, n), row, split)
    c = tables.accumulator((m, n), row, split)
    fragment_a, fragment_b, fragment_c = (row.fragment_registers(operand) for operand in "abc")
    place_a, place_b, place_c = fragments_of(row.name)
    frags_m, frags_n = c.num_registers // fragment_c, b.num_registers // fragment_b
    steps = k // row.k
    frags_n //= steps
    frags_m //= frags_n
    seen = set()
    for warp, fm, fn, step in itertools.product(range(c.num_warps), range(frags_m), range(frags_n), range(steps)):
        # the documented order: K (for C: N) runs fastest
        base_a = a.coords(warp, 0, (fm * steps + step) * fragment_a)
        base_b = b.coords(warp, 0, (fn * steps + step) * fragment_b)
        base_c = c.coords(warp, 0, (fm * frags_n + fn) * fragment_c)
        assert base_a[1] == base_b[0] == step * row.k and base_c == (base_a[0], base_b[1])
        seen.add((*base_c, base_a[1]))
        lane = (7 * warp + 5 * fm + 3 * fn + step) % 32
        for layout, number, registers, base, place in (
            (a, fm * steps + step, fragment_a, base_a, place_a),
            (b, fn * steps + step, fragment_b, base_b, place_b),
            (c, fm * frags_n + fn, fragment_c, base_c, place_c),
        ):
            for i in range(registers):
                row_in, column_in = place(i, lane >> 2, lane & 3)
                assert layout.coords(warp, lane, number * registers + i) == (base[0] + row_in, base[1] + column_in)
    assert len(seen) == row.instructions(m, n, k)


def test_result_of_a_product_has_the_layout_of_an_operand():
    row = ROWS["m16n8k16"]
    p = tables.accumulator((64, 128), row, (4, 1))
    assert p == tables.operand_a((64, 128), row, (4, 1))


@pytest.mark.parametrize(
    ("operand", "accumulator", "arch", "name"),
    [
        ("fp16", "fp32", 90, "m16n8k16"),
        ("bf16", "fp32", 80, "m16n8k16"),
        ("fp16", "fp32", 75, "m16n8k8"),
        ("tf32", "fp32", 86, "m16n8k8.tf32"),
        ("int8", "int32", 120, "m16n8k32.s8"),
        ("fp16", "fp32", 70, None),
        ("bf16", "fp32", 75, None),
        ("fp64", "fp64", 90, None),
    ],
)
def test_widest_instruction_of_the_target_is_chosen(operand, accumulator, arch, name):
    found = tables.find_mma(operand, accumulator, arch)
    assert (found and found.name) == name


def test_tiles_smaller_than_the_instruction_are_refused_with_a_reason():
    row = ROWS["m16n8k16"]
    assert tables.mma_refusal(row, 64, 64, 16) is None
    assert tables.mma_refusal(row, 8, 64, 16) == "M = 8 is smaller than the 16 of m16n8k16"
    assert tables.mma_refusal(row, 16, 4, 16) == "N = 4 is smaller than the 8 of m16n8k16"
    assert tables.mma_refusal(row, 16, 8, 8) == "K = 8 is smaller than the 16 of m16n8k16"
    assert tables.accumulator((8, 64), row, (1, 1)) is None
    assert tables.operand_a((64, 8), row, (1, 1)) is None


@pytest.mark.parametrize(
    ("shape", "num_warps", "split"),
    [
        ((128, 128), 4, (2, 2)),
        ((128, 256), 8, (2, 4)),
        ((256, 128), 8, (4, 2)),
        ((16, 64), 4, (1, 4)),
        ((64, 8), 4, (4, 1)),
        ((16, 8), 1, (1, 1)),
    ],
)
def test_warps_are_split_to_minimize_operand_reads(shape, num_warps, split):
    assert tables.choose_warps(shape, num_warps, ROWS["m16n8k16"]) == split


def test_warps_are_split_along_rows_if_rows_must_not_be_split():
    row = ROWS["m16n8k16"]
    assert tables.choose_warps((64, 256), 4, row, rows_only=True) == (4, 1)
    assert tables.choose_warps((32, 256), 4, row, rows_only=True) == (2, 2)


def test_blocked_layouts_follow_their_formula():
    assert str(tables.blocked((128, 64), (1, 0), 8, 4)) == (
        "<128x64: reg 1,2,4,1024,2048,4096 lane 8,16,32,64,128 warp 256,512>"
    )
    assert str(tables.blocked((64, 32), (0, 1), 4, 4)) == "<64x32: reg 32,64,8,16 lane 128,256,512,1024,1 warp 2,4>"
    assert str(tables.blocked((1024,), (0,), 4, 1)) == "<1024: reg 1,2,128,256,512 lane 4,8,16,32,64 warp ->"


def test_a_tile_smaller_than_the_threads_is_replicated():
    layout = tables.blocked((16,), (0,), 4, 4)
    assert str(layout) == "<16: reg 1,2 lane 4,8,0,0,0 warp 0,0>"
    assert layout.replicated_lane_bits == 0b11100 and layout.replicated_warp_bits == 0b11
    assert str(tables.blocked((), (), 1, 4)) == "<(): reg - lane 0,0,0,0,0 warp 0,0>"


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=3).flatmap(
        lambda bits: st.tuples(st.just(bits), st.permutations(range(len(bits))))
    ),
    st.integers(0, 4),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_neighbouring_threads_of_a_blocked_layout_hold_neighbouring_vectors(shape_order, vec_bits, warp_bits):
    bits, order = shape_order
    shape = tuple(1 << count for count in bits)
    layout = tables.blocked(shape, order, 1 << vec_bits, 1 << warp_bits)
    fast = order[0]
    vec = min(1 << vec_bits, shape[fast])
    assert layout.contiguous_registers(fast) >= vec and len(layout.lane) == 5 and layout.num_warps == 1 << warp_bits
    for lane in range(min(32, shape[fast] // vec)):
        assert layout.coords(0, lane, 0)[fast] == lane * vec


def test_fma_product_of_a_large_tile_has_four_by_four_blocks():
    layout = tables.fma_accumulator((64, 64), 4)
    assert isinstance(layout, Layout)
    assert str(layout) == "<64x64: reg 1,2,256,512,32 lane 4,8,16,64,128 warp 1024,2048>"


@pytest.mark.parametrize("shape", [(16, 16), (16, 32), (32, 16)])
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_no_two_threads_compute_the_same_element_of_a_small_fma_product(shape, warps):
    layout = tables.fma_accumulator(shape, warps)
    assert not layout.is_replicated and layout.num_registers == shape[0] * shape[1] // (32 * warps)


def test_slices_within_warps_move_warps_to_the_highest_bits_of_the_other_axis():
    layout = tables.blocked((16, 16), (1, 0), 2, 4)
    assert str(layout) == "<16x16: reg 1 lane 2,4,8,16,32 warp 64,128>"
    assert str(tables.slices_within_warps(layout, 0)) == "<16x16: reg 1 lane 2,128,64,16,32 warp 8,4>"
    assert tables.slices_within_warps(layout, 1) == layout
    alone = tables.blocked((64,), (0,), 1, 2)
    assert tables.slices_within_warps(alone, 0) == alone
