"""Runs programs of a launch on copies of its arrays, in the interpreter of tile IR, and records their accesses.

`record` makes the access log of a launch in which data decide what is accessed. `ProgramReplay` runs single programs, so that a race can be
told from two programs that store the same values. The arrays of the caller do not change, and the kernel prints nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.access_log import AccessLog, Budget, BudgetExceeded
from blocknb.footprint.launch import MemoryLaunch
from blocknb.footprint.runs import Runs
from blocknb.ir.address import AddressSpace, ForeignAccess
from blocknb.ir.core import Block, Op, Value
from blocknb.ir.interp import waits
from blocknb.ir.interp_tile import Machine
from blocknb.language import semantics
from blocknb.language.ops import ACCESSES
from blocknb.language.types import Pointer


class ProgramReplay:
    """Copies of the arrays of a launch, on which programs run. `copies` holds the bytes of each region; `lane_conflicts` the ops in which
    two lanes stored different values to one element, with the program."""

    def __init__(self, launch: MemoryLaunch, deadline: float = math.inf):
        self.launch, self.deadline = launch, deadline
        self.space = _RecordingSpace()
        self.copies: list[np.ndarray] = []
        self.values: dict[Value, Any] = {}
        names = [hint.name for hint in launch.func.hints] or [p.name for p in launch.func.params]
        pointers: dict[int, Any] = {}
        for region in launch.regions:
            whole = np.zeros(region.high - region.low, np.uint8)
            for array in region.arrays:
                whole[array.low - region.low : array.high - region.low] = launch.contents(array, array.low, array.high)
            self.copies.append(whole)
            for array in region.arrays:
                view = whole[array.low - region.low : array.high - region.low]
                start = self.space.add(array.name, view, array.low) + array.address - array.low
                self.space.parameters.append(array.parameter)
                pointers[array.parameter] = self.space.pointer(start)
        numbers = {array.parameter: i for i, array in enumerate(a for r in launch.regions for a in r.arrays)}
        self.space.of_argument = [numbers.get(i, 0) for i in range(len(names))]
        for i, (param, name) in enumerate(zip(launch.func.params, names, strict=True)):
            if isinstance(param.type.dtype, Pointer):
                self.values[param] = pointers[i]
            else:
                self.values[param] = semantics.constant(launch.scalars[name], param.type.dtype)

    @property
    def lane_conflicts(self) -> list[tuple[Op, int]]:
        return self.space.lane_conflicts

    def run(self, program: int, keep: Any = None, watch: Any = None) -> None:
        """Runs one program. `keep(op, array's parameter, byte offsets)` receives its accesses, `watch(op, operands, results)` the values of
        its ops. Raises KernelError and BudgetExceeded."""
        self.space.keep_access, self.space.program = keep, program
        machine = _Bounded(self.launch.func, self.space, self.launch.grid, self.launch.program_ids(program))
        machine.deadline, machine.watch = self.deadline, watch
        with np.errstate(all="ignore"), closing(machine.execute(self.launch.func.body, dict(self.values))) as walk:
            for _ in walk:
                pass


class _Bounded(Machine):
    """A program that stops at the deadline."""

    deadline = math.inf
    watch: Any = None
    combining = False

    def combine(self, block: Block, values: list[np.ndarray]) -> list[np.ndarray]:
        before, self.combining = self.combining, True
        try:
            return super().combine(block, values)
        finally:
            self.combining = before

    def step(self, op: Op, args: list[Any]) -> tuple[Any, ...]:
        if time.monotonic() > self.deadline:
            raise BudgetExceeded
        results = super().step(op, args)
        if self.watch is not None and not self.combining:
            self.watch(op, args, results)
        return results


class _RecordingSpace(AddressSpace):
    """An address space that reports each access with its op. `parameters` has the parameter of each array."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[int] = []
        self.keep_access: Any = None
        self.program = 0
        self.lane_conflicts: list[tuple[Op, int]] = []

    def _locate(
        self, op: Op, program: tuple[int, ...], addresses: np.ndarray, on: np.ndarray, size: int
    ) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        if self.keep_access is not None:
            self.keep_access(op, None, None)
        for chosen, number, offsets in super()._locate(op, program, addresses, on, size):
            if self.keep_access is not None:
                self.keep_access(op, self.parameters[number], offsets)
            yield chosen, number, offsets

    def store(self, op: Op, program: tuple[int, ...], addresses: np.ndarray, values: np.ndarray, mask: Any) -> None:
        super().store(op, program, addresses, values, mask)
        data = np.ascontiguousarray(values)
        keep, self.keep_access = self.keep_access, None
        left = self.load(op, program, addresses, data.dtype, mask, data)
        self.keep_access = keep
        if left.tobytes() != np.broadcast_to(data, left.shape).tobytes():
            self.lane_conflicts.append((op, self.program))


def record(launch: MemoryLaunch, budget: Budget, why: str, kind: type[AccessLog] = AccessLog) -> AccessLog:
    """The access log of a launch by a run of its programs in order. If the budget is too small, only a part of the programs runs. `why`
    completes the sentence "the launch was run, because ..."."""
    log = kind(launch, "recorded", why=why)
    replay = ProgramReplay(launch, budget.deadline())
    done: list[int] = []
    for program in _order(launch):
        keeper = _Keeper(log, program)
        try:
            replay.run(program, keeper)
        except BudgetExceeded:
            keeper.forget()
            break
        except ForeignAccess as error:
            log.foreign = error
            keeper.forget()
            break
        except KernelError as error:
            log.unknown.append(f"program {launch.spelled(program)} fails: {error.message}")
            if len(log.unknown) > 3:
                break
        done.append(program)
        if log.runs > budget.runs or time.monotonic() > replay.deadline:
            break
    log.programs = np.array(sorted(done), np.int64)
    return log


def _order(launch: MemoryLaunch) -> Iterable[int]:
    """Programs in order, because one may wait for lower ones; else a few from the end first."""
    n = launch.programs
    if n < 8 or waits(launch.func.body):
        return range(n)
    return [*range(4), *range(n - 4, n), *range(4, n - 4)]


class _Keeper:
    """Adds the accesses of one program to an access log."""

    def __init__(self, log: AccessLog, program: int):
        self.log, self.program = log, program
        self.seen: dict[int, int] = {}
        self.found: set[tuple[int, int]] = set()

    def __call__(self, op: Op, parameter: int | None, offsets: np.ndarray | None) -> None:
        if op.name not in ACCESSES:
            return
        if parameter is None or offsets is None:  # the access begins
            self.seen[op.id] = self.seen.get(op.id, -1) + 1
            self.log.executed[self.program] += 1
            return
        if not len(offsets):
            return
        array = self.log.launch.by_parameter[parameter]
        self.log.active[self.program] += 1
        distinct = np.unique(offsets)
        cuts = np.flatnonzero(np.diff(distinct) != array.size)
        starts, ends = distinct[np.r_[0, cuts + 1]], distinct[np.r_[cuts, len(distinct) - 1]] + array.size
        same = np.full(len(starts), self.program, np.int64)
        iterations = np.full(len(starts), self.seen[op.id], np.int64)
        repeated = same[:1] if len(distinct) < len(offsets) else same[:0]
        self.log.add(op, array, Runs(starts, ends, same, iterations, repeated), len(offsets))
        self.found.add((op.id, parameter))

    def forget(self) -> None:
        """Removes the accesses of a program that did not end."""
        for key in self.found:
            accesses = self.log.accesses[key]
            accesses.parts = [p for p in accesses.parts if p.programs[0] != self.program]
        self.log.executed[self.program] = self.log.active[self.program] = 0
