"""Alignment of sequences: runs of equal elements that two sequences share in one order, and a longest increasing run."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Hashable, Sequence


def equal_runs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """The runs (i, j, n) in which a[i : i + n] equals b[j : j + n], in an order that both share; an empty one ends the list."""
    return [(i, j, n) for i, j, n in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()]


def increasing(numbers: Sequence[int]) -> list[int]:
    """The positions of a longest increasing run (patience sorting)."""
    ends: list[int] = []  # the smallest last number of a run of each length
    places: list[int] = []  # its position
    before: list[int] = []
    for i, number in enumerate(numbers):
        at = bisect_left(ends, number)
        ends[at : at + 1] = [number]
        places[at : at + 1] = [i]
        before.append(places[at - 1] if at else -1)
    run, i = [], places[-1] if places else -1
    while i >= 0:
        run.append(i)
        i = before[i]
    return run[::-1]
