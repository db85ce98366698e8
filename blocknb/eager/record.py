"""What an interpreted launch remembers: values that were assigned, with their lines, for the names or the program asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.ir.interp_tile import Program


@dataclass(frozen=True)
class Assigned:
    """One assignment: in which program, where (1-based line of the file or cell), to which name, and the value: an array of the tile's
    shape (0-d for a scalar), or the Python object itself."""

    program: Program
    function: str
    line: int
    name: str
    value: Any


@dataclass
class Run:
    """One interpreted launch. `programs` are those that ran, in order; `assigned` what was recorded.

    run = kernel.interpret((4,), record=(2, 0, 0))(x, out, BLOCK=64)
    run["acc"]                     # the values that `acc` took in program (2, 0, 0), in order, as (line, array)
    run.at(12)                     # what line 12 assigned, the last time: {"acc": array}

    run = kernel.interpret((4,), watch=["mask"])(x, out, BLOCK=64)
    run["mask", 3]                 # the same for one of many programs
    """

    kernel: Any
    grid: Program
    watch: frozenset[str] = frozenset()
    record: Program | None = None
    programs: list[Program] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)

    def __repr__(self) -> str:
        count = len(self.programs)
        names = ", ".join(dict.fromkeys(a.name for a in self.assigned))
        return (
            f"<interpreted {self.kernel.__name__}: {count} program{'s' * (count != 1)}{f'; {names}' if names else ''}>"
        )

    def wants(self, program: Program, name: str) -> bool:
        return name in self.watch or program == self.record

    def keep(self, program: Program, function: str, line: int, name: str, value: Any) -> None:
        self.assigned.append(Assigned(program, function, line, name, value))

    def of(self, name: str | None = None, program: Any = None) -> Iterator[Assigned]:
        """The assignments to a name (None: any) in a program (an int or up to three; None: any), in the order they happened."""
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
        """What the line assigned, by name; the last time if it ran repeatedly."""
        return {a.name: a.value for a in self.of(None, program) if a.line == line}


def program_id(program: int | Iterable[int]) -> Program:
    """A program's id with all three of its axes."""
    ids = (program,) if isinstance(program, int) else tuple(program)
    x, y, z = (*map(int, ids), 0, 0)[:3]
    return x, y, z
