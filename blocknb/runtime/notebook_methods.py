"""The functions behind the methods of a kernel that the notebook's modules implement, such as `kernel.sweep`, and behind some tables.

`runtime` may not import `notebook`, so the package registers a function here that imports them when the first method is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Load = Callable[[str], Callable[..., Any]]
_loaders: list[Load] = []


def provide(load: Load) -> None:
    """Registers `load(name)`, which returns the implementation of a kernel's method."""
    _loaders[:] = [load]


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Calls the implementation of a kernel's method."""
    return _loaders[0](name)(*args, **kwargs)
