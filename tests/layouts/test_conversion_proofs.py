"""Layout conversions are proved over GF(2): for each plan, every element arrives where the target layout wants it.

All parts of a plan are linear over XOR: layouts, the three steps of a shuffle, buffers. So it suffices to check zero and each bit of a
place. The proof covers all pairs of layouts that the tables produce for a shape: blocked, crosswise, FMA accumulators, and slices along
warps. The fragments of mma and wgmma and their operands belong to them, too. `--full` proves all power-of-two shapes of up to 2^16 elements
with 1 to 8 warps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import prod

import numpy as np
import pytest

from blocknb.layouts import gf2, tables, wgmma
from blocknb.layouts.convert import Conversion, Select, choose_shared, plan
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import (
    SharedLayout,
    boxed,
    conflicts,
    ldmatrix_plan,
    row_major,
    stmatrix_plan,
    swizzled,
    vector_access,
)

MOST_BITS = 16
WARPS = (1, 2, 4, 8)
ELEMENT_BITS = (8, 16, 32, 64)
Place = tuple[int, int, int]  # warp, lane, register


# -- the layouts of the tables


def matrices(shape: tuple[int, int], warps: int) -> Iterator[Layout | None]:
    """The layouts of matrix products for a shape."""
    for row in tables.MMA_TABLE:
        for along_m in {1 << bits for bits in range(tables.log2(warps) + 1)}:
            split = (along_m, warps // along_m)
            yield tables.accumulator(shape, row, split)
            yield tables.operand_a(shape, row, split)
            yield tables.operand_b(shape, row, split)
    for row in wgmma.WGMMA_TABLE:
        if not wgmma.refusal(row, *shape, row.k, warps):
            groups = wgmma.split(shape, warps)
            result = wgmma.result_layout(shape, wgmma.columns(row, shape[1] // groups[1]), groups)
            yield from (result, wgmma.permuted_rows(result))
            if shape[1] >= row.k:
                yield wgmma.register_layout(shape, row, groups)
    yield tables.fma_accumulator(shape, warps)


def layouts(shape: tuple[int, ...], warps: int) -> list[Layout]:
    """The layouts of the tables for a shape, without repetitions."""
    found: list[Layout | None] = []
    for order in permutations(range(len(shape))):
        found += [tables.blocked(shape, order, vec, warps) for vec in (1, 2, 4, 8, 16)]
    if len(shape) == 2:
        found += list(matrices((shape[0], shape[1]), warps))
        for fast, together in product((0, 1), (2, 4, 8)):
            found.append(tables.crosswise(shape, fast, warps, together))
        found += [
            tables.stored_by_warp(layout, fast, vec, 64)
            for layout in list(filter(None, found))[:12]
            for fast, vec in product((0, 1), (1, 4, 8))
        ]
    found += [tables.for_scan(layout, axis) for layout in list(filter(None, found))[:6] for axis in range(len(shape))]
    return list(dict.fromkeys(layout for layout in found if layout is not None))


# -- proofs


def generators(layout: Layout) -> Iterator[Place]:
    """Zero and each bit of a place: a linear map is known by its values there."""
    yield 0, 0, 0
    for position, bits in enumerate((layout.warp, layout.lane, layout.reg)):
        for i in range(len(bits)):
            place = [0, 0, 0]
            place[position] = 1 << i
            yield place[0], place[1], place[2]


def origin(conversion: Conversion, place: Place) -> Place:
    """The place in the source whose element arrives at a place in the target."""
    warp, lane, register = place
    if conversion.registers is not None:
        return warp, lane, conversion.registers[register]
    shuffle = conversion.shuffle
    assert shuffle is not None
    words = shuffle.words(conversion.target, True)
    ((word, part),) = [(i, word.index(register)) for i, word in enumerate(words) if register in word]
    step = shuffle.rounds[swapped(shuffle.after, (warp, lane, word))]
    source_lane = gf2.apply(shuffle.lane, lane) ^ gf2.apply(shuffle.warp, warp) ^ step.flip
    source_word = swapped(shuffle.before, (warp, source_lane, step.source))
    return warp, source_lane, shuffle.words(conversion.source, False)[source_word][part]


def swapped(stages: Sequence[Select], place: Place) -> int:
    """The register, or word, before the stages of a permutation."""
    warp, lane, register = place
    for stage in reversed(stages):
        odd = (warp & stage.warp_mask).bit_count() + (lane & stage.lane_mask).bit_count() & 1
        register ^= stage.flip * odd
    return register


def is_linear(values: Sequence[int]) -> bool:
    """Whether a table of registers is linear: value(a ^ b) = value(a) ^ value(b)."""
    bits = [values[1 << i] for i in range((len(values) - 1).bit_length())]
    return values[0] == 0 and list(values) == gf2.combinations(bits)


def prove(conversion: Conversion) -> None:
    """Every place of the target gets the element that the target layout wants there."""
    source, target = conversion.source, conversion.target
    if conversion.registers is not None:
        assert is_linear(conversion.registers), conversion
    elif conversion.shuffle is not None:
        rounds = conversion.shuffle.rounds
        assert len(rounds) << len(conversion.shuffle.packed) == target.num_registers
        for layout, words in ((source, False), (target, True)):
            every = conversion.shuffle.words(layout, words)
            assert sorted(x for word in every for x in word) == list(range(layout.num_registers)), (
                "each register is in one word"
            )
            assert is_linear([word[0] for word in every]) and all(is_linear([x ^ w[0] for x in w]) for w in every)
        assert is_linear([step.source for step in rounds]) and is_linear([step.flip for step in rounds]), conversion
        for step, flip in ((step, step.flip) for step in rounds if not step.moves):
            assert flip == 0 and conversion.shuffle.is_butterfly, "a round without an instruction leaves its lane"
    for place in generators(target):
        warp, lane, register = origin(conversion, place)
        assert lane < source.num_lanes and register < source.num_registers and warp == place[0]
        assert source.index(warp, lane, register) == target.index(*place), (conversion, place)


def prove_buffer(layout: Layout, shared: SharedLayout, bits: int) -> None:
    """A store or load by vectors touches each register once, at its element's offset, with the predicted wavefronts."""
    access = vector_access(layout, shared, bits)
    assert sorted(register for group in access.groups for register in group) == list(range(layout.num_registers))
    offset = [shared.offset(index) for index in layout.register_indices]
    for group in access.groups:
        first = offset[group[0]]
        assert [offset[register] for register in group] == list(range(first, first + access.vector))
    # The start of a vector is aligned in every thread: no lane or warp moves the low bits of an offset.
    for basis in (*layout.lane, *layout.warp):
        assert shared.offset(basis) % access.vector == 0
    assert all(offset[group[0]] % access.vector == 0 for group in access.groups)


def simulated(layout: Layout, shared: SharedLayout, bits: int, vec: int) -> int:
    """The wavefronts of one instruction, counted bank by bank: lanes go in parts whose bytes fit a wavefront."""
    lane_bytes = max(1, vec * bits // 8)
    lanes = np.array([shared.offset(i) for i in gf2.combinations(layout.lane)]) * bits // 8
    together = max(1, len(lanes) // max(1, lane_bytes // 4))
    total = 0
    for part in lanes.reshape(-1, together):
        words = {(int(start) + byte) // 4 for start in part for byte in range(0, lane_bytes, min(4, lane_bytes))}
        banks = np.bincount([word % 32 for word in words])
        total += int(banks.max())
    return total


def shapes(most_bits: int, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """All power-of-two shapes of these ranks with at most 2^most_bits elements."""
    found = []
    for rank in ranks:
        for bits in product(range(most_bits + 1), repeat=rank):
            if sum(bits) <= most_bits:
                found.append(tuple(1 << b for b in bits))
    return found


def prove_all(shape: tuple[int, ...], warps: int, one_in: int) -> int:
    """Proves the conversions between all layouts of a shape; returns their number.

    All conversions by registers and lanes are proved. A conversion through a buffer is right if the buffer is a bijection. The store and
    the load also have to visit each register at its element's offset. That is a property of one layout and one buffer. So only one in
    `one_in` pairs chooses the buffer, and the choices of all pairs are of few kinds.
    """
    found, count = layouts(shape, warps), 0
    for number, (source, target) in enumerate(product(found, found)):
        bits = ELEMENT_BITS[number % 4]
        conversion = plan(source, target, bits)
        count += 1
        if conversion.kind != "shared":
            prove(conversion)
        elif number % one_in == 0:
            shared = choose_shared(source, target, bits)
            assert gf2.rank(shared.basis) == source.index_bits  # a bijection of elements and offsets
            prove_buffer(source, shared, bits)
            prove_buffer(target, shared, bits)
    for function in (plan, choose_shared, vector_access, ldmatrix_plan, stmatrix_plan):
        function.cache_clear()  # millions of pairs would fill the memory
    return count


SAMPLE = [((64,), 1), ((1024,), 4), ((16, 16), 1), ((64, 32), 4), ((128, 16), 8), ((32, 64), 2), ((4, 8, 16), 4)]


@pytest.mark.parametrize(("shape", "warps"), SAMPLE)
def test_conversions_between_the_tables_layouts_are_right(shape, warps):
    assert prove_all(shape, warps, one_in=61) >= 9


@pytest.mark.full
@pytest.mark.parametrize("warps", WARPS)
@pytest.mark.parametrize("rows", [1 << bits for bits in range(MOST_BITS + 1)])
def test_conversions_of_all_matrices_are_right(rows, warps):
    found = [shape for shape in shapes(MOST_BITS, [2]) if shape[0] == rows]
    assert sum(prove_all(shape, warps, one_in=127) for shape in found) >= len(found)


@pytest.mark.full
@pytest.mark.parametrize("warps", WARPS)
def test_conversions_of_all_vectors_and_small_cubes_are_right(warps):
    """Shapes of three axes end at 2^8 elements: their layouts are blocked ones, which differ by the order of axes only."""
    found = [*shapes(MOST_BITS, [1]), *shapes(8, [3])]
    assert sum(prove_all(shape, warps, one_in=127) for shape in found) > 1000


# -- buffers


def buffers(shape: tuple[int, ...], bits: int) -> list[SharedLayout]:
    """The layouts of buffers that the tables make."""
    found = []
    for order in permutations(range(len(shape))):
        found.append(row_major(shape, order))
        found += [swizzled(shape, bits, order, limit) for limit in (32, 64, 128)]
    if len(shape) == 2:
        found += [boxed(shape, bits, inner, min(shape[inner], 64), 0) for inner in (0, 1)]
    return list(dict.fromkeys(found))


BUFFERS = [((1024,), 16), ((64, 64), 8), ((64, 64), 16), ((32, 128), 32), ((128, 16), 64), ((2, 16, 32), 16)]


@pytest.mark.parametrize(("shape", "bits"), BUFFERS)
def test_swizzles_are_bijective_and_bank_conflicts_are_as_predicted(shape, bits):
    prove_buffers(shape, bits)


def prove_buffers(shape: tuple[int, ...], bits: int) -> None:
    for shared in buffers(shape, bits):
        assert sorted(shared.offsets().ravel()) == list(range(prod(shape)))
        for layout in layouts(shape, 4)[::3]:
            access = vector_access(layout, shared, bits)
            predicted, _ = conflicts(layout, shared, bits, access.vector)
            assert predicted == simulated(layout, shared, bits, access.vector), (layout, shared, bits)


@pytest.mark.full
@pytest.mark.parametrize("bits", ELEMENT_BITS)
def test_bank_conflicts_of_all_shapes_are_as_predicted(bits):
    for shape in shapes(12, [1, 2]):
        prove_buffers(shape, bits)


# -- ldmatrix and stmatrix


def received(layout: Layout, shared: SharedLayout, bits: int, warp: int) -> dict[tuple[int, int], int]:
    """The element that each lane and register gets from ldmatrix, simulated row by row (PTX ISA, ldmatrix)."""
    access = ldmatrix_plan(layout, shared, bits)
    assert access is not None
    element_of = np.argsort(shared.offsets().ravel())
    size, found = bits // 8, {}
    for step in access.steps:
        for matrix, registers in enumerate(step.registers):
            rows = [gf2.apply(access.lane, 8 * matrix + r) ^ gf2.apply(access.warp, warp) ^ step.base for r in range(8)]
            starts = [shared.offset(row) * size for row in rows]
            assert all(start % 16 == 0 for start in starts)
            for lane in range(32):
                if access.trans:
                    places = [starts[2 * (lane % 4) + i] + 2 * (lane // 4) for i in range(2)]
                else:
                    places = [starts[lane // 4] + 4 * (lane % 4) + i * size for i in range(4 // size)]
                for register, place in zip(registers, places, strict=True):
                    found[lane, register] = int(element_of[place // size])
    return found


MATRIX = [
    ((16, 16), 1),
    ((32, 32), 2),
    pytest.param((64, 64), 8, marks=pytest.mark.full),
    pytest.param((128, 32), 4, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("shape", "warps"), MATRIX)
def test_ldmatrix_and_stmatrix_move_every_element_of_a_fragment(shape, warps):
    count = 0
    for layout, bits in product(layouts(shape, warps), (8, 16, 32)):
        for shared in buffers(shape, bits):
            if ldmatrix_plan(layout, shared, bits) is None:
                assert stmatrix_plan(layout, shared, bits) is None
                continue
            for warp in range(warps):
                for (lane, register), element in received(layout, shared, bits, warp).items():
                    assert layout.index(warp, lane, register) == element, (layout, shared, bits)
                count += 1
            assert {r for s in ldmatrix_plan(layout, shared, bits).steps for rs in s.registers for r in rs} == set(
                range(layout.num_registers)
            )
    assert count > 4
