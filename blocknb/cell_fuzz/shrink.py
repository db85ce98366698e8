"""Reduces a failing sequence of cells (delta debugging: Zeller, Hildebrandt 2002): without cells, lines and words of magics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from blocknb.cell_fuzz.cell import CellSequence, FuzzCell
from blocknb.cell_fuzz.oracles import CellOutcome


def shrink(
    sequence: CellSequence, outcome: CellOutcome, run: Callable[[CellSequence], CellOutcome], seconds: float
) -> tuple[CellSequence, CellOutcome]:
    """The smallest sequence found in the given time that shows the same defect, and its outcome. `run` runs a sequence."""
    end = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for candidate in candidates(sequence, outcome.cell):
            if time.monotonic() > end:
                break
            found = run(candidate)
            if found.key == outcome.key:
                sequence, outcome, improved = candidate, found, True
                break
    return sequence, outcome


def candidates(sequence: CellSequence, failing: int) -> Iterator[CellSequence]:
    """Smaller sequences, the largest reductions first. The first cell sets the notebook up."""
    cells = sequence.cells
    if failing + 1 < len(cells):
        yield replace(sequence, cells=cells[: failing + 1])
    for body in _shorter(cells[1:]):
        yield replace(sequence, cells=(cells[0], *body))
    for i, cell in enumerate(cells[1:], 1):
        for code in _smaller(cell):
            yield replace(sequence, cells=(*cells[:i], replace(cell, code=code), *cells[i + 1 :]))


def _shorter(cells: tuple[FuzzCell, ...]) -> Iterator[tuple[FuzzCell, ...]]:
    width = len(cells) // 2
    while width:
        for start in range(0, len(cells), width):
            yield cells[:start] + cells[start + width :]
        width //= 2


def _smaller(cell: FuzzCell) -> Iterator[str]:
    """The code of a cell with fewer lines, or with fewer words on the line of its magic."""
    lines = cell.code.split("\n")
    width = len(lines) // 2
    while width:
        for start in range(0, len(lines), width):
            rest = lines[:start] + lines[start + width :]
            if any(line.strip() for line in rest):
                yield "\n".join(rest)
        width //= 2
    if lines[0].startswith("%%"):
        words = lines[0].split(" ")
        for i in range(1, len(words)):
            yield "\n".join([" ".join(words[:i] + words[i + 1 :]), *lines[1:]])
