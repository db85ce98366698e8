"""The footprint of a launch as a value: which program loads, stores and updates which element, and sentences about it.

An example, of a kernel that adds two arrays:

    found = add.footprint(98)(x, y, out, n, BLOCK=1024)
    print(found)                       # the sentences, the most severe one first
    found["out"].stores.owner          # int32, in the shape of `out`: the program that stores each element, -1: none, -2: several
    found["out"].stores.holes          # [(896, 1000)]: elements that no program stores
    found["out"].stores.of(3)          # the numbers of the elements that program 3 stores
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from blocknb.errors import Loc
from blocknb.footprint.access_log import AccessLog, OpAccesses
from blocknb.footprint.launch import ArrayLayout
from blocknb.footprint.runs import NEVER, SEVERAL, ElementOwners, joined, spans, uncovered

__all__ = ["NEVER", "SEVERAL", "AccessMap", "ArrayFootprint", "Footprint", "FootprintFinding"]
LEVELS = ("error", "warning", "remark")


@dataclass(frozen=True)
class FootprintFinding:
    """A sentence about a launch. `level`: "error" is certain and wrong, "warning" is probably wrong, and "remark" is often intended.
    `loc` is the line of the access, `other` the line of a second one, `kind` a short name ("race", "holes", ...)."""

    level: str
    kind: str
    text: str
    loc: Loc | None = None
    other: Loc | None = None
    hint: str = ""

    def __str__(self) -> str:
        lines = [self.text]
        for loc, before in ((self.loc, "at"), (self.other, "and at")):
            if loc is not None:
                lines.append(f"  {before} line {loc.outermost.line}" + (f" (in {loc.function})" if loc.caller else ""))
                lines += [excerpt] if (excerpt := loc.excerpt()) else []
        return "\n".join([*lines, *([f"  hint: {self.hint}"] if self.hint else [])])

    @property
    def short(self) -> str:
        """The sentence and its line, on one line."""
        where = sorted({loc.outermost.line for loc in (self.loc, self.other) if loc is not None})
        return self.text + (f" (line{'s' * (len(where) > 1)} {' and '.join(map(str, where))})" if where else "")


class AccessMap:
    """The accesses of one kind to one array: loads, stores or atomic updates. Arrays that it returns have the shape of the array."""

    def __init__(self, array: ArrayLayout, accesses: Sequence[OpAccesses]):
        self.array, self.accesses = array, tuple(accesses)

    @property
    def issued(self) -> int:
        """The number of elements that all programs access, each as often as it is accessed."""
        return sum(access.issued for access in self.accesses)

    @cached_property
    def owners(self) -> ElementOwners:
        """First and last program and count per place, from the lowest byte of the array on, gaps of a strided view included."""
        owners = ElementOwners(self.array.extent)
        for access in self.accesses:
            owners.paint(access.runs)
        return owners

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        chosen = values if self.array.dense else values[self.array.places]
        return chosen[: math.prod(self.array.shape)].reshape(self.array.shape)

    @property
    def owner(self) -> np.ndarray:
        """int32 per element: the number of the program that accesses it, -1 if none does, -2 if several do."""
        return self._shaped(self.owners.owner)

    @property
    def count(self) -> np.ndarray:
        """int64 per element: how often ops access it. Lanes of one op in one program that share an element count once."""
        return self._shaped(self.owners.count)

    def to_numpy(self) -> np.ndarray:
        """A structured array in the shape of the array. Its fields `first` and `last` (int32) are the lowest and the highest number of a
        program that accesses the element, or -1. `count` (int64) is the number of accesses."""
        table = np.empty(self.array.shape, [("first", np.int32), ("last", np.int32), ("count", np.int64)])
        for name in table.dtype.names or ():
            table[name] = self._shaped(getattr(self.owners, name))
        return table

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Intervals (start, stop) of element numbers, in row-major order, that no program accesses."""
        if self.array.dense:
            return uncovered(joined(a.runs for a in self.accesses), math.prod(self.array.shape))
        return spans((self.count == 0).reshape(-1))

    @property
    def elements(self) -> int:
        """The number of elements that some program accesses."""
        return int(np.count_nonzero(self.count))

    @property
    def programs(self) -> np.ndarray:
        """The numbers of the programs that access the array, ascending (int64)."""
        return np.unique(joined(a.runs for a in self.accesses).programs)

    def of(self, program: int, iteration: int | None = None) -> np.ndarray:
        """The element numbers (int64, ascending, in row-major order) that a program accesses. `iteration` selects one execution of each
        op, counted from 0. `program` is its number; axis 0 of the grid runs fastest."""
        found = []
        for access in self.accesses:
            runs = access.runs
            mine = runs.programs == program
            if iteration is not None:
                mine = mine & (runs.iterations == iteration)
            found += [np.arange(a, b) for a, b in zip(runs.starts[mine], runs.ends[mine], strict=True)]
        places = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        if self.array.dense:
            return places
        return np.flatnonzero(np.isin(self.array.places, places))

    def __bool__(self) -> bool:
        return any(len(access.runs) for access in self.accesses)

    def __repr__(self) -> str:
        return f"<{self.elements} of {math.prod(self.array.shape)} elements>"


@dataclass(frozen=True)
class ArrayFootprint:
    """The accesses of a launch to one array: `loads`, `stores` and `atomics` are AccessMaps. `shape` and `dtype` are those of the array."""

    array: ArrayLayout
    loads: AccessMap
    stores: AccessMap
    atomics: AccessMap

    @property
    def name(self) -> str:
        return self.array.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> str:
        return self.array.dtype

    def __repr__(self) -> str:
        return f"<`{self.name}`: loads {self.loads!r}, stores {self.stores!r}, atomics {self.atomics!r}>"


@dataclass(frozen=True)
class Footprint:
    """The memory accesses of a launch. `footprint["out"]` is the ArrayFootprint of an argument.

    `grid` has three sizes. `programs` are the numbers of the programs followed, int64: all, unless `sampled`. `how` is "static" if
    addresses and masks follow from the arguments, and "recorded" if the programs ran on copies, because data decide; `why` says which.
    `findings` are ranked: errors, warnings, remarks.
    """

    kernel: str
    log: AccessLog
    arrays: dict[str, ArrayFootprint]
    findings: tuple[FootprintFinding, ...]

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.log.launch.grid

    @property
    def programs(self) -> np.ndarray:
        return self.log.programs

    @property
    def sampled(self) -> bool:
        return self.log.sampled

    @property
    def how(self) -> str:
        return self.log.how

    @property
    def why(self) -> str:
        return self.log.why

    @property
    def errors(self) -> tuple[FootprintFinding, ...]:
        """The findings that are certain and wrong."""
        return tuple(f for f in self.findings if f.level == "error")

    @property
    def problems(self) -> tuple[FootprintFinding, ...]:
        """The errors and the warnings."""
        return tuple(f for f in self.findings if f.level != "remark")

    def __getitem__(self, name: str) -> ArrayFootprint:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    @property
    def scope(self) -> str:
        """One sentence: how many programs were followed, and how."""
        total, followed = self.log.launch.programs, len(self.programs)
        count = f"{followed} of {total} programs (a sample)" if self.sampled else f"{total} program{'s' * (total != 1)}"
        if not followed:
            return f"footprint of no program: {self.why or self.log.foreign}"
        how = "from the arguments" if self.how == "static" else f"by a run on copies, because {self.why}"
        return f"footprint of {count}, {how}"

    def __str__(self) -> str:
        said = [f"{finding.level}: {finding}" for finding in self.findings]
        return "\n".join([f"{self.kernel}: {self.scope}", *(said or ["no finding"])])

    def __repr__(self) -> str:
        return str(self)


def arrays_of(log: AccessLog) -> dict[str, ArrayFootprint]:
    """The arrays of an access log by name."""
    found = {}
    for array in log.launch.arrays:
        mine = [a for a in log.accesses.values() if a.array is array]
        maps = [AccessMap(array, [a for a in mine if a.kind == kind]) for kind in ("load", "store", "atomic")]
        found[array.name] = ArrayFootprint(array, *maps)
    return found
