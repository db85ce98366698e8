"""A softmax of a row in several tiles. The sum of its exponentials is at least one if it has the tiles of the maximum."""

from __future__ import annotations

import pytest
from analysis.test_float_ranges import bounds, changed
from frontend_helpers import kernel

import blocknb.language as bl


@kernel
def pieces(x, y, n, B: bl.constexpr, R: bl.constexpr, CASE: bl.constexpr):
    at, others = bl.arange(0, B), B + bl.arange(0, R)
    values = bl.load(x + at).to(bl.float32)
    rest = bl.load(x + others, mask=others < n, other=-float("inf")).to(bl.float32)
    folded = bl.max(bl.reshape(values, (B // R, R)), axis=0)
    top = bl.max(folded if CASE == 2 else bl.maximum(folded, rest), axis=0)
    if CASE == 3:
        top = bl.maximum(top, 1.0)
    if CASE == 4:
        top += 1.0
    powers, more = bl.exp(values - top), bl.exp(rest - top)
    if CASE == 6:
        more = more * 0.5
    sums = bl.sum(bl.reshape(powers, (B // R, R)), axis=0)
    if CASE == 5:
        total = bl.sum(sums, axis=0) - bl.sum(more, axis=0)
    elif CASE == 1:
        total = bl.sum(sums, axis=0)
    else:
        total = bl.sum(sums + more, axis=0)
    bl.store(y + at, powers / total)
    bl.store(y + others, more / total, mask=others < n)


KINDS = {"x": "*f16", "y": "*f16", "n": "i32", "B": 64, "R": 16}


def test_the_sum_over_all_tiles_of_the_maximum_is_at_least_one():
    assert bounds(pieces, "total", **KINDS, CASE=0) == (1.0, 80.0)
    assert bounds(pieces, "powers", **KINDS, CASE=0) == (0.0, 1.0)
    assert changed(pieces, **KINDS, CASE=0) == {"normal": 2, "flush_denormals": 2}
    assert changed(pieces, **KINDS | {"y": "*f32"}, CASE=0) == {"normal": 2, "flush_denormals": 0}


@pytest.mark.parametrize(
    "case",
    range(1, 7),
    ids=[
        "a tile less in the sum",
        "a tile less in the maximum",
        "a constant",
        "another number",
        "a difference",
        "half",
    ],
)
def test_otherwise_the_sum_has_no_lower_bound(case):
    assert changed(pieces, **KINDS, CASE=case) == {"normal": 0, "flush_denormals": 0}
