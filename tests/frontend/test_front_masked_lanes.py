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
