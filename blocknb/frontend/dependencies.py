"""What a kernel's meaning depends on: the source of everything reached, and the values of every constant captured.

The runtime puts `dependencies(source).key` into the key of its caches. It is asked at every launch, since a helper may have been
defined again in another cell, so asking must be cheap: the first answer keeps a list of places (a dictionary and a name in it) with
the object found there, and the next one only compares identities. The language itself is not in the key: its version is the
compiler's.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.frontend.source import MISSING, Source, source_of
from blocknb.language.constants import constexpr
from blocknb.language.types import TypeQueries

ATOMS = (bool, int, float, complex, str, bytes, type(None))


@dataclass
class Dependencies:
    """The answer for one Source. `key` is a digest of `text`; `sources` are the functions reached, the kernel first.

    `places` are (dictionary, name, object) triples, `readers` functions with the text they gave; both are checked by `current`.
    `persistent` is False when an object was met that only this process can tell apart, so that no other may use the key.
    """

    key: str
    text: str
    sources: tuple[Source, ...]
    places: list[tuple[Any, str, Any]] = field(repr=False, default_factory=list)
    readers: list[tuple[Callable[[], str], str]] = field(repr=False, default_factory=list)
    persistent: bool = True

    def current(self) -> bool:
        """Whether every name still refers to the object it did. A few dictionary lookups."""
        for place, name, found in self.places:
            if place.get(name, MISSING) is not found:
                return False
        return not self.readers or all(reader() == text for reader, text in self.readers)


def dependencies(source: Source) -> Dependencies:
    """The Dependencies of a kernel as of now: the same object as long as nothing it reaches was changed."""
    answer = source.answer
    if answer is None or not answer.current():
        answer = source.answer = Collector().collect(source)
    return answer


def constant_key(value: Any) -> str:
    """A text that stands for a constexpr argument in a cache key; a function stands for all that it reaches."""
    collector = Collector()
    text = collector.describe(value)
    return text if not collector.parts else f"{text} {collector.digest()}"


class Collector:
    """One walk over everything a source reaches."""

    def __init__(self) -> None:
        self.sources: dict[Any, Source] = {}
        self.parts: list[str] = []
        self.places: list[tuple[Any, str, Any]] = []
        self.readers: list[tuple[Callable[[], str], str]] = []
        self.persistent = True

    def collect(self, source: Source) -> Dependencies:
        self.reach(source)
        text = "\n".join(self.parts)
        return Dependencies(
            self.digest(), text, tuple(self.sources.values()), self.places, self.readers, self.persistent
        )

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.parts).encode()).hexdigest()

    def reach(self, source: Source) -> str:
        """Adds a function, its defaults and what it refers to; returns the text that stands for it elsewhere."""
        if source.function not in self.sources:
            text = inspect.cleandoc(source.text)
            self.sources[source.function] = source
            self.parts.append(f"def {source.name}:\n{text}")
            for parameter in source.parameters:
                if parameter.default is not MISSING:
                    self.parts.append(f"{source.name}({parameter.name}={self.describe(parameter.default)})")
            for path in source.references:
                self.parts.append(f"{source.name}: {'.'.join(path)} = {self.resolve(source, path)}")
        return f"<function {list(self.sources).index(source.function)}>"

    def resolve(self, source: Source, path: tuple[str, ...]) -> str:
        """Follows a dotted path through modules to the object a kernel reads, and describes that."""
        name = path[0]
        if name in source.closure:
            cell = source.closure[name]
            found = _contents(cell)
            self.readers.append((lambda: str(id(_contents(cell))), str(id(found))))
        else:
            place = source.function.__globals__
            if name not in place:
                self.places.append((place, name, MISSING))
                place = source.builtins
            found = place.get(name, MISSING)
            self.places.append((place, name, found))
        for i, attribute in enumerate(path[1:], 1):
            if not isinstance(found, types.ModuleType):
                return self.follow(found, path[i:])
            if ours(found.__name__):
                return f"{found.__name__}.{attribute}"
            place = vars(found)
            found = place.get(attribute, MISSING)
            self.places.append((place, attribute, found))
        return self.watch(found)

    def follow(self, found: Any, attributes: tuple[str, ...]) -> str:
        """The attribute of an object that is no module. The object may be changed in place, so it is read at every check."""

        def read() -> Any:
            x = found
            for attribute in attributes:
                if isinstance(x, ATOMS):
                    break  # a method or property of a constant, described as a whole
                x = getattr(x, attribute, MISSING)
            return x

        if not isinstance(found, (*ATOMS, constexpr, TypeQueries)):
            self.readers.append((lambda: constant_key(read()), constant_key(read())))
        return self.describe(read())

    def watch(self, found: Any) -> str:
        """Describes an object; one that may change in place is described again at every check."""
        if not isinstance(found, (*ATOMS, tuple, types.ModuleType)) and not steady(found):
            self.readers.append((lambda: constant_key(found), constant_key(found)))
        return self.describe(found)

    def describe(self, x: Any) -> str:
        if x is MISSING:
            return "<undefined>"
        if isinstance(x, constexpr):
            return f"constexpr {self.describe(x.value)}"
        if isinstance(x, (*ATOMS, TypeQueries, np.generic, enum.Enum)):
            return f"{type(x).__name__} {x!r}"
        if isinstance(x, (tuple, list)):
            return f"{type(x).__name__} {getattr(x, '_fields', '')}({', '.join(map(self.describe, x))})"
        if isinstance(x, dict):
            return f"dict ({', '.join(f'{self.describe(k)}: {self.describe(v)}' for k, v in x.items())})"
        if isinstance(x, types.ModuleType):
            return f"module {x.__name__}"
        source = source_of(x)
        if ours(getattr(x, "__module__", None) or "") and (source is None or getattr(x, "inline", False)):
            return f"{x.__module__}.{getattr(x, '__qualname__', type(x).__name__)}"
        if source is None and isinstance(x, types.FunctionType) and not of_library(x):
            source = Source(x)
        if source is not None:
            return self.function(source)
        if hasattr(x, "__qualname__"):
            return f"{getattr(x, '__module__', '')}.{x.__qualname__}"
        return self.other(x)

    def other(self, x: Any) -> str:
        """An object of a class unknown here: the numbers and texts it holds, which a kernel may read."""
        self.persistent = False
        held = {k: v for k, v in getattr(x, "__dict__", {}).items() if isinstance(v, ATOMS)}
        return f"{type(x).__module__}.{type(x).__qualname__} {id(x)} {held}"

    def function(self, source: Source) -> str:
        try:
            return self.reach(source)
        except (
            KernelError,
            SyntaxError,
        ):  # a host function without source (made by exec, a lambda): its code stands for it
            code = source.function.__code__
            return f"{source.name} {hashlib.sha256(code.co_code).hexdigest()} {code.co_consts!r} {code.co_names!r}"


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the enclosing function has not assigned it yet
        return MISSING


def ours(module: str) -> bool:
    return module == "blocknb" or module.startswith("blocknb.")


def of_library(function: Any) -> bool:
    """Whether a host function belongs to Python or an installed package, so that its name stands for it."""
    module = function.__module__ or ""
    return module.split(".")[0] in sys.stdlib_module_names - {"__main__"} or (
        "site-packages" in function.__code__.co_filename
    )


def steady(x: Any) -> bool:
    """Objects that do not change in place, or whose changes are noticed through the sources they hold."""
    return callable(x) or isinstance(x, (TypeQueries, constexpr, np.generic, enum.Enum)) or source_of(x) is not None
