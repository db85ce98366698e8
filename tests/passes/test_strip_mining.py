"""Strip mining: what it saves in registers and spills, and when a note says that a tile does not fit."""

from __future__ import annotations

import pytest

import blocknb
import blocknb.language as bl
from blocknb.bench import scaling

ARGUMENTS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "num_warps": 4}


@pytest.mark.parametrize(
    ("operation", "size", "registers"),
    [pytest.param("reduce", 1 << 17, 64, marks=pytest.mark.full), ("add", 1 << 15, 176), ("softmax", 1 << 16, 96)],
)
def test_a_tile_beyond_the_registers_is_not_spilled(operation, size, registers):
    kernel = scaling.tile(operation, size)
    resources = kernel.trace(**ARGUMENTS).resources
    assert resources.spill_bytes == 0 and resources.registers <= registers
    assert kernel.trace(**ARGUMENTS, without={"strip_mining"}).resources.spill_bytes > 4096


def test_a_tile_of_half_the_registers_is_not_held():
    """A thread sums 256 numbers, and needs no register for each."""
    kernel = scaling.tile("reduce", 1 << 15)
    few, many = (kernel.trace(**ARGUMENTS, without=names).resources.registers for names in ((), ("strip_mining",)))
    assert few < 64 and many > 128


@blocknb.kernel
def shifted(x_ptr, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.store(x_ptr + i + 1, bl.load(x_ptr + i, mask=i < n), mask=i < n)


def test_a_note_says_that_a_tile_does_not_fit():
    (note,) = stage(shifted.trace("*fp32", "i32", BLOCK=1 << 15, num_warps=4)).notes
    assert note.kind == "missed" and "256 registers a thread, of 256: does not fit" in note.text
    assert "num_warps" in note.text and note.loc


def test_kernels_with_small_tiles_have_no_such_stage():
    assert stage(shifted.trace("*fp32", "i32", BLOCK=1024, num_warps=4)) is None


def stage(trace):
    return next((stage for stage in trace.stages if stage.name == "strip_mining"), None)
