"""The record of an interpreted launch: assigned values with their lines, for the requested names or program, and the memory accesses of
that program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.errors import Loc
from blocknb.ir.interp_tile import Program


@dataclass(frozen=True)
class Assigned:
    """One assignment: the program, the 1-based line of the file or cell, the name and the value.

    The value is an array of the tile's shape (0-d for a scalar), or the Python object itself. `type` is the type of a tile or scalar in
    the language, and None for a Python object. Pointers are addresses; `Run.addresses` has those of the arrays. `loc` is the place with
    its file and its chain of calls: an assignment in a helper has the place of the call as `loc.caller`.
    """

    program: Program
    function: str
    line: int
    name: str
    value: Any
    type: Any = None
    loc: Loc | None = None


@dataclass(frozen=True)
class Accessed:
    """One load, store or atomic (`op` is its name in the IR) of a recorded program, at a line of the kernel.

    `addresses` (int64) and `mask` (bool) have the shape of the tile; `values` are the loaded or stored elements. `after` is the number of
    assignments that were recorded before it. `loc` is the place with its chain of calls; `line` is that of the outermost call.
    """

    program: Program
    line: int
    op: str
    addresses: np.ndarray
    mask: np.ndarray
    values: np.ndarray
    after: int
    loc: Loc | None = None


class RecordFull(Exception):
    """Ends a run whose record has as many entries as it may have."""


@dataclass
class Run:
    """One interpreted launch. `programs` are the executed programs in order, and `assigned` the recorded assignments.

        run = kernel.interpret((4,), record=(2, 0, 0))(x, out, BLOCK=64)
        run["acc"]                     # the values that `acc` took in program (2, 0, 0), in order, as (line, array)
        run.at(12)                     # what line 12 assigned, the last time: {"acc": array}

        run = kernel.interpret((4,), watch=["mask"])(x, out, BLOCK=64)
        run["mask", 3]                 # the same for one of many programs

    A record also has the parameters of the helpers, once for each call.

    `accessed` has the memory accesses of the recorded program, and `addresses` the address of element 0 of each array. A record of more
    than `most` entries ends the run, and `cut` is then true. The kernel prints nothing if the run is `muted`.
    """

    kernel: Any
    grid: Program
    watch: frozenset[str] = frozenset()
    record: Program | None = None
    programs: list[Program] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    accessed: list[Accessed] = field(default_factory=list)
    addresses: dict[str, int] = field(default_factory=dict)
    most: int | None = None
    cut: bool = False
    muted: bool = False

    def __repr__(self) -> str:
        count = len(self.programs)
        names = ", ".join(dict.fromkeys(a.name for a in self.assigned))
        return (
            f"<interpreted {self.kernel.__name__}: {count} program{'s' * (count != 1)}{f'; {names}' if names else ''}>"
        )

    def wants(self, program: Program, name: str) -> bool:
        return name in self.watch or program == self.record

    def keep(self, program: Program, loc: Loc, name: str, value: Any, type: Any = None) -> None:
        """Records an assignment. Raises RecordFull."""
        self._demand_room()
        self.assigned.append(Assigned(program, loc.function, loc.line, name, value, type, loc))

    def keep_access(
        self, program: Program, loc: Loc | None, op: str, addresses: np.ndarray, mask: np.ndarray, values: np.ndarray
    ) -> None:
        """Records a memory access. Raises RecordFull."""
        self._demand_room()
        line = 0 if loc is None else loc.outermost.line
        self.accessed.append(Accessed(program, line, op, addresses, mask, values, len(self.assigned), loc))

    def _demand_room(self) -> None:
        if self.most is not None and len(self.assigned) + len(self.accessed) >= self.most:
            self.cut = True
            raise RecordFull(f"the record has {self.most} entries")

    def of(self, name: str | None = None, program: Any = None) -> Iterator[Assigned]:
        """The assignments to a name (None: any) in a program (one to three ints; None: any), in order of execution."""
        program = None if program is None else program_id(program)
        return (a for a in self.assigned if name in (None, a.name) and program in (None, a.program))

    def __getitem__(self, key: Any) -> list[tuple[int, np.ndarray]]:
        """`run[name]` or `run[name, program]`. Raises KeyError for a name that was not recorded."""
        name, *program = key if isinstance(key, tuple) else (key,)
        found = [(a.line, a.value) for a in self.of(name, *(program if len(program) <= 1 else [tuple(program)]))]
        if not found:
            known = (
                ", ".join(dict.fromkeys(a.name for a in self.assigned)) or "nothing: pass watch=[...] or record=program"
            )
            raise KeyError(f"`{name}` was not recorded; there is {known}")
        return found

    def at(self, line: int, program: Any = None) -> dict[str, Any]:
        """The values that the line assigned, by name. If it ran repeatedly, those of the last time."""
        return {a.name: a.value for a in self.of(None, program) if a.line == line}


def program_id(program: int | Iterable[int]) -> Program:
    """A program id with all three axes."""
    ids = (program,) if isinstance(program, int) else tuple(program)
    x, y, z = (*map(int, ids), 0, 0)[:3]
    return x, y, z
