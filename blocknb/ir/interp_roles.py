"""The interpreter where warps have roles: mbarriers, the copy engine, and CTAs that run several programs.

The warps of the team and the producer are coroutines that go on in random order, one step at a time, and so does the copy engine:
what it was told to do is done at a random moment later. Races are found by clocks (`clocks`), whatever the order;
what mbarriers and tensor maps hold is in `mbarriers`.

The copy engine writes a buffer from the moment it is told to, and nobody may look until a wait for the mbarrier has shown that it is
done. It reads a buffer until a wait for that, and no fence or barrier less will do than hardware asks for. What it stores can be read
back by nobody in the same program. A program must not end before it has waited for everything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.errors import CompilerBug
from blocknb.ir.address import AddressSpace
from blocknb.ir.clocks import NEVER, Clocks, Marks
from blocknb.ir.core import Block, Func, Op, Value, operands, walk
from blocknb.ir.interp_memory import POISON, UNDER_WAY, UNORDERED, Allocation, Memory, Warp
from blocknb.ir.mbarriers import Box, Map, Mbarrier
from blocknb.ir.text import print_op
from blocknb.language.types import Tile

RELEASES = ("release", "acq_rel")
ALIGNMENT = 16  # bytes, of the start and the strides of what the copy engine accesses


@dataclass(eq=False)
class Store:
    """A bulk store: how to do its parts, what it reads, and how far it is."""

    warp: int
    read: Callable[[], None]
    write: Callable[[], None]
    where: np.ndarray
    done: bool = False  # reading
    waited: bool = False


class RoleMemory(Memory):
    """Shared memory whose accesses are ordered by clocks, and which the copy engine accesses, too."""

    def __init__(self, func: Func, check_races: bool, clocks: Clocks):
        self.clocks = clocks
        super().__init__(func, check_races)
        self.lent = np.zeros(len(self.data), np.int32)  # to so many bulk stores that nobody has waited for
        # What each warp loads into registers, for all that the copy engine can tell.
        self.loading = np.zeros((clocks.warps, len(self.data)), bool)

    def account(self, size: int) -> Marks:
        return Marks(size, self.clocks)

    def write(self, warp: int, where: np.ndarray, data: np.ndarray, buffer: Allocation) -> str:
        if self.lent[where].any():
            return "writes shared memory that the copy engine stores, without having waited for it"
        return super().write(warp, where, data, buffer)

    def read(self, warp: int, where: np.ndarray, buffer: Allocation, loads: bool = False) -> tuple[np.ndarray, str]:
        if loads:
            self.loading[warp, where] = True
        return super().read(warp, where, buffer, loads)

    def loaded(self, warp: int) -> None:
        """What a warp has read is in its registers: it arrives at an mbarrier without waiting for that (seen on an H200)."""
        self.loading[warp] = False

    def fence(self, warp: int) -> None:
        self.fenced[(self.writer == warp) & (self.fenced == 0)] = self.clocks.now(warp)
        self.loaded(warp)

    def unfenced(self, warp: int, where: np.ndarray, reads: str = "reads by wgmma") -> str:
        if not self.check_races:
            return ""
        mine = where[self.writer[where] >= 0]
        if (self.fenced[mine] == 0).any():
            return f"{reads} what was stored without a fence"
        late = self.fenced[mine] > self.clocks.known[warp, self.writer[mine]]
        return f"{reads} what another warp has fenced{UNORDERED}" if late.any() else ""

    def tell_copy(self, warp: int, where: np.ndarray) -> str:
        """The copy engine is told to fill bytes; what is wrong with it, or ""."""
        if (self.owner[where] == UNDER_WAY).any():
            return "copies to shared memory to which a copy is under way"
        if self.lent[where].any():
            return "copies to shared memory that the copy engine stores, without a wait for it"
        trouble = self.touches.overwrite(warp, where) if self.check_races else ""
        if not trouble:
            trouble = self.unfenced(warp, where, "copies over")
            if not trouble and self.check_races and self.loading[:, where].any():
                trouble = "copies over what a warp still reads: no fence and no product stands behind that"
        else:
            trouble = f"copies to shared memory that {trouble}{UNORDERED}"
        self.data[where], self.owner[where] = POISON, UNDER_WAY
        return trouble

    def fill(self, where: np.ndarray, data: np.ndarray, buffer: Allocation, column: int, moment: int) -> None:
        """The copy engine's bytes arrive."""
        self.data[where], self.owner[where] = data, buffer.number
        self.writer[where], self.fenced[where] = -1, -1
        self.touches.note_copy(where, column, moment)


@dataclass
class Cta:
    """What the warps of a CTA share besides memory: the mbarriers by the id of their op, and what the copy engine has to do."""

    clocks: Clocks
    order: np.random.Generator
    count: int  # of CTAs
    mbarriers: dict[int, list[Mbarrier]] = field(default_factory=dict)
    flying: list[Callable[[], None]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


class Agent(Warp):
    """A warp of the team (role 0) or the producer (role 1)."""

    def __init__(self, *rest: Any, cta: Cta, role: int, needed: frozenset[int]):
        super().__init__(*rest)
        self.cta, self.role, self.needed = cta, role, needed
        self.team, place = divmod(self.number, self.func.attrs.get("num_warps", 4))
        if not role:
            self.take_place(place)
        self.memory: RoleMemory
        self.inside = False  # of the block of its role
        self.between = False  # two steps, and able to go on
        self.awaits: Callable[[], bool] | None = None

    def ready(self) -> bool:
        return self.between or (self.awaits is not None and self.awaits())

    @property
    def title(self) -> str:
        return "the producer" if self.role else f"warp {self.number}"

    def complain(self, op: Op, trouble: str) -> None:
        if trouble:
            raise self.bug(op, f"{self.title} {trouble}")

    def execute(self, block: Block, env: MutableMapping[Value, Any]) -> Generator[Op, None, tuple]:
        """The producer has no tiles, so before the roles part it does what its own part needs."""
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
                    raise self.bug(op, f"{self.title} waits for a parity of {parity}")
                yield from self.wait_until(op, lambda: barrier.over(parity))
                self.cta.clocks.learn(self.number, barrier.shown)
                return ()
            case "arrive" | "expect" | "copy_bulk" | "store_bulk":
                self.between = True
                yield op
                self.between = False
                self.guarded(op, args)
                return ()
            case "store_wait":
                yield from self.store_wait(op)
                return ()
        return (yield from super().control(op, args, env))

    def wait_until(self, op: Op, done: Callable[[], bool]) -> Generator[Op, None, None]:
        self.awaits = done
        yield op
        self.awaits = None

    def step(self, op: Op, args: list) -> tuple:
        match op.name:
            case "cta_id":
                return (np.asarray(self.program[0], np.int32),)
            case "team_id":
                return (np.asarray(self.team, np.int32),)
            case "num_ctas":
                return (np.asarray(self.cta.count, np.int32),)
            case "program_id" if self.func.attrs.get("persistent"):
                raise self.bug(op, "a CTA that runs several programs has no program id")
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
                    self.complain(op, self.mbarrier(op, args).arrive(self.cta.clocks.tell(self.number)))
                return ()
            case "expect":
                row = self.cta.clocks.tell(self.number)
                self.complain(op, self.mbarrier(op, args).arrive(row, op.attrs["bytes"]))
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
        """One that tells others what its program has done cannot tell them of bulk stores, whose end nobody waits for."""
        mine = any(store.warp == self.number for store in self.cta.stores)
        mine = mine and not self.func.attrs.get("persistent")  # by a program before that would do no harm
        if mine and self.memory.check_races and op.attrs["sem"] in RELEASES:
            raise self.bug(op, f"{self.title} tells others that it is done, while the copy engine may still store")
        return super().atomic(op, args)

    def mbarrier(self, op: Op, args: list) -> Mbarrier:
        made, index = args[0], int(args[1])
        if not 0 <= index < len(made):
            raise self.bug(op, f"{self.title} uses mbarrier {index} of {len(made)}")
        barrier: Mbarrier = made[index]
        if barrier.made is None or barrier.made > self.cta.clocks.known[self.number, 0]:
            raise self.bug(op, f"{self.title} uses an mbarrier that another warp makes{UNORDERED}")
        return barrier

    def tensor_map(self, op: Op, args: list) -> Map:
        kind, numbers = op.result.type, [int(x) for x in args]
        rank, size = len(kind.box), kind.dtype.bytes
        base, extents, strides = numbers[0], numbers[1 : rank + 1], [*numbers[rank + 1 :], 1]
        wrong = (n > 1 and stride * size % ALIGNMENT for n, stride in zip(extents, strides[:-1], strict=False))
        if base % ALIGNMENT or any(wrong):
            raise self.bug(op, f"a tensor map needs a start and strides of multiples of {ALIGNMENT} bytes: {strides}")
        return Map(kind, base, tuple(extents), tuple(strides))

    def copy_bulk(self, op: Op, args: list) -> None:
        """Tells the copy engine to fill a buffer; each of its instructions is done at a moment of its own."""
        buffer, map, *coordinates = args[0], args[1], *(int(x) for x in args[4:])
        barrier = self.mbarrier(op, args[2:])
        box = map.box(buffer, op.attrs["axes"], coordinates)
        where = self.bytes_of(buffer, np.arange(box.address.size))
        self.complain(op, self.memory.tell_copy(self.number, where.reshape(-1)))

        def observe(array: int, bytes: np.ndarray, new: Any) -> None:
            self.fetch(op, array, bytes, barrier.column, barrier.phase + 1)

        values = self.reach(op, "load", box, map, observe).view(np.uint8).reshape(where.shape)
        for piece in np.unique(box.piece):
            chosen = box.piece == piece
            self.cta.flying.append(self.landing(op, where[chosen], values[chosen], buffer, barrier))

    def landing(
        self, op: Op, where: np.ndarray, data: np.ndarray, buffer: Allocation, barrier: Mbarrier
    ) -> Callable[[], None]:
        def land() -> None:
            self.memory.fill(where.reshape(-1), data.reshape(-1), buffer, barrier.column, barrier.phase + 1)
            self.complain(op, barrier.come(where.size))

        return land

    def reach(self, op: Op, name: str, box: Box, map: Map, observe: Callable) -> np.ndarray:
        """The elements of an array under a box, zeros where it is out of bounds; `observe` is told which bytes they are."""
        row = map.extents[-1] * map.type.dtype.bytes
        if name == "store" and row % ALIGNMENT and not box.inside.all():  # it clips at the next multiple
            raise self.bug(op, f"{self.title} stores to rows of {row} bytes, and zeros behind them")
        self.space.observer = observe
        try:
            kind = map.type.dtype.numpy
            return self.space.load(op.replace(name=name), self.program, box.address, kind, box.inside, None)
        finally:
            self.space.observer = None

    def fetch(self, op: Op, array: int, where: np.ndarray, column: int, moment: int) -> None:
        trouble = self.marks(array).note_fetch(self.number, where, column, moment)
        if self.memory.check_races:
            does = f"copies elements of `{self.space.names[array]}` that"
            self.complain(op, f"{does} {trouble}{UNORDERED}" if trouble else "")

    def marks(self, array: int) -> Marks:
        if array not in self.memory.arrays:
            self.memory.arrays[array] = self.memory.account(len(self.space.bytes[array]))
        return self.memory.arrays[array]

    def store_bulk(self, op: Op, args: list) -> None:
        """Tells the copy engine to store a buffer: it reads it some time before a wait for that, and writes some time later."""
        map, buffer, *coordinates = args[0], args[1], *(int(x) for x in args[2:])
        box = map.box(buffer, op.attrs["axes"], coordinates)
        own = "layout" in op.attrs
        chosen = np.unique(self.places(op, op.attrs["layout"])) if own else np.arange(box.address.size)
        box = Box(box.address[chosen], box.inside[chosen], box.piece[chosen])
        where = self.bytes_of(buffer, chosen).reshape(-1)
        _, trouble = self.memory.read(self.number, where, buffer)
        self.complain(op, trouble or self.memory.unfenced(self.number, where, "stores"))

        def observe(array: int, bytes: np.ndarray, new: Any) -> None:
            marks = self.marks(array)
            if adds:
                return  # in any order
            trouble = marks.overwrite(self.number, bytes)
            marks.note_copy(bytes, NEVER, 1)
            if trouble and self.memory.check_races:
                self.complain(op, f"stores to elements of `{self.space.names[array]}` that {trouble}{UNORDERED}")

        adds, kind = op.attrs.get("adds"), map.type.dtype.numpy
        self.reach(op, "store", box, map, observe)
        self.memory.lent[where] += 1
        found: list[np.ndarray] = []

        def read() -> None:
            found.append(self.memory.data[where].view(map.type.dtype.numpy))
            store.done = True
            self.cta.flying.append(write)

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
        self.cta.flying.append(read)

    def store_wait(self, op: Op) -> Generator[Op, None, None]:
        stores = [store for store in self.cta.stores if store.warp == self.number]
        waited = stores[: max(0, len(stores) - op.attrs["in_flight"])]
        yield from self.wait_until(op, lambda: all(store.done for store in waited))
        for store in waited:
            if not store.waited:
                self.memory.lent[store.where] -= 1
                self.memory.touches.note_read(self.number, 0, store.where)
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
    """Runs one CTA of `count`, or one program: warps and the copy engine take turns at random.

    Raises CompilerBug when nobody can go on, and when the program ends before what it has begun is done.
    """
    team = func.attrs.get("num_warps", 4)
    parts = next((op for op in func.body.ops if op.name == "roles"), None)
    made = [op for op in func.ops() if op.name == "mbarriers"]
    teams = 1 if parts is None else parts.attrs.get("teams", 1)
    agents = teams * team + (parts is not None)
    clocks = Clocks(agents, sum(op.attrs["slots"] for op in made))
    cta, width, column = Cta(clocks, order, count), clocks.known.shape[1], agents
    for op in made:
        slots = range(op.attrs["slots"])
        empty = [(np.zeros(width, np.int64), np.zeros(width, np.int64)) for _ in slots]
        cta.mbarriers[op.id] = [Mbarrier(op.attrs["arrivals"], column + i, *empty[i]) for i in slots]
        column += len(slots)
    memory = RoleMemory(func, check_races, clocks)
    needed = frozenset() if parts is None else _needed(func, parts)
    common = func, space, sizes, program
    warps = [Agent(*common, i, memory, cta=cta, role=int(i >= teams * team), needed=needed) for i in range(agents)]
    for warp in warps:
        warp.implicit_barriers = implicit_barriers and not warp.role
    Schedule(func, cta, warps, team, program).run(env)
    if any(warp.products for warp in warps):
        raise CompilerBug(f"the program {program} ends while products are under way", func.loc)
    if any(any(warp.groups) for warp in warps) or (memory.owner == UNDER_WAY).any():
        raise CompilerBug(f"the program {program} ends while copies to shared memory are under way", func.loc)
    if (memory.touches.landed > clocks.known.max(axis=0)[memory.touches.writer]).any():
        raise CompilerBug(f"the program {program} ends before anybody has waited for its copies", func.loc)
    if any(barrier.is_begun for made in cta.mbarriers.values() for barrier in made):
        raise CompilerBug(f"the program {program} ends while a phase of an mbarrier is half over", func.loc)
    if not all(store.waited for store in cta.stores):
        raise CompilerBug(f"the program {program} ends while the copy engine stores shared memory", func.loc)


def _needed(func: Func, parts: Op) -> frozenset[int]:
    """The ops in front of the roles that the producer runs, too: barriers, and what its own part is computed from."""
    wanted = {value for op in walk(parts.blocks[1]) for value in op.args}
    found = {parts.id}
    for op in reversed(func.body.ops):
        if op.name == "barrier" or not wanted.isdisjoint(op.results):
            found.add(op.id)
            wanted.update(operands(op))
    return frozenset(found)


class Schedule:
    """Lets the warps of a CTA and the copy engine take turns, each run at a pace of its own."""

    def __init__(self, func: Func, cta: Cta, warps: list[Agent], team: int, program: Any):
        self.func, self.cta, self.warps, self.team, self.program = func, cta, warps, team, program
        self.paces = cta.order.random(len(warps)) + 0.05
        self.copying = float(cta.order.choice([0.1, 0.5, 0.9]))  # how likely the copy engine's turn is
        self.at: dict[int, Op] = {}  # the op at which each has stopped
        self.waiting: dict[int, list[int]] = {}  # at a barrier: with whom

    def run(self, env: dict) -> None:
        order, flying = self.cta.order, self.cta.flying
        walks = {i: warp.execute(self.func.body, dict(env)) for i, warp in enumerate(self.warps)}
        fresh = set(walks)
        while walks:
            able = [i for i in walks if i not in self.waiting and (i in fresh or self.warps[i].ready())]
            if flying and (not able or order.random() < self.copying):
                flying.pop(int(order.integers(len(flying))))()
                continue
            if not able:
                raise self.deadlock()
            paces = self.paces[able]
            i = int(order.choice(able, p=paces / paces.sum()))
            fresh.discard(i)
            try:
                self.at[i] = next(walks[i])
            except StopIteration:
                del walks[i]
                self.at.pop(i, None)
                continue
            warp = self.warps[i]
            if not warp.between and warp.awaits is None:
                everyone = self.at[i].name == "barrier" and not warp.inside
                first = warp.team * self.team
                self.waiting[i] = list(range(len(self.warps)) if everyone else range(first, first + self.team))
                self.meet(i, fresh)
        while flying:
            flying.pop(int(order.integers(len(flying))))()

    def meet(self, warp: int, fresh: set[int]) -> None:
        """Lets those at a barrier go on when all have come."""
        group = self.waiting[warp]
        if any(self.waiting.get(i) != group for i in group):
            return
        if len({self.at[i].id for i in group}) > 1:
            raise self.deadlock("warps wait at different barriers")
        self.cta.clocks.meet(group)
        for i in group:
            del self.waiting[i]
        fresh.update(group)

    def deadlock(self, what: str = "nobody can go on") -> CompilerBug:
        lines = [f"{self.warps[i].title} waits at {print_op(self.func, op)}" for i, op in sorted(self.at.items())]
        first = next(iter(self.at.values()), None)
        text = "".join(f"\n    {line}" for line in lines)
        return CompilerBug(f"deadlock: {what} (program {self.program}){text}", first.loc if first else self.func.loc)
