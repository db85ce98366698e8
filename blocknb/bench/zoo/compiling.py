"""Compiles the kernels of a call for a GPU instead of launching them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from blocknb.errors import KernelError
from blocknb.runtime.kernel import Kernel


@contextmanager
def by_blocknb(target: str) -> Iterator[list[dict[str, Any]]]:
    """Collects a row for each launch inside: kernel, registers, spilled bytes, milliseconds, or the error. Nothing runs, so the
    outputs keep what was in their memory. Of a tuned kernel, the first configuration counts."""
    from triton.runtime.autotuner import Autotuner  # blocknb's, after compat.install()

    found: list[dict[str, Any]] = []
    seen: set[Any] = set()

    def compile(self: Kernel, grid: Any, args: Any, kwargs: Any, tried: Any = None) -> Any:
        begin = time.perf_counter()
        try:
            made = self.compile(*args, target=target, **kwargs)
        except KernelError as error:
            found.append({"kernel": self.__name__, "error": f"{type(error).__name__}: {error}"})
            return None
        if id(made) not in seen:
            seen.add(id(made))
            used = made.trace.resources
            milliseconds = (time.perf_counter() - begin) * 1e3
            row = {"kernel": made.code.entry, "registers": used.registers, "spills": used.spill_bytes}
            found.append({**row, "ms": round(milliseconds)})
        return made

    def first(self: Any, args: Any, kwargs: Any) -> Any:
        return self.prune_configs(kwargs)[0]

    before, tuned = Kernel._general, Autotuner._best
    Kernel._general, Autotuner._best = compile, first  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Kernel._general, Autotuner._best = before, tuned  # type: ignore[method-assign]


@contextmanager
def by_triton(target: str) -> Iterator[list[dict[str, Any]]]:
    """Compiles by Triton for the target of its driver, with all configurations of a tuned kernel."""
    from triton.runtime.autotuner import Autotuner as Tuner
    from triton.runtime.jit import JITFunction

    found: list[dict[str, Any]] = []
    seen: set[Any] = set()

    def compile(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            made = run(self, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:  # Triton raises exceptions of many classes
            found.append({"kernel": self.__name__, "error": f"{type(error).__name__}: {error}"})
            return None
        if made is not None and made.hash not in seen:
            seen.add(made.hash)
            milliseconds = round((time.perf_counter() - begin) * 1e3)
            found.append({"kernel": made.metadata.name, "registers": 0, "spills": 0, "ms": milliseconds})
        return made

    def all_configurations(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for config in self.prune_configs(kwargs):
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            self.fn.run(*args, **kwargs, **config.all_kwargs())

    run, tuned = JITFunction.run, Tuner.run
    JITFunction.run, Tuner.run = compile, all_configurations
    try:
        yield found
    finally:
        JITFunction.run, Tuner.run = run, tuned
