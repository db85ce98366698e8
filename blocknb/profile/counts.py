"""Counts the work of a launch: floating-point operations from the IR, bytes from the arrays.

`dot_flops` walks the tile IR with the launch's scalars. It evaluates scalar arithmetic with the op table's meaning, but no tiles, so it
knows the iteration count of a loop whose bounds follow from arguments and program ids. It first counts a body with an unknown loop
index, and counts each index separately only if an inner bound needs it. Program ids are treated in the same way. If a bound
is loaded data, the result is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.ir.interp_tile import elementwise
from blocknb.language.ops import OPS, TERMINATORS
from blocknb.profile.addresses import program_at

Grid = tuple[int, int, int]
SAMPLE = 512  # programs looked at when they differ; the rest is taken to be like them
MOST_TRIPS = 4096  # of a loop whose iterations differ


@dataclass(frozen=True)
class Flops:
    """A number of operations; `exact` is False when it was scaled up from a sample of the programs."""

    number: int
    exact: bool = True


def dot_flops(func: Func, scalars: Mapping[str, Any], grid: Grid) -> Flops | None:
    """Operations in the dots of a launch: 2 M N K for each dot of M x K by K x N, over all programs and iterations.

    `scalars` are the run-time numbers by parameter name. None when a loop around a dot, or a branch, depends on loaded data.
    """
    programs = math.prod(grid)
    if not _has_dot(func.body) or not programs:
        return Flops(0)
    try:
        return Flops(_CountWalk(func, scalars, grid, None).total() * programs)
    except _Unknown:
        pass
    try:
        if programs <= SAMPLE:
            return Flops(sum(_CountWalk(func, scalars, grid, program_at(i, grid)).total() for i in range(programs)))
        picked = np.random.default_rng(0).choice(programs, SAMPLE, replace=False)
        found = sum(_CountWalk(func, scalars, grid, program_at(int(i), grid)).total() for i in picked)
        return Flops(found * programs // SAMPLE, exact=False)
    except _Unknown:
        return None


def argument_bytes(arguments: Mapping[str, Mapping[str, Any]], loaded: Iterable[str], stored: Iterable[str]) -> int:
    """Bytes of the arrays that a launch reads plus bytes of those it writes: each element counted once for each.

    `arguments` are the summaries of a Launch. An upper bound of the unique bytes moved: a kernel may leave parts untouched.
    """
    size = {name: int(summary.get("bytes", 0)) for name, summary in arguments.items()}
    return sum(size.get(name, 0) for name in loaded) + sum(size.get(name, 0) for name in stored)


class _Unknown(Exception):
    """An iteration count or a condition is unknown."""


def _has_dot(*blocks: Block) -> bool:
    return any(op.name == "dot" for block in blocks for op in walk(block))


class _CountWalk:
    """One program; `program` None stands for any. Values that are not in `env` are unknown."""

    def __init__(self, func: Func, scalars: Mapping[str, Any], grid: Grid, program: Grid | None):
        self.func, self.grid, self.program = func, grid, program
        self.env: dict[Value, np.ndarray] = {}
        for i, param in enumerate(func.params):
            name = func.hints[i].name if func.hints else param.name
            if not param.type.is_pointer and name in scalars:
                self.env[param] = np.asarray(scalars[name]).astype(param.type.dtype.numpy)

    def total(self) -> int:
        return self.count(self.func.body)

    def count(self, block: Block) -> int:
        return sum(self.op(op) for op in block.ops)

    def op(self, op: Op) -> int:
        match op.name:
            case "dot":
                inner = op.args[0].type.shape[0 if 0 in op.attrs.get("transposed", ()) else 1]
                return 2 * inner * op.results[0].type.size
            case "for":
                return self.loop(op)
            case "if":
                return self.branch(op)
            case "while":
                self.forget(op)
                if _has_dot(*op.blocks):
                    raise _Unknown
            case name if name in TERMINATORS:
                pass
            case _:
                self.scalar(op)
        return 0

    def scalar(self, op: Op) -> None:
        """Computes an op on scalars whose operands are known."""
        if len(op.results) != 1 or not op.results[0].type.is_scalar:
            return
        value: Any = None
        match op.name:
            case "const":
                value = np.asarray(op.attrs["value"]).astype(op.results[0].type.dtype.numpy)
            case "program_id" if self.program is not None:
                value = np.asarray(self.program[op.attrs["axis"]], np.int32)
            case "num_programs":
                value = np.asarray(self.grid[op.attrs["axis"]], np.int32)
            case name if OPS[name].kind == "elementwise" and OPS[name].numpy and all(a in self.env for a in op.args):
                value = elementwise(op, [self.env[a] for a in op.args])
        if value is None:
            self.env.pop(op.results[0], None)
        else:
            self.env[op.results[0]] = value

    def forget(self, op: Op) -> None:
        """The results and block arguments of an op become unknown."""
        for value in (*op.results, *(arg for block in op.blocks for arg in block.args)):
            self.env.pop(value, None)

    def loop(self, op: Op) -> int:
        self.forget(op)
        if not _has_dot(*op.blocks):
            return 0
        if any(bound not in self.env for bound in op.args[:3]):
            raise _Unknown
        trips = range(*(int(self.env[bound]) for bound in op.args[:3]))
        try:
            return self.count(op.blocks[0]) * len(trips) if trips else 0
        except _Unknown:
            if len(trips) > MOST_TRIPS:
                raise
        return self.each_trip(op, trips)

    def each_trip(self, op: Op, trips: range) -> int:
        (block,), carried = op.blocks, [self.env.get(value) for value in op.args[3:]]
        index, *rest = block.args
        found = 0
        for i in trips:
            self.assign((index, *rest), (np.asarray(i, index.type.dtype.numpy), *carried))
            found += self.count(block)
            carried = [self.env.get(value) for value in block.terminator.args]
        self.assign(op.results, carried)
        return found

    def branch(self, op: Op) -> int:
        condition = self.env.get(op.args[0])
        if condition is not None:
            block = op.blocks[0 if bool(condition) else 1]
            found = self.count(block)
            self.assign(op.results, [self.env.get(value) for value in block.terminator.args])
            return found
        self.forget(op)
        one, other = map(self.count, op.blocks)
        if one != other:
            raise _Unknown
        return one

    def assign(self, values: Iterable[Value], known: Iterable[Any]) -> None:
        for value, number in zip(values, known, strict=True):
            if number is None:
                self.env.pop(value, None)
            else:
                self.env[value] = number
