"""What a kernel's meaning depends on: the source of everything reached, and the values of every constant captured.

The runtime puts `dependencies(source).key` into the key of its caches. It is asked at every launch, since a helper may have been
defined again in another cell, so asking must be cheap: the first answer keeps checks (see `description`), most of which compare
identities. The language itself is not in the key: its version is the compiler's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb.errors import Loc
from blocknb.frontend.description import Collector, Same, described
from blocknb.frontend.source import MISSING, Source


@dataclass(eq=False)
class Dependencies:
    """The answer for one Source or constant. `key` is a digest of `text`; `sources` are the kernels reached, the asked one first.

    `places`, `fields` and `checks` are those of the Collector; `current` looks at all. `unknown` names what is opaque: where there is
    any, no other process may use the key.
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
        """Whether every name still refers to the object it did, and none of these has changed. A few dictionary lookups."""
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
    """A call of Python's that was made while compiling, and its result, which is a constant of the code."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    same: Same
    loc: Loc | None = None

    def repeats(self) -> bool:
        """Calls again: whether the result is the same."""
        try:
            return self.same(self.function(*self.args, **self.kwargs))
        except Exception:  # the next compilation calls it, too, and says at which line it failed
            return False

    def unknown(self) -> tuple[str, ...]:
        """The names of what the function reaches and nothing describes. Without any, checks of what is described see every change."""
        return tuple(dict.fromkeys(described((self.function, self.args, dict(self.kwargs)))[1]))


def dependencies(source: Source) -> Dependencies:
    """The Dependencies of a kernel as of now: the same object as long as nothing it reaches was changed."""
    answer = source.answer
    if answer is None or not answer.current():
        collector = Collector()
        collector.reach(source)
        answer = source.answer = _answer(collector, "\n".join(collector.parts), collector.digest())
    return answer


def of_constant(value: Any) -> Dependencies:
    """The Dependencies of a constexpr argument. A function stands for all that it reaches."""
    collector = Collector()
    text = collector.describe(value)
    return _answer(collector, text, text if not collector.parts else f"{text} {collector.digest()}")


def constant_key(value: Any) -> str:
    """A text that stands for a constexpr argument in a cache key."""
    return of_constant(value).key


def _answer(made: Collector, text: str, key: str) -> Dependencies:
    return Dependencies(
        key, text, tuple(made.sources.values()), made.places, made.fields, made.checks, tuple(made.unknown)
    )
