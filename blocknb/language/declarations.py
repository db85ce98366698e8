"""The decorators of the builtins of the language: `@builtin` for `tl.NAME`, `@method` for tiles, too.

If an op of the same name exists, its row of the op table provides the docstring. A call outside a kernel raises an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from blocknb.errors import KernelError
from blocknb.language.examples import documented
from blocknb.language.ops import OPS

#: Set while a kernel is interpreted: calls a function of the language there, (function, args, kwargs).
running: ContextVar[Callable[..., Any] | None] = ContextVar("running", default=None)
BUILTINS: dict[str, Callable] = {}
MEMBERS: set[str] = set()  # builtins that are also methods of a tile: x.sum(0)


def builtin(declaration: Callable, member: bool = False) -> Callable:
    """Makes a declaration a builtin of the language. `member`: also a method of tiles, which are then its first argument."""
    name = declaration.__qualname__
    if not declaration.__doc__ and name in OPS:
        declaration.__doc__ = OPS[name].help.text
    declaration.__doc__ = documented(name, declaration.__doc__)

    @functools.wraps(declaration)
    def outside(*args: Any, **kwargs: Any) -> Any:
        if (run := running.get()) is not None:
            return run(outside, args, kwargs)
        raise KernelError(
            f"`{name}` computes on blocks and works only inside a kernel",
            hint="put it in a function decorated with @blocknb.kernel and launch that with kernel[grid](...)",
        )

    outside.builtin = name  # type: ignore[attr-defined]
    BUILTINS[name] = outside
    if member:
        MEMBERS.add(name)
    return outside


def method(declaration: Callable) -> Callable:
    """A builtin that is also a method of tiles."""
    return builtin(declaration, member=True)
