"""The access log of a launch: the runs of every load, store and atomic, by op and array, as `static` and `recorded` fill it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.launch import ArrayLayout, MemoryLaunch
from blocknb.footprint.runs import Runs, joined
from blocknb.ir.core import Op
from blocknb.language.ops import ATOMICS

KINDS = ("load", "store", "atomic")


class BudgetExceeded(Exception):
    """The footprint exceeds its budget."""


class NotStatic(Exception):
    """An address, a mask or a branch depends on data, so the launch must be recorded. The text says which."""


def kind_of(op: Op) -> str:
    """ "load", "store" or "atomic"."""
    return "atomic" if op.name in ATOMICS else op.name


@dataclass(frozen=True)
class Budget:
    """The limits of a footprint: the `seconds` that following programs may take, and the number of `runs` and `elements` kept."""

    seconds: float = 2.0
    runs: int = 20_000_000
    elements: int = 1 << 28

    def deadline(self) -> float:
        return time.monotonic() + self.seconds


@dataclass
class OpAccesses:
    """The accesses of one op to one array, in bytes from the array's lowest byte. `issued` counts lanes."""

    op: Op
    array: ArrayLayout
    parts: list[Runs] = field(default_factory=list)
    issued: int = 0

    @property
    def kind(self) -> str:
        return kind_of(self.op)

    @property
    def runs(self) -> Runs:
        """All runs, in elements of the array."""
        found = joined(self.parts)
        self.parts = [found]
        return found.scaled(0, self.array.size)


@dataclass
class AccessLog:
    """The accesses of the followed programs. `programs` are their numbers, ascending. For each program of the grid, `executed` counts the
    accesses that it reached, and `active` those with a lane that is on. `unknown` lists programs that failed. `foreign` is the first access
    to memory that no argument describes, which ends the log."""

    launch: MemoryLaunch
    how: str = "static"
    programs: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    accesses: dict[tuple[int, int], OpAccesses] = field(default_factory=dict)
    executed: np.ndarray = field(init=False)
    active: np.ndarray = field(init=False)
    unknown: list[str] = field(default_factory=list)
    foreign: KernelError | None = None
    why: str = ""
    runs: int = 0

    def __post_init__(self) -> None:
        self.executed = np.zeros(self.launch.programs, np.int64)
        self.active = np.zeros(self.launch.programs, np.int64)

    @property
    def sampled(self) -> bool:
        return len(self.programs) < self.launch.programs

    def add(self, op: Op, array: ArrayLayout, runs: Runs, issued: int) -> None:
        """Adds the runs of one access, in bytes from the lowest byte of the array."""
        key = (op.id, array.parameter)
        if key not in self.accesses:
            self.accesses[key] = OpAccesses(op, array)
        self.accesses[key].parts.append(runs)
        self.accesses[key].issued += issued
        self.runs += len(runs)
