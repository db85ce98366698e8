"""The matched ops as lines of the two printed functions: what a page needs to show them next to each other."""

from __future__ import annotations

from collections.abc import Iterable

from blocknb.ir.text import print_lines
from blocknb.ir_diff.indexed import IndexedFunc
from blocknb.ir_diff.matching import Matching, increasing

#: Lines [i, i + n) of the left text correspond to lines [j, j + n) of the right one.
Run = tuple[int, int, int]


def runs(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Pairs of lines, in order, as runs of successive lines."""
    found: list[Run] = []
    for i, j in pairs:
        if found and (i, j) == (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]):
            x, y, n = found[-1]
            found[-1] = (x, y, n + 1)
        else:
            found.append((i, j, 1))
    return found


def aligned_lines(matching: Matching) -> tuple[list[Run], list[Run]]:
    """The lines of the same ops, and those of ops that differ, in an order that both sides share."""
    one, two = _line_of(matching.before), _line_of(matching.after)
    kinds = {match.before[0]: match.kind for match in matching.of_kind("kept", "moved", "changed")}
    pairs = sorted((one[a], two[b], kinds[a]) for a, b in matching.counterpart.items() if a in one and b in two)
    kept = [pairs[i] for i in increasing([j for _, j, _ in pairs])]
    same = [(i, j) for i, j, kind in kept if kind != "changed"]
    return runs(same), runs((i, j) for i, j, kind in kept if kind == "changed")


def _line_of(func: IndexedFunc) -> dict[int, int]:
    """The number of the line of each op, from 0."""
    found: dict[int, int] = {}
    for number, (_, op, _) in enumerate(print_lines(func.func)):
        if op is not None:
            found.setdefault(op, number)
    return found
