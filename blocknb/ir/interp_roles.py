"""Interprets warp-specialized functions: mbarriers, the copy engine (TMA), and CTAs that run several programs.

The consumer warps and the producer warp are coroutines. The scheduler picks one at random and runs one step of it. The copy engine
executes each request at a random later moment. Vector clocks (`clocks`) find races in any order of execution. `mbarriers` holds the
state of mbarriers and tensor maps.

The copy engine may write a buffer from the issue of a copy on. Warps must not access the buffer until a wait on the mbarrier has
completed. The copy engine may read a buffer until a store wait has completed. The interpreter requires the same fences and barriers as
hardware. A program must not read back what its copy engine stores, and must not end before all its copies are complete.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import CompilerBug
from blocknb.ir.address import AddressSpace
from blocknb.ir.clocks import NO_WAIT, ClockedAccesses, Clocks
from blocknb.ir.core import Block, Func, Op, Value, operands, walk
from blocknb.ir.interp_memory import IN_FLIGHT, POISON, UNORDERED, Allocation, Memory, Warp, unfinished
from blocknb.ir.mbarriers import Box, Map, Mbarrier
from blocknb.ir.text import print_op
from blocknb.language.types import Tile

RELEASES = ("release", "acq_rel")
ALIGNMENT = 16  # bytes; the start and the strides of a tensor map


@dataclass(eq=False)
class Store:
    """A bulk store: functions that perform its parts, the bytes that it reads, and its progress."""

    warp: int
    read: Callable[[], None]
    write: Callable[[], None]
    where: np.ndarray
    done: bool = False  # reading
    waited: bool = False


class RoleMemory(Memory):
    """Shared memory that warps and the copy engine access, with vector clocks for race detection."""

    def __init__(self, func: Func, check_races: bool, clocks: Clocks):
        self.clocks = clocks
        super().__init__(func, check_races)
        self.read_by_stores = np.zeros(len(self.data), np.int32)  # by byte: number of bulk stores without a wait
        # The bytes that each warp may still be loading into registers.
        self.loading = np.zeros((clocks.warps, len(self.data)), bool)

    def new_accesses(self, size: int) -> ClockedAccesses:
        return ClockedAccesses(size, self.clocks)

    def write(self, warp: int, where: np.ndarray, data: np.ndarray, buffer: Allocation) -> str:
        if self.read_by_stores[where].any():
            return "writes shared memory that a bulk store may still read; wait for the store first"
        return super().write(warp, where, data, buffer)

    def read(self, warp: int, where: np.ndarray, buffer: Allocation, loads: bool = False) -> tuple[np.ndarray, str]:
        if loads:
            self.loading[warp, where] = True
        return super().read(warp, where, buffer, loads)

    def loaded(self, warp: int) -> None:
        """Records a warp's loads as complete. An arrival at an mbarrier does not wait for earlier loads (observed on an H200)."""
        self.loading[warp] = False

    def fence(self, warp: int) -> None:
        self.fenced[(self.writer == warp) & (self.fenced == 0)] = self.clocks.now(warp)
        self.loaded(warp)

    def unfenced(self, warp: int, where: np.ndarray, reads: str = "reads by wgmma") -> str:
        if not self.check_races:
            return ""
        mine = where[self.writer[where] >= 0]
        if (self.fenced[mine] == 0).any():
            return f"{reads} shared memory that was stored without a fence"
        late = self.fenced[mine] > self.clocks.known[warp, self.writer[mine]]
        return f"{reads} shared memory that another warp has fenced{UNORDERED}" if late.any() else ""

    def issue_copy(self, warp: int, where: np.ndarray) -> str:
        """Issues a copy to shared memory. Returns an error message, or ""."""
        if (self.owner[where] == IN_FLIGHT).any():
            return "copies to shared memory while another copy to it is in flight"
        if self.read_by_stores[where].any():
            return "copies to shared memory that a bulk store may still read; wait for the store first"
        self.data[where], self.owner[where] = POISON, IN_FLIGHT
        if not self.check_races:
            return ""
        if error := self.accesses.overwrite(warp, where):
            return f"copies to shared memory that {error}{UNORDERED}"
        if error := self.unfenced(warp, where, "copies over"):
            return error
        if self.loading[:, where].any():
            return "overwrites shared memory that a warp may still load: a fence or an MMA must follow the load"
        return ""

    def complete_bulk_copy(
        self, where: np.ndarray, data: np.ndarray, buffer: Allocation, column: int, moment: int
    ) -> None:
        """Writes the bytes of a completed copy."""
        self.data[where], self.owner[where] = data, buffer.number
        self.writer[where], self.fenced[where] = -1, -1
        self.accesses.note_copy(where, column, moment)


class Cta:
    """The state of a CTA besides memory: its warps, clocks and mbarriers, and the requests to the copy engine that are in flight."""

    def __init__(self, func: Func, order: np.random.Generator, count: int):
        self.order, self.count = order, count  # the number of CTAs
        self.roles = next((op for op in func.body.ops if op.name == "roles"), None)
        self.group_size = func.attrs.get("num_warps", 4)
        self.consumers = self.group_size * (1 if self.roles is None else self.roles.attrs.get("consumer_groups", 1))
        made = [op for op in func.ops() if op.name == "mbarriers"]
        self.clocks = Clocks(self.consumers + (self.roles is not None), sum(op.attrs["stages"] for op in made))
        columns, width = itertools.count(self.clocks.warps), self.clocks.known.shape[1]
        self.mbarriers = {  # by the id of their op
            op.id: [Mbarrier(op.attrs["arrivals"], next(columns), width) for _ in range(op.attrs["stages"])]
            for op in made
        }
        self.requests: list[Callable[[], None]] = []
        self.stores: list[Store] = []

    def producer_ops(self, func: Func) -> frozenset[int]:
        """The ops before the roles that the producer also runs: barriers, and the backward slice of its own code."""
        if self.roles is None:
            return frozenset()
        wanted = {value for op in walk(self.roles.blocks[1]) for value in op.args}
        found = {self.roles.id}
        for op in reversed(func.body.ops):
            if op.name == "barrier" or not wanted.isdisjoint(op.results):
                found.add(op.id)
                wanted.update(operands(op))
        return frozenset(found)

    def unfinished(self, memory: RoleMemory) -> str:
        """The asynchronous operation that is incomplete at the end of the program, or ""."""
        accesses = memory.accesses
        if (accesses.landed > self.clocks.known.max(axis=0)[accesses.writer]).any():
            return "without a wait for its copies"
        if any(barrier.is_begun for made in self.mbarriers.values() for barrier in made):
            return "while a phase of an mbarrier is incomplete"
        if not all(store.waited for store in self.stores):
            return "while a bulk store reads shared memory; wait for the store first"
        return ""


class Agent(Warp):
    """A consumer warp (role 0) or a producer warp (role 1)."""

    def __init__(self, *rest: Any, cta: Cta, needed: frozenset[int]):
        super().__init__(*rest)
        self.cta, self.role, self.needed = cta, int(self.number >= cta.consumers), needed
        self.group, place = divmod(self.number, cta.group_size)
        if not self.role:
            self.take_place(place)
        self.memory: RoleMemory
        self.inside = False  # of the block of its role
        self.yielded = False  # between two steps, and able to continue
        self.blocked_on: Callable[[], bool] | None = None

    def ready(self) -> bool:
        return self.yielded or (self.blocked_on is not None and self.blocked_on())

    @property
    def title(self) -> str:
        return "the producer" if self.role else f"warp {self.number}"

    def raise_if_error(self, op: Op, error: str) -> None:
        if error:
            raise self.compiler_bug(op, f"{self.title} {error}")

    def execute(self, block: Block, env: MutableMapping[Value, Any]) -> Generator[Op, None, tuple]:
        """The producer has no tiles. Before the warps take their roles, it executes only the ops that its own code needs."""
        if self.role and block is self.func.body:
            block = Block(block.args, tuple(op for op in block.ops if op.id in self.needed))
        return (yield from super().execute(block, env))

    def control(self, op: Op, args: list, env: MutableMapping[Value, Any]) -> Generator[Op, None, tuple]:
        match op.name:
            case "roles":
                self.inside = True
                yield from self.execute(op.blocks[self.role], env)
                self.inside = False
                return ()
            case "await":
                barrier, parity = self.mbarrier(op, args), int(args[2])
                if parity not in (0, 1):
                    raise self.compiler_bug(op, f"{self.title} waits for a parity of {parity}")
                yield from self.wait_until(op, lambda: barrier.has_completed(parity))
                self.cta.clocks.acquire(self.number, barrier.released)
                return ()
            case "arrive" | "expect" | "copy_bulk" | "store_bulk":
                self.yielded = True
                yield op
                self.yielded = False
                self.guarded(op, args)
                return ()
            case "store_wait":
                yield from self.store_wait(op)
                return ()
        return (yield from super().control(op, args, env))

    def wait_until(self, op: Op, done: Callable[[], bool]) -> Generator[Op, None, None]:
        self.blocked_on = done
        yield op
        self.blocked_on = None

    def step(self, op: Op, args: list) -> tuple:
        match op.name:
            case "cta_id":
                return (np.asarray(self.program[0], np.int32),)
            case "consumer_group_id":
                return (np.asarray(self.group, np.int32),)
            case "num_ctas":
                return (np.asarray(self.cta.count, np.int32),)
            case "program_id" if self.func.attrs.get("persistent"):
                raise self.compiler_bug(op, "a CTA that runs several programs has no program id")
            case "mbarriers":
                made = self.cta.mbarriers[op.id]
                if self.number == 0:
                    for barrier in made:
                        barrier.made = self.cta.clocks.now(0)
                return (made,)
            case "tensor_map":
                return (self.tensor_map(op, args),)
            case "arrive":
                if len(args) < 3 or bool(args[2]):
                    self.raise_if_error(op, self.mbarrier(op, args).arrive(self.cta.clocks.release(self.number)))
                return ()
            case "expect":
                row = self.cta.clocks.release(self.number)
                self.raise_if_error(op, self.mbarrier(op, args).arrive(row, op.attrs["bytes"]))
                return ()
            case "copy_bulk":
                self.copy_bulk(op, args)
                return ()
            case "store_bulk":
                if self.first or "layout" in op.attrs:
                    self.store_bulk(op, args)
                return ()
        return super().step(op, args)

    def dot(self, op: Op, args: list) -> np.ndarray:
        if isinstance(op.args[0].type, Tile):
            self.memory.loaded(self.number)  # it begins with operands that are in registers
        return super().dot(op, args)

    def atomic(self, op: Op, args: list) -> tuple:
        """An atomic that signals other programs. It must not signal while a bulk store without a wait may still write."""
        mine = any(store.warp == self.number for store in self.cta.stores)
        mine = mine and not self.func.attrs.get("persistent")  # stores of earlier programs are harmless
        if mine and self.memory.check_races and op.attrs["sem"] in RELEASES:
            raise self.compiler_bug(
                op, f"{self.title} signals other programs while a bulk store may still write; wait for the store first"
            )
        return super().atomic(op, args)

    def mbarrier(self, op: Op, args: list) -> Mbarrier:
        made, index = args[0], int(args[1])
        if not 0 <= index < len(made):
            raise self.compiler_bug(op, f"{self.title} uses mbarrier {index} of {len(made)}")
        barrier: Mbarrier = made[index]
        if barrier.made is None or barrier.made > self.cta.clocks.known[self.number, 0]:
            raise self.compiler_bug(op, f"{self.title} uses an mbarrier that another warp makes{UNORDERED}")
        return barrier

    def tensor_map(self, op: Op, args: list) -> Map:
        kind, numbers = op.result.type, [int(x) for x in args]
        rank, size = len(kind.box), kind.dtype.bytes
        base, extents, strides = numbers[0], numbers[1 : rank + 1], [*numbers[rank + 1 :], 1]
        wrong = (n > 1 and stride * size % ALIGNMENT for n, stride in zip(extents, strides[:-1], strict=False))
        if base % ALIGNMENT or any(wrong):
            raise self.compiler_bug(
                op, f"a tensor map needs a start and strides of multiples of {ALIGNMENT} bytes: {strides}"
            )
        return Map(kind, base, tuple(extents), tuple(strides))

    def copy_bulk(self, op: Op, args: list) -> None:
        """Issues a copy to a buffer. Each of its instructions completes at its own random moment."""
        buffer, map, *coordinates = args[0], args[1], *(int(x) for x in args[4:])
        barrier = self.mbarrier(op, args[2:])
        box = map.box(buffer, op.attrs["axes"], coordinates, op.attrs.get("extents"))
        where = self.bytes_of(buffer, box.index)
        self.raise_if_error(op, self.memory.issue_copy(self.number, where.reshape(-1)))

        def observe(array: int, bytes: np.ndarray, new: Any) -> None:
            self.record_fetch(op, array, bytes, barrier.column, barrier.phase + 1)

        values = self.reach(op, "load", box, map, observe).view(np.uint8).reshape(where.shape)
        for piece in np.unique(box.piece):
            chosen = box.piece == piece
            self.cta.requests.append(self.completion(op, where[chosen], values[chosen], buffer, barrier))

    def completion(
        self, op: Op, where: np.ndarray, data: np.ndarray, buffer: Allocation, barrier: Mbarrier
    ) -> Callable[[], None]:
        def complete() -> None:
            self.memory.complete_bulk_copy(
                where.reshape(-1), data.reshape(-1), buffer, barrier.column, barrier.phase + 1
            )
            self.raise_if_error(op, barrier.receive(where.size))

        return complete

    def reach(self, op: Op, name: str, box: Box, map: Map, observe: Callable) -> np.ndarray:
        """The elements of an array under a box, with zeros out of bounds. Calls `observe` with their bytes."""
        row = map.extents[-1] * map.type.dtype.bytes
        if name == "store" and row % ALIGNMENT and not box.inside.all():  # hardware clips at the next multiple
            raise self.compiler_bug(op, f"{self.title} stores rows of {row} bytes, not of a multiple of {ALIGNMENT}")
        self.space.observer = observe
        try:
            kind = map.type.dtype.numpy
            return self.space.load(op.replace(name=name), self.program, box.address, kind, box.inside, None)
        finally:
            self.space.observer = None

    def record_fetch(self, op: Op, array: int, where: np.ndarray, column: int, moment: int) -> None:
        error = self.accesses_of(array).note_fetch(self.number, where, column, moment)
        if self.memory.check_races:
            does = f"copies elements of `{self.space.names[array]}` that"
            self.raise_if_error(op, f"{does} {error}{UNORDERED}" if error else "")

    def accesses_of(self, array: int) -> ClockedAccesses:
        if array not in self.memory.arrays:
            self.memory.arrays[array] = self.memory.new_accesses(len(self.space.bytes[array]))
        return self.memory.arrays[array]

    def store_bulk(self, op: Op, args: list) -> None:
        """Issues a store of a buffer. The copy engine reads the buffer before the store wait completes, and writes the array later."""
        map, buffer, *coordinates = args[0], args[1], *(int(x) for x in args[2:])
        box = map.box(buffer, op.attrs["axes"], coordinates)
        own = "layout" in op.attrs
        chosen = np.unique(self.places(op, op.attrs["layout"])) if own else np.arange(box.address.size)
        box = Box(box.address[chosen], box.inside[chosen], box.piece[chosen], box.index[chosen])
        where = self.bytes_of(buffer, chosen).reshape(-1)
        _, error = self.memory.read(self.number, where, buffer)
        self.raise_if_error(op, error or self.memory.unfenced(self.number, where, "stores"))

        def observe(array: int, bytes: np.ndarray, new: Any) -> None:
            accesses = self.accesses_of(array)
            if adds:
                return  # in any order
            error = accesses.overwrite(self.number, bytes)
            accesses.note_copy(bytes, NO_WAIT, 1)
            if error and self.memory.check_races:
                self.raise_if_error(op, f"stores to elements of `{self.space.names[array]}` that {error}{UNORDERED}")

        adds, kind = op.attrs.get("adds"), map.type.dtype.numpy
        self.reach(op, "store", box, map, observe)
        self.memory.read_by_stores[where] += 1
        found: list[np.ndarray] = []

        def read() -> None:
            found.append(self.memory.data[where].view(map.type.dtype.numpy))
            store.done = True
            self.cta.requests.append(write)

        def write() -> None:
            if not adds:
                self.space.store(op.replace(name="store"), self.program, box.address, found[0], box.inside)
                return
            places, each = np.unique(box.address[box.inside], return_inverse=True)  # rows may overlap
            sums = np.array(self.space.load(op.replace(name="load"), self.program, places, kind, None, None))
            np.add.at(sums, each.reshape(-1), found[0][box.inside])
            self.space.store(op.replace(name="store"), self.program, places, sums, None)

        store = Store(self.number, read, write, where)
        self.cta.stores.append(store)
        self.cta.requests.append(read)

    def store_wait(self, op: Op) -> Generator[Op, None, None]:
        stores = [store for store in self.cta.stores if store.warp == self.number]
        waited = stores[: max(0, len(stores) - op.attrs["in_flight"])]
        yield from self.wait_until(op, lambda: all(store.done for store in waited))
        for store in waited:
            if not store.waited:
                self.memory.read_by_stores[store.where] -= 1
                self.memory.accesses.note_read(self.number, 0, store.where)
                store.waited = True


def run_roles(
    func: Func,
    env: dict,
    space: AddressSpace,
    sizes: Any,
    program: Any,
    count: int,
    order: np.random.Generator,
    check_races: bool = True,
    implicit_barriers: bool = False,
) -> None:
    """Runs one CTA of `count`, or one program, in random order of warps and copy engine.

    Raises CompilerBug on a deadlock, or if the program ends before its asynchronous operations are complete.
    """
    cta = Cta(func, order, count)
    memory, needed = RoleMemory(func, check_races, cta.clocks), cta.producer_ops(func)
    warps = [Agent(func, space, sizes, program, i, memory, cta=cta, needed=needed) for i in range(cta.clocks.warps)]
    for warp in warps:
        warp.implicit_barriers = implicit_barriers and not warp.role
    Schedule(func, cta, warps, program).run(env)
    if left := unfinished(warps, memory) or cta.unfinished(memory):
        raise CompilerBug(f"the program {program} ends {left}", func.loc)


class Schedule:
    """Schedules the warps of a CTA and the copy engine at random. The relative speeds differ between runs."""

    def __init__(self, func: Func, cta: Cta, warps: list[Agent], program: Any):
        self.func, self.cta, self.warps, self.program = func, cta, warps, program
        self.speeds = cta.order.random(len(warps)) + 0.05
        self.copy_probability = float(cta.order.choice([0.1, 0.5, 0.9]))  # probability of a step of the copy engine
        self.at: dict[int, Op] = {}  # the op at which each warp has stopped
        self.waiting: dict[int, list[int]] = {}  # warps at a barrier, with the warps that must meet there

    def run(self, env: dict) -> None:
        order, requests = self.cta.order, self.cta.requests
        walks = {i: warp.execute(self.func.body, dict(env)) for i, warp in enumerate(self.warps)}
        fresh = set(walks)
        while walks:
            able = [i for i in walks if i not in self.waiting and (i in fresh or self.warps[i].ready())]
            if requests and (not able or order.random() < self.copy_probability):
                requests.pop(int(order.integers(len(requests))))()
                continue
            if not able:
                raise self.deadlock()
            speeds = self.speeds[able]
            i = int(order.choice(able, p=speeds / speeds.sum()))
            fresh.discard(i)
            try:
                self.at[i] = next(walks[i])
            except StopIteration:
                del walks[i]
                self.at.pop(i, None)
                continue
            warp = self.warps[i]
            if not warp.yielded and warp.blocked_on is None:
                everyone = self.at[i].name == "barrier" and not warp.inside
                size = self.cta.group_size
                group = range(warp.group * size, (warp.group + 1) * size)
                self.waiting[i] = list(range(len(self.warps)) if everyone else group)
                self.meet(i, fresh)
        while requests:
            requests.pop(int(order.integers(len(requests))))()

    def meet(self, warp: int, fresh: set[int]) -> None:
        """Releases the warps at a barrier once all of them have arrived."""
        group = self.waiting[warp]
        if any(self.waiting.get(i) != group for i in group):
            return
        if len({self.at[i].id for i in group}) > 1:
            raise self.deadlock("warps wait at different barriers")
        self.cta.clocks.synchronize(group)
        for i in group:
            del self.waiting[i]
        fresh.update(group)

    def deadlock(self, what: str = "no warp can continue") -> CompilerBug:
        lines = [f"{self.warps[i].title} waits at {print_op(self.func, op)}" for i, op in sorted(self.at.items())]
        first = next(iter(self.at.values()), None)
        text = "".join(f"\n    {line}" for line in lines)
        return CompilerBug(f"deadlock: {what} (program {self.program}){text}", first.loc if first else self.func.loc)
