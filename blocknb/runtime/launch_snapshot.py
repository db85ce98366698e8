"""Launch snapshots: the record from which a launch can be repeated, with weak references to the owners of arrays.

`LaunchSnapshot.arguments(written)` returns the arguments for one more launch, or None if an array no longer exists. It copies the memory
that the kernel writes, so a repetition changes no data of the user. The snapshot stores an array as a byte range of its owner, because
the owner outlives views made for a single launch. Arrays that share memory share the copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from blocknb.language.types import Descriptor
from blocknb.runtime import memory
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.grids import GridSnapshot, keep_grid
from blocknb.runtime.interface import TensorWrapper
from blocknb.runtime.kinds import Kind, Tuple, flat

Scratch = dict[int, tuple[int, Any]]  # by the id of an owner: the address of its copied bytes, and the copy
_NUMBERS = (int, float, np.generic)


@dataclass(frozen=True, eq=False)
class ArrayReference:
    """An array without its memory: a weak reference to the owner, the byte range from `low` to `high`, and the view of it."""

    owner: weakref.ref
    low: int
    high: int
    view: memory.StridedView

    def ranges(self) -> list[ArrayReference]:
        return [self]

    def restored(self, scratch: Scratch) -> Any:
        owner = self.owner()
        if owner is None:
            return None
        begin, data = scratch.get(id(owner)) or (self.low, memory.bytes_of(owner, self.low, self.high))
        return memory.array_of(data, self.low - begin, self.view)

    def moved(self, scratch: Scratch) -> ArrayReference:
        """The reference to the array in the copies, if its memory was copied."""
        owner = self.owner()
        if owner is None or id(owner) not in scratch:
            return self
        begin, data = scratch[id(owner)]
        shift = memory.address_of(data) - begin
        return ArrayReference(weakref.ref(data), self.low + shift, self.high + shift, self.view)


@dataclass(frozen=True, eq=False)
class WeakArgument:
    """An array of another library, which cannot be copied by bytes: a repetition may read it while it lives, but not write it."""

    value: weakref.ref

    def ranges(self) -> list[ArrayReference]:
        return []

    def restored(self, scratch: Scratch) -> Any:
        return self.value()

    def moved(self, scratch: Scratch) -> WeakArgument:
        return self


@dataclass(frozen=True, eq=False)
class DerivedArgument:
    """An argument that wraps an array: a tensor descriptor, or an array read as another dtype."""

    base: ArrayReference | WeakArgument | DerivedArgument
    make: Callable[[Any], Any]

    def ranges(self) -> list[ArrayReference]:
        return self.base.ranges()

    def restored(self, scratch: Scratch) -> Any:
        base = self.base.restored(scratch)
        return None if base is None else self.make(base)

    def moved(self, scratch: Scratch) -> DerivedArgument:
        return DerivedArgument(self.base.moved(scratch), self.make)


@dataclass(frozen=True, eq=False)
class LaunchSnapshot:
    """The arguments of one launch: `numbers` and `arrays` by parameter name, and the types of the `tuples`, whose elements are called
    `x.0`, `x.1`, ... `grid` is None if the grid cannot be kept."""

    grid: GridSnapshot | None
    numbers: Mapping[str, Any]
    arrays: Mapping[str, ArrayReference | WeakArgument | DerivedArgument] = field(default_factory=dict)
    tuples: Mapping[str, Tuple] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether all arrays still exist. Copies nothing."""
        return self.arguments(()) is not None

    def arguments(self, written: Collection[str]) -> dict[str, Any] | None:
        """Returns arguments by name, with copies of the `written` arrays, or None if an array no longer exists or cannot be copied."""
        found = self.copies(written)
        return None if found is None else found.arguments

    def copies(self, written: Collection[str]) -> LaunchCopies | None:
        """Returns what `arguments` does, with access to the copies."""
        ranges = self._ranges(written)
        if ranges is None:
            return None
        scratch: Scratch = {}
        for owner, low, high in ranges:
            scratch[id(owner)] = low, memory.aligned_copy(memory.bytes_of(owner, low, high), low)
        found = dict(self.numbers)
        for name, reference in self.arrays.items():
            found[name] = reference.restored(scratch)
            if found[name] is None:
                return None
        for name, kind in self.tuples.items():
            found[name] = _assembled(name, kind, found)
        return LaunchCopies(self, found, scratch)

    def copied_bytes(self, written: Collection[str]) -> int:
        """The bytes that `copies` allocates; 0 where it returns None."""
        return sum(high - low for _, low, high in self._ranges(written) or ())

    def _ranges(self, written: Collection[str]) -> list[tuple[Any, int, int]] | None:
        """The owners of the written arrays with the bytes to copy: all that the launch uses of such an owner. None if one is gone."""
        everything = [part for reference in self.arrays.values() for part in reference.ranges()]
        found: dict[int, tuple[Any, int, int]] = {}
        for name in written:
            parts = self.arrays[name].ranges() if name in self.arrays else []
            if not parts:
                return None
            for part in parts:
                owner = part.owner()
                if owner is None:
                    return None
                shared = [p for p in everything if p.owner() is owner]
                found[id(owner)] = owner, min(p.low for p in shared), max(p.high for p in shared)
        return list(found.values())


@dataclass(frozen=True, eq=False)
class LaunchCopies:
    """The `arguments` of one more launch of a snapshot, and the memory that it may write."""

    snapshot: LaunchSnapshot
    arguments: dict[str, Any]
    scratch: Scratch

    def reset(self) -> None:
        """Fills the copies with what the user's arrays hold now. Raises LookupError if one no longer exists."""
        for reference in self.snapshot.arrays.values():
            for part in reference.ranges():
                owner = part.owner()
                if owner is None:
                    raise LookupError("an array of the launch no longer exists")
                if id(owner) in self.scratch:
                    low, data = self.scratch[id(owner)]
                    data[:] = memory.bytes_of(owner, low, low + data.shape[0])

    def restore(self) -> None:
        """Fills the user's arrays with what the copies hold: their contents at the time of the copy, unless a launch wrote the copies.
        An array that no longer exists is left out."""
        for reference in self.snapshot.arrays.values():
            for part in reference.ranges():
                owner = part.owner()
                if id(owner) in self.scratch:
                    low, data = self.scratch[id(owner)]
                    memory.bytes_of(owner, low, low + data.shape[0])[:] = data

    def of_copies(self) -> LaunchSnapshot:
        """The snapshot of the same launch on the copies, which live as long as this object."""
        arrays = {name: reference.moved(self.scratch) for name, reference in self.snapshot.arrays.items()}
        return replace(self.snapshot, arrays=arrays)

    def views(self, name: str) -> list[tuple[ArrayReference, Any]]:
        """The arrays behind one argument, as ranges of the user's memory and as views of the copies."""
        return [(part, part.restored(self.scratch)) for part in self.snapshot.arrays[name].ranges()]


def _assembled(name: str, kind: Tuple, found: dict[str, Any]) -> tuple:
    """Builds a tuple from its elements, which it removes from `found`."""
    inner = [(f"{name}.{i}", part.type) for i, part in enumerate(kind.parts)]
    return kind.make([_assembled(n, k, found) if isinstance(k, Tuple) else found.pop(n) for n, k in inner])


def remember(grid: Any, names: Sequence[str], values: Sequence[Any], kinds: Sequence[Kind]) -> LaunchSnapshot | None:
    """Returns the snapshot of a launch, or None if an argument cannot be kept without its memory."""
    numbers: dict[str, Any] = {}
    arrays: dict[str, ArrayReference | WeakArgument | DerivedArgument] = {}
    for name, kind, value in flat(names, kinds, values):
        if kind.type is None:
            numbers[name] = kind.constant[0]
        elif kind.is_pointer or isinstance(kind.type, Descriptor):
            reference = _reference(value)
            if reference is None:
                return None
            arrays[name] = reference
        elif isinstance(value, _NUMBERS) or type(value).__module__ == "ml_dtypes":
            numbers[name] = value
        else:
            return None
    tuples = {name: kind.type for name, kind in zip(names, kinds, strict=True) if isinstance(kind.type, Tuple)}
    return LaunchSnapshot(keep_grid(grid), numbers, arrays, tuples)


def scratch(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns copies of the arrays among some values. They share memory as the originals do. Other values are left out."""
    arrays = {name: _reference(value) for name, value in values.items() if memory.owner_and_view(value) is not None}
    snapshot = LaunchSnapshot(None, {}, {name: array for name, array in arrays.items() if array is not None})
    return snapshot.arguments(list(snapshot.arrays)) or {}


def _reference(value: Any) -> ArrayReference | WeakArgument | DerivedArgument | None:
    if isinstance(value, TensorWrapper):
        base, dtype = _reference(value.base), value.dtype
        return None if base is None else DerivedArgument(base, lambda array: TensorWrapper(array, dtype))
    if all(hasattr(value, name) for name in ("base", "block_shape", "padding")):
        shape, strides, padding = tuple(value.shape), tuple(value.strides), value.padding
        base, block = _reference(value.base), list(value.block_shape)
        if base is None:
            return None
        return DerivedArgument(base, lambda array: TensorDescriptor(array, shape, strides, block, padding))
    found = memory.owner_and_view(value)
    try:
        return ArrayReference(weakref.ref(found[0]), *found[1:]) if found else WeakArgument(weakref.ref(value))
    except TypeError:  # the type has no weak references
        return None
