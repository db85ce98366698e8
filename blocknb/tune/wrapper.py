"""What autotuners and heuristics share: they stand around a kernel, or around each other, and look like it from outside."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from blocknb.frontend.source import MISSING, Source
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.kernel import Kernel


class Wrapper(KernelInterface):
    """`fn` is what is wrapped, `arg_names` the kernel's parameters. What is not found here is asked of `fn`."""

    def __init__(self, fn: Any, arg_names: list[str]):
        self.fn, self.arg_names = fn, arg_names
        for name in ("__name__", "__doc__", "__module__", "__qualname__"):
            if hasattr(fn, name):
                setattr(self, name, getattr(fn, name))

    @cached_property
    def kernel(self) -> Kernel:
        """The Kernel inside. Raises TypeError if there is none."""
        inside = self.fn
        while not isinstance(inside, Kernel):
            if not hasattr(inside, "fn"):
                raise TypeError(f"{type(self).__name__} stands around a {type(inside).__name__}, which is no kernel")
            inside = inside.fn
        return inside

    @property
    def base_fn(self) -> Any:
        """The Python function inside, as Triton names it."""
        return self.kernel.fn

    @property
    def source(self) -> Source:
        """The front end's view: called inside another kernel, this is its kernel."""
        return self.kernel.source

    @property
    def defaults(self) -> dict[str, Any]:
        """The default values of parameters, by name."""
        return {p.name: p.default for p in self.source.parameters if p.default is not MISSING}

    def interpret(self, grid: Any, **options: Any) -> Any:
        """As Kernel.interpret, with what stands around the kernel doing its part."""
        return lambda *args, **kwargs: self.run(*args, grid=grid, interpret=options, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("fn", "kernel"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.fn, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.fn!r}>"
