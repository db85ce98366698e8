"""The shadow memory of one launch: makes it, and reads which races and uninitialized elements the kernel found.

A region is a range of addresses that the launch stores to. Arrays that overlap share it. A cell of a region stands for as many bytes as
the smallest element that the kernel accesses there. See `codegen.shadow` for the words and docs/design/race_checks.md for the algorithm.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blocknb.codegen import shadow as words_of
from blocknb.codegen.shadow import FAULTS, FIRST_RECORD, FIRST_REGION, KINDS, RECORD, RECORDS, SITE_BITS
from blocknb.errors import KernelError, LaunchError
from blocknb.ir.shadow import (
    ACTIONS,
    Program,
    ShadowPlan,
    ShadowSite,
    first_of,
    lanes_error,
    ordered_pair,
    race_error,
    undefined_error,
    uninitialized_error,
)
from blocknb.runtime import cuda
from blocknb.runtime.extents import UNBOUNDED
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import Grid
from blocknb.runtime.uninitialized import UnwrittenArray, unwritten

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

DEFAULT_BYTES = 4 << 30
MOST_PROGRAMS = 4096  # with vector clocks
SLOTS = 4096  # addresses that atomics with an order may have
MASK = 0xFFFFFFFF
POSSIBLE = {
    "load": {"load", "observe"},
    "store": {"store"},
}  # the actions of an access by its verb; atomics have the others
CHUNK = 1 << 16  # cells that the host compares at once, which stay in its cache
OTHERS = {KINDS[action] for action in ("lanes", "read", "undefined")}  # what a record may tell besides races
Arrays = Mapping[int, tuple[str, int, int, int]]  # by argument: name, address, lower and upper bound of its bytes
#: The pairs of actions that race, in the order in which a launch reports them.
PAIRS = (("store", "store"), ("store", "load"), ("store", "update"), ("store", "observe"), ("update", "load"))


def limit() -> int:
    """The most bytes of shadow memory of a launch: BLOCKNB_SHADOW_BYTES, or 4 GiB."""
    text = os.environ.get("BLOCKNB_SHADOW_BYTES") or str(DEFAULT_BYTES)
    if not text.isdigit():
        raise LaunchError(f"BLOCKNB_SHADOW_BYTES is {text!r}, which is not a number of bytes")
    return int(text)


@dataclass(frozen=True)
class ShadowRegion:
    """A range of addresses, whose cells begin at number `first` and stand for 2 ** `shift` bytes each. The flags of its bytes begin at
    byte `flag`."""

    lower: int
    upper: int
    shift: int
    first: int
    flag: int

    @property
    def cells(self) -> int:
        return -(-(self.upper - self.lower) // (1 << self.shift))

    def words(self, flags: int) -> list[int]:
        """The words of the context. `flags` is the address of the flags of all regions, or zero."""
        return [self.lower, self.upper - self.lower, self.shift, self.first, flags + self.flag if flags else 0]


def stored_arguments(plan: ShadowPlan, arrays: Arrays) -> set[int]:
    """The arguments whose arrays a launch may store to."""
    stores = [site.arguments for site in plan.sites if site.verb != "load"]
    return set(arrays) if () in stores else {i for arguments in stores for i in arguments if i in arrays}


def all_noted(compiled: Compiled, arrays: Arrays) -> Compiled | None:
    """The code that notes all loads, for a launch whose stores may meet arrays that the kernel only loads; None for other launches."""
    plan = compiled.code.shadow
    if plan is None or not plan.unshared:
        return None
    stored = [arrays[i][2:] for i in stored_arguments(plan, arrays)]
    loaded = [arrays[i][2:] for i in plan.unshared if i in arrays]
    if not any(low < upper and lower < high for low, high in loaded for lower, upper in stored):
        return None
    return compiled.retarget(compiled.target, {*compiled.options["without"], "unshared_loads"})


def regions_of(plan: ShadowPlan, arrays: Arrays, marked: Iterable[UnwrittenArray]) -> list[ShadowRegion]:
    """The regions of a launch. Raises LaunchError for an array of unknown size."""
    ranges: list[list[int]] = []
    bounds = [(array.low, array.high) for array in marked]
    for i in stored_arguments(plan, arrays) if plan.races else ():
        name, _, low, high = arrays[i]
        if (low, high) == UNBOUNDED:
            hint = "pass an array with a shape, for example by numpy.from_dlpack"
            raise LaunchError(f"checked='race' needs the size of `{name}`, which has no shape", hint=hint)
        bounds.append((low, high))
    for low, high in sorted(bounds):
        if low >= high:
            continue
        if ranges and low < ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], high)
        else:
            ranges.append([low, high])

    def arguments(bounds: list[int]) -> int:
        return min(i for i, (_, _, low, high) in arrays.items() if low < bounds[1] and bounds[0] < high)

    found, first, offset = [], 0, 0
    for low, high in sorted(ranges, key=arguments):
        found.append(ShadowRegion(low, high, _shift(plan, arrays, low, high), first, offset))
        first, offset = first + found[-1].cells, offset + high - low
    return found


def _shift(plan: ShadowPlan, arrays: Arrays, low: int, high: int) -> int:
    """The binary logarithm of the bytes for which a cell stands: no two elements of the kernel share a cell."""
    inside = {i for i, (_, _, lower, upper) in arrays.items() if lower < high and low < upper}
    sizes = [site.bytes for site in plan.sites if not site.arguments or inside.intersection(site.arguments)]
    offsets = [abs(arrays[i][1] - low) for i in inside]
    return math.gcd(*sizes, *offsets, 8).bit_length() - 1


class ShadowMemory:
    """The shadow memory of one launch. A subclass has the memory of the host or of a device."""

    device = HOST

    def __init__(self, plan: ShadowPlan, arrays: Arrays, grid: Grid):
        self.plan, self.arrays, self.grid = plan, arrays, grid
        self.programs = math.prod(grid)
        self.marked = self._marked()
        self.regions = regions_of(plan, arrays, self.marked)
        self.cells = sum(region.cells for region in self.regions)
        self.planes = [action for action in ACTIONS if action == "store" or action in self._noted()]
        self._check_limits()
        sizes = self._sizes()
        address, places = self.make(sum(sizes.values())), {}
        for name, size in sizes.items():
            places[name], address = address, address + size
        self.places = places
        self.context = places["context"]
        self.write(self.context, self._context_words())
        self._start_clocks()
        self._start_flags()

    # -- memory, of the host or of a device

    def make(self, size: int) -> int:
        """Allocates zeroed memory and returns its address, a multiple of 64."""
        raise NotImplementedError

    def write(self, address: int, words: np.ndarray) -> None:
        """Copies words of int64 to an address."""
        raise NotImplementedError

    def array(self, address: int, count: int, size: int = 8) -> Any:
        """The unsigned integers of 8 bytes (or another `size`) at an address, in place."""
        raise NotImplementedError

    def settle(self) -> None:
        """Waits until what the host wrote is visible to the launch."""

    def host(self, words: Any) -> np.ndarray:
        """A copy of words on the host."""
        raise NotImplementedError

    # -- the layout

    def _sizes(self) -> dict[str, int]:
        """The bytes of each part."""
        words = FIRST_REGION + words_of.REGION * len(self.regions)
        sizes = {"context": 8 * words}
        clocked = self.plan.clocked
        for action in self.planes if self.plan.races else ():
            sizes[action] = 4 * self.cells * self.programs if clocked and action != "store" else 8 * self.cells
        if self.inits:
            sizes["flags"] = sum(region.upper - region.lower for region in self.regions)
        if clocked:
            sizes |= {"keys": 8 * SLOTS, "rows": 4 * SLOTS * self.programs, "clocks": 4 * self.programs**2}
        return {name: -(-size // 64) * 64 for name, size in sizes.items()}

    def _check_limits(self) -> None:
        bits, most = self.plan.site_bits, SITE_BITS if self.plan.clocked else 31
        if bits > most:
            raise LaunchError(f"checked='race' has numbers for {1 << most} accesses, and the kernel has more")
        if self.plan.clocked and self.programs > MOST_PROGRAMS:
            message = f"checked='race' orders at most {MOST_PROGRAMS} programs by vector clocks, and the grid has {self.programs}"
            raise LaunchError(message, hint="test the kernel on a smaller problem")
        if not self.plan.clocked and self.programs << bits >= MASK:
            raise LaunchError(
                f"checked='race' has numbers for {MASK >> bits} programs, and the grid has {self.programs}"
            )
        size, most = sum(self._sizes().values()), limit()
        if size > most:
            message = f"checked='race' needs {size} bytes of shadow memory, more than the limit of {most}"
            raise LaunchError(message, hint="test a smaller problem, or set BLOCKNB_SHADOW_BYTES in the environment")

    def _context_words(self) -> np.ndarray:
        words = np.zeros(FIRST_REGION + words_of.REGION * len(self.regions), np.uint64)
        words[words_of.REGIONS] = len(self.regions)
        words[words_of.CELLS], words[words_of.PROGRAMS] = self.cells, self.programs
        words[words_of.BITS], words[words_of.SLOTS] = self.plan.site_bits, SLOTS
        for name, index in (("keys", words_of.KEYS), ("rows", words_of.ROWS), ("clocks", words_of.CLOCKS)):
            words[index] = self.places.get(name, 0)
        for action in self.planes:
            words[words_of.PLANES + KINDS[action]] = self.places.get(action, 0)
        words[words_of.ARGUMENTS] = self._shadowed_arguments()
        for i, region in enumerate(self.regions):
            at = FIRST_REGION + words_of.REGION * i
            words[at : at + words_of.REGION] = region.words(self.places.get("flags", 0))
        return words

    def _shadowed_arguments(self) -> int:
        """A bit for each argument whose array meets a region. All arguments from the 63rd on share a bit."""
        bits = 0
        for i, (_, _, low, high) in self.arrays.items():
            if self._shadowed(low, high):
                bits |= 1 << min(i, 63)
        return bits

    def _noted(self) -> set[str]:
        """The actions that the launch may note in cells."""
        touched = {i for i, bounds in self.arrays.items() if self._shadowed(*bounds[2:])}
        found: set[str] = set()
        for site in self.plan.sites:
            if not site.arguments or touched.intersection(site.arguments):
                found |= POSSIBLE.get(site.verb, {"store", "update", "observe"})
        return found.intersection(self.plan.actions)

    def _shadowed(self, low: int, high: int) -> bool:
        """Whether a range meets a region."""
        return any(low < region.upper and region.lower < high for region in self.regions)

    @property
    def inits(self) -> bool:
        """Whether the kernel looks for elements that nothing has written."""
        return "read" in self.plan.actions or "fill" in self.plan.actions

    def _marked(self) -> list[UnwrittenArray]:
        """The marked arrays that the launch may access."""
        if not self.inits:
            return []
        found = [x for _, _, low, high in self.arrays.values() for x in unwritten(low, high, self.device)]
        return list(dict.fromkeys(found))

    def _flags(self, array: UnwrittenArray) -> Any:
        """The flags of this launch for the bytes of a marked array."""
        region = next(r for r in self.regions if r.lower <= array.low < r.upper)
        return self.array(self.places["flags"] + region.flag + array.low - region.lower, array.high - array.low, 1)

    def _start_flags(self) -> None:
        """Everything counts as written, but for marked arrays."""
        if self.inits and self.regions:
            self.array(self.places["flags"], sum(r.upper - r.lower for r in self.regions), 1)[:] = 1
            for array in self.marked:
                self._flags(array)[:] = array.flags
            self.settle()

    def _keep_flags(self) -> None:
        """Notes for later launches what this one has written."""
        for array in self.marked:
            array.flags |= self._flags(array)

    def _start_clocks(self) -> None:
        """Sets the clock of each program to one."""
        if self.plan.clocked:
            self.array(self.places["clocks"], self.programs**2, 4)[:: self.programs + 1] = 1
            self.settle()

    # -- results

    def raise_error(self) -> None:
        """Raises the error that the launch has found, if there is one."""
        self._keep_flags()
        header = self.host(self.array(self.context, FIRST_REGION))
        if fault := int(header[words_of.FAULT]):
            what = "releases of one program" if fault == FAULTS["clock"] else f"addresses of atomics (limit: {SLOTS})"
            raise LaunchError(
                f"checked='race' cannot order so many {what}", hint="test the kernel on a smaller problem"
            )
        errors = list(self._recorded(header))
        if not self.plan.clocked and self.plan.races and (header[words_of.RACE_FOUND] or len(self.planes) > 1):
            errors = [*self._scanned(), *errors]
        if (error := first_of(errors)) is not None:
            raise error

    def _recorded(self, header: np.ndarray) -> Iterator[KernelError]:
        """The errors of the records, by address."""
        count = min(int(header[words_of.COUNT]), RECORDS)
        rows = header[FIRST_RECORD : FIRST_RECORD + RECORD * count].reshape(count, RECORD).tolist()
        for address, mine, other, what in sorted(rows, key=self._order):
            site, program = self._plain(mine) if what in OTHERS else self._clocked(mine)
            name, index = self._element(address, site)
            match what & 0xFF:
                case 8:
                    yield lanes_error(name, index, site, program, (other,))
                case 9:
                    yield uninitialized_error(name, index, site, program, sum(row[3] == what for row in rows))
                case 11:
                    yield undefined_error(name, index, site, program)
                case _:
                    yield race_error(name, index, ordered_pair(self._clocked(other), (site, program)), True)

    def _order(self, row: list[int]) -> tuple[int, ...]:
        """Races come first, then what is in the first array, at its lowest address, by the order of PAIRS and of the programs."""
        address, mine, other, what = row
        region = next((r.first for r in self.regions if r.lower <= address < r.upper), -1)
        actions = {ACTIONS[what & 0xFF], ACTIONS[what >> 8]} if what not in OTHERS else set()
        rank = next((i for i, pair in enumerate(PAIRS) if set(pair) == actions), 0)
        return what in OTHERS, region, address, rank, min(mine, other), max(mine, other)

    def _clocked(self, word: int) -> tuple[ShadowSite, Program]:
        """The site and the program of an entry with clocks."""
        return self.plan.sites[word & (1 << SITE_BITS) - 1], self._program((word >> 32) - 1)

    def _plain(self, word: int) -> tuple[ShadowSite, Program]:
        return self.plan.sites[word & MASK], self._program((word >> 32) - 1)

    def _program(self, number: int) -> Program:
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    def _element(self, address: int, site: ShadowSite) -> tuple[str, int]:
        """The name of the array at an address, of those that the site may access if possible, and the number of the element."""
        holding = [i for i, (_, _, low, high) in self.arrays.items() if low <= address < high]
        chosen = next((i for i in holding if i in site.arguments), next(iter(holding), None))
        if chosen is None:  # an array that no argument holds, through a pointer from memory
            return "an array that is no argument", address // site.bytes
        name, start, _, _ = self.arrays[chosen]
        return name, (address - start) // site.bytes

    def _scanned(self) -> Iterator[KernelError]:
        """The race at the lowest address, from the planes."""
        planes = {action: self.array(self.places[action], self.cells) for action in self.planes}
        index, count = self._first_race(planes)
        if not count:
            return
        cells = {action: int(self.host(plane[index : index + 1])[0]) for action, plane in planes.items()}
        region = next(r for r in self.regions if r.first <= index < r.first + r.cells)
        address = region.lower + (index - region.first << region.shift)
        for a, b in PAIRS:
            if pair := self._pair(cells.get(a, 0), cells.get(b, 0)):
                name, element = self._element(address, pair[0][0])
                whole = all(site.bytes == 1 << region.shift for site, _ in pair)
                yield race_error(name, element, pair, False, count if whole else 1)
                return

    def _first_race(self, planes: Mapping[str, Any]) -> tuple[int, int]:
        """The number of the first cell with a race, and how many there are."""
        return first_race(planes, self.plan.site_bits)

    def _pair(self, a: int, b: int) -> list[tuple[ShadowSite, Program]]:
        """Two accesses of different programs from two cells; empty if there are none."""
        bits = self.plan.site_bits
        for x in keys(a) if a and b else ():
            for y in keys(b):
                if x >> bits != y >> bits:
                    return [(self.plan.sites[k & (1 << bits) - 1], self._program(k >> bits)) for k in (x, y)]
        return []


def keys(cell: int) -> tuple[int, int]:
    """The least and the greatest key of a cell."""
    return MASK - (cell & MASK) - 1, (cell >> 32) - 1


def first_race(planes: Mapping[str, Any], bits: int) -> tuple[int, int]:
    """The number of the first cell with a race, and how many there are. Planes are arrays of uint64 of NumPy or CuPy."""
    found = {action: _programs(plane, bits) for action, plane in planes.items()}
    bad = None
    for a, b in PAIRS:
        if a in found and b in found:
            (some, least, most), (others, first, last) = found[a], found[b]
            race = some & others & ((least != first) | (most != first) | (last != first))
            bad = race if bad is None else bad | race
    count = 0 if bad is None else int(bad.sum())
    return (int(bad.argmax()), count) if count else (0, 0)  # type: ignore[union-attr]


def _programs(plane: Any, bits: int) -> tuple[Any, Any, Any]:
    """The cells of a plane that hold an access, and the least and the greatest program in each."""
    high = ((plane >> np.uint64(32)).astype(np.int64) - 1) >> bits
    low = (MASK - (plane & np.uint64(MASK)).astype(np.int64) - 1) >> bits
    return plane != 0, low, high


class HostShadow(ShadowMemory):
    """Shadow memory of the host. The operating system gives pages when they are first written."""

    def make(self, size: int) -> int:
        self.memory = np.zeros(size + 64, np.uint8)
        return int(-(-self.memory.ctypes.data // 64) * 64)

    def write(self, address: int, words: np.ndarray) -> None:
        self.array(address, len(words))[:] = words.view(np.uint64)

    def array(self, address: int, count: int, size: int = 8) -> Any:
        start = address - self.memory.ctypes.data
        return self.memory[start : start + size * count].view(f"u{size}")

    def host(self, words: Any) -> np.ndarray:
        return np.array(words)

    def _first_race(self, planes: Mapping[str, Any]) -> tuple[int, int]:
        first = total = 0
        for start in range(0, self.cells, CHUNK):
            index, count = super()._first_race({a: plane[start : start + CHUNK] for a, plane in planes.items()})
            first, total = first if total else start + index, total + count
        return first, total


class DeviceShadow(ShadowMemory):
    """Shadow memory of the current GPU, cleared in the order of a stream."""

    def __init__(self, plan: ShadowPlan, arrays: Arrays, grid: Grid, device: int, stream: int):
        self.device, self.stream = device, stream
        super().__init__(plan, arrays, grid)

    def make(self, size: int) -> int:
        cupy = cuda.cupy_for("checked='race' on a GPU")
        try:
            self.memory = cupy.cuda.alloc(size)
        except cupy.cuda.memory.OutOfMemoryError as error:
            hint = "test a smaller problem"
            raise LaunchError(f"checked='race' finds no {size} bytes of GPU memory", hint=hint) from error
        cupy.cuda.runtime.memsetAsync(self.memory.ptr, 0, size, self.stream)
        return int(self.memory.ptr)

    def write(self, address: int, words: np.ndarray) -> None:
        runtime = cuda.cupy().cuda.runtime
        runtime.streamSynchronize(self.stream)
        runtime.memcpy(address, words.ctypes.data, words.nbytes, runtime.memcpyHostToDevice)

    def array(self, address: int, count: int, size: int = 8) -> Any:
        return cuda.cupy().ndarray((count,), f"u{size}", self.memory + (address - self.memory.ptr))

    def settle(self) -> None:
        cuda.cupy().cuda.runtime.deviceSynchronize()

    def host(self, words: Any) -> np.ndarray:
        return words.get()
