"""Texts of a document are stored once, as differences where these are shorter, and read back exactly."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from observed import observed

from blocknb.bench.suite.steps import STEPS, matmul, run_step
from blocknb.notebook import card, document, sections
from blocknb.notebook.blobs import Blobs, read, unpack


def test_a_text_that_two_stages_share_is_stored_once():
    blobs = Blobs(10_000)
    first = blobs.add({"text": "same"}, "a", "call")
    assert blobs.add({"text": "same"}, "b", "call") == first and len(blobs.stored) == 1


def test_a_blob_that_does_not_fit_is_listed_with_its_call():
    blobs = Blobs(100)
    noise = "".join(chr(33 + i * i % 90) for i in range(4000))
    assert blobs.add({"text": noise}, "PTX", "k.latest.trace.ptx") is None
    assert [(entry["what"], entry["call"]) for entry in blobs.left_out] == [("PTX", "k.latest.trace.ptx")]


def listing(lines):
    """A listing with these lines; each has its own source line and op."""
    return {"text": "\n".join(f"%{n} = op" for n in lines), "lines": [n % 7 for n in lines], "ops": [*lines]}


LINES = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@given(st.lists(LINES, min_size=1, max_size=5))
def test_a_chain_of_differences_restores_every_listing(versions):
    blobs, base, named = Blobs(1 << 40), None, []
    for lines in versions:
        base = blobs.add(listing(lines), "", "", base)
        named.append(base)
    for name, lines in zip(named, versions, strict=True):
        assert read(blobs.stored, name) == listing(lines)


def test_a_listing_that_differs_in_a_line_is_stored_as_that_line():
    before, after = list(range(300)), [*range(150), 999, *range(150, 299)]
    blobs = Blobs(1 << 40)
    base = blobs.add(listing(before), "", "")
    name = blobs.add(listing(after), "", "", base)
    packed, _, named = blobs.stored[name].partition(" ")
    assert named == base and unpack(packed) == [[0, 150], listing([999]), [150, 299]]
    assert len(packed) < len(blobs.stored[base]) / 4


def test_a_difference_is_copied_only_with_its_base():
    blobs = Blobs(1 << 40)
    base = blobs.add(listing(range(300)), "", "")
    name = blobs.add(listing(range(299)), "", "", base)
    other = Blobs(1 << 40)
    assert not other.add_packed(name, blobs.stored[name]) and not other.stored
    assert other.add_packed(base, blobs.stored[base]) and other.add_packed(name, blobs.stored[name])


def test_a_saved_card_has_every_stage_of_a_large_kernel_for_hopper():
    a, b, c = np.zeros((256, 512), np.float16), np.zeros((256, 512), np.float16), np.zeros((256, 256), np.float16)
    made = card.card_of(observed(lambda: run_step(matmul, STEPS[-1], a, b, c)))
    bundle = made.bundle()
    assert len(json.dumps(bundle, ensure_ascii=False).encode()) <= card.LIMIT
    found = bundle[document.MIME]
    assert {text["what"] for text in found["left_out"]} <= {
        "LLVM (GPU view: sm_90a)"
    }  # the longest text, and the last one stored
    for view, shown in zip(made.views, found["views"], strict=True):
        listed = {s.key: s for s in sections.stage_sections(view.trace, "", "")}
        for stage in shown["stages"]:
            assert read(found["blobs"], stage["text"]) == document.content_of(listed[stage["name"]])
