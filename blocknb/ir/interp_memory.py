"""Interprets memory IR: every warp is a coroutine, shared memory is an array of bytes, and races are errors.

Between two barriers the warps run one after another in random order. Code that depends on an order gives wrong results for some seed.
Some races are harmless in NumPy, so each byte of shared memory and arrays also records its readers and writers since the last barrier.
A race is an error in any order. A read of shared bytes without a write is an error as well. So is a read of bytes that another buffer
overwrote, because live ranges overlap. Shared memory starts as 0xFF, which is NaN as a float and -1 as an integer.

The bytes of an asynchronous copy are undefined from its issue on, and warps must not access them. They are written when the warp has
waited for the copy. A program must not end before its copies are complete.

Several warps may store the same value to the same place, because replicated tiles do this. Hardware lets only one warp store it. All
other warps may therefore read the value only after a barrier.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.errors import CompilerBug
from blocknb.ir import interp_tile
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Func, Op
from blocknb.ir.interp_distributed import DistributedMachine
from blocknb.ir.text import print_op
from blocknb.language.ops import ACCESSES, ATOMICS
from blocknb.language.types import Buffer
from blocknb.layouts import wgmma
from blocknb.layouts.linear import Layout

POISON = 0xFF
UNWRITTEN, IN_FLIGHT = -1, -2  # instead of the buffer that wrote a byte
UNORDERED = ", with no barrier in between"


@dataclass(frozen=True)
class Allocation:
    """A buffer at run time: its first byte and its type. `number` is the id of its op."""

    offset: int
    type: Buffer
    number: int


@dataclass(frozen=True)
class Reading:
    """The bytes of a buffer that a wgmma reads, and their contents at its issue."""

    buffer: Allocation
    wanted: np.ndarray
    found: np.ndarray


@dataclass
class Product:
    """A wgmma in flight: its operands, and its result, which no op may use before the wait."""

    read: list[Reading] = field(default_factory=list)
    result: Any = None


class EpochAccesses:
    """The warps that have read or written each byte of a memory in this epoch. An epoch is the time between two barriers."""

    def __init__(self, size: int):
        # Sets of warps as bit masks, each valid for the epoch that is stored with it.
        self.writers, self.written = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        self.readers, self.read = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        self.updaters, self.updated = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        # The epochs of the last write and the last atomic. An access of another epoch races with neither, so it need not search.
        self.last_write = self.last_update = 0

    def note_read(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """Records a read. Returns an error message, or ""."""
        self.readers[where] = self._now(self.readers, self.read, epoch, where) | np.uint64(1 << warp)
        self.read[where] = epoch
        if self.last_write == epoch:
            race = self._now(self.writers, self.written, epoch, where) & ~np.uint64(1 << warp)
            if race.any():
                return "another warp writes"
        return self._updates(warp, epoch, where)

    def _updates(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """An error message if a plain access races with atomics, or ""."""
        if self.last_update != epoch:
            return ""
        updaters = self._now(self.updaters, self.updated, epoch, where) & ~np.uint64(1 << warp)
        return "another warp updates" if updaters.any() else ""

    def note_update(self, warp: int, epoch: int, where: np.ndarray) -> str:
        """Records an atomic, which does not race with other atomics. Returns an error message, or ""."""
        others = ~np.uint64(1 << warp)
        writes = self._now(self.writers, self.written, epoch, where) & others
        reads = self._now(self.readers, self.read, epoch, where) & others
        self.updaters[where] = self._now(self.updaters, self.updated, epoch, where) | np.uint64(1 << warp)
        self.updated[where] = self.last_update = epoch
        return "another warp writes" if writes.any() else "another warp reads" if reads.any() else ""

    def note_write(self, warp: int, epoch: int, where: np.ndarray, changes: np.ndarray) -> str:
        """Records a write, which alters the bytes where `changes` is true. Returns an error message, or ""."""
        others = ~np.uint64(1 << warp)
        writers = self._now(self.writers, self.written, epoch, where)
        second = ((writers & others != 0) & changes).any()
        read = (self._now(self.readers, self.read, epoch, where) & others).any()
        self.writers[where] = writers | np.uint64(1 << warp)
        self.written[where] = self.last_write = epoch
        return "another warp writes" if second else "another warp reads" if read else self._updates(warp, epoch, where)

    def _now(self, warps: np.ndarray, epochs: np.ndarray, epoch: int, where: np.ndarray) -> np.ndarray:
        return np.where(epochs.take(where) == epoch, warps.take(where), np.uint64(0))


class Memory:
    """The memory that the warps of one program share, with the accesses to each byte.

    `offsets` has the offset of each buffer by the id of its op, for buffers that are not allocated yet.
    """

    def __init__(self, func: Func, check_races: bool):
        self.offsets, size = _places(func)
        self.data = np.full(size, POISON, np.uint8)
        self.owner = np.full(size, UNWRITTEN)  # the buffer that wrote each byte last
        self.writer = np.full(size, -1)  # the warp that wrote it
        self.fenced: np.ndarray = np.zeros(size, np.int64)  # the epoch in which that warp fenced it, 0: not yet
        self.accesses = self.new_accesses(size)
        self.arrays: dict[int, Any] = {}  # the accesses to each array in global memory
        self.epoch, self.check_races = 1, check_races

    def new_accesses(self, size: int) -> Any:
        """A new record of the accesses to a number of bytes."""
        return EpochAccesses(size)

    def begin_copy(self, warp: int, where: np.ndarray, buffer: Allocation) -> str:
        """Begins a copy to shared memory. Returns an error message, or ""."""
        error = self.write(warp, where, np.full(len(where), POISON, np.uint8), buffer)
        self.owner[where] = IN_FLIGHT
        return error

    def complete_copy(self, warp: int, where: np.ndarray, data: np.ndarray, buffer: Allocation) -> str:
        """Completes a copy. Returns an error message, or ""."""
        self.owner[where] = UNWRITTEN
        return self.write(warp, where, data, buffer)

    def write(self, warp: int, where: np.ndarray, data: np.ndarray, buffer: Allocation) -> str:
        """Writes bytes of shared memory. Returns an error message, or ""."""
        if (self.owner[where] == IN_FLIGHT).any():
            return "writes shared memory while a copy to it is in flight"
        changes = (self.data[where] != data) | (self.owner[where] != buffer.number)
        error = self.accesses.note_write(warp, self.epoch, where, changes)
        self.owner[where], self.writer[where], self.fenced[where] = buffer.number, warp, 0
        self.data[where] = data
        return f"writes shared memory that {error}{UNORDERED}" if error and self.check_races else ""

    def read(self, warp: int, where: np.ndarray, buffer: Allocation, loads: bool = False) -> tuple[np.ndarray, str]:
        """The bytes of shared memory, and an error message or "". `loads` marks a load to registers, which completes later."""
        error = self.accesses.note_read(warp, self.epoch, where)
        if error and self.check_races:
            return self.data[where], f"reads shared memory that {error}{UNORDERED}"
        owners = self.owner.take(where)
        if (owners == buffer.number).all():
            return self.data[where], ""
        if (owners == IN_FLIGHT).any():
            return self.data[where], "reads shared memory while a copy to it is in flight"
        if (owners == UNWRITTEN).any():
            return self.data[where], "reads shared memory that was never written"
        return self.data[where], "reads shared memory that another buffer has overwritten"

    def fence(self, warp: int) -> None:
        """A proxy fence: wgmma may read the warp's earlier writes after the next barrier."""
        self.fenced[(self.writer == warp) & (self.fenced == 0)] = self.epoch

    def unfenced(self, warp: int, where: np.ndarray) -> str:
        """An error message if wgmma reads bytes without a fence, or ""."""
        if not self.check_races:
            return ""
        if (self.fenced[where] == 0).any():
            return "reads shared memory by wgmma without a proxy fence after the store"
        late = (self.fenced[where] == self.epoch) & (self.writer[where] != warp)
        return f"reads shared memory by wgmma that another warp has fenced{UNORDERED}" if late.any() else ""

    def record(
        self, warp: int, number: int, where: np.ndarray, old: np.ndarray, new: np.ndarray | None, atomic: bool = False
    ) -> str:
        """Records an access to the array of that number. Returns an error message, or ""."""
        if not self.check_races:
            return ""
        accesses = self.arrays.get(number)
        if accesses is None:
            accesses = self.arrays[number] = self.new_accesses(len(old))
        if atomic:
            return accesses.note_update(warp, self.epoch, where)
        if new is None:
            return accesses.note_read(warp, self.epoch, where)
        return accesses.note_write(warp, self.epoch, where, old[where] != new)


Copy = tuple[np.ndarray, np.ndarray, Allocation]  # bytes of shared memory, their new contents, the buffer


class Warp(DistributedMachine):
    """One warp of a program."""

    def __init__(self, func: Func, space: AddressSpace, sizes: Any, program: Any, number: int, memory: Memory):
        super().__init__(func, space, sizes, program)
        self.number, self.memory = number, memory
        self.take_place(number)
        self.groups: list[list[Copy]] = [[]]  # copies in flight; the last group is not committed yet
        self.products: list[Product] = []  # wgmma in flight

    def take_place(self, place: int) -> None:
        """The number of the warp within its program."""
        self.place, self.warps = place, slice(place, place + 1)

    def step(self, op: Op, args: list) -> tuple:
        if self.products and op.name != "dot_wait":
            summed = 2 if op.name == "dot" and wgmma.is_name(op.attrs.get("instr", "")) else None
            used = [x for i, x in enumerate(args) if i != summed]  # wgmma complete in order: one may add to another
            if any(x is product.result for x in used for product in self.products):
                raise self.compiler_bug(op, f"warp {self.number} uses the result of a product that is in flight")
        if op.name not in ACCESSES:
            return super().step(op, args)
        atomic = op.name in ATOMICS

        def observe(array: int, where: np.ndarray, new: np.ndarray | None) -> None:
            error = self.memory.record(self.number, array, where, self.space.bytes[array], new, atomic)
            does = "updates" if atomic else "reads" if new is None else "writes"
            does = f"{does} elements of `{self.space.names[array]}` that"
            self.raise_if_error(op, f"{does} {error}{UNORDERED}" if error else "")

        self.space.observer = observe
        try:
            return super().step(op, args)
        finally:
            self.space.observer = None

    def owns(self, layout: Layout | None) -> bool:
        everyone = self.func.attrs.get("num_warps", 4) - 1
        return not self.place & (everyone if layout is None else layout.replicated_warp_bits)

    @property
    def first(self) -> bool:
        return self.place == 0

    def atomic(self, op: Op, args: list) -> tuple:
        """With a buffer, the owners of the elements write the old values there for the other warps."""
        if not isinstance(args[0], Allocation):
            return super().atomic(op, args)
        layout = op.args[1].type.layout
        if self.owns(layout):
            tiles = [self.gather(op, x, arg.type) for x, arg in zip(args[1:], op.args[1:], strict=True)]
            held = tiles[0][1]
            old = self.update(op, [np.atleast_1d(tile[held]) for tile, _ in tiles])
            self.keep(op, args[0], held, old)
        return ()

    def keep(self, op: Op, buffer: Allocation, held: np.ndarray, values: np.ndarray) -> None:
        """Writes the elements that this warp holds to a buffer, in order."""
        where = self.bytes_of(buffer, np.flatnonzero(held))
        data = np.ascontiguousarray(values).view(np.uint8)
        self.raise_if_error(op, self.memory.write(self.number, where.reshape(-1), data.reshape(-1), buffer))

    def move(self, op: Op, args: list) -> tuple:
        match op.name:
            case "alloc":
                offset, type = op.attrs.get("offset"), op.attrs["type"]
                offset = self.memory.offsets.get(op.id, offset)
                if offset is None or offset + type.bytes > len(self.memory.data):
                    raise self.compiler_bug(op, "the buffer has no offset in shared memory")
                return (Allocation(offset, type, op.id),)
            case "stage":
                buffer, index = args[0], int(args[1])
                if not 0 <= index < buffer.type.stages:
                    raise self.compiler_bug(op, f"stage {index} of a circular buffer of {buffer.type.stages} stages")
                return (Allocation(buffer.offset + index * buffer.type.stage.bytes, buffer.type.stage, buffer.number),)
            case "copy_async":
                self.copy(op, args)
                return ()
            case "commit":
                self.groups.append([])
                return ()
            case "wait":
                self.wait(op, op.attrs["in_flight"])
                return ()
            case "local_store":
                tile, held = self.gather(op, args[1], op.args[1].type)
                values = interp_tile.round_to_tf32(tile[held]) if op.attrs.get("tf32") else tile[held]
                self.keep(op, args[0], held, np.atleast_1d(values))
                return ()
            case "dot_wait":
                self.arrive(op, op.attrs.get("in_flight", 0))
                return tuple(args)
            case "fence":
                self.memory.fence(self.number)
                return ()
            case "warp_barrier":  # the lanes of a warp run in lockstep here
                return ()
            case "local_load":
                type = op.result.type
                wanted = np.zeros(type.size, bool)
                wanted[self.places(op, type.layout) if type.shape else ...] = True
                tile = self.read(op, args[0], wanted.reshape(type.shape))
                return (self.deal(op, tile, wanted, type),)
        return super().move(op, args)

    def copy(self, op: Op, args: list) -> None:
        """Begins an asynchronous copy of the elements that this warp owns."""
        if not self.owns(op.args[1].type.layout):
            return
        tiles = [self.gather(op, x, arg.type) for x, arg in zip(args[1:], op.args[1:], strict=True)]
        held = tiles[0][1]
        pointers, *mask = (tile[held] for tile, _ in tiles)
        dtype = op.args[0].type.dtype.numpy
        values = self.space.load(op, self.program, pointers, dtype, mask[0] if mask else None, None)
        where = self.bytes_of(args[0], np.flatnonzero(held)).reshape(-1)
        self.raise_if_error(op, self.memory.begin_copy(self.number, where, args[0]))
        self.groups[-1].append((where, values.view(np.uint8), args[0]))

    def wait(self, op: Op, pending: int) -> None:
        while len(self.groups) - 1 > pending:
            for where, data, buffer in self.groups.pop(0):
                self.raise_if_error(op, self.memory.complete_copy(self.number, where, data, buffer))

    def bytes_of(self, buffer: Allocation, elements: np.ndarray) -> np.ndarray:
        """The byte addresses of elements, given by flat indices, as an array [elements, bytes per element]."""
        size = buffer.type.dtype.bytes
        offsets = buffer.type.layout.offsets().reshape(-1)[elements]
        return (buffer.offset + offsets * size)[:, None] + np.arange(size)

    def read(self, op: Op, buffer: Allocation, wanted: np.ndarray) -> np.ndarray:
        """A tile of a buffer's elements where `wanted` is true, and zeros elsewhere."""
        where = self.bytes_of(buffer, np.flatnonzero(wanted))
        data, error = self.memory.read(self.number, where.reshape(-1), buffer, op.name == "local_load")
        self.raise_if_error(op, error)
        tile = np.zeros(buffer.type.shape, buffer.type.dtype.numpy)
        tile[wanted] = np.ascontiguousarray(data).view(tile.dtype)
        return tile

    def operand(self, op: Op, i: int, value: Any) -> tuple[np.ndarray, np.ndarray]:
        """An operand of a product.

        Registers give the elements that this warp holds. A buffer gives the rows or columns that the warp's part of the result needs.
        For wgmma it gives those of the whole warpgroup.
        """
        if not isinstance(value, Allocation):
            return super().operand(op, i, value)
        result = op.result.type
        needed = np.zeros(result.size, bool)
        group = wgmma.GROUP if wgmma.is_name(op.attrs.get("instr", "")) else 1
        first = self.place // group * group
        needed[result.layout.indices()[first : first + group]] = True
        needed.reshape(result.shape)[:, op.attrs.get("columns", result.shape[1]) :] = False
        lines = np.any(needed.reshape(result.shape), axis=1 - i, keepdims=True)
        transposed = i in op.attrs.get("transposed", ())
        lines = lines.T if transposed else lines
        wanted = np.broadcast_to(lines, value.type.shape)
        if group > 1:
            where = self.bytes_of(value, np.flatnonzero(wanted)).reshape(-1)
            self.raise_if_error(op, self.memory.unfenced(self.number, where))
        found = self.read(op, value, wanted)
        if group > 1:
            self.products[-1].read.append(Reading(value, wanted, found))
        return (found.T, wanted.T) if transposed else (found, wanted)

    def dot(self, op: Op, args: list) -> np.ndarray:
        """A product. wgmma may read its operands until the wait."""
        if not wgmma.is_name(op.attrs.get("instr", "")):
            return super().dot(op, args)
        self.products.append(Product())
        self.products[-1].result = result = super().dot(op, args)
        self.arrive(op, op.attrs.get("in_flight", 0))
        return result

    def arrive(self, op: Op, pending: int) -> None:
        """Waits until at most that many wgmma are in flight. The operands of the completed ones must be unchanged."""
        while len(self.products) > pending:
            for reading in self.products.pop(0).read:
                now = self.read(op, reading.buffer, reading.wanted)
                if now.tobytes() != reading.found.tobytes():
                    self.raise_if_error(op, "waits for a product whose operand was overwritten in the meantime")

    def source(self, op: Op, value: Any, index: Any, valid: Any) -> tuple[np.ndarray, np.ndarray]:
        """The elements of a buffer that this warp's part of the result needs."""
        if not isinstance(value, Allocation):
            return super().source(op, value, index, valid)
        result = op.result.type
        here: np.ndarray = np.zeros(result.size, bool)
        here[self.places(op, result.layout)] = True
        numbers = np.arange(np.prod(value.type.shape)).reshape(value.type.shape)
        wanted = np.zeros(numbers.size, bool)
        wanted[interp_tile.along_axis(op, numbers, index)[here.reshape(result.shape)]] = True
        wanted = wanted.reshape(value.type.shape)
        return self.read(op, value, wanted), wanted

    def raise_if_error(self, op: Op, error: str) -> None:
        if error:
            raise self.compiler_bug(op, f"warp {self.number} {error}")


def run_warps(
    func: Func,
    env: dict,
    space: AddressSpace,
    sizes: Any,
    program: Any,
    order: np.random.Generator,
    check_races: bool = True,
    implicit_barriers: bool = False,
) -> None:
    """Runs one program: repeatedly, all warps run to their next barrier in random order.

    Raises CompilerBug if the warps do not all wait at the same barrier.
    """
    count = func.attrs.get("num_warps", 4)
    memory = Memory(func, check_races)
    walks: dict[int, Generator[Op, None, tuple]] = {}
    warps = [Warp(func, space, sizes, program, number, memory) for number in range(count)]
    for number, warp in enumerate(warps):
        warp.implicit_barriers = implicit_barriers
        walks[number] = warp.execute(func.body, dict(env))
    while walks:
        waiting: dict[int, Op] = {}
        for number in order.permutation(list(walks)).tolist():
            with suppress(StopIteration):  # the warp has ended
                waiting[number] = next(walks[number])
        stopped = {op.id for op in waiting.values()}
        if len(stopped) > 1 or (waiting and len(waiting) < count):
            op = next(iter(waiting.values()))
            where = f"\n    {print_op(func, op)}"
            message = f"deadlock: of {count} warps only {sorted(waiting)} wait, at {len(stopped)} different barriers"
            raise CompilerBug(f"{message} (program {program}){where}", op.loc)
        walks = {number: walks[number] for number in waiting}
        memory.epoch += 1
    if left := unfinished(warps, memory):
        raise CompilerBug(f"the program {program} ends {left}", func.loc)


def unfinished(warps: Sequence[Warp], memory: Memory) -> str:
    """The asynchronous operation of the warps that is incomplete at the end of the program, or ""."""
    if any(warp.products for warp in warps):
        return "while products are in flight"
    if any(any(warp.groups) for warp in warps) or (memory.owner == IN_FLIGHT).any():
        return "while copies to shared memory are in flight"
    return ""


def _places(func: Func) -> tuple[dict[int, int], int]:
    """Offsets of the buffers without one (before `shared_memory_allocation`) by the id of their op, and the size of shared memory."""
    allocs = [op for op in func.ops() if op.name == "alloc"]
    size = max((op.attrs["offset"] + op.attrs["type"].bytes for op in allocs if "offset" in op.attrs), default=0)
    found = {}
    for op in allocs:
        if "offset" not in op.attrs and "shared_bytes" not in func.attrs:
            found[op.id], size = size, size + op.attrs["type"].bytes
    return found, func.attrs.get("shared_bytes", size)
