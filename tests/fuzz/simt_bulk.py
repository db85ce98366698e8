"""TMA, mbarriers and warp roles for `simt`, after the PTX ISA ("Tensors", "mbarrier", "Swizzling modes").

A copy completes as late as possible. Its destination is invalid from the instruction on, and the bytes arrive when a thread waits for
them. A store reads shared memory when its thread waits for it. A thread that arrives at an mbarrier yields to the others, so a stage that
is released too early is overwritten at once. The only input from the compiler is the host's description of a tensor map.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from blocknb.codegen import maps

Env = dict[str, Any]
Get = Callable[[Env], Any]
SWITCH = object()  # the result of a step after which other threads run
MAP_ADDRESS = 0x7E57 << 32  # of the first tensor map; the next are 128 bytes further
DTYPES: dict[str, Any] = {
    f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
DTYPES |= {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64, "int1": np.bool_}
DTYPES |= {"fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}


@dataclass
class Map:
    """An encoded tensor map: numbers, outer axis first; strides in bytes."""

    base: int
    size: int  # bytes of an element
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @staticmethod
    def encode(spec: maps.MapSpec, values: Sequence[int]) -> Map:
        """Encodes a tensor map with the rules and the refusals of cuTensorMapEncodeTiled."""
        places = {i: i for i in range(len(values))}
        dims, strides = ([maps.evaluator(e, places)(values) for e in many] for many in (spec.dims, spec.strides))
        size = np.dtype(DTYPES[spec.dtype.name]).itemsize
        found = Map(values[spec.base], size, tuple(dims), (*(s * size for s in strides), size), spec.box, spec.swizzle)
        if min(dims) <= 0:  # the host describes one zero instead: every element is out of bounds
            return found
        assert not found.base % 16, "the address of an array is no multiple of 16"
        assert all(0 < n <= 2**32 for n in dims), dims
        assert all(s >= 0 and not s % 16 for s in found.strides[:-1]), found.strides
        assert all(1 <= n <= 256 for n in spec.box), spec.box
        assert not spec.box[-1] * size % 16
        assert not spec.swizzle or spec.box[-1] * size <= spec.swizzle, "rows of a box are longer than the swizzle"
        return found

    def elements(self, start: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each element of a box: its address, whether it is in bounds, and its offset in the box."""
        grid = np.indices(self.box).reshape(len(self.box), -1)
        where = grid + np.array(start, np.int64)[:, None]
        inside = ((where >= 0) & (where < np.array(self.dims, np.int64)[:, None])).all(0)
        address = self.base + (where * np.array(self.strides, np.int64)[:, None]).sum(0)
        return address, inside, np.arange(grid.shape[1]) * self.size

    @property
    def bytes(self) -> int:
        return int(np.prod(self.box)) * self.size

    def swizzled(self, address: np.ndarray) -> np.ndarray:
        """Shared addresses under the pattern: of 128 bytes bits 4 to 6 are XORed with bits 7 to 9."""
        chunks = max(1, self.swizzle // 16)
        return address ^ (address >> 7 & (chunks - 1)) << 4


@dataclass
class Mbarrier:
    """The arrivals and bytes that the current phase still waits for."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def step(self, arrivals: int = 0, bytes: int = 0) -> None:
        self.pending -= arrivals
        self.bytes += bytes
        if self.pending < 0:
            raise ValueError(f"more arrivals than the {self.count} of a phase")
        if not self.pending and not self.bytes:
            self.phase, self.pending = self.phase + 1, self.count


class Engine:
    """The TMA copies and mbarriers of a CTA. `machine` has its memories."""

    def __init__(self, tensor_maps: Sequence[Map]):
        self.maps = tensor_maps
        self.barriers: dict[int, Mbarrier] = {}
        self.flying: list[tuple[int, np.ndarray, np.ndarray]] = []  # for an mbarrier, bytes to places
        self.groups: dict[int, list[list[Callable[[], None]]]] = {}  # of stores, by thread

    def barrier(self, address: int) -> Mbarrier:
        if address not in self.barriers:
            raise ValueError(f"no mbarrier was made at {address}")
        return self.barriers[address]

    def map(self, address: int) -> Map:
        return self.maps[(address - MAP_ADDRESS) // 128]

    def load(self, machine: Any, map: Map, start: Sequence[int], target: int, barrier: int, text: str) -> None:
        assert not target % 128, f"a box at a shared address that is no multiple of 128: {text}"
        address, inside, place = map.elements(start)
        data = np.zeros((len(address), map.size), np.uint8)
        if inside.any():
            data[inside] = machine.memory.load(address[inside], map.size, map.size, text, np.zeros(inside.sum(), int))
        places = machine.shared.places(map.swizzled(target + place), map.size, map.size, text)
        machine.shared.bytes[places] = 0xA5  # invalid until it arrives
        self.barrier(barrier)
        self.flying.append((barrier, places, data))

    def arrive(self, machine: Any, barrier: int) -> None:
        """The bytes in flight for an mbarrier arrive."""
        for flight in [x for x in self.flying if x[0] == barrier]:
            self.flying.remove(flight)
            machine.shared.bytes[flight[1]] = flight[2]
            self.barrier(barrier).step(bytes=-flight[2].size)

    def groups_of(self, thread: int) -> list[list[Callable[[], None]]]:
        return self.groups.setdefault(thread, [[]])

    def store(self, machine: Any, map: Map, start: Sequence[int], source: int, text: str, who: int) -> None:
        """By a thread of the machine."""
        assert not source % 128, f"a box at a shared address that is no multiple of 128: {text}"
        address, inside, place = map.elements(start)
        thread = np.full(len(address), who)
        where = map.swizzled(source + place)
        machine.shared.load(where, map.size, map.size, text, thread)  # may race with the thread that wrote it
        places = machine.shared.places(where, map.size, map.size, text)
        if machine.shared.unseen[places].any():
            raise ValueError(f"shared memory was written, and no fence has shown it to the copy engine: {text}")

        def late() -> None:
            machine.shared.load(
                where, map.size, map.size, text, thread
            )  # the next writer has synchronized with this thread
            if ".add." in text:
                self.add(machine, address[inside], machine.shared.bytes[places][inside], text, thread[inside])
                return
            machine.memory.store(address[inside], machine.shared.bytes[places][inside], map.size, text, thread[inside])

        self.groups_of(int(machine.ids[who]))[-1].append(late)

    def add(self, machine: Any, address: np.ndarray, data: np.ndarray, text: str, thread: np.ndarray) -> None:
        """Adds fp32 numbers to memory."""
        memory = machine.memory
        memory.watch.access(memory.places(address, 4, 4, text), thread, text, write=True, atomic=True)
        once, each = np.unique(address, return_inverse=True)  # rows may overlap
        places = memory.places(once, 4, 4, text)
        sums = np.ascontiguousarray(memory.bytes[places]).view(np.float32)
        np.add.at(sums, (each.reshape(-1), 0), np.ascontiguousarray(data).view(np.float32).reshape(-1))
        memory.bytes[places] = sums.view(np.uint8)

    def wait(self, pending: int, who: int) -> None:
        groups = self.groups_of(who)
        while len(groups) - 1 > pending:
            for late in groups.pop(0):
                late()

    def end(self) -> None:
        if self.flying:
            raise ValueError("the CTA ends while copies to it are under way")
        if any(any(groups) for groups in self.groups.values()):
            raise ValueError("the CTA ends before its stores have read shared memory")


@dataclass
class Wait:
    """The condition that a thread waits for."""

    machine: Any
    address: int
    parity: int

    def over(self) -> bool:
        engine = self.machine.engine
        engine.arrive(self.machine, self.address)
        return engine.barrier(self.address).phase & 1 != self.parity


# -- inline PTX

PLACE = r"\[\$(\d+)(?:\+(\d+))?\]"
WAIT = re.compile(
    r"\{ \.reg \.pred over; again: mbarrier\.try_wait\.parity\.shared::cta\.b64 over, "
    + PLACE
    + r", \$(\d), \d+; @over bra done; bra again; done: \}"
)
LOAD = re.compile(
    r"cp\.async\.bulk\.tensor\.(\d)d\.shared::cluster\.global\.mbarrier::complete_tx::bytes(?:\.L2::cache_hint)? "
    + PLACE
    + r", \[\$(\d+), \{(.*?)\}\], "
    + PLACE
    + r"(?:, \$\d+)?;"
)
STORE = re.compile(
    r"cp\.(?:reduce\.)?async\.bulk\.tensor\.(\d)d\.global\.shared::cta(?:\.add\.tile)?\.bulk_group \[\$(\d+), \{(.*?)\}\], "
    + PLACE
    + ";"
)


def assembly(text: str, args: Sequence[Get], threads: int) -> Get | None:
    """Runs an asm statement of TMA or mbarriers; returns None for any other one."""
    text = text.split(" //")[0]

    def number(env: Env, index: str | int, at: str | None = None, on: np.ndarray | None = None) -> int:
        """An operand that is equal in all active threads (`on`)."""
        values = {int(x) for x in args[int(index)](env)[env["@"].active if on is None else on]}
        if len(values) != 1:
            raise ValueError(f"an operand that differs from thread to thread: {text}")
        return values.pop() + int(at or 0)

    def alone(env: Env) -> None:
        if env["@"].active.sum() != 1:
            raise ValueError(f"an instruction for one thread: {text}")

    if text.startswith("mbarrier.init"):
        found = re.findall(r"mbarrier\.init\.shared::cta\.b64 " + PLACE + r", (\d+);", text)

        def init(env: Env) -> None:
            alone(env)
            for index, at, count in found:
                address = number(env, index, at)
                assert not address % 8
                env["@"].engine.barriers[address] = Mbarrier(int(count), int(count))

        assert text.endswith("; fence.mbarrier_init.release.cluster;")
        return init
    if found := WAIT.fullmatch(text):
        return lambda env: Wait(env["@"], number(env, found[1], found[2]), number(env, found[3]))
    if found := re.fullmatch(r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, " + PLACE + r", (\d+);", text):

        def expect(env: Env) -> None:
            alone(env)
            env["@"].engine.barrier(number(env, found[1], found[2])).step(1, int(found[3]))

        return expect
    if found := re.fullmatch(r"(?:@\$(\d) )?mbarrier\.arrive\.shared::cta\.b64 _, " + PLACE + ";", text):

        def arrive(env: Env) -> object:
            on = args[int(found[1])](env) if found[1] else np.ones(threads, bool)
            if on.any():
                env["@"].engine.barrier(number(env, found[2], found[3], on)).step(int(on.sum()))
            return SWITCH

        return arrive
    if found := LOAD.fullmatch(text):
        names = re.findall(r"\$(\d+)", found[5])
        assert len(names) == int(found[1])

        def load(env: Env) -> None:
            alone(env)
            engine, start = env["@"].engine, [number(env, n) for n in reversed(names)]
            target, barrier = in_shared(env, number(env, found[2], found[3])), number(env, found[6], found[7])
            engine.load(env["@"], engine.map(number(env, found[4])), start, target, barrier, text)

        return load
    if found := STORE.fullmatch(text):
        names = re.findall(r"\$(\d+)", found[3])
        assert len(names) == int(found[1])

        def store(env: Env) -> None:  # one thread, or one of each warp
            machine = env["@"]
            for thread in np.flatnonzero(machine.active):
                on = np.arange(threads) == thread
                start = [number(env, n, on=on) for n in reversed(names)]
                where = in_shared(env, number(env, found[4], found[5], on))
                map = machine.engine.map(number(env, found[2], on=on))
                machine.engine.store(machine, map, start, where, text, int(thread))

        return store
    if text == "cp.async.bulk.commit_group;":

        def commit(env: Env) -> None:
            for thread in env["@"].ids[env["@"].active]:
                env["@"].engine.groups_of(int(thread)).append([])

        return commit
    if found := re.fullmatch(r"cp\.async\.bulk\.wait_group\.read (\d+);", text):

        def wait(env: Env) -> None:
            for thread in env["@"].ids[env["@"].active]:
                env["@"].engine.wait(int(found[1]), int(thread))

        return wait
    if re.fullmatch(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 \d+;", text):

        def registers(env: Env) -> None:
            if threads % 128 or env["@"].ids[0] % 128:
                raise ValueError("registers are shared out to groups of four warps")

        return registers
    if text == "prefetch.tensormap [$0];":
        return lambda env: None
    return None


def in_shared(env: Env, address: int) -> int:
    """An address of 32 bits in full."""
    base = env["@"].base
    return base + (address - base & 0xFFFFFFFF)


# -- roles


def part(value: Any, taken: np.ndarray) -> Any:
    """A value restricted to some of the threads."""
    if isinstance(value, np.ndarray):
        return value[taken]
    if isinstance(value, list):
        return [part(x, taken) for x in value]
    if hasattr(value, "value"):  # a local variable
        own = copy.copy(value)
        own.value = part(value.value, taken)
        return own
    return value


def elect(env: Env, match: re.Match, mask: np.ndarray) -> list[np.ndarray]:
    """The first thread of each warp."""
    threads = np.arange(len(mask))
    return [np.zeros(len(mask), np.int32), threads % 32 == 0]


def together(agents: list[tuple[Any, Any]]) -> None:
    """Runs the roles in turn until all have ended. Each is a generator, which yields True when it has to wait. A role that is
    made on the way joins them. Raises ValueError where all wait."""
    waiting = 0
    while agents:
        agent = agents.pop(0)
        waited = next(agent, None)
        if waited is None:
            waiting = 0
            continue
        agents.append(agent)
        waiting = waiting + 1 if waited else 0
        if waiting > len(agents):
            raise ValueError("everybody waits for an mbarrier")
