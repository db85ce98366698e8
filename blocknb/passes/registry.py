"""The registry of passes: a pass registers itself by a decorator in its own file.

`@tile_pass()` registers a pass of every target, `@gpu_pass()` one that only GPUs run: the CPU's pipeline ends at the tile level. The
name of a pass is the name of its function, which is also the name of its module. `blocknb.passes.ORDER` says in which order passes run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blocknb.ir.core import Func
from blocknb.target import Target
from blocknb.trace import Notes

PassFunction = Callable[[Func, Target, Notes], Func]
Applies = Callable[[Func, Target], bool]


def always(func: Func, target: Target) -> bool:
    """The predicate of a pass that is part of every compilation."""
    return True


@dataclass(frozen=True)
class Pass:
    """A registered pass. `without={name}` switches off an `optional` one. A pass that does not apply to a function is left out."""

    name: str
    run: PassFunction
    optional: bool = False
    applies: Applies = always
    gpu_only: bool = False

    @property
    def doc(self) -> str:
        """The text for the user: the docstring of the function."""
        return (self.run.__doc__ or "").strip()


#: Every pass whose module has been imported, by name.
REGISTERED: dict[str, Pass] = {}


def tile_pass(optional: bool = False, applies: Applies = always) -> Callable[[PassFunction], PassFunction]:
    """Registers a pass that every target runs. Raises ValueError if another module has registered the name."""
    return _registering(optional, applies, gpu_only=False)


def gpu_pass(optional: bool = False, applies: Applies = always) -> Callable[[PassFunction], PassFunction]:
    """Registers a pass that only GPUs run. Raises ValueError if another module has registered the name."""
    return _registering(optional, applies, gpu_only=True)


def _registering(optional: bool, applies: Applies, gpu_only: bool) -> Callable[[PassFunction], PassFunction]:
    def register(run: PassFunction) -> PassFunction:
        name = run.__name__
        known = REGISTERED.get(name)
        if known is not None and known.run.__module__ != run.__module__:
            raise ValueError(f"{run.__module__} and {known.run.__module__} both register a pass {name}")
        REGISTERED[name] = Pass(name, run, optional, applies, gpu_only)
        return run

    return register
