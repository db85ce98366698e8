"""Runs generated kernels in this process, on the CPU or a GPU, and judges the memory that they produce.

`load` makes functions of sources that exist only in `linecache`, as a notebook's cells do. `FuzzCase` is one kernel with its expected
results. Several threads compile its launches in advance, since LLVM takes most of the time, in another process.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import linecache
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.fuzz import compare, data, dtypes, source
from blocknb.fuzz import tree as t
from blocknb.fuzz.evaluate import evaluate
from blocknb.fuzz.memory import FuzzMemory, OutOfRange
from blocknb.fuzz.numbers import Ambiguous

_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """The result of running a kernel.

    `kind` is right, wrong (elements differ), outside (a guard zone changed), refused (an error for a valid kernel), crashed or hung. It is
    ambiguous if the evaluator cannot predict the result, and invalid if the generator made an out-of-bounds access. `launch` is the first
    that failed.
    """

    kind: str
    detail: str = ""
    launch: int = 0

    @property
    def failed(self) -> bool:
        return self.kind not in ("right", "ambiguous", "invalid")

    @property
    def key(self) -> str:
        """A key that a reduced kernel must share with this one to show the same defect."""
        return f"refused {self.detail.split(':')[0]}" if self.kind == "refused" else self.kind


def load(text: str) -> dict[str, Any]:
    """The names that a module's text defines; tracebacks and `inspect` find its lines."""
    name = f"<fuzz {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "fuzz"}
    exec(compile(text, name, "exec"), scope)
    return scope


LARGE = 512  # bytes of an array that gets non-temporal stores in tests
LINES = 150  # lines of LLVM text per outlined function


def stress() -> None:
    """Lowers the thresholds for non-temporal stores and outlining, so that small arrays and short kernels test them, too."""
    from blocknb.codegen.cpu import outlining
    from blocknb.passes.tile import nontemporal_stores

    nontemporal_stores.LARGE, outlining.LINES = LARGE, LINES


@contextlib.contextmanager
def poisoned_scratch() -> Iterator[None]:
    """Inside, the scratch memory of CPU kernels holds the same garbage at each launch.

    So code that reads uninitialized scratch memory gives wrong results, in every run.
    """
    from blocknb.runtime import host

    kind: Any = type(host._scratch)
    plain, patterns = kind.at_least, itertools.cycle((0xFF, 0x7B))

    def at_least(memory: Any, size: int) -> int:
        address = plain(memory, size)
        ctypes.memset(address, next(patterns), size)
        return address

    kind.at_least = at_least
    try:
        yield
    finally:
        kind.at_least = plain


@dataclass
class FuzzLaunch:
    """One launch of a case: the expected memory, the arrays, and the call's arguments by name."""

    number: int
    memory: FuzzMemory
    arrays: dict[str, data.Guarded]
    arguments: dict[str, Any]
    on_device: dict[str, Any] = field(default_factory=dict)


class FuzzCase:
    """A kernel prepared for launches on "cpu" or "cuda", or for a GPU architecture such as "sm_90a".

    For an architecture, the kernel is compiled and its last IR is interpreted. Raises Ambiguous if the evaluator cannot predict the
    result.
    """

    def __init__(self, kernel: t.KernelTree, device: str = "cpu", without: Sequence[str] = ()):
        self.kernel, self.device, self.without = kernel, device, tuple(without)
        self.launches = [self._launch(number) for number in range(kernel.launches)]
        self.function: Any = None
        self.compiled: list[Any] = []  # for an architecture, by launch

    def _launch(self, number: int) -> FuzzLaunch:
        kernel = self.kernel
        inputs = data.inputs(kernel, number)
        memory = evaluate(kernel, inputs, number)
        offsets = {a.name: a.offset for a in kernel.arrays}
        arrays = {name: data.Guarded(values, offsets[name]) for name, values in inputs.items()}
        found = FuzzLaunch(number, memory, arrays, {})
        for argument in kernel.arguments:
            if isinstance(argument, t.Scalar):
                found.arguments[argument.name] = argument.values[number % len(argument.values)]
            else:
                found.arguments[argument.name] = self._array(argument, found)
        return found

    def _array(self, argument: t.Array, launch: FuzzLaunch) -> Any:
        owner = launch.arrays[argument.base or argument.name]
        start = argument.offset if argument.base else 0
        if self.device != "cuda":
            return owner.array[start : start + argument.size]
        import cupy

        name = argument.base or argument.name
        if name not in launch.on_device:
            launch.on_device[name] = cupy.asarray(owner.raw)
        size = owner.array.dtype.itemsize
        begin = owner.start + start * size
        raw = launch.on_device[name][begin : begin + argument.size * size]
        if argument.dtype in ("bf16", *dtypes.FLOAT8):
            from blocknb import language
            from blocknb.runtime.interface import reinterpret

            bits = raw.view(cupy.uint16 if argument.dtype == "bf16" else cupy.uint8)
            return reinterpret(bits, getattr(language, dtypes.SPELLED[argument.dtype].removeprefix("tl.")))
        return raw.view(owner.array.dtype)

    def options(self) -> dict[str, Any]:
        return {**self.kernel.options, **({"without": self.without} if self.without else {})}

    def compile(self) -> None:
        """Compiles for every launch without launching anything."""
        if self.device not in ("cpu", "cuda"):
            options = self.options()
            self.compiled = [self.function.compile(**x.arguments, target=self.device, **options) for x in self.launches]
            return
        for launch in self.launches:
            self.function.warmup(**launch.arguments, grid=self.kernel.grid, **self.options())

    def run(self) -> Outcome:
        """Launches the kernel and compares the results."""
        for launch in self.launches:
            try:
                self._start(launch)
            except KernelError as error:
                return Outcome("refused", f"{type(error).__name__}: {error}", launch.number)
            wrong = compare.differences(self.kernel, launch.memory, {n: g.array for n, g in launch.arrays.items()})
            if wrong:
                return Outcome("wrong", "\n".join(map(str, wrong)), launch.number)
            if broken := [name for name, guarded in launch.arrays.items() if guarded.broken()]:
                return Outcome("outside", f"memory next to {', '.join(broken)} has changed", launch.number)
        return Outcome("right")

    def _start(self, launch: FuzzLaunch) -> None:
        """Launches, and waits until the arrays hold the results."""
        if self.compiled:
            interpret(self.kernel, launch, self.compiled[launch.number].trace.stages[-1].after, True)
            return
        with poisoned_scratch() if self.device == "cpu" else contextlib.nullcontext():
            self.function[self.kernel.grid](**launch.arguments, **self.options())
        for name, array in launch.on_device.items():
            launch.arrays[name].raw[:] = array.get()


def interpret(kernel: t.KernelTree, launch: FuzzLaunch, func: Any, finished: bool) -> None:
    """Interprets IR of any level on the arrays of a launch. IR that is not `finished` may lack barriers. Raises its errors."""
    from blocknb.ir import interp

    arrays = {name: guarded.array for name, guarded in launch.arrays.items()}
    views = {a.name: arrays[a.base][a.offset : a.offset + a.size] for a in kernel.arrays if a.base}
    given = {**launch.arguments, **arrays, **views}
    names = [hint.name for hint in func.hints] if func.hints else [p.name for p in func.params]
    with np.errstate(all="ignore"):
        interp.run(
            func, [given[name] for name in names], kernel.grid, check_races=finished, implicit_barriers=not finished
        )


def attempt(kernel: t.KernelTree, device: str = "cpu", without: Sequence[str] = ()) -> Outcome:
    """The outcome of one kernel."""
    return next(iter(attempts([kernel], device, 1, without)))


def attempts(
    kernels: Sequence[t.KernelTree], device: str = "cpu", threads: int = 2, without: Sequence[str] = ()
) -> Iterable[Outcome]:
    """The outcomes of kernels that share a module, in order; several threads compile them."""
    names = load(source.module(list(kernels), device))

    def prepare(kernel: t.KernelTree) -> FuzzCase | Outcome:
        try:
            case = FuzzCase(kernel, device, without)
        except Ambiguous:
            return Outcome("ambiguous")
        except OutOfRange as error:
            return Outcome("invalid", str(error))
        case.function = names[kernel.name]
        try:
            case.compile()
        except KernelError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        return case

    if threads == 1 or len(kernels) == 1:
        for kernel in kernels:
            yield finished(prepare(kernel))
        return
    with ThreadPoolExecutor(threads) as pool:
        for made in pool.map(prepare, kernels):
            yield finished(made)


def finished(made: FuzzCase | Outcome) -> Outcome:
    return made if isinstance(made, Outcome) else made.run()


def describe(kernel: t.KernelTree) -> str:
    """A kernel's source with its grid and the values of its launches."""
    values = ", ".join(f"{a.name}={list(a.values)}" for a in kernel.scalars)
    arrays = ", ".join(f"{a.name}: {a.dtype}[{a.size}]" for a in kernel.arrays)
    return f"{source.one(kernel)}\n# grid {kernel.grid}; {values}; {arrays}; {kernel.options}\n"
