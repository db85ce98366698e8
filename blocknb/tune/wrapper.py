"""The base class of autotuners and heuristics, which wrap a kernel or each other and have its interface."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

from blocknb.frontend.source import MISSING, Source
from blocknb.runtime import pickling
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.kernel import Kernel


class Wrapper(KernelInterface):
    """Wraps the kernel or wrapper `fn`; `arg_names` are the kernel's parameters. Other attributes are those of `fn`."""

    def __init__(self, fn: Any, arg_names: list[str]):
        self.fn, self.arg_names = fn, arg_names
        for name in ("__name__", "__doc__", "__module__", "__qualname__"):
            if hasattr(fn, name):
                setattr(self, name, getattr(fn, name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by name if another process can import the wrapper, or else with the kernel and all attributes."""
        if (path := pickling.path_of(self)) is not None:
            return pickling.find, path
        return object.__new__, (type(self),), self.pickled_state()

    def pickled_state(self) -> dict[str, Any]:
        """The attributes that travel to another process."""
        return {name: value for name, value in vars(self).items() if name != "kernel"}

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    @cached_property
    def kernel(self) -> Kernel:
        """The wrapped Kernel. Raises TypeError if there is none."""
        inside = self.fn
        while not isinstance(inside, Kernel):
            if not hasattr(inside, "fn"):
                raise TypeError(f"{type(self).__name__} wraps a {type(inside).__name__}, which is not a kernel")
            inside = inside.fn
        return inside

    @property
    def base_fn(self) -> Any:
        """The kernel's Python function, under Triton's name."""
        return self.kernel.fn

    @property
    def source(self) -> Source:
        """The source of the kernel, so that another kernel can call the wrapper as a helper."""
        return self.kernel.source

    @property
    def defaults(self) -> dict[str, Any]:
        """The default values of parameters, by name."""
        return {p.name: p.default for p in self.source.parameters if p.default is not MISSING}

    def interpret(self, grid: Any, **options: Any) -> Any:
        """Interprets a launch as `Kernel.interpret` does, with the configuration or constants that the wrapper chooses."""
        return lambda *args, **kwargs: self.run(*args, grid=grid, interpret=options, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("fn", "kernel"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.fn, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.fn!r}>"
