"""Races: two programs access one element, one of them stores, and nothing orders them.

Programs run in any order and at the same time. Atomics order them. Take an access before a releasing atomic of one program, and an access
after an acquiring atomic of another one. The first comes before the second if the second atomic reads what the first one wrote. This is
known only at run time, so two accesses that atomics might order are no race here. Two programs that store equal values to an element are
benign. Both are run on copies, and their values compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.access_log import AccessLog, BudgetExceeded, OpAccesses
from blocknb.footprint.launch import MemoryRegion
from blocknb.footprint.recorded import ProgramReplay
from blocknb.footprint.runs import ElementOwners, Runs, disjoint, joined
from blocknb.ir.core import Block, Op
from blocknb.language.ops import ATOMICS, LOOPS

MOST_BYTES = 1 << 28  # of the arrays that are copied to compare stored values
SECONDS = 2.0  # of the programs whose values are compared
PAIRS = 3  # pairs of programs that are compared

Flags = tuple[bool, bool]


@dataclass(frozen=True)
class ProgramRace:
    """Two programs access the unit `place` of a region: `first` stores, `second` is the access of the other program. `count` is the
    number of such units. `same` tells whether their values are equal; None if unknown."""

    region: MemoryRegion
    place: int
    count: int
    first: OpAccesses
    first_program: int
    second: OpAccesses
    second_program: int
    same: bool | None


def ordering(log: AccessLog) -> dict[int, Flags]:
    """For each access, by op id, whether the program may have acquired before it, and whether it may release after it. A volatile access
    does both. An atomic releases itself if the program uses its result: what depends on a ticket comes after the other tickets."""
    places: list[tuple[Op, tuple[Op, ...]]] = []

    def visit(block: Block, loops: tuple[Op, ...]) -> None:
        for op in block.ops:
            places.append((op, loops))
            for inner in op.blocks:
                visit(inner, (*loops, op) if op.name in LOOPS else loops)

    visit(log.launch.func.body, ())
    syncs = [(i, op, loops) for i, (op, loops) in enumerate(places) if op.name in ATOMICS or op.attrs.get("volatile")]
    used = {value for op, _ in places for value in op.args}
    found = {}
    for i, (op, loops) in enumerate(places):
        before = after = bool(op.attrs.get("volatile"))
        for j, sync, around in syncs:
            sem = sync.attrs.get("sem") or "acq_rel"
            together = any(loop in around for loop in loops)
            before |= (j < i or together) and sem in ("acquire", "acq_rel")
            is_ticket = j == i and not used.isdisjoint(op.results)
            after |= (j > i or together or is_ticket) and sem in ("release", "acq_rel")
        found[op.id] = (before, after)
    return found


def races(log: AccessLog) -> Iterator[ProgramRace]:
    """At most one race per region and pair of kinds of accesses, in the order of the regions."""
    flags = ordering(log)
    for region in log.launch.regions:
        groups: dict[tuple[str, Flags], list[OpAccesses]] = {}
        for access in log.accesses.values():
            if access.array in region.arrays:
                groups.setdefault((access.kind, flags[access.op.id]), []).append(access)
        if not any(kind == "store" for kind, _ in groups):
            yield from _of_loads_and_atomics(log, region, groups)
            continue
        if all(kind == "store" for kind, _ in groups) and disjoint(
            joined(_units(region, access) for accesses in groups.values() for access in accesses)
        ):
            continue
        painted = {key: _painted(region, accesses) for key, accesses in groups.items()}
        reported: set[tuple[str, str]] = set()
        for a, b in combinations_with_replacement(sorted(groups, key=lambda key: (key[0] != "store", key)), 2):
            kinds = (a[0], b[0])
            if kinds in reported or a[0] != "store" or _may_be_ordered(a[1], b[1]):
                continue
            found = _race(log, region, groups[a], painted[a], groups[b], painted[b])
            if found is not None:
                reported.add(kinds)
                yield found


def _of_loads_and_atomics(
    log: AccessLog, region: MemoryRegion, groups: dict[tuple[str, Flags], list[OpAccesses]]
) -> Iterator[ProgramRace]:
    """A plain load of what another program updates atomically."""
    for a in [key for key in groups if key[0] == "atomic"]:
        for b in [key for key in groups if key[0] == "load"]:
            if not _may_be_ordered(a[1], b[1]):
                found = _race(
                    log, region, groups[a], _painted(region, groups[a]), groups[b], _painted(region, groups[b])
                )
                if found is not None:
                    yield found
                    return


def _may_be_ordered(a: Flags, b: Flags) -> bool:
    (a_before, a_after), (b_before, b_after) = a, b
    return (a_after and b_before) or (a_before and b_after)


def _units(region: MemoryRegion, access: OpAccesses) -> Runs:
    runs = access.runs
    start, size = access.array.low - region.low, access.array.size
    return Runs(
        (runs.starts * size + start) // region.unit,
        (runs.ends * size + start) // region.unit,
        runs.programs,
        runs.iterations,
    )


def _painted(region: MemoryRegion, accesses: list[OpAccesses]) -> ElementOwners:
    owners = ElementOwners(region.extent)
    for access in accesses:
        owners.paint(_units(region, access))
    return owners


def _race(
    log: AccessLog,
    region: MemoryRegion,
    stores: list[OpAccesses],
    mine: ElementOwners,
    others: list[OpAccesses],
    theirs: ElementOwners,
) -> ProgramRace | None:
    """A race between stores and other accesses of a region, or None."""
    if stores is others:
        bad = mine.first != mine.last
    else:
        alone = (mine.first == mine.last) & (theirs.first == theirs.last) & (mine.first == theirs.first)
        bad = (mine.first >= 0) & (theirs.first >= 0) & ~alone
    places = np.flatnonzero(bad)
    if not len(places):
        return None
    pairs: dict[tuple[int, int], int] = {}
    for place in places[np.linspace(0, len(places) - 1, 64).astype(np.int64)].tolist():
        p, q = int(mine.first[place]), int(theirs.last[place])
        if p == q:
            p, q = (int(mine.last[place]), q) if mine.last[place] != q else (p, int(theirs.first[place]))
        pairs.setdefault((p, q), place)
    kind, first = others[0].kind, None
    comparer = _Comparer(log, region)
    same: bool | None = True
    for (p, q), place in list(pairs.items())[:PAIRS]:
        equal, where = (
            (None, place) if kind == "atomic" or stores[0].kind == "atomic" else comparer(stores, p, others, q, place)
        )
        first = first or (p, q, where)
        if equal is not True:
            same, first = equal, (p, q, where)
            if equal is False:
                break
    assert first is not None
    p, q, place = first
    return ProgramRace(
        region, place, len(places), _holder(region, stores, p, place), p, _holder(region, others, q, place), q, same
    )


def _holder(region: MemoryRegion, accesses: list[OpAccesses], program: int, place: int) -> OpAccesses:
    """The access by which a program touches a place."""
    for access in accesses:
        runs = _units(region, access)
        if ((runs.programs == program) & (runs.starts <= place) & (place < runs.ends)).any():
            return access
    return accesses[0]


class _Comparer:
    """Compares what programs store, by runs of single programs on copies."""

    def __init__(self, log: AccessLog, region: MemoryRegion):
        self.launch, self.region = log.launch, region
        self.index = log.launch.regions.index(region)
        self.after: dict[int, np.ndarray | None] = {}
        self.deadline = time.monotonic() + SECONDS

    def __call__(
        self, stores: list[OpAccesses], p: int, others: list[OpAccesses], q: int, place: int
    ) -> tuple[bool | None, int]:
        """Whether the stores of program p leave the same bytes as those of q, or, if `others` are loads, as before; None if unknown. And
        a place at which they differ."""
        mine = self.left(p)
        theirs = self.left(q) if others[0].kind == "store" else self.left(-1)
        if mine is None or theirs is None:
            return None, place
        both = _touched(self.region, stores, p) & _touched(self.region, others, q)
        unit, size = self.region.unit, self.region.extent
        differ = (mine.reshape(size, unit) != theirs.reshape(size, unit)).any(1) & both
        where = np.flatnonzero(differ)
        return (False, int(where[0])) if len(where) else (True, place)

    def left(self, program: int) -> np.ndarray | None:
        """The bytes of the region after one program, or before any if it is -1; None if the program fails or takes too long."""
        if program not in self.after:
            self.after[program] = self._run(program)
        return self.after[program]

    def _run(self, program: int) -> np.ndarray | None:
        if sum(r.high - r.low for r in self.launch.regions) > MOST_BYTES:
            return None
        replay = ProgramReplay(self.launch, self.deadline)
        try:
            if program >= 0:
                replay.run(program)
        except (KernelError, BudgetExceeded):
            return None
        copy = replay.copies[self.index]
        padded: np.ndarray = np.r_[copy, np.zeros(-len(copy) % self.region.unit, np.uint8)]
        return padded


def _touched(region: MemoryRegion, accesses: list[OpAccesses], program: int) -> np.ndarray:
    """bool per unit of the region: whether a program accesses it."""
    found = np.zeros(region.extent, bool)
    for access in accesses:
        runs = _units(region, access)
        for at in np.flatnonzero(runs.programs == program).tolist():
            found[max(0, runs.starts[at]) : max(0, runs.ends[at])] = True
    return found


def lane_conflict(log: AccessLog, access: OpAccesses) -> tuple[int, bool | None] | None:
    """A program in which two lanes of a store take one element, and whether they store different values (None: unknown); None if there is
    no such program."""
    programs = access.runs.repeated
    if not len(programs) or access.kind != "store":
        return None
    if sum(r.high - r.low for r in log.launch.regions) > MOST_BYTES:
        return int(programs[0]), None
    deadline = time.monotonic() + SECONDS / 2
    for program in programs[:PAIRS].tolist():
        replay = ProgramReplay(log.launch, deadline)
        try:
            replay.run(program)
        except (KernelError, BudgetExceeded):
            return program, None
        if any(op is access.op for op, _ in replay.lane_conflicts):
            return program, True
    return int(programs[0]), False
