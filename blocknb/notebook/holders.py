"""Finds the arrays of NumPy, CuPy and torch that names of a namespace hold, and the memory that backs them.

A view shares the memory of its owner, so memory counts once, with all names that reach it. Lists, tuples, dicts and objects of classes that
the notebook defines are searched, too, up to DEPTH levels and MOST objects. An array that only a library or a closure holds has no name.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from blocknb.notebook import numbers

DEPTH, MOST = 3, 10_000
_WITHOUT_ARRAYS = frozenset({int, float, complex, bool, str, bytes, type(None), type})
CPU = -1  # the device of host memory; GPUs count from 0
#: Names of IPython for earlier outputs. `Out` has the same values under better names.
_OUTPUTS = ("_", "__", "___")
#: Names of IPython for earlier inputs, and more names for `Out`.
_OF_IPYTHON = re.compile(r"_(\d+|i+|i\d+|ih|oh|dh)$")


@dataclass(eq=False)
class HeldMemory:
    """Memory that arrays share: its `device` and address, its bytes, and the names that hold it.

    `kind` is "" for ordinary memory, else "pinned", "mapped file", "torch" or "foreign" (memory of another library). `what` describes the
    first array found. `owner` is a weak reference to the object that owns host memory, or None.
    """

    device: int
    address: int
    bytes: int
    what: str
    kind: str = ""
    owner: weakref.ref | None = None
    names: dict[str, int] = field(default_factory=dict)  # the arrays found, by name

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.address

    @property
    def place(self) -> str:
        """ "CPU", "GPU 0", "CPU, pinned": where the memory is."""
        return ", ".join(filter(None, ["CPU" if self.device == CPU else f"GPU {self.device}", self.kind]))

    @property
    def countable(self) -> bool:
        """Whether the memory takes room that deleting the names frees. A mapped file lies in the page cache."""
        return self.kind != "mapped file"


@dataclass(frozen=True)
class Holder:
    """The names that hold the same memory: `what` describes one array, or says how many there are."""

    names: tuple[str, ...]
    bytes: int
    arrays: int
    what: str
    place: str

    @property
    def label(self) -> str:
        """The names as a text."""
        return ", ".join(self.names)


def memory_of(value: Any) -> HeldMemory | None:
    """The memory that backs an array; None for any other object, and for an array without memory."""
    kind = type(value)  # not `isinstance`, which would load a module or an object that is loaded on first use
    if issubclass(kind, np.ndarray):
        return _of_numpy(value)
    if issubclass(kind, getattr(sys.modules.get("cupy"), "ndarray", ())):
        return _of_cupy(value)
    if issubclass(kind, getattr(sys.modules.get("torch"), "Tensor", ())) and kind.__name__ in ("Tensor", "Parameter"):
        return _of_torch(value)
    return None


def _of_cupy(value: Any) -> HeldMemory | None:
    if getattr(value, "data", None) is None:  # its allocation has failed
        return None
    block = value.data.mem
    kind = "foreign" if type(block).__name__ == "UnownedMemory" else ""
    what = _shape(value, getattr(value, "base", None))
    return HeldMemory(int(value.data.device_id), int(block.ptr), int(block.size), what, kind)


def _of_torch(value: Any) -> HeldMemory | None:
    if value.layout is not sys.modules["torch"].strided or value.device.type not in ("cpu", "cuda"):
        return None
    storage, device = value.untyped_storage(), value.device.index if value.is_cuda else CPU
    what = f"torch {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return HeldMemory(device, int(storage.data_ptr()), int(storage.nbytes()), what, "torch")


def _of_numpy(value: np.ndarray) -> HeldMemory:
    owner: np.ndarray = value
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    kind, size = "", owner.nbytes
    base: Any = owner.base
    if isinstance(owner, np.memmap) or type(base).__name__ == "mmap":
        kind = "mapped file"
    elif type(base).__name__ == "PinnedMemoryPointer":
        kind, size = "pinned", int(base.mem.size)
    what = _shape(value, None if owner is value else owner)
    return HeldMemory(CPU, owner.ctypes.data, size, what, kind, weakref.ref(owner))


def _shape(array: Any, owner: Any) -> str:
    """ "float32 (1000, 1000)", or "view of float32 (1000, 1000)"."""
    shown = array if owner is None else owner
    return f"{'' if owner is None else 'view of '}{shown.dtype} {tuple(map(int, shown.shape))}"


def held(namespace: Mapping[str, Any], cut: set[str] | None = None) -> dict[tuple[int, int], HeldMemory]:
    """The memory that the names of a namespace hold, by device and address. Results of earlier cells are called Out[n].

    Adds the names whose values have more than MOST parts to `cut`. The rest of such a value is not searched."""
    found: dict[tuple[int, int], HeldMemory] = {}
    for name, value in _named(namespace):
        for memory in _memories(value):
            if memory is None:
                if cut is not None:
                    cut.add(name)
                continue
            memory = found.setdefault(memory.key, memory)
            if name not in _OUTPUTS or not memory.names:
                memory.names[name] = memory.names.get(name, 0) + 1
    return found


def _named(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values by name: first the user's names, then `Out`, then the private names."""
    outputs, items = namespace.get("Out"), list(namespace.items())
    yield from ((name, value) for name, value in items if not name.startswith("_") and value is not outputs)
    if isinstance(outputs, dict):
        yield from ((f"Out[{number}]", value) for number, value in list(outputs.items()))
    yield from ((name, value) for name, value in items if name.startswith("_") and not _OF_IPYTHON.match(name))


def _memories(value: Any) -> Iterator[HeldMemory | None]:
    """The memory of the arrays in a value, with an entry for each array; None at the end of a search that is cut off."""
    seen, stack = set[int](), [(value, 0)]
    while stack:
        one, depth = stack.pop()
        if id(one) in seen:
            continue
        if len(seen) >= MOST:
            yield None
            return
        seen.add(id(one))
        if (memory := memory_of(one)) is not None:
            if memory.bytes:
                yield memory
        elif depth < DEPTH:
            parts = list(islice(_parts(one), MOST + 1))
            stack += [(part, depth + 1) for part in parts if type(part) not in _WITHOUT_ARRAYS]


def _parts(value: Any) -> Iterable[Any]:
    """The values in a container. The methods are those of the built-in class, so that no code of the user runs."""
    kind = type(value)
    for container in (list, tuple, set, frozenset):
        if issubclass(kind, container):
            return container.__iter__(value)
    if issubclass(kind, dict):
        return dict.values(value)
    if kind.__dictoffset__ and (
        kind.__module__ == "__main__" or kind.__module__.startswith(("cupyx.", "scipy.sparse"))
    ):
        return list(value.__dict__.values())
    return ()


def grouped(memories: Iterable[HeldMemory]) -> list[Holder]:
    """Memory by the names that hold it, the largest first. Many arrays of one list are one entry."""
    groups: dict[tuple[str, tuple[str, ...]], list[HeldMemory]] = {}
    for memory in memories:
        groups.setdefault((memory.place, tuple(memory.names)), []).append(memory)
    made = []
    for (place, names), parts in groups.items():
        size, count = sum(part.bytes for part in parts), len(parts)
        what = parts[0].what if count == 1 else numbers.plural(count, "array")
        made.append(Holder(names, size, count, what, place))
    return sorted(made, key=lambda holder: -holder.bytes)
