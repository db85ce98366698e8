"""Launch snapshots: the record from which a launch can be repeated, with weak references to the owners of arrays.

`LaunchSnapshot.arguments(written)` returns the arguments for one more launch, or None if an array no longer exists. It copies the memory
that the kernel writes, so a repetition changes no data of the user. The snapshot stores an array as a byte range of its owner, because
the owner outlives views made for a single launch. Arrays that share memory share the copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.language.types import Descriptor
from blocknb.runtime import memory
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.grids import Grid, keep_grid
from blocknb.runtime.interface import TensorWrapper
from blocknb.runtime.kinds import Kind, Tuple, flat

Scratch = dict[int, tuple[int, Any]]  # by the id of an owner: where its copied bytes began, and the copy
_NUMBERS = (int, float, np.generic)


@dataclass(frozen=True, eq=False)
class ArrayReference:
    """An array without its memory: the owner by weak reference, its bytes from `low` to `high`, and how they were seen."""

    owner: weakref.ref
    low: int
    high: int
    seen: memory.Seen

    def ranges(self) -> list[ArrayReference]:
        return [self]

    def restored(self, scratch: Scratch) -> Any:
        owner = self.owner()
        if owner is None:
            return None
        begin, held = scratch.get(id(owner)) or (self.low, memory.bytes_of(owner, self.low, self.high))
        return memory.seen_as(held, self.low - begin, self.seen)


@dataclass(frozen=True, eq=False)
class WeakArgument:
    """Somebody's own kind of array, which cannot be copied by bytes: only read, and only while it lives."""

    value: weakref.ref

    def ranges(self) -> list[ArrayReference]:
        return []

    def restored(self, scratch: Scratch) -> Any:
        return self.value()


@dataclass(frozen=True, eq=False)
class DerivedArgument:
    """An argument made around an array: a tensor descriptor, or an array read as another dtype."""

    base: ArrayReference | WeakArgument | DerivedArgument
    make: Callable[[Any], Any]

    def ranges(self) -> list[ArrayReference]:
        return self.base.ranges()

    def restored(self, scratch: Scratch) -> Any:
        base = self.base.restored(scratch)
        return None if base is None else self.make(base)


@dataclass(frozen=True, eq=False)
class LaunchSnapshot:
    """`numbers` and `arrays` by parameter name, in `tuples` those parameters that are tuples, whose elements are called `x.0`, `x.1`,
    ...; `grid` gives the grid as it was given, and is None when it cannot be kept."""

    grid: Grid | None
    numbers: Mapping[str, Any]
    arrays: Mapping[str, ArrayReference | WeakArgument | DerivedArgument] = field(default_factory=dict)
    tuples: Mapping[str, Tuple] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether everything that is kept still lives; copies nothing."""
        return self.arguments(()) is not None

    def arguments(self, written: Collection[str]) -> dict[str, Any] | None:
        """Fresh arguments by name, the memory of the `written` ones copied; None when an array no longer lives or cannot be copied."""
        scratch: Scratch = {}
        everything = [part for kept in self.arrays.values() for part in kept.ranges()]
        for name in written:
            parts = self.arrays[name].ranges() if name in self.arrays else []
            if not parts:
                return None
            for part in parts:
                owner = part.owner()
                if owner is None:
                    return None
                if id(owner) not in scratch:
                    shared = [p for p in everything if p.owner() is owner]
                    low, high = min(p.low for p in shared), max(p.high for p in shared)
                    scratch[id(owner)] = low, memory.copied(memory.bytes_of(owner, low, high), low)
        found = dict(self.numbers)
        for name, kept in self.arrays.items():
            found[name] = kept.restored(scratch)
            if found[name] is None:
                return None
        for name, kind in self.tuples.items():
            found[name] = _assembled(name, kind, found)
        return found


def _assembled(name: str, kind: Tuple, found: dict[str, Any]) -> tuple:
    """A tuple of its elements, which are taken out of `found`."""
    inner = [(f"{name}.{i}", part.type) for i, part in enumerate(kind.parts)]
    return kind.make([_assembled(n, k, found) if isinstance(k, Tuple) else found.pop(n) for n, k in inner])


def remember(grid: Any, names: Sequence[str], values: Sequence[Any], kinds: Sequence[Kind]) -> LaunchSnapshot | None:
    """What to keep of a launch; None when an argument cannot be kept without keeping its memory."""
    numbers: dict[str, Any] = {}
    arrays: dict[str, ArrayReference | WeakArgument | DerivedArgument] = {}
    for name, kind, value in flat(names, kinds, values):
        if kind.type is None:
            numbers[name] = kind.constant[0]
        elif kind.is_pointer or isinstance(kind.type, Descriptor):
            kept = _kept(value)
            if kept is None:
                return None
            arrays[name] = kept
        elif isinstance(value, _NUMBERS) or type(value).__module__ == "ml_dtypes":
            numbers[name] = value
        else:
            return None
    tuples = {name: kind.type for name, kind in zip(names, kinds, strict=True) if isinstance(kind.type, Tuple)}
    return LaunchSnapshot(keep_grid(grid), numbers, arrays, tuples)


def scratch(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays among some values as copies, which share memory where the originals do; what is no array is left out."""
    arrays = {name: _kept(value) for name, value in values.items() if memory.place_of(value) is not None}
    kept = LaunchSnapshot(None, {}, {name: array for name, array in arrays.items() if array is not None})
    return kept.arguments(list(kept.arrays)) or {}


def _kept(value: Any) -> ArrayReference | WeakArgument | DerivedArgument | None:
    if isinstance(value, TensorWrapper):
        base, dtype = _kept(value.base), value.dtype
        return None if base is None else DerivedArgument(base, lambda found: TensorWrapper(found, dtype))
    if all(hasattr(value, name) for name in ("base", "block_shape", "padding")):
        shape, strides, padding = tuple(value.shape), tuple(value.strides), value.padding
        base, block = _kept(value.base), list(value.block_shape)
        return (
            None
            if base is None
            else DerivedArgument(base, lambda found: TensorDescriptor(found, shape, strides, block, padding))
        )
    place = memory.place_of(value)
    try:
        return ArrayReference(weakref.ref(place[0]), *place[1:]) if place else WeakArgument(weakref.ref(value))
    except TypeError:  # it cannot be referred to weakly
        return None
