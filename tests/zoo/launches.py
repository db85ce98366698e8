"""The launches of a specimen, and the GPU code of each, so that everything except the run itself is tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from kernels.base import array_of, described, parameters

from blocknb import passes
from blocknb.codegen import gpu
from blocknb.frontend.parse import parse
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.runtime import kernel, launch_context
from blocknb.runtime.binding import normal_grid
from blocknb.runtime.compile import Compiled
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.interface import TensorWrapper
from blocknb.runtime.job import front_argument
from blocknb.runtime.kernel import Kernel
from blocknb.target import Target
from blocknb.trace import Stage


@contextmanager
def launched() -> Iterator[list[Compiled]]:
    """Collects the kernels that are launched inside, each compiled kernel once."""
    found: list[Compiled] = []

    def observe(launch: kernel.Launch) -> None:
        if not any(launch.compiled is c for c in found):
            found.append(launch.compiled)

    launch_context.observers.append(observe)
    try:
        yield found
    finally:
        launch_context.observers.remove(observe)


@contextmanager
def launching(way: Callable[..., Any]) -> Iterator[None]:
    """Every launch inside goes this way, whose arguments are those of `Kernel._general`; who watches launches has none of them repeated."""
    before = Kernel._general
    Kernel._general = way
    try:
        with launched():
            yield
    finally:
        Kernel._general = before


@contextmanager
def only_compiled(target: str) -> Iterator[list[Compiled]]:
    """Collects the kernels that are launched inside, and compiles them for a target instead: nothing runs."""
    found: list[Compiled] = []

    def compile(self, grid, args, kwargs, tried=None):
        found.append(self.compile(*args, target=target, **kwargs))
        return found[-1]

    with launching(compile):
        yield found


def lowered(compiled: Compiled, target: Target, **more: Any) -> tuple[Func, tuple[Stage, ...]]:
    """The launched kernel after the last pass for a target, and every stage; with `more` launch options."""
    given = {n: front_argument(kind) for n, kind in compiled.kinds.items()}
    options = {n: value for n, value in compiled.options.items() if n != "without" and value is not None}
    return passes.run(parse(compiled.source, given, options | more, target), target)


def gpu_code(compiled: Compiled, target: Target, name: str = "") -> gpu.GpuModule:
    """The LLVM text of the launched kernel for a GPU."""
    func = lowered(compiled, target)[0]
    return gpu.generate(func.replace(name=name or func.name), target)


@dataclass(frozen=True)
class Recorded:
    """A launch on the CPU with copies of its arguments by name, before it ran and behind."""

    compiled: Compiled
    grid: tuple[int, ...]
    before: dict[str, Any]
    after: dict[str, Any]

    def interpret(self, func: Func, rtol: float, atol: float) -> None:
        """Runs a Func of it in the interpreter and compares all arrays with those that the CPU has left; `atol` counts in the largest
        magnitude of an array. Raises AssertionError, or the interpreter's error."""
        got = copies(self.before)
        interp.run(func, parameters(func, {name: bits(value) for name, value in got.items()}), self.grid)
        for name, value in got.items():
            found, wanted = (array_of(bits(x)) for x in (value, self.after[name]))
            if not isinstance(found, np.ndarray):
                continue
            if found.dtype.kind in "iub":
                np.testing.assert_array_equal(found, wanted, err_msg=name)
                continue
            wanted = wanted.astype(np.float64)
            largest = max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)), 1e-30)
            np.testing.assert_allclose(found.astype(np.float64), wanted, rtol, atol * largest, err_msg=name)


@contextmanager
def recorded() -> Iterator[list[Recorded]]:
    """Collects the kernels that are launched inside on NumPy arrays, each compiled kernel once."""
    found: list[Recorded] = []
    launch = Kernel._general

    def run(self, grid, args, kwargs, tried=None):
        binding, values = self.bound_call(args, kwargs)
        given = dict(zip(binding.names, values, strict=True))
        before = copies(given)
        compiled = launch(self, grid, args, kwargs, tried)
        if not any(compiled is record.compiled for record in found):
            whole = normal_grid(self.source, grid, binding.bound(values) if callable(grid) else {})
            found.append(Recorded(compiled, whole, before, copies(given)))
        return compiled

    with launching(run):
        yield found


def copies(given: dict[str, Any]) -> dict[str, Any]:
    """Copies of arguments, an array that is given twice copied once."""
    made: dict[int, np.ndarray] = {}

    def copy(value: Any) -> Any:
        match value:
            case TensorDescriptor():
                return described(value, copy(value.base))
            case TensorWrapper():
                return TensorWrapper(copy(value.base), value.dtype)
            case np.ndarray():
                return made.setdefault(id(value), value.copy(order="K"))
        return value

    return {name: copy(value) for name, value in given.items()}


FLOAT8 = {"fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}


def bits(value: Any) -> Any:
    """An argument as the interpreter takes it: an array of 8-bit floats as a wrapper passes them."""
    if isinstance(value, TensorDescriptor):
        return described(value, bits(value.base))
    return value.base.view(FLOAT8[str(value.dtype)]) if isinstance(value, TensorWrapper) else value
