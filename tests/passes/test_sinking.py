"""Sinking: what is computed at a store, which loads take its mask, what that saves in registers, and what the notes say."""

from __future__ import annotations

import blocknb
import blocknb.language as bl
from blocknb.kernels.norms import norm_kernel

ARRAYS = {**dict.fromkeys(("x", "weight", "bias", "y"), "*fp32:16"), **dict.fromkeys(("mean", "rstd"), "*fp32:16")}
NORM = ARRAYS | {"x_row": "i32:16", "y_row": "i32:16", "m": "i32", "n": "i32:16", "eps": "fp32", "CENTRED": True}
SHAPE = {"ROWS": 1, "BLOCK": 8192, "num_warps": 4}


def stage(trace):
    return next((stage for stage in trace.stages if stage.name == "sinking"), None)


def test_layer_norm_of_fp32_rows_needs_fewer_registers():
    few, many = (norm_kernel.trace(**NORM, **SHAPE, without=off).resources for off in ((), ("sinking",)))
    assert few.spill_bytes == many.spill_bytes == 0
    assert few.registers <= many.registers - 8


def test_loads_of_weights_take_the_mask_of_the_rows():
    found = stage(norm_kernel.trace(**NORM, **SHAPE))
    assert sum("takes the mask of the store" in note.text for note in found.notes) == 2
    (count,) = (note.text for note in found.notes if note.text.startswith("computes"))
    assert count == "computes 7 operations of its value here, for 4 of 64 registers of a thread at a time"
    defs = {op.result: op for op in found.after.ops() if op.results}
    masks = [defs[op.args[1]] for op in found.after.ops() if op.name == "load" and len(op.args) > 1]
    (inside,) = {(mask.args[0] if mask.name == "reshape" else mask.result) for mask in masks}
    assert [mask.name for mask in masks].count("reshape") == 2 and inside.type.shape == (1, 8192)


@blocknb.kernel
def scaled(x, y, z, n, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    row = bl.load(x + at)
    row = row / bl.sum(row, axis=0)
    bl.store(y + at, row)
    bl.store(z + at, row + 1.0)


def test_a_note_names_the_second_use_that_keeps_a_value_where_it_is():
    found = stage(scaled.trace("*fp32:16", "*fp32:16", "*fp32:16", "i32", BLOCK=4096, num_warps=4))
    (note,) = (note for note in found.notes if note.kind == "missed")
    assert note.text.startswith("32 registers a thread: also used at line") and "with one use" in note.text


@blocknb.kernel
def copied(x, y, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    bl.store(y + at, bl.load(x + at) * 2.0)


def test_kernels_without_reductions_have_no_such_stage():
    assert stage(copied.trace("*fp32:16", "*fp32:16", BLOCK=1024)) is None
