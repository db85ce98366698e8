"""Computes a cache key from everything that a kernel depends on: the source of all functions it reaches, and all captured constants.

The runtime puts `dependencies(source).key` into its cache keys. Every launch asks for the key, because another cell may have defined a
helper again. The lookup must therefore be cheap. The first result stores checks (see `description`), and most of them compare object
identities. The key does not cover the language itself, because the version of the compiler does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb.errors import Loc
from blocknb.frontend.description import Collector, ValueCheck, described
from blocknb.frontend.source import MISSING, Source


@dataclass(eq=False)
class Dependencies:
    """The dependencies of one Source or constant.

    `key` is a digest of `text`. `sources` are the reached kernels, beginning with the root. `places`, `fields` and `checks` come from
    the Collector, and `current` evaluates them all. `unknown` names the opaque objects. If there are any, other processes must not use
    the key.
    """

    key: str
    text: str
    sources: tuple[Source, ...] = ()
    places: list[tuple[Any, str, Any]] = field(repr=False, default_factory=list)
    fields: list[tuple[Any, str, Any]] = field(repr=False, default_factory=list)
    checks: list[Callable[[], bool]] = field(repr=False, default_factory=list)
    unknown: tuple[str, ...] = ()

    @property
    def persistent(self) -> bool:
        return not self.unknown

    def current(self) -> bool:
        """Whether every name still refers to the same object and no object has changed. Costs a few dictionary lookups."""
        for place, name, found in self.places:
            if place.get(name, MISSING) is not found:
                return False
        for owner, name, found in self.fields:
            if getattr(owner, name) is not found:
                return False
        for check in self.checks:  # noqa: SIM110 (runs at every launch, and a generator costs more than the loop)
            if not check():
                return False
        return True


@dataclass(frozen=True, eq=False)
class HostCall:
    """A call of a host function at compile time, and its result, which is a constant in the generated code."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: ValueCheck
    loc: Loc | None = None

    def repeats(self) -> bool:
        """Calls the function again and returns whether the result is the same."""
        try:
            return self.result(self.function(*self.args, **self.kwargs))
        except Exception:  # The next compilation calls it again and reports the line of the failure.
            return False

    def unknown(self) -> tuple[str, ...]:
        """The names of the opaque objects that the function reaches. If there are none, the checks detect every change."""
        return tuple(dict.fromkeys(described((self.function, self.args, dict(self.kwargs)))[1]))


def dependencies(source: Source) -> Dependencies:
    """The current Dependencies of a kernel. Returns the same object until something that the kernel reaches changes."""
    answer = source.answer
    if answer is None or not answer.current():
        collector = Collector()
        collector.reach(source)
        answer = source.answer = _answer(collector, "\n".join(collector.parts), collector.digest())
    return answer


def of_constant(value: Any) -> Dependencies:
    """The Dependencies of a constexpr argument. For a function they cover everything that it reaches."""
    collector = Collector()
    text = collector.describe(value)
    return _answer(collector, text, text if not collector.parts else f"{text} {collector.digest()}")


def _answer(made: Collector, text: str, key: str) -> Dependencies:
    return Dependencies(
        key, text, tuple(made.sources.values()), made.places, made.fields, made.checks, tuple(made.unknown)
    )
