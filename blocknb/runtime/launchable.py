"""The interface of a `Kernel` for the modules that `kernel` imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from blocknb.frontend.source import Source
from blocknb.runtime.binding import Binding
from blocknb.runtime.kinds import Kind


class Launchable(Protocol):
    """A kernel, for the launch paths and the interpreter."""

    __name__: str
    source: Source
    options: dict[str, Any]
    interpreted: bool | None
    latest: Any
    _launch: Callable[..., Any]

    def bound_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Binding, tuple[Any, ...]]:
        """Returns the binding for a call, and the values of the call in its order."""
        ...

    def describe(self, binding: Binding, values: tuple[Any, ...]) -> tuple[tuple[Kind, ...], list[Any]]:
        """Returns the Kinds and the raw values of arguments."""
        ...

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        """Compiles and loads the kernel for these arguments without a launch."""
        ...
