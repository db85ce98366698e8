"""Non-temporal stores: which stores of a CPU kernel are marked, what the code has without the pass, and what the notes say."""

from __future__ import annotations

import pytest

import blocknb
import blocknb.language as bl
from blocknb.kernels.softmax import softmax_kernel
from blocknb.passes.tile.nontemporal_stores import LARGE

CPU = "cpu:x86-64-v3"


@blocknb.kernel
def scaled(x, y, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(y + at, bl.load(x + at) * 2.0)


@blocknb.kernel
def gelu(x, y, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    v = bl.load(x + at)
    bl.store(y + at, v / (1.0 + bl.exp(-1.702 * v)))


@blocknb.kernel
def spread(x, y, z, u, v, w, BLOCK: bl.constexpr):
    """One tile in five arrays."""
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    tile = bl.load(x + at)
    bl.store(y + at, tile)
    bl.store(z + at, tile)
    bl.store(u + at, tile)
    bl.store(v + at, tile)
    bl.store(w + at, tile)


@blocknb.kernel
def chosen(x, y, z, n, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(bl.where(n > 0, y, z) + at, bl.load(x + at))


def stage(trace):
    return next((stage for stage in trace.stages if stage.name == "nontemporal_stores"), None)


def trace(kernel, without=(), **constants):
    given = dict.fromkeys("xyzuvw", "*fp32") | {"n": "i32", "x_stride": "i32", "y_stride": "i32"} | constants
    return kernel.trace(**{p.name: given[p.name] for p in kernel.source.parameters}, target=CPU, without=without)


@pytest.mark.parametrize(("kernel", "share"), [(scaled, "33%"), (softmax_kernel, "33%")])
def test_code_without_the_pass_has_no_nontemporal_store(kernel, share):
    """The loop of the store is written twice: with such stores, and with ordinary ones for small arrays."""
    with_pass, without = (trace(kernel, off, BLOCK=1024) for off in ((), ("nontemporal_stores",)))
    assert with_pass.llvm.count("!nontemporal !1") == 1 and "fence seq_cst" in with_pass.llvm
    assert "!nontemporal !1" not in without.llvm and "fence seq_cst" not in without.llvm
    (note,) = stage(with_pass).notes
    assert "`y` has at least 12 MiB" in note.text and share in note.text
    assert [op.attrs.get("nontemporal") for op in stage(with_pass).after.ops() if op.name == "store"] == [LARGE]


@pytest.mark.parametrize(
    ("kernel", "kind", "text"),
    [
        (gelu, "info", "additions per element hides the traffic; up to 12"),
        (chosen, "missed", "its pointer comes from no single argument"),
    ],
)
def test_a_note_says_why_a_store_stays_an_ordinary_one(kernel, kind, text):
    found = stage(trace(kernel, BLOCK=1024))
    assert {note.kind for note in found.notes} == {kind} and all(text in note.text for note in found.notes)
    assert not any("nontemporal" in op.attrs for op in found.after.ops())


def test_a_loop_with_many_stores_is_not_written_twice():
    found = trace(spread, BLOCK=1024)
    (note,) = (note for note in found.notes if "share a loop" in note.text)
    assert note.kind == "missed" and note.text.startswith("ordinary stores: 5") and "!nontemporal !1" not in found.llvm


def test_gpu_kernels_have_no_such_stage():
    assert stage(scaled.trace(x="*fp32", y="*fp32", BLOCK=1024)) is None
