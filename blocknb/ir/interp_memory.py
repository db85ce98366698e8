"""The interpreter at the memory level: every warp is a coroutine, shared memory is bytes, and both are made to fail.

Between two barriers the warps run one after another in random order, so that code which relies on an order gives wrong results
for some seed. That alone would miss races that happen to be harmless in NumPy, so each byte also remembers who wrote and who
read it since the last barrier, and through which buffer it was written: a read of bytes nobody wrote, or of another buffer's
bytes (their live ranges overlap), or of what another warp wrote with no barrier in between, is an error, whatever the order.
All bytes start as 0xFF: NaN as a float of any width, -1 as an integer.

A store by several warps of the same value to the same place is what a replicated tile does, and no race.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import CompilerBug
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Func, Op
from blocknb.ir.interp_laid import LaidMachine
from blocknb.ir.text import print_op
from blocknb.language.types import Buffer

POISON = 0xFF


@dataclass(frozen=True)
class Allocation:
    """A buffer at run time: its first byte and its type; `number` is the id of its op."""

    offset: int
    type: Buffer
    number: int


class SharedMemory:
    """The bytes that the warps of one program share, and who touched them in this epoch (the time between two barriers)."""

    def __init__(self, size: int, check_races: bool):
        self.data = np.full(size, POISON, np.uint8)
        self.check_races = check_races
        self.epoch = 1
        self.owner = np.full(size, -1)  # the buffer through which a byte was written last
        # Sets of warps as bits, valid where the epoch beside them is the current one.
        self.writers, self.written = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        self.readers, self.read_at = np.zeros(size, np.uint64), np.zeros(size, np.int64)

    def write(self, warp: int, where: np.ndarray, data: np.ndarray, buffer: Allocation) -> str:
        """Writes bytes; a text when that is a race."""
        trouble = ""
        if self.check_races:
            others = ~np.uint64(1 << warp)
            if (self.now(self.readers, self.read_at, where) & others).any():
                trouble = "writes shared memory that another warp reads, with no barrier in between"
            changes = (self.data[where] != data) | (self.owner[where] != buffer.number)
            if ((self.now(self.writers, self.written, where) & others != 0) & changes).any():
                trouble = "writes shared memory that another warp writes, with no barrier in between"
        self.writers[where] = self.now(self.writers, self.written, where) | np.uint64(1 << warp)
        self.written[where] = self.epoch
        self.owner[where] = buffer.number
        self.data[where] = data
        return trouble

    def read(self, warp: int, where: np.ndarray, buffer: Allocation) -> tuple[np.ndarray, str]:
        """The bytes, and a text when nobody wrote them or when reading them is a race."""
        trouble = ""
        if (self.owner[where] == -1).any():
            trouble = "reads shared memory that nothing has written"
        elif (self.owner[where] != buffer.number).any():
            trouble = "reads shared memory that another buffer has overwritten"
        if self.check_races and (self.now(self.writers, self.written, where) & ~np.uint64(1 << warp)).any():
            trouble = "reads shared memory that another warp writes, with no barrier in between"
        self.readers[where] = self.now(self.readers, self.read_at, where) | np.uint64(1 << warp)
        self.read_at[where] = self.epoch
        return self.data[where], trouble

    def now(self, warps: np.ndarray, epochs: np.ndarray, where: np.ndarray) -> np.ndarray:
        """The set of warps at each byte, empty where it is from before the last barrier."""
        return np.where(epochs[where] == self.epoch, warps[where], np.uint64(0))


class Warp(LaidMachine):
    """One warp of a program."""

    def __init__(self, func: Func, space: AddressSpace, sizes: Any, program: Any, number: int, memory: SharedMemory):
        super().__init__(func, space, sizes, program)
        self.number, self.memory = number, memory
        self.warps = slice(number, number + 1)

    def move(self, op: Op, args: list) -> tuple:
        match op.name:
            case "alloc":
                offset, type = op.attrs.get("offset"), op.attrs["type"]
                if offset is None or offset + type.bytes > len(self.memory.data):
                    raise self.bug(op, "the buffer has no place in shared memory")
                return (Allocation(offset, type, op.id),)
            case "local_store":
                tile, held = self.gather(op, args[1], op.args[1].type)
                where = self.bytes_of(args[0], np.flatnonzero(held))
                data = np.ascontiguousarray(tile.reshape(-1)[held.reshape(-1)]).view(np.uint8)
                self.complain(op, self.memory.write(self.number, where.reshape(-1), data.reshape(-1), args[0]))
                return ()
            case "local_load":
                type = op.result.type
                wanted = np.zeros(type.size, bool)
                wanted[self.places(op, type.layout)] = True
                tile = self.read(op, args[0], wanted.reshape(type.shape))
                return (self.deal(op, tile, wanted, type),)
        return super().move(op, args)

    def bytes_of(self, buffer: Allocation, elements: np.ndarray) -> np.ndarray:
        """The addresses of the bytes of some elements (flat indices), [elements, bytes of one]."""
        size = buffer.type.dtype.bytes
        offsets = buffer.type.layout.offsets().reshape(-1)[elements]
        return (buffer.offset + offsets * size)[:, None] + np.arange(size)

    def read(self, op: Op, buffer: Allocation, wanted: np.ndarray) -> np.ndarray:
        """A tile of a buffer's elements where `wanted`, zeros elsewhere."""
        where = self.bytes_of(buffer, np.flatnonzero(wanted))
        data, trouble = self.memory.read(self.number, where.reshape(-1), buffer)
        self.complain(op, trouble)
        tile = np.zeros(buffer.type.shape, buffer.type.dtype.numpy)
        tile[wanted] = np.ascontiguousarray(data).view(tile.dtype)
        return tile

    def operand(self, op: Op, i: int, value: Any) -> tuple[np.ndarray, np.ndarray]:
        """From registers what this warp holds; from a buffer the rows or columns that its part of the result needs."""
        if not isinstance(value, Allocation):
            return super().operand(op, i, value)
        result = op.result.type
        needed = np.zeros(result.size, bool)
        needed[self.places(op, result.layout)] = True
        lines = np.any(needed.reshape(result.shape), axis=1 - i, keepdims=True)
        wanted = np.broadcast_to(lines, value.type.shape)
        return self.read(op, value, wanted), wanted

    def complain(self, op: Op, trouble: str) -> None:
        if trouble:
            raise self.bug(op, f"warp {self.number} {trouble}")


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
    """Runs one program: all warps up to their next barrier in random order, again and again.

    Raises CompilerBug when some warps wait at a barrier that others pass by, or wait at different ones.
    """
    count = func.attrs.get("num_warps", 4)
    memory = SharedMemory(_shared_bytes(func), check_races)
    walks: dict[int, Generator[Op, None, tuple]] = {}
    for number in range(count):
        warp = Warp(func, space, sizes, program, number, memory)
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


def _shared_bytes(func: Func) -> int:
    ends = [op.attrs.get("offset", 0) + op.attrs["type"].bytes for op in func.ops() if op.name == "alloc"]
    return func.attrs.get("shared_bytes", max(ends, default=0))
