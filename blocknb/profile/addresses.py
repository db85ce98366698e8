"""Address traces: the address and mask of every load, store and atomic of a program, computed without memory.

The walk interprets the IR with the launch's scalars and without arrays. Every pointer parameter gets its own address window, so an
address identifies its array. Loaded values are unknown, and so is every value that depends on them. The walk computes only the values
that an address, a mask, a bound or a condition needs, and it leaves a loop after the requested iteration. `origins` does the same for
all programs at once and represents a tile by its first element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.analysis.effects import global_operands, mask_of
from blocknb.analysis.provenance import flows
from blocknb.ir import interp_tile
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ACCESSES, OPS, PRESERVING, STRUCTURED, TERMINATORS, named
from blocknb.passes.support import program_order

Program = tuple[int, int, int]
Known = np.ndarray | None  # None: it depends on data
WINDOW_BITS = 42
MOST_TRIPS = 1024  # iterations of a loop that the walk must finish, because later addresses depend on it
SAME_PLACE = PRESERVING - {"part"}  # only the first part begins where its operand does
_COMPUTED = named("preserves_elements", "rematerializable", "move", "reduce") | {"program_id", "num_programs"}


@dataclass(frozen=True)
class TracedAccess:
    """The bytes that one op accesses in one program.

    `array`: the parameter that the pointers come from. `offsets`: bytes from its start, int64 in the tile's shape; None when they are
    unknown, and `why` gives the reason. `on`: the mask. `guessed`: the mask depends on data and is assumed to be on. `trips`: iterations
    of the innermost loop around the op; 1 outside of loops, None when unknown."""

    op: Op
    array: str
    offsets: np.ndarray | None
    on: np.ndarray
    trips: int | None = 1
    guessed: bool = False
    why: str = ""


BULK = named("box_copy")


def is_bulk(op: Op) -> bool:
    """Whether the copy engine moves a box between an array and shared memory."""
    return op.name in BULK


@dataclass(frozen=True)
class BulkParts:
    """The operands of a `copy_bulk` or `store_bulk`: the buffer in shared memory, the tensor map, and the coordinates."""

    buffer: Value
    map: Value
    start: tuple[Value, ...]


def bulk_parts(op: Op) -> BulkParts:
    if op.name == "copy_bulk":
        return BulkParts(op.args[0], op.args[1], op.args[4:])
    return BulkParts(op.args[1], op.args[0], op.args[2:])


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
        self.needed = _needed(func)
        self.maps = {op.result: op for op in func.ops() if op.name == "tensor_map"}
        self.names = [h.name for h in func.hints] if func.hints else [p.name for p in func.params]
        self.start: dict[Value, np.ndarray] = {}
        for i, (param, name) in enumerate(zip(func.params, self.names, strict=True)):
            if param.type.is_pointer:
                self.start[param] = np.asarray(_base(i), np.int64)
            elif name in scalars:
                self.start[param] = np.asarray(scalars[name]).astype(param.type.dtype.numpy)

    def of(self, program: Program, trip: int = 0) -> dict[int, TracedAccess]:
        """Returns the accesses of one program by op id, without the ops that it does not reach. In a loop they are those of iteration
        `trip`, or of the last one if the loop is shorter."""
        walker = _AddressWalk(self, program, trip)
        with np.errstate(all="ignore"):
            walker.block(self.func.body)
        return {number: self._access(*found) for number, found in walker.found.items()}

    def origins(self, op: int, programs: Sequence[Program]) -> list[int | None]:
        """Returns per program the byte offset of the first element that the op accesses, in the first iteration of a loop. It is None
        where the offset is unknown or the program does not reach the op."""
        walker = _AddressOrigins(self, np.asarray(programs, np.int64).reshape(-1, 3))
        with np.errstate(all="ignore"):
            walker.block(self.func.body)
        pointers = walker.found[op][1] if op in walker.found else None
        if pointers is None:
            return [None] * len(programs)
        addresses = np.broadcast_to(pointers, (len(programs),))
        reached = np.broadcast_to(walker.reached[op], (len(programs),))
        number = (addresses >> WINDOW_BITS) - 1
        valid = reached & (number >= 0) & (number < len(self.names))
        offsets = addresses - _base(number)
        return [int(x) if ok else None for x, ok in zip(offsets, valid, strict=True)]

    def _access(self, op: Op, pointers: Known, mask: Known, guessed: bool, trips: int | None) -> TracedAccess:
        shape = bulk_parts(op).buffer.type.shape if is_bulk(op) else global_operands(op)[0].type.shape
        on: np.ndarray = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        if pointers is None:
            return TracedAccess(op, "", None, on, trips, guessed, "the addresses depend on loaded data")
        addresses = np.broadcast_to(pointers, shape)
        numbers = np.unique((addresses[on] if on.any() else addresses) >> WINDOW_BITS) - 1
        if len(numbers) != 1 or not 0 <= numbers[0] < len(self.names):
            return TracedAccess(op, "", None, on, trips, guessed, "the addresses lead to more than one array")
        number = int(numbers[0])
        return TracedAccess(op, self.names[number], addresses - _base(number), on, trips, guessed)


def _base(number: Any) -> Any:
    """Returns the address of the array of that number, or of each number in an array."""
    return (number + 1 << WINDOW_BITS) + (1 << WINDOW_BITS - 1)


# -- the walk ------------------------------------------------------------------------------------------------------------


class _AddressWalk:
    """One program. Values that are not in `env` are unknown."""

    flat = False  # whether one element stands for a tile

    def __init__(self, home: Addresses, program: Any, trip: int):
        self.home, self.program, self.trip = home, program, trip
        self.env: dict[Value, np.ndarray] = dict(home.start)
        self.buffers: dict[Value, Known] = {}
        self.found: dict[int, tuple[Op, Known, Known, bool, int | None]] = {}
        self.recording = True
        self.trips: tuple[int | None, ...] = (1,)
        self.machine = interp_tile.Machine(home.func, AddressSpace(), home.grid, program)

    def block(self, block: Block) -> list[Known]:
        """Walks a block. Returns the values that its terminator passes on."""
        for op in block.ops:
            if op.name in TERMINATORS:
                return [self.env.get(arg) for arg in op.args]
            self.op(op)
        return []

    def assign(self, values: Sequence[Value], known: Sequence[Known]) -> None:
        for value, array in zip(values, known, strict=True):
            if array is None:
                self.env.pop(value, None)
            else:
                self.env[value] = array

    def op(self, op: Op) -> None:
        match op.name:
            case _ if is_access(op):
                self.record(op)
                self.assign(op.results, [None] * len(op.results))
            case _ if is_bulk(op):
                self.record_bulk(op)
            case "for":
                self.loop(op)
            case "if":
                self.branch(op)
            case "while":
                self.repeat(op)
            case "roles":
                for block in op.blocks:
                    self.block(block)
            case "cta_id":  # of a CTA that has one program
                self.assign(op.results, [self.number().astype(np.int32)])
            case "consumer_group_id":
                self.assign(op.results, [np.asarray(0, np.int32)])
            case "num_ctas":
                self.assign(op.results, [np.asarray(math.prod(self.home.grid), np.int32)])
            case "inside":  # the bounds check of checked mode; a launch that succeeded has passed it
                self.assign(op.results, [np.ones(() if self.flat else op.result.type.shape, bool)])
            case "local_store":
                self.buffers[op.args[0]] = self.env.get(op.args[1])
            case "local_load":
                self.assign(op.results, [self.buffers.get(op.args[0])])
            case _ if any(result in self.home.needed for result in op.results):
                self.assign(op.results, self.compute(op))

    def number(self) -> np.ndarray:
        """The linear index of the program; the first axis of the grid varies fastest."""
        return self.numbers(np.asarray(self.program))

    def numbers(self, ids: np.ndarray) -> np.ndarray:
        x, y, _ = self.home.grid
        return ids[..., 0] + x * (ids[..., 1] + y * ids[..., 2])

    def record(self, op: Op) -> None:
        if not self.recording:
            return
        mask = mask_of(op)
        known = None if mask is None else self.env.get(mask)
        guessed = mask is not None and known is None
        self.found[op.id] = (op, self.env.get(global_operands(op)[0]), known, guessed, self.trips[-1])

    def record_bulk(self, op: Op) -> None:
        if self.recording:
            self.found[op.id] = (op, *self.box(op), False, self.trips[-1])

    def box(self, op: Op) -> tuple[Known, Known]:
        """Addresses of the elements that the copy engine moves, and whether they are inside the array, in the shape of the buffer."""
        parts, made = bulk_parts(op), self.home.maps.get(bulk_parts(op).map)
        rank = len(parts.start)
        args = [] if made is None else [self.env.get(arg) for arg in made.args]
        start = [self.env.get(value) for value in parts.start]
        if not args or any(known is None for known in (*args, *start)):
            return None, None
        numbers = [np.asarray(known).astype(np.int64) for known in args]
        base, extents, strides = numbers[0], numbers[1 : rank + 1], [*numbers[rank + 1 :], np.asarray(1, np.int64)]
        size, shape = parts.map.type.dtype.bytes, parts.buffer.type.shape
        address: np.ndarray = base
        inside: np.ndarray = np.ones((), bool)
        for axis in range(rank):
            place = np.asarray(start[axis]).astype(np.int64)
            if not self.flat and axis in op.attrs["axes"]:
                along = op.attrs["axes"].index(axis)
                place = place + np.arange(shape[along]).reshape([-1 if a == along else 1 for a in range(len(shape))])
            inside = inside & (place >= 0) & (place < extents[axis])
            address = address + place * strides[axis] * size
        return address, inside

    def compute(self, op: Op) -> Sequence[Known]:
        args = [self.env.get(arg) for arg in op.args]
        simple = OPS[op.name].kind == "elementwise" or op.name in _COMPUTED
        if not simple or any(arg is None for arg in args) or "keep" in op.attrs:
            return [None] * len(op.results)
        if op.name == "convert":
            return args
        self.machine.env = self.env
        return self.machine.step(op, args)

    def branch(self, op: Op) -> None:
        condition = self.env.get(op.args[0])
        if condition is not None:
            self.assign(op.results, self.block(op.blocks[0 if bool(condition) else 1]))
            return
        for block in op.blocks:  # either may be taken
            self.block(block)
        self.assign(op.results, [None] * len(op.results))

    def loop(self, op: Op) -> None:
        bounds = [self.env.get(arg) for arg in op.args[:3]]
        carried = [self.env.get(arg) for arg in op.args[3:]]
        (block,), recording = op.blocks, self.recording
        index, *rest = block.args
        if bounds[0] is None or bounds[1] is None or bounds[2] is None:
            self.once(op, block, [bounds[0], *carried])
            return
        trips = range(*(int(bound) for bound in bounds if bound is not None))
        to_the_end = any(result in self.home.needed for result in op.results)
        self.trips += (len(trips),)
        for number, i in enumerate(trips):
            if number > self.trip and not (to_the_end and number <= MOST_TRIPS):
                carried = [None] * len(carried)
                break
            self.recording = recording and number <= self.trip
            self.start_trip(block)
            self.assign((index, *rest), (np.asarray(i, index.type.dtype.numpy), *carried))
            carried = self.block(block)
        self.recording, self.trips = recording, self.trips[:-1]
        self.assign(op.results, carried)

    def once(self, op: Op, block: Block, values: Sequence[Known]) -> None:
        """Walks the first iteration of a loop whose bounds are unknown, as if there was one."""
        self.trips += (None,)
        self.assign(block.args, values)
        self.block(block)
        self.trips = self.trips[:-1]
        self.assign(op.results, [None] * len(op.results))

    def start_trip(self, block: Block) -> None:
        """Forgets the accesses of the previous iteration."""
        if self.recording:
            for op in walk(block):
                self.found.pop(op.id, None)

    def repeat(self, op: Op) -> None:
        before, after = op.blocks
        carried, recording = [self.env.get(arg) for arg in op.args], self.recording
        results: Sequence[Known] = [None] * len(op.results)
        self.trips += (None,)
        for number in itertools.count():
            self.recording = recording and number <= self.trip
            self.assign(before.args, carried)
            go_on, *rest = self.block(before)
            if go_on is not None and not bool(go_on):
                results = rest
                break
            self.start_trip(after)
            self.assign(after.args, rest)
            carried = self.block(after)
            if go_on is None or number >= self.trip:
                break
        self.recording, self.trips = recording, self.trips[:-1]
        self.assign(op.results, results)


class _AddressOrigins(_AddressWalk):
    """All programs at once: a value is an array with a number for each program, the first element where it is a tile."""

    flat = True

    def __init__(self, home: Addresses, programs: np.ndarray):
        super().__init__(home, (0, 0, 0), 0)
        self.ids = programs
        self.active: np.ndarray = np.ones(len(programs), bool)
        self.reached: dict[int, np.ndarray] = {}

    def number(self) -> np.ndarray:
        return self.numbers(self.ids)

    def record(self, op: Op) -> None:
        super().record(op)
        self.reached[op.id] = self.active

    def record_bulk(self, op: Op) -> None:
        super().record_bulk(op)
        self.reached[op.id] = self.active

    def compute(self, op: Op) -> Sequence[Known]:
        args = [self.env.get(arg) for arg in op.args]
        known = [arg for arg in args if arg is not None]
        if len(known) < len(args):
            return [None] * len(op.results)
        if op.name == "program_id":
            return [self.ids[:, op.attrs["axis"]].astype(np.int32)]
        if op.name == "arange":
            return [np.asarray(op.attrs["start"], np.int32)]
        if op.name == "const":
            kind = op.attrs["type"]
            return [np.asarray(op.attrs["value"]).astype(interp_tile.numpy_dtype(kind.dtype))]
        if op.name == "num_programs":
            return [np.asarray(self.home.grid[op.attrs["axis"]], np.int32)]
        if op.name in SAME_PLACE or (op.name == "part" and not op.attrs["index"]):
            return known
        if OPS[op.name].kind == "elementwise":
            return [np.asarray(interp_tile.elementwise(op, known))]
        return [None] * len(op.results)

    def branch(self, op: Op) -> None:
        condition, active = self.env.get(op.args[0]), self.active
        sides = []
        for block, flip in zip(op.blocks, (False, True), strict=True):
            if condition is not None:
                self.active = active & (np.asarray(condition, bool) ^ flip)
            sides.append(self.block(block))
        self.active = active
        chosen: list[Known] = []
        for yes, no in zip(*sides, strict=True):
            both = condition is not None and yes is not None and no is not None
            chosen.append(np.where(condition, yes, no) if both else None)  # type: ignore[arg-type]
        self.assign(op.results, chosen)

    def loop(self, op: Op) -> None:
        low, high, step = (self.env.get(arg) for arg in op.args[:3])
        carried, active = [self.env.get(arg) for arg in op.args[3:]], self.active
        if low is not None and high is not None and step is not None:
            self.active = active & np.where(step > 0, low < high, low > high)
        self.once(op, op.blocks[0], [low, *carried])
        self.active = active

    def repeat(self, op: Op) -> None:
        before, after = op.blocks
        self.assign(before.args, [self.env.get(arg) for arg in op.args])
        go_on, *rest = self.block(before)
        active = self.active
        if go_on is not None:
            self.active = active & np.asarray(go_on, bool)
        self.once(op, after, rest)
        self.active = active


# -- the slice that the walk computes --------------------------------------------------------------------------------


def access_operands(op: Op) -> list[Value]:
    """The pointer of an access, and its mask if it has one."""
    mask = mask_of(op)
    return [global_operands(op)[0]] + ([] if mask is None else [mask])


def control_operands(op: Op) -> Sequence[Value]:
    """The bounds of a `for`, or the condition of an `if` or of a `while`."""
    if op.name == "while":
        return op.blocks[0].terminator.args[:1]
    return op.args[:3] if op.name == "for" else op.args[:1]


def _needed(func: Func) -> set[Value]:
    """The values from which the walk computes addresses, masks, bounds and conditions."""
    sources: dict[Value, list[Value]] = {}
    todo: list[Value] = []
    for op in func.ops():
        found: Iterable[tuple[Value, Sequence[Value]]] = ()
        if is_access(op):
            todo += access_operands(op)
        elif is_bulk(op):
            parts = bulk_parts(op)
            todo += [parts.map, *parts.start]
        elif op.name in STRUCTURED:
            todo += control_operands(op)
            found = flows(op)
        elif op.name == "local_store":
            found = [(op.args[0], op.args[1:])]
        else:
            outside = [arg for block in op.blocks for inner in walk(block) for arg in inner.args]
            found = [(result, [*op.args, *outside]) for result in op.results]
        for value, given in found:
            sources.setdefault(value, []).extend(given)
    return set(reachable(todo, lambda value: sources.get(value, ())))
