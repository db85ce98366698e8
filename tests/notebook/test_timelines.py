"""The timeline part of the document, and its text version on a page without scripts."""

from __future__ import annotations

import numpy as np
import pytest
from observed import observed

from blocknb.bench.suite.steps import STEPS, matmul, run_step
from blocknb.kernels.add import add_kernel
from blocknb.notebook import card, timelines
from blocknb.notebook.blobs import unpack


@pytest.fixture(scope="module")
def multiplied():
    a, b, c = np.zeros((256, 512), np.float16), np.zeros((256, 512), np.float16), np.zeros((256, 256), np.float16)
    return card.card_of(observed(lambda: run_step(matmul, STEPS[6], a, b, c)))


def test_the_document_holds_the_spans_of_the_gpus_code(multiplied):
    part = multiplied.document(60_000)["timeline"]
    assert multiplied.views[part["view"]].label == "sm_90a"
    found = unpack(part["packed"])
    kinds = [timelines.KINDS[row[1]] for row in found["spans"]]
    assert kinds.count("product") == kinds.count("copy") == 8  # K / 64
    assert 0 < found["busy"] < 1 and not found["cut"]
    assert len(part["packed"]) < 4000
    first = next(row for row in found["spans"] if timelines.KINDS[row[1]] == "product")
    source = multiplied.source.splitlines()
    line = source[first[6] - multiplied.main.compiled.trace.first_line]
    assert "tl.dot" in line


def test_the_static_page_draws_the_timeline_in_characters(multiplied):
    assert "MMA in flight" in multiplied.html()
    (section,) = [s for s in multiplied.sections if s.key == "timeline"]
    drawn = section.text.split("\n")
    assert any(line.startswith("consumer MMA") and "█" in line for line in drawn)
    assert any(line.startswith("a, b 0") and "░" in line for line in drawn)
    assert "They are not measured" in section.text


def test_a_kernel_without_copies_and_mma_has_no_timeline():
    x, y, out = (np.zeros(256, np.float32) for _ in range(3))
    made = card.card_of(observed(lambda: add_kernel[(1,)](x, y, out, 256, BLOCK=256)))
    part = made.document(60_000)["timeline"]
    assert part == {"why": timelines.NOTHING}
    assert not [s for s in made.sections if s.key == "timeline"]
