"""The matched ops as lines of the two printed functions: what a page needs to show them next to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blocknb.ir.text import print_lines
from blocknb.ir_diff.indexed import IndexedFunc
from blocknb.ir_diff.matching import Matching
from blocknb.ir_diff.sequences import equal_runs, increasing

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
    same = sorted([*same, *_lines_without_ops(matching, [(i, j) for i, j, _ in kept])])
    return runs(same), runs((i, j) for i, j, kind in kept if kind == "changed")


def _lines_without_ops(matching: Matching, pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Equal lines that show no op, such as the end of a block, between pairs of lines that correspond."""
    texts = [[(text, op) for text, op, _ in print_lines(side.func)] for side in (matching.before, matching.after)]
    ends = len(texts[0]), len(texts[1])
    for (i0, j0), (i1, j1) in zip([(-1, -1), *pairs], [*pairs, ends], strict=True):
        gaps = [
            [(number, text) for number, (text, op) in enumerate(side[first + 1 : end], first + 1) if op is None]
            for side, first, end in zip(texts, (i0, j0), (i1, j1), strict=True)
        ]
        for x, y, n in equal_runs(*([text for _, text in gap] for gap in gaps)):
            yield from ((gaps[0][x + k][0], gaps[1][y + k][0]) for k in range(n))


def _line_of(func: IndexedFunc) -> dict[int, int]:
    """The number of the line of each op, from 0."""
    found: dict[int, int] = {}
    for number, (_, op, _) in enumerate(print_lines(func.func)):
        if op is not None:
            found.setdefault(op, number)
    return found
