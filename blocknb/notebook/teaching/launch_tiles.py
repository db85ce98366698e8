"""The document's part for the Launch view: the tiles of each program on the arrays, in launch order, and the bytes that it loads.

A *step* of a program is one execution of its loads and stores. A new step begins when execution goes back to an earlier op, or enters
another loop. So a step of a loop is an iteration. Each step counts the bytes that it loads, and how many of them no earlier step has loaded
(the first touch); the others are reused. All numbers follow from the footprint, whose numbers are the sums over all steps. An element
counts once per execution of an op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.footprint.value import Footprint
from blocknb.ir.core import Block, Op
from blocknb.notebook.sections import line_of
from blocknb.notebook.teaching.arguments import OrderedAccessLog
from blocknb.notebook.teaching.pictures import ArrayPicture, expanded

MOST_ORDERED = 1 << 16  # programs whose place in the launch order is computed
MOST_STEPS = 1024  # of a part
MOST_RECTANGLES = 64  # of one access; a scattered access is drawn by its bounding box
CHUNK = 1 << 22  # elements that are looked at together

#: The number of SMs of a usual chip of each architecture (NVIDIA's data sheets).
MULTIPROCESSORS = {
    "sm_70": ("V100", 80), "sm_75": ("T4", 40), "sm_80": ("A100", 108), "sm_86": ("RTX 3090", 82), "sm_87": ("Orin", 16),
    "sm_89": ("RTX 4090", 128), "sm_90": ("H100", 132), "sm_100": ("B200", 148), "sm_120": ("RTX 5090", 170),
}  # fmt: skip


@dataclass(frozen=True)
class LaunchMachine:
    """Where a launch runs: its SMs, and the programs that one of them holds at once."""

    chip: str
    multiprocessors: int
    per_multiprocessor: int

    @property
    def together(self) -> int:
        return self.multiprocessors * self.per_multiprocessor

    @property
    def part(self) -> dict[str, Any]:
        return {"chip": self.chip, "multiprocessors": self.multiprocessors, "each": self.per_multiprocessor}


@dataclass
class LaunchTable:
    """The executions of all ops in launch order, one row for each execution.

    - `rank` is the place of the program in launch order, and `moment` the place of the execution in its program's order.
    - `source` is the index in the log's order, and `first_run` and `end_run` are the runs of the row.
    - `elements` is the number of elements, and `fresh` the number of loaded elements that no earlier execution has loaded.
    - `bytes` [rows, 3] are the loaded bytes, the fresh ones among them, and the stored bytes."""

    rank: np.ndarray
    source: np.ndarray
    elements: np.ndarray
    fresh: np.ndarray
    first_run: np.ndarray
    end_run: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    bytes: np.ndarray


def table_of(found: Footprint, ranks: np.ndarray, end: int) -> LaunchTable:
    """The table of the programs whose `ranks` (by number of the program; int64) lie below `end`."""
    log = found.log
    assert isinstance(log, OrderedAccessLog)
    columns: list[list[np.ndarray]] = [[], [], [], []]
    followed = np.zeros(len(ranks), bool)
    followed[log.programs] = True
    for number, (_, array, runs) in enumerate(log.ordered):
        here = runs.scaled(0, array.size)
        keep = followed[here.programs] & (ranks[here.programs] < end)
        rank = ranks[here.programs[keep]]
        row = (rank, np.full(len(rank), number), here.starts[keep], here.ends[keep])
        for column, values in zip(columns, row, strict=True):
            column.append(values)
    rank, source, starts, ends = (np.concatenate(c) if c else np.empty(0, np.int64) for c in columns)
    order = np.lexsort((starts, source, rank))
    rank, source, starts, ends = (c[order] for c in (rank, source, starts, ends))
    new = np.ones(len(rank), bool)
    new[1:] = (rank[1:] != rank[:-1]) | (source[1:] != source[:-1])
    first = np.flatnonzero(new)
    last = np.r_[first[1:], len(rank)]
    clipped = _clipped(log, source, starts, ends)
    elements = np.add.reduceat(clipped[1] - clipped[0], first) if len(first) else np.empty(0, np.int64)
    nothing = np.zeros(len(first), np.int64)
    table = LaunchTable(
        rank[first], source[first], elements, nothing, first, last, starts, ends, np.zeros((len(first), 3), np.int64)
    )
    _count_fresh(log, table, clipped)
    size = np.array([array.size for _, array, _ in log.ordered], np.int64)[table.source]
    is_load = np.array([op.name == "load" for op, _, _ in log.ordered], bool)[table.source]
    table.bytes[:, 0] = np.where(is_load, elements * size, 0)
    table.bytes[:, 1] = table.fresh * size
    table.bytes[:, 2] = np.where(is_load, 0, elements * size)
    return table


def _clipped(log: OrderedAccessLog, source: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple:
    """The runs without parts outside of their arrays, as the footprint counts them."""
    extents = np.array([array.extent for _, array, _ in log.ordered], np.int64)
    most = extents[source] if len(source) else starts
    return np.clip(starts, 0, most), np.clip(ends, 0, most)


def _count_fresh(log: OrderedAccessLog, table: LaunchTable, clipped: tuple) -> None:
    """Counts the elements that each load loads first. The last assignment to an element wins, so the executions go backwards."""
    parameter = np.array([array.parameter for _, array, _ in log.ordered], np.int64)
    is_load = np.array([op.name == "load" for op, _, _ in log.ordered], bool)
    begin, end = clipped
    for array in log.launch.arrays:
        rows = np.flatnonzero((parameter[table.source] == array.parameter) & is_load[table.source])
        if not len(rows):
            continue
        owner = np.full(array.extent, -1, np.int32)
        gone = np.zeros(array.extent, bool) if array.gaps is None else array.gaps
        sizes = np.cumsum(table.elements[rows[::-1]])
        for part in np.split(rows[::-1], np.searchsorted(sizes, np.arange(CHUNK, int(sizes[-1]), CHUNK))):
            runs = [np.arange(table.first_run[r], table.end_run[r]) for r in part.tolist()]
            if not runs:
                continue
            chosen = np.concatenate(runs)
            who = np.repeat(part, [len(r) for r in runs])
            owner[expanded(begin[chosen], end[chosen])] = np.repeat(who, end[chosen] - begin[chosen])
        owner[gone] = -1
        table.fresh += np.bincount(owner[owner >= 0], minlength=len(table.fresh))


def launch_part(
    found: Footprint,
    order: Sequence[int] | None,
    machine: LaunchMachine | None,
    file: str,
    first: int = 0,
    most: int = MOST_STEPS,
) -> dict[str, Any]:
    """The part for the steps of the programs from number `first` of the launch order on.

    `order` has the numbers of the programs in launch order; None: the order of the grid. At most `most` steps.
    """
    log, total = found.log, found.log.launch.programs
    assert isinstance(log, OrderedAccessLog)
    ranks = np.arange(total)
    if order is not None:
        ranks = np.full(total, total, np.int64)
        ranks[np.asarray(order, np.int64)] = np.arange(len(order))
    last = min(total, first + most)
    table = table_of(found, ranks, last)
    pictures = [ArrayPicture.of(array) for array in log.launch.arrays]
    writer = _StepWriter(log, table, pictures)
    begin = int(np.searchsorted(table.rank, first))
    steps = writer.steps(begin, most)
    numbers = np.empty(last, np.int64)
    inside = np.flatnonzero(ranks < last)
    numbers[ranks[inside]] = inside
    for step in steps:
        step[0] = [step[0], int(numbers[step[0]])]
    return {
        "grid": list(found.grid),
        "programs": total,
        "first": first,
        "ordered": order is not None,
        "arrays": [_array(picture) for picture in pictures],
        "ops": writer.ops(file),
        "loops": writer.loops(file),
        "rects": writer.rects,
        "steps": steps,
        "before": table.bytes[:begin].sum(axis=0).tolist(),
        "totals": totals(found),
        "machine": None if machine is None else machine.part,
        "cut": writer.cut or last < total,
        "scope": found.scope,
    }


def totals(found: Footprint) -> list[int]:
    """The bytes that the whole launch loads, those of them that it loads first, and the bytes that it stores or updates."""
    loaded = [int(a.loads.count.sum()) * a.array.size for a in found.arrays.values()]
    fresh = [a.loads.elements * a.array.size for a in found.arrays.values()]
    stored = [int(m.count.sum()) * a.array.size for a in found.arrays.values() for m in (a.stores, a.atomics)]
    return [sum(loaded), sum(fresh), sum(stored)]


def _array(picture: ArrayPicture) -> dict[str, Any]:
    array = picture.array
    return {
        "name": array.name,
        "dtype": array.dtype,
        "bytes": array.size,
        "shape": list(array.shape),
        "rows": picture.rows,
        "columns": picture.columns,
        "wrapped": picture.wrapped,
    }


class _StepWriter:
    """Writes steps. `rects` has each list of rectangles once."""

    def __init__(self, log: OrderedAccessLog, table: LaunchTable, pictures: Sequence[ArrayPicture]):
        self.log, self.table = log, table
        self.pictures = {picture.array.parameter: (i, picture) for i, picture in enumerate(pictures)}
        self.rects: list[list[int]] = []
        self.known: dict[tuple[int, bytes], int] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        self.cut = False
        self.places = {op.id: place for place, op in enumerate(log.launch.func.ops())}
        self.paths = dict(_loop_paths(log.launch.func.body, ()))

    def ops(self, file: str) -> list[list[Any]]:
        """The ops of the steps: array, kind ("load", "store", "atomic"), and line."""
        names = {op.id: op for op, _, _ in self.log.ordered}
        return [
            [self.pictures[parameter][0], _kind(names[op].name), line_of(names[op].loc, file) or 0]
            for op, parameter in self.numbers
        ]

    def loops(self, file: str) -> list[list[int]]:
        """For each op of the steps, the lines of the loops around it, outermost first."""
        return [[line_of(loop.loc, file) or 0 for loop in self.paths[op]] for op, _ in self.numbers]

    def steps(self, begin: int, most: int) -> list[list[Any]]:
        """Steps from a row of the table on, each [rank, iteration, [loaded, first, stored] bytes, [[op, rectangles], ...]]."""
        found: list[list[Any]] = []
        rank, last = -1, -1
        path: tuple[Op, ...] = ()
        for row in range(begin, len(self.table.rank)):
            op = self.log.ordered[int(self.table.source[row])][0].id
            again = self.places[op] <= last or not _nested(self.paths[op], path)
            if int(self.table.rank[row]) != rank or again:
                if len(found) == most:
                    self.cut = True
                    break
                number = 0 if int(self.table.rank[row]) != rank else found[-1][1] + 1
                rank, path = int(self.table.rank[row]), ()
                found.append([rank, number, [0, 0, 0], []])
            last, path = self.places[op], max(path, self.paths[op], key=len)
            found[-1][3].append(self._event(row))
            found[-1][2] = [a + b for a, b in zip(found[-1][2], self.table.bytes[row].tolist(), strict=True)]
        return found

    def _event(self, row: int) -> list[int]:
        op, array, _ = self.log.ordered[int(self.table.source[row])]
        number = self.numbers.setdefault((op.id, array.parameter), len(self.numbers))
        chosen = slice(int(self.table.first_run[row]), int(self.table.end_run[row]))
        starts, ends = self.table.starts[chosen], self.table.ends[chosen]
        key = (array.parameter, starts.tobytes() + ends.tobytes())
        if key not in self.known:
            self.known[key] = len(self.rects)
            self.rects.append(list(self._rectangles(array.parameter, starts, ends)))
        return [number, self.known[key]]

    def _rectangles(self, parameter: int, starts: np.ndarray, ends: np.ndarray) -> Iterator[int]:
        """A list of rectangles, flat; one of more than MOST_RECTANGLES becomes its bounding box, which a leading -1 marks."""
        picture = self.pictures[parameter][1]
        if not picture.drawable:
            return
        found = picture.rectangles(*picture.elements(starts, ends))
        if len(found) > MOST_RECTANGLES:
            yield -1
            tops, bottoms, lefts, rights = zip(*found, strict=True)
            found = [(min(tops), max(bottoms), min(lefts), max(rights))]
        for rectangle in found:
            yield from rectangle


def _loop_paths(block: Block, around: tuple[Op, ...]) -> Iterator[tuple[int, tuple[Op, ...]]]:
    """The id of each op with the loops around it."""
    for op in block.ops:
        yield op.id, around
        inside = (*around, op) if op.name in ("for", "while") else around
        for inner in op.blocks:
            yield from _loop_paths(inner, inside)


def _nested(one: tuple[Op, ...], other: tuple[Op, ...]) -> bool:
    """Whether one of two paths of loops begins with the other."""
    return all(a is b for a, b in zip(one, other, strict=False))


def _kind(name: str) -> str:
    return name if name in ("load", "store") else "atomic"
