"""The launches of a specimen, and the GPU code that each would run: what needs no GPU is tried without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blocknb import passes
from blocknb.codegen import gpu
from blocknb.frontend.parse import parse
from blocknb.runtime import kernel
from blocknb.runtime.compile import Compiled
from blocknb.runtime.job import front_argument
from blocknb.runtime.kernel import Kernel
from blocknb.target import Target


@contextmanager
def launched() -> Iterator[list[Compiled]]:
    """Collects what is launched inside, each compiled kernel once."""
    found: list[Compiled] = []

    def observe(launch: kernel.Launch) -> None:
        if not any(launch.compiled is c for c in found):
            found.append(launch.compiled)

    kernel.observers.append(observe)
    try:
        yield found
    finally:
        kernel.observers.remove(observe)


@contextmanager
def only_compiled(target: str) -> Iterator[list[Compiled]]:
    """Collects what is launched inside, compiled for a target instead: nothing runs."""
    found: list[Compiled] = []
    launch = Kernel.launch

    def compile(self, grid, /, *args, **kwargs):
        found.append(self.compile(*args, target=target, **kwargs))
        return found[-1]

    Kernel.launch = compile
    try:
        yield found
    finally:
        Kernel.launch = launch


def gpu_code(compiled: Compiled, target: Target, name: str = "") -> gpu.Module:
    """What was launched, as LLVM text for a GPU."""
    given = {n: front_argument(kind) for n, kind in compiled.kinds.items()}
    options = {n: value for n, value in compiled.options.items() if n != "without" and value is not None}
    func = passes.run(parse(compiled.source, given, options, target), target)[0]
    return gpu.generate(func.replace(name=name or func.name), target)
