"""What the modules that launch a kernel, and the interpreter's launches, use of a `Kernel`, which is defined above them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from blocknb.frontend.source import Source
from blocknb.runtime.binding import Binding
from blocknb.runtime.kinds import Kind


class Launchable(Protocol):
    """A kernel as the launch paths see it."""

    __name__: str
    source: Source
    options: dict[str, Any]
    interpreted: bool | None
    latest: Any
    _launch: Callable[..., Any]

    def bound_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Binding, tuple[Any, ...]]:
        """The binding of a way of calling, and the values of a call in its order."""
        ...

    def describe(self, binding: Binding, values: tuple[Any, ...]) -> tuple[tuple[Kind, ...], list[Any]]:
        """The Kinds of the values, and what a launch passes for them."""
        ...
