"""The tables of wgmma against formulas of the PTX ISA, and matrix descriptors against the layouts of their buffers."""

import numpy as np
import pytest
from fuzz import simt_wgmma

from blocknb.layouts import wgmma
from blocknb.layouts.shared import row_major, swizzled, vector_access

FP16 = wgmma.find("fp16", "fp16", "fp32")


@pytest.mark.parametrize("n", [8, 64, 256])
def test_accumulator_layout_matches_the_ptx_isa(n):
    layout = wgmma.result_layout((128, n), wgmma.columns(FP16, n), (1, 1))
    row, column = simt_wgmma.accumulator(n)
    for block in range(2):
        for thread in range(0, 128, 7):
            for i in range(n // 2):
                expected = row[thread, i] + 64 * block, column[thread, i]
                assert layout.coords(thread // 32, thread % 32, block * n // 2 + i) == expected


@pytest.mark.parametrize(
    ("row", "kind"), [(row, row.operands[0]) for row in wgmma.WGMMA_TABLE], ids=lambda x: str(x)[:8]
)
def test_register_operand_a_matches_the_ptx_isa(row, kind):
    kind = {"fp16": "f16", "int8": "s8", "fp8e4nv": "e4m3"}.get(kind, kind)
    layout = wgmma.register_layout((64, row.k), row, (1, 1))
    size = np.dtype(simt_wgmma.ELEMENTS[kind]).itemsize
    numbers = np.arange(64 * row.k).reshape(64, row.k) % 61  # small: an 8-bit float has few digits
    numbers = numbers if size > 1 else numbers % 16
    held = numbers.reshape(-1)[layout.indices()].reshape(128, -1).astype(simt_wgmma.ELEMENTS[kind])
    words = np.ascontiguousarray(held).view(np.int32)
    assert words.shape == (128, 4)
    np.testing.assert_array_equal(simt_wgmma.fragment([words[:, i] for i in range(4)], kind, row.k), numbers)


def test_result_of_the_first_attention_product_is_operand_a_of_the_second():
    for groups in ((1, 1), (2, 1)):
        shape = (64 * groups[0], 128)
        result = wgmma.result_layout(shape, wgmma.columns(FP16, 128), groups)
        assert result == wgmma.register_layout(shape, wgmma.columns(FP16, 64), groups)


@pytest.mark.parametrize("groups", [1, 2])
def test_permuted_rows_in_tma_layout_have_no_bank_conflicts(groups):
    row, shape = wgmma.find("tf32", "tf32", "fp32"), (64 * groups, 32)
    plain = wgmma.register_layout(shape, row, (groups, 1))
    crossed, buffer = wgmma.permuted_rows(plain), swizzled(shape, 32, (0, 1))
    conflicts = [
        access.wavefronts / access.ideal for access in (vector_access(x, buffer, 32) for x in (plain, crossed))
    ]
    assert conflicts == [2, 1]
    rows, columns = (np.stack([np.divmod(x.indices(), 32)[i] for x in (plain, crossed)]) for i in (0, 1))
    np.testing.assert_array_equal(columns[0], columns[1])
    swapped = rows[0] & ~0b10100 | (rows[0] >> 2 & 1) << 4 | (rows[0] >> 4 & 1) << 2
    np.testing.assert_array_equal(rows[1], swapped)


BUFFERS = [
    (shape, bits, side, part)
    for bits, k in ((16, 16), (16, 32), (16, 64), (16, 128), (32, 8), (32, 64), (8, 32), (8, 256))
    for side, shape, part in (
        (0, (128, k), 64),
        (1, (k, 128), 128),
        (1, (k, 64), 32),
        (1, (k, 32), 16),
        (1, (k, 16), 8),
    )
]


@pytest.mark.parametrize(("shape", "bits", "side", "part"), BUFFERS)
def test_a_descriptor_names_every_element_of_a_buffer(shape, bits, side, part):
    """For each step along K and each part of a warpgroup, by the formulas with which `simt` decodes descriptors."""
    size, depth = bits // 8, wgmma.STEP_BYTES * 8 // bits
    layouts = wgmma.buffers(shape, bits, side, part)
    assert len(layouts) == (2 if bits == 16 else 1)
    for layout in layouts:
        found = wgmma.describe(layout, bits, side, part)
        assert found is not None
        fields = found.fields
        leading, stride = (((fields >> low) & 0x3FFF) << 4 for low in (16, 32))
        width = simt_wgmma.WIDTH[fields >> 62]
        offsets = layout.offsets() if side == 0 else layout.offsets().T
        line, k = np.meshgrid(np.arange(part), np.arange(depth), indexing="ij")
        for first in range(0, shape[side], part):
            for step in range(0, shape[1 - side], depth):
                start = wgmma.place(layout, side, first, step) * size
                if found.mn_major:
                    address = start + simt_wgmma.mn_major_place(line, k, width, leading, stride)
                else:
                    address = start + simt_wgmma.k_major_place(line, k * size, width, leading, stride)
                address ^= (address >> 7 & (width // 16 - 1)) << 4
                expected = offsets[first : first + part, step : step + depth] * size
                np.testing.assert_array_equal(address, expected)


def test_row_major_buffer_without_swizzle_has_no_descriptor():
    assert wgmma.describe(row_major((64, 64)), 16, 0, 64) is None


@pytest.mark.parametrize(
    ("extents", "warps", "why"),
    [
        ((128, 256, 64), 8, ""),
        ((128, 128, 64), 4, ""),
        ((64, 8, 16), 4, ""),
        ((128, 256, 64), 4, "256 registers"),
        ((64, 64, 8), 4, "K = 8"),
        ((32, 64, 16), 4, "M = 32"),
        ((64, 8, 16), 8, "N = 8"),
        ((64, 64, 64), 2, "4 warps together"),
    ],
)
def test_unsupported_buffers_are_refused_with_a_reason(extents, warps, why):
    found = wgmma.refusal(FP16, *extents, warps)
    assert why in found and bool(why) is bool(found)


def test_layout_names_are_parsed_back():
    for row in wgmma.WGMMA_TABLE:
        made = wgmma.columns(row, 96)
        kinds = row.operands[0], row.operands[-1], row.accumulators[0]
        assert wgmma.named(made.name, *kinds) == made
    with pytest.raises(KeyError):
        wgmma.named("wgmma.m64n64k8", "fp16", "fp16", "fp32")
