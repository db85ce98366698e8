"""Address traces: the address and mask of every load, store and atomic of a program, computed without memory.

`Addresses.of` gives the accesses of one program in one iteration of its loops, and `origins` the first address of many programs. Every
pointer parameter gets its own address window, so an address identifies its array. An address that depends on loaded data is unknown.
`analysis.partial_evaluation` computes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.analysis.partial_evaluation.evaluator import (
    BOXES,
    WINDOW_BITS,
    AccessedTile,
    Batch,
    Observer,
    PartialEvaluator,
    Policy,
    box_operands,
    window,
)
from blocknb.analysis.partial_evaluation.factored_tiles import whole
from blocknb.analysis.partial_evaluation.values import access_operands
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.language.ops import ACCESSES
from blocknb.passes.support import program_order

Program = tuple[int, int, int]
LARGEST = 1 << 22  # elements of a tile of all programs of a batch


@dataclass(frozen=True)
class TracedAccess:
    """The bytes that one op accesses in one program.

    `array`: the parameter that the pointers come from. `offsets`: bytes from its start, int64 in the tile's shape; None when they are
    unknown, and `why` gives the reason. `on`: the mask. `guessed`: the mask depends on data and is assumed to be on. `iterations`: those
    of the innermost loop around the op; 1 outside of loops, None when unknown."""

    op: Op
    array: str
    offsets: np.ndarray | None
    on: np.ndarray
    iterations: int | None = 1
    guessed: bool = False
    why: str = ""


def is_bulk(op: Op) -> bool:
    """Whether the copy engine moves a box between an array and shared memory."""
    return op.name in BOXES


def is_access(op: Op) -> bool:
    """Whether the op accesses arrays of the user."""
    return op.name in ACCESSES


def program_at(number: int, grid: Program, width: int | None = None) -> Program:
    """Returns the program ids of a CTA number. The first axis of the grid varies fastest, in groups of `width` columns if given (see the
    pass `program_swizzle`)."""
    if width is None:
        return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
    z, number = divmod(number, grid[0] * grid[1])
    return (*program_order.place_of(number, grid[0], grid[1], width), z)


class Addresses:
    """The accesses of a Func. `scalars`: the run-time numbers by parameter name; `grid`: the grid of the launch."""

    def __init__(self, func: Func, scalars: Mapping[str, Any], grid: Program):
        self.func, self.grid = func, grid
        self.evaluator = PartialEvaluator(func, scalars, grid, Policy("assume", 0), self._operands)
        self.maps, self.names = self.evaluator.maps, self.evaluator.names

    def _operands(self, op: Op) -> Iterable[Value]:
        if is_bulk(op):
            parts = box_operands(op)
            return (parts.map, *parts.start)
        return access_operands(op) if is_access(op) else ()

    def of(self, program: Program, iteration: int = 0) -> dict[int, TracedAccess]:
        """Returns the accesses of one program by op id, without the ops that it does not reach. In a loop they are those of iteration
        `iteration`, or of the last one if the loop is shorter."""
        found = _Recorder(self.evaluator)
        self._follow([program], iteration, found)
        return {number: self._access(*access) for number, access in found.accesses.items()}

    def origins(self, op: int, programs: Sequence[Program]) -> list[int | None]:
        """Returns per program the byte offset of the first element that the op accesses, in the first iteration of a loop. It is None
        where the offset is unknown or the program does not reach the op."""
        found = _TileOrigins(self.evaluator, op)
        most = max((getattr(value.type, "size", 1) for value in self.evaluator.needed), default=1)
        step = max(1, LARGEST // most)
        for at in range(0, len(programs), step):
            self._follow(programs[at : at + step], 0, found)
        return [found.offsets.get(tuple(program)) for program in programs]

    def _follow(self, programs: Sequence[Program], iteration: int, observer: Observer) -> None:
        x, y, _ = self.grid
        ids = np.asarray(programs, np.int64).reshape(-1, 3)
        self.evaluator.policy = Policy("assume", iteration)
        self.evaluator.follow(ids[:, 0] + x * (ids[:, 1] + y * ids[:, 2]), observer)

    def _access(self, op: Op, tile: AccessedTile, iterations: int | None) -> TracedAccess:
        guessed = not is_bulk(op) and tile.mask is not None and not isinstance(tile.mask, tuple)
        mask = whole(tile.mask)[0] if isinstance(tile.mask, tuple) else np.ones((), bool)
        on = np.broadcast_to(mask, tile.shape)
        if not isinstance(tile.address, tuple):
            return TracedAccess(op, "", None, on, iterations, guessed, "the addresses depend on loaded data")
        addresses = np.broadcast_to(whole(tile.address)[0], tile.shape)
        numbers = np.unique((addresses[on] if on.any() else addresses) >> WINDOW_BITS) - 1
        if len(numbers) != 1 or not 0 <= numbers[0] < len(self.names):
            return TracedAccess(op, "", None, on, iterations, guessed, "the addresses lead to more than one array")
        number = int(numbers[0])
        return TracedAccess(op, self.names[number], addresses - window(number), on, iterations, guessed)


class _Recorder(Observer):
    """The accesses of one program, by op id."""

    def __init__(self, evaluator: PartialEvaluator):
        self.evaluator = evaluator
        self.accesses: dict[int, tuple[Op, AccessedTile, int | None]] = {}

    def event(self, op: Op, batch: Batch) -> None:
        if is_access(op) or is_bulk(op):
            self.accesses[op.id] = (op, self.evaluator.accessed(op, batch), batch.iterations)

    def iteration(self, block: Block) -> None:
        """Forgets the accesses of the previous iteration."""
        for op in walk(block):
            self.accesses.pop(op.id, None)


class _TileOrigins(Observer):
    """The offset of the first element of one op, by program."""

    def __init__(self, evaluator: PartialEvaluator, op: int):
        self.evaluator, self.op = evaluator, op
        self.offsets: dict[tuple[int, ...], int] = {}

    def event(self, op: Op, batch: Batch) -> None:
        address = self.evaluator.accessed(op, batch).address if op.id == self.op else None
        if not isinstance(address, tuple):
            return
        first = sum(part.reshape(len(part), -1)[:, 0] for part in address)
        for program, at in zip(zip(*batch.ids, strict=True), np.broadcast_to(first, batch.size), strict=True):
            number = (int(at) >> WINDOW_BITS) - 1
            if 0 <= number < len(self.evaluator.names):
                self.offsets[tuple(map(int, program))] = int(at) - window(number)
