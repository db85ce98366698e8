"""The address space of the interpreter: each array argument is a range of integers.

A pointer is an int64 byte address, as on hardware, so pointer arithmetic, casts and pointers loaded from memory need no special case.
Every array lies in the middle of its own window of 2**40 bytes. An address far outside its array therefore still identifies the array,
and no stray access hits another array. Tables of pointers contain host addresses, which lie below all windows. A host address inside
an array argument refers to its elements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from blocknb.errors import AccessError, Loc
from blocknb.ir.core import Op
from blocknb.ir.interp_shadow import ShadowAccount, note_access
from blocknb.ir.provenance import UNOWNED, Owned, owners_of
from blocknb.ir.report import Access, Printed, access_error, action_of, reach, readonly_error
from blocknb.ir.shadow import race_error
from blocknb.language.semantics import update

WINDOW_BITS = 40
FIRST = 256  # the first window; host addresses are below it


class ForeignAccess(AccessError):
    """An access through a pointer to memory that no argument of the launch describes."""


class AddressSpace:
    """Arrays with addresses. `names` are the names of the arrays in messages.

    The space calls `observer(number of the array, byte offsets, the bytes about to be written or None)` for every access.
    """

    def __init__(self) -> None:
        self.observer: Callable[[int, np.ndarray, np.ndarray | None], None] | None = None
        self.names: list[str] = []
        self.starts: list[int] = []  # per array: offset of the first element from the lowest byte
        self.of_argument: list[int] = []  # per argument: the number of its array, or None
        self.printed: list[Printed] = []  # reports of the kernels
        self.keep: list[np.ndarray] = []
        self.bytes: list[np.ndarray] = []
        self.lowest: list[int] = []  # per array: its host address
        self.account = ShadowAccount()
        #: Gives the place in the source of an access that is noted for races; None: shadow ops of the IR note accesses.
        self.locate: Callable[[], Loc | None] | None = None

    def add(self, name: str, array: np.ndarray, lowest: int | None = None) -> int:
        """Makes the bytes of an array addressable, from its lowest to its highest. Returns the address of its first element.

        `lowest` is the original address if the array is a copy of GPU memory.
        """
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (array.ctypes.data,) * 2
        raw = (ctypes.c_ubyte * (high - low)).from_address(low)
        view = np.frombuffer(memoryview(raw), np.uint8) if high > low else np.empty(0, np.uint8)
        view.flags.writeable = array.flags.writeable
        self.names.append(name)
        self.starts.append(array.ctypes.data - low)
        self.keep.append(array)
        self.bytes.append(view)
        self.lowest.append(low if lowest is None else lowest)
        return self._base(len(self.bytes) - 1) + array.ctypes.data - low

    def _base(self, number: int) -> int:
        return (number + FIRST << WINDOW_BITS) + (1 << WINDOW_BITS - 1)

    def load(self, op: Op, program: tuple, addresses: np.ndarray, dtype: np.dtype, mask: Any, other: Any) -> np.ndarray:
        """The elements at `addresses` where `mask` is on (None: everywhere), `other` (None: zero) elsewhere.

        Raises AccessError when an address that is on lies outside its array.
        """
        result = np.zeros(addresses.shape, dtype) if other is None else np.array(other, dtype, copy=True)
        values = result.reshape(-1)
        on = np.arange(addresses.size) if mask is None else np.flatnonzero(mask)
        for chosen, number, offsets in self._locate(op, program, addresses, on, dtype.itemsize):
            memory = self.bytes[number]
            if self.locate:
                self._note(op, program, number, offsets, dtype.itemsize)
            if self.observer:
                self.observer(number, offsets[:, None] + np.arange(dtype.itemsize), None)
            if (offsets % dtype.itemsize).any():
                values[chosen] = memory[offsets[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
            else:
                whole = len(memory) // dtype.itemsize * dtype.itemsize
                values[chosen] = memory[:whole].view(dtype)[offsets // dtype.itemsize]
        return result

    def store(self, op: Op, program: tuple, addresses: np.ndarray, values: np.ndarray, mask: Any) -> None:
        """Writes the elements where `mask` is on. Raises AccessError like `load`, and for arrays that are read-only."""
        data = np.ascontiguousarray(values).reshape(-1)
        on = np.arange(addresses.size) if mask is None else np.flatnonzero(mask)
        size = data.dtype.itemsize
        for chosen, number, offsets in self._locate(op, program, addresses, on, size):
            memory = self.bytes[number]
            if not memory.flags.writeable:
                raise readonly_error(Access(op.loc, action_of(op), number, size), self.names[number], program)
            where, new = offsets[:, None] + np.arange(size), data[chosen].view(np.uint8).reshape(-1, size)
            if self.locate:
                self._note(op, program, number, offsets, size)
            if self.observer:
                self.observer(number, where, new)
            memory[where] = new

    def update(self, op: Op, program: tuple, addresses: np.ndarray, values: list[np.ndarray], mask: Any) -> np.ndarray:
        """Executes an atomic on each element where `mask` is on, one after another. Returns the old values, and zero elsewhere."""
        dtype = values[-1].dtype
        operands = [np.ascontiguousarray(v).reshape(-1) for v in values]
        result = np.zeros(addresses.size, dtype)
        on = np.arange(addresses.size) if mask is None else np.flatnonzero(mask)
        for chosen, number, offsets in self._locate(op, program, addresses, on, dtype.itemsize):
            memory = self.bytes[number]
            if not memory.flags.writeable:
                site = Access(op.loc, action_of(op), number, dtype.itemsize)
                raise readonly_error(site, self.names[number], program)
            if self.observer:
                self.observer(number, offsets[:, None] + np.arange(dtype.itemsize), None)
            for i, offset in zip(chosen, offsets, strict=True):
                cell = memory[offset : offset + dtype.itemsize]
                old = cell.copy().view(dtype)[0]
                new = operands[-1][i]
                if op.name == "atomic":
                    new = update(op.attrs["kind"], old, new)
                elif old.tobytes() != operands[0][i].tobytes():
                    new = old
                cell[:] = np.asarray(new, dtype).reshape(1).view(np.uint8)
                result[i] = old
                if self.locate:
                    swaps = op.name == "atomic" or old.tobytes() == operands[0][i].tobytes()
                    self._note(op, program, number, np.asarray([offset]), dtype.itemsize, swaps)
        return result.reshape(addresses.shape)

    def _note(self, op: Op, program: tuple, number: int, offsets: np.ndarray, size: int, writes: bool = True) -> None:
        """Notes an access of Python that is run as a kernel. Raises RaceError."""
        assert self.locate is not None
        addresses, op = (offsets + self.lowest[number]).tolist(), op.replace(loc=self.locate())
        if (found := note_access(self.account, op, program, addresses, size, writes)) is not None:
            address, pair = found
            raise race_error(*self.place(address, size), pair=pair, clocked=True)

    def spell(self, addresses: np.ndarray, size: int) -> str:
        """The text of addresses in terms of arrays: `x + 3`."""
        numbers = np.unique((self._known(np.asarray(addresses)) >> WINDOW_BITS) - FIRST).tolist()
        if len(numbers) != 1 or not 0 <= numbers[0] < len(self.bytes):
            return str(addresses)
        return f"{self.names[numbers[0]]} + {(self._known(addresses) - self._base(numbers[0])) // size}"

    def holds(self, argument: int, addresses: np.ndarray, size: int) -> np.ndarray:
        """Whether elements of `size` bytes lie in the array of an argument."""
        number, addresses = self.of_argument[argument], np.asarray(addresses)
        return self._within(2 * number, addresses, size) | self._within(2 * number + 1, addresses, size)

    def _within(self, owner: int, addresses: np.ndarray, size: int) -> np.ndarray:
        offsets = addresses - self._origin(owner)
        return (offsets >= 0) & (offsets <= len(self.bytes[owner // 2]) - size)

    def element(self, argument: int, address: int, size: int) -> tuple[int, tuple[int, int], str]:
        """The number of the element at an address, those of the first and last of an argument's array, and its name."""
        number = self.of_argument[argument]
        start, end = self.starts[number], len(self.bytes[number])
        raw = 0 < address < FIRST << WINDOW_BITS
        index = (address - self._origin(2 * number + raw) - start) // size
        return index, reach(start, 0, end, size), self.names[number]

    def place(self, address: int, size: int) -> tuple[str, int]:
        """The name of the array at a host address, and the number of the element there."""
        for name, memory, low, start in zip(self.names, self.bytes, self.lowest, self.starts, strict=True):
            if low <= address < low + len(memory):
                return name, (address - low - start) // size
        return "an array", address // size

    def host_addresses(self, addresses: np.ndarray) -> np.ndarray:
        """The host addresses of elements of arrays; overlapping arrays share them."""
        numbers = (addresses >> WINDOW_BITS) - FIRST
        result = addresses.copy()
        for number in np.unique(numbers[(numbers >= 0) & (numbers < len(self.bytes))]).tolist():
            result = np.where(numbers == number, addresses - self._base(number) + self.lowest[number], result)
        return result

    def pointer(self, address: int) -> Owned:
        """The pointer to an array that was added, given what `add` returned."""
        return Owned.of(np.asarray(address, np.int64), 2 * ((address >> WINDOW_BITS) - FIRST))

    def owners(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """For each address, the first array with an element of `size` bytes there.

        The result is 2 * number, plus one for a host address, or UNOWNED.
        """
        addresses = np.asarray(addresses)
        found = np.full(addresses.shape, UNOWNED)
        for number in reversed(range(len(self.bytes))):
            for owner in (2 * number, 2 * number + 1):
                found = np.where(self._within(owner, addresses, size), owner, found)
        return found

    def _origin(self, owner: int) -> int:
        """The address of the lowest byte of an owner's array."""
        return self.lowest[owner // 2] if owner % 2 else self._base(owner // 2)

    def _known(self, addresses: np.ndarray) -> np.ndarray:
        """Converts host addresses, which a kernel loaded from a table of pointers, to addresses of this space."""
        if not ((addresses > 0) & (addresses < FIRST << WINDOW_BITS)).any():
            return addresses
        for number, (memory, low) in enumerate(zip(self.bytes, self.lowest, strict=True)):
            inside = (addresses >= low) & (addresses < low + memory.size)
            addresses = np.where(inside, addresses - low + self._base(number), addresses)
        return addresses

    def _guessed(self, addresses: np.ndarray) -> np.ndarray:
        """The owners of pointers without provenance, from the windows of their addresses."""
        numbers = (self._known(addresses) >> WINDOW_BITS) - FIRST
        raw = (addresses > 0) & (addresses < FIRST << WINDOW_BITS)
        return np.where((numbers >= 0) & (numbers < len(self.bytes)), 2 * numbers + raw, UNOWNED)

    def _locate(
        self, op: Op, program: tuple, addresses: np.ndarray, on: np.ndarray, size: int
    ) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """For each accessed array: the positions that access it, its number, and the byte offsets. Checks all of them."""
        owners, active = owners_of(addresses), np.asarray(addresses).reshape(-1)[on]
        if owners is not None:
            owners = np.broadcast_to(owners, addresses.shape).reshape(-1)[on]
        if owners is None or (owners == UNOWNED).any():
            guessed = self._guessed(active)
            owners = guessed if owners is None else np.where(owners == UNOWNED, guessed, owners)
        for owner in np.unique(owners).tolist():
            if owner == UNOWNED:
                raise ForeignAccess(f"a {op.name} through a pointer outside all arrays", op.loc, program=program)
            mine, number = owners == owner, owner // 2
            offsets, memory = active[mine] - self._origin(owner), self.bytes[number]
            outside = (offsets < 0) | (offsets > len(memory) - size)
            if outside.any():
                start = self.starts[number]
                index = (int(offsets[np.argmax(outside)]) - start) // size
                site, name = Access(op.loc, action_of(op), number, size), self.names[number]
                raise access_error(site, name, program, index, reach(start, 0, len(memory), size))
            yield on[mine], number, offsets


def programs_of(grid: int | Sequence[int]) -> tuple[tuple[int, int, int], list[tuple[int, int, int]]]:
    """A grid extended to three axes, and the ids of its programs."""
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    full = tuple(int(n) for n in (*sizes, 1, 1, 1)[:3])
    x, y, z = full
    return (x, y, z), [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
