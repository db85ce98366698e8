"""Notes on masked loads without `other`, where Triton leaves undefined what blocknb defines as 0."""

import numpy as np
import pytest

import blocknb
import blocknb.language as tl

SAID = (
    "Triton leaves the masked lanes of this load undefined, and they reach {}; blocknb gives 0: write other=0 to say so"
)


@blocknb.kernel
def sums(x, out, n, OTHER: tl.constexpr, FORM: tl.constexpr):
    i = tl.arange(0, 16)
    v = tl.load(x + i, mask=i < n, other=OTHER)
    if FORM == "reduction":
        tl.store(out, tl.sum(v * 2))
    elif FORM == "scan":
        tl.store(out + i, tl.cumsum(v), mask=i < n)
    elif FORM == "where":
        tl.store(out, tl.sum(tl.where(i < n, v, 1)))
    elif FORM == "masked store":
        tl.store(out + i, v + 1, mask=i < n)
    else:
        tl.store(out + i, v[None, :].reshape(16))


def notes(other, form):
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    trace = sums.trace(x, out, 10, other, form, target="cpu")
    return [(note.text, note.kind, note.loc.line) for note in trace.notes if "masked lanes" in note.text]


@pytest.mark.parametrize(
    ("form", "reached"),
    [("reduction", "a reduction"), ("scan", "a scan"), ("store", "a store without a mask")],
)
def test_lanes_that_matter_are_noted_once_at_the_load(form, reached):
    line = sums.source.first_line + 3
    assert notes(None, form) == [(SAID.format(reached), "info", line)]
    assert notes(0, form) == []


@pytest.mark.parametrize("form", ["where", "masked store"])
def test_lanes_that_are_dropped_are_not_noted(form):
    assert notes(None, form) == []


def test_the_masked_lanes_are_zero():
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    sums[(1,)](x, out, 10, None, "reduction")
    assert out[0] == 20


def test_options_of_amds_back_end_are_noted_and_change_nothing():
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    plain = sums.compile(x, out, 10, 0, "reduction", target="cpu")
    assert [note for note in plain.trace.notes if note.origin == "launch"] == []
    trace = sums.trace(x, out, 10, 0, "reduction", target="cpu", waves_per_eu=2, kpack=1)
    (said,) = [note.text for note in trace.notes if note.origin == "launch"]
    assert said == "`kpack` and `waves_per_eu`: options of Triton's back end for AMD GPUs, without effect here"


@blocknb.kernel
def products(a, b, out, K, PAD: tl.constexpr, N: tl.constexpr = 16):
    described = tl.make_tensor_descriptor(a, [N, K], [16, 1], [N, N])
    block = tl.make_block_ptr(b, (K, N), (16, 1), (0, 0), (N, N), (1, 0))
    total = tl.zeros((N, N), tl.float32)
    for k in range(0, K, N):
        y = tl.load(block, boundary_check=(0,), padding_option=PAD)
        total = tl.dot(described.load([0, k]), y, total)
    i = tl.arange(0, N)
    tl.store(out + i[:, None] * N + i[None, :], total)


def test_loads_that_triton_pads_with_zero_are_not_noted():
    a, b, out = (np.ones((16, 16), np.float32) for _ in range(3))
    found = {pad: products.trace(a, b, out, 10, pad, target="cpu").notes for pad in ("zero", "")}
    said = {pad: [note.loc.line for note in notes if "masked lanes" in note.text] for pad, notes in found.items()}
    assert said == {"zero": [], "": [products.source.first_line + 6]}
