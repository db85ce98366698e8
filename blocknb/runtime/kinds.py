"""Kinds: what the compiler specializes a kernel on, for each argument of a launch.

Kinds are interned: equal arguments give the same object. The key of a launch plan is a tuple of Kinds, and a lookup compares identities.

An argument takes four forms. The launch has a `Kind` (dtype, divisibility, device, library, constant). The front end takes an `ArgType`
or a `Constant` (`job.front_argument`), which lack the data that only launches need. The IR has a `Value` of a tile type with a `Hint`
(divisibility). The generated code has parameters (`KernelCode.parameters`: name and type).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.language.constants import classes, like

HOST = -1  # the device number of host memory; GPUs count from 0
ANYWHERE = -2  # the device number of a pointer of unknown device, which takes that of the other arguments


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
    """The specialization of one argument. Kinds are interned, so equal ones are the same object.

    `type` is a DType, Pointer, Descriptor or Tuple, or None for a constant. `divisibility` is a divisor: of an address in bytes (16 or 1),
    of a descriptor's last size (16 or 1), or of an integer. That of an integer is 16, 8, 1, or a larger one from `divisor_specialization`.
    `device` is the number of a GPU, HOST or ANYWHERE, and None for scalars. A kernel may not store to `readonly` arrays. `library` is
    "torch" for a tensor on torch's stream. `constant` holds the value of a constant in a one-element tuple.
    """

    type: Any
    divisibility: int = 1
    device: int | None = None
    readonly: bool = False
    library: str = ""
    constant: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return interned, (self.type, self.divisibility, self.device, self.readonly, self.library, self.constant)

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.type, t.Pointer)

    def __str__(self) -> str:
        if self.type is None:
            return repr(self.constant[0])
        if isinstance(self.type, Tuple):
            return str(self.type)
        divisor = f":{self.divisibility}" if self.divisibility > 1 else ""
        if isinstance(self.type, t.Descriptor):
            return f"{self.type}{divisor}"
        star, dtype = ("*", self.type.element) if isinstance(self.type, t.Pointer) else ("", self.type)
        return f"{star}{dtype.name if dtype.is_float else dtype.short}{divisor}"


@dataclass(frozen=True, eq=False, slots=True)
class Tuple:
    """The type of a tuple of arguments: the Kinds of its elements, and its class, `tuple` or a namedtuple."""

    parts: tuple[Kind, ...]
    tuple_class: Any = tuple

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))}{',' * (len(self.parts) == 1)})"

    @property
    def structure(self) -> str:
        """The classes of the tuple and of the tuples inside it, as a text."""
        inner = (part.type.structure if isinstance(part.type, Tuple) else "" for part in self.parts)
        return f"{self.tuple_class.__qualname__}{getattr(self.tuple_class, '_fields', '')}({','.join(inner)})"

    @property
    def make(self) -> Callable[[Iterable[Any]], tuple]:
        return getattr(self.tuple_class, "_make", tuple)


@functools.cache
def tuple_kind(parts: tuple[Kind, ...], tuple_class: Any = tuple) -> Kind:
    """The Kind of a tuple whose elements have these Kinds."""
    return Kind(Tuple(parts, tuple_class), library="torch" if any(part.library == "torch" for part in parts) else "")


def flat(names: Iterable[str], kinds: Iterable[Kind], *columns: Iterable[Any]) -> Iterator[tuple]:
    """Yields (name, Kind, one element of each column) for every argument, and for the elements of a tuple in its place. These are called
    `x.0`, `x.1`, ..."""
    for name, kind, *cells in zip(names, kinds, *columns, strict=True):
        if isinstance(kind.type, Tuple):
            yield from flat([f"{name}.{i}" for i in range(len(kind.type.parts))], kind.type.parts, *cells)
        else:
            yield name, kind, *cells


def spelled(name: str) -> str:
    """The name of an argument or of an element of a tuple as Python source: x[0][1] for `x.0.1`."""
    first, *rest = name.split(".")
    return first + "".join(f"[{i}]" for i in rest)


@functools.cache
def pointer_kind(dtype: t.DType, aligned: bool, device: int, readonly: bool = False, library: str = "") -> Kind:
    """The Kind of an array on a device. `aligned`: its address is a multiple of 16 bytes."""
    return Kind(t.Pointer(dtype), 16 if aligned else 1, device, readonly, library)


def scalar_kind(dtype: t.DType, divisible: bool = False) -> Kind:
    """The Kind of a number passed at run time."""
    return multiple_kind(dtype, 16 if divisible else 1)


def integer_kind(dtype: t.DType, value: int) -> Kind:
    """The Kind of an integer passed at run time: a multiple of 16, of 8 (which is 16 bytes of 16-bit elements), or neither."""
    return multiple_kind(dtype, {0: 16, 8: 8}.get(value & 15, 1))


@functools.cache
def multiple_kind(dtype: t.DType, divisor: int) -> Kind:
    """The Kind of a number passed at run time, with a known divisor."""
    return Kind(dtype, divisor)


@functools.cache
def descriptor_kind(type: t.Descriptor, divisible: bool, device: int | None, readonly: bool, library: str) -> Kind:
    """The Kind of a tensor descriptor. `divisible`: its last size is a multiple of 16."""
    return Kind(type, 16 if divisible else 1, device, readonly, library)


@functools.cache
def _constant(types: Any, value: Any, text: str) -> Kind:
    return Kind(None, constant=(value,))


def constant_kind(value: Any) -> Kind:
    """The Kind of a compile-time constant. Lists become tuples. Raises LaunchError for a value that is not hashable."""
    if type(value) is int:
        return _constant(int, value, "")
    value = _frozen(value)
    try:
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0, also inside tuples. Types and text distinguish them.
        return _constant(classes(value), value, repr(value) if isinstance(value, (float, tuple)) else "")
    except (TypeError, ValueError):  # a memoryview of writable memory raises ValueError
        raise LaunchError(
            f"a value of type {type(value).__name__} cannot be a constant of a kernel",
            hint="pass a number, a string, a dtype or a tuple of those; pass tuples with arrays to parameters without tl.constexpr",
        ) from None


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return like(value, map(_frozen, value)) if isinstance(value, tuple) else tuple(map(_frozen, value))
    if isinstance(value, (set, frozenset)):  # `without={"coalesce"}`
        return tuple(sorted(map(_frozen, value), key=repr))
    if isinstance(value, np.generic):
        return value.item()
    return value.value if type(value).__name__ == "constexpr" else value


def interned(
    type: Any, divisibility: int, device: int | None, readonly: bool, library: str, constant: tuple[Any, ...]
) -> Kind:
    """The Kind with these fields, for `pickle`."""
    if type is None:
        return constant_kind(constant[0])
    if isinstance(type, Tuple):
        return tuple_kind(type.parts, type.tuple_class)
    if isinstance(type, t.Descriptor):
        return descriptor_kind(type, divisibility == 16, device, readonly, library)
    if isinstance(type, t.Pointer):
        return pointer_kind(type.element, divisibility == 16, HOST if device is None else device, readonly, library)
    return multiple_kind(type, divisibility)


def unspecialized_kind(kind: Kind) -> Kind:
    """The Kind without facts about the value, for parameters of `do_not_specialize`."""
    if kind is ONE:
        return _INT32
    if kind.type is None:
        return kind
    if isinstance(kind.type, Tuple):
        return tuple_kind(tuple(map(unspecialized_kind, kind.type.parts)), kind.type.tuple_class)
    if isinstance(kind.type, t.Descriptor):
        return descriptor_kind(kind.type, False, kind.device, kind.readonly, kind.library)
    if isinstance(kind.type, t.Pointer):
        return pointer_kind(
            kind.type.element, False, HOST if kind.device is None else kind.device, kind.readonly, kind.library
        )
    return scalar_kind(kind.type)


ONE = constant_kind(1)
NONE = constant_kind(None)
_INT32 = scalar_kind(t.int32)
