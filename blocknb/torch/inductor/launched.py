"""The kernels of compiled models: in the order of their launches, each with its origins, its configuration, its Trace and its time.

`kernels` and `recorded` record the launches of a run. Recorded launches are measured (`measured`). Modules of the notebook show the table.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from blocknb.errors import LaunchError
from blocknb.profile.timing import Timings
from blocknb.runtime import notebook_methods
from blocknb.runtime.compile import Compiled
from blocknb.torch.inductor.eager_operators import EagerOperators, eager_operators
from blocknb.torch.inductor.graphs import CallSite, GraphFile, Origin, call_site, origin_of
from blocknb.torch.inductor.kept import KEEP_BYTES, ArgumentKeeper
from blocknb.torch.inductor.measured import LaunchMeter, MeasuredLaunch, step_times
from blocknb.trace import Trace


@dataclass(frozen=True, eq=False)
class GeneratedKernel:
    """A kernel that Inductor generated and blocknb compiled. `launch` is its measured launch, None without one. `launches` counts equal
    launches that share this row. `sites` are the places in generated graphs that launched it."""

    autotuner: Any
    config: Any
    compiled: Compiled
    launch: MeasuredLaunch | None = None
    launches: int = 1
    sites: tuple[CallSite, ...] = ()

    @property
    def milliseconds(self) -> float | None:
        """The median time of a launch, repeated with cold caches; None if it was not measured."""
        return None if self.launch is None or self.launch.time is None else self.launch.time.median

    @property
    def bytes(self) -> int | None:
        """The unique bytes that a launch must move; None if they depend on data, or without a launch."""
        return None if self.launch is None else self.launch.work.unique_bytes

    @property
    def flops(self) -> int | None:
        """The floating-point operations of a launch; None if they depend on data, or without a launch."""
        return None if self.launch is None else self.launch.work.flops

    @property
    def gbytes(self) -> float | None:
        """Unique bytes over time, in GB/s."""
        return self.bytes / self.milliseconds / 1e6 if self.bytes is not None and self.milliseconds else None

    @property
    def origin(self) -> Origin:
        return origin_of(self.autotuner)

    @property
    def name(self) -> str:
        return self.origin.kernel

    @property
    def operators(self) -> tuple[str, ...]:
        """The ATen operators that the kernel fuses, where it was launched."""
        found = [one.original for site in self.sites for one in site.members if one.original]
        return tuple(dict.fromkeys(found)) or self.origin.operators

    @property
    def lines(self) -> tuple[tuple[str, int, str], ...]:
        """(file, line, text) of the user's program, where the kernel was launched. Graphs with equal kernels share their code."""
        found = {one.line for site in self.sites for one in site.members if one.line is not None}
        return tuple(sorted(found)) or self.origin.lines

    @property
    def trace(self) -> Trace:
        """The Trace of the compilation, which the card shows."""
        return self.compiled.trace

    @property
    def source(self) -> str:
        """The kernel's text in Triton's language."""
        return self.compiled.kernel.src

    @property
    def configuration(self) -> str:
        """Block sizes and options, such as "XBLOCK=64, num_warps=4"."""
        sizes = {**self.config.kwargs, "num_warps": self.config.num_warps, "num_stages": self.config.num_stages}
        return ", ".join(f"{name}={value}" for name, value in sizes.items())

    def edit(self) -> str | None:
        """The kernel as the text of a `%%blockkernel` cell; in a notebook it becomes a new cell after the current one, and None returns."""
        return notebook_methods.call("open_cell", notebook_methods.call("cell_of", self))

    def replace_with(self, kernel: Any, *, grid: Any = None, **constants: Any) -> Any:
        """Puts a kernel in place of this one: see `blocknb.torch.replace_kernel`."""
        return notebook_methods.call("replace_kernel", self, kernel, grid=grid, **constants)

    def restore(self) -> None:
        """Undoes `replace_with`."""
        notebook_methods.call("restore", self)

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.operators)} ({self.configuration})>"


class GeneratedKernels(Sequence[GeneratedKernel]):
    """A list of kernels that shows itself as a table and a graph. `steps` are the times of the whole step by name ("compiled", "eager"),
    and `eager` has the operators of the eager step, if they were measured. `trend` has the earlier runs of the same cell."""

    COLUMNS = ("#", "kernel", "operators", "lines", "configuration", "launches", "µs", "share %", "kB", "GB/s", "roof")

    def __init__(self, kernels: Sequence[GeneratedKernel], steps: Timings | None = None):
        self._kernels, self.steps = tuple(kernels), steps
        self.eager: EagerOperators | None = None
        self.trend: Sequence[Mapping[str, Any]] = ()

    @overload
    def __getitem__(self, index: int) -> GeneratedKernel: ...

    @overload
    def __getitem__(self, index: slice) -> GeneratedKernels: ...

    def __getitem__(self, index: int | slice) -> GeneratedKernel | GeneratedKernels:
        return GeneratedKernels(self._kernels[index]) if isinstance(index, slice) else self._kernels[index]

    def __len__(self) -> int:
        return len(self._kernels)

    def __iter__(self) -> Iterator[GeneratedKernel]:
        return iter(self._kernels)

    @cached_property
    def milliseconds(self) -> float:
        """The sum of the measured times of all launches."""
        return sum((k.milliseconds or 0.0) * k.launches for k in self)

    @property
    def graphs(self) -> tuple[GraphFile, ...]:
        """The generated graphs that launched the kernels, in the order of their first launches."""
        found = {site.file.path: site.file for kernel in self for site in kernel.sites}
        return tuple(found.values())

    def share(self, kernel: GeneratedKernel) -> float | None:
        """The share of a row's launches in `milliseconds`, from 0 to 1; None if the kernel was not measured."""
        if kernel.milliseconds is None or not self.milliseconds:
            return None
        return kernel.milliseconds * kernel.launches / self.milliseconds

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, in the order of COLUMNS. The time is of one launch, the share of all launches of a row."""
        return [
            (
                str(i),
                k.name,
                ", ".join(k.operators),
                "; ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line, _ in k.lines),
                k.configuration,
                str(k.launches) if k.launch else "",
                _number(k.milliseconds, 1e3),
                _number(self.share(k), 100),
                _number(k.bytes, 1e-3),
                _number(k.gbytes),
                "" if k.launch is None or (found := k.launch.roof)[1] is None else f"{found[1]:.0f} % of {found[0]}",
            )
            for i, k in enumerate(self)
        ]

    def __repr__(self) -> str:
        table = [self.COLUMNS, *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(self.COLUMNS))]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table
        )

    def _repr_html_(self) -> str:
        return str(notebook_methods.call("torch_kernels_html", self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        found: dict[str, Any] = notebook_methods.call("torch_kernels_bundle", self)
        return found

    def drift(self) -> Any:
        """The numerical drift of each output: the error of the fused kernel against float64, and that of single operators."""
        return notebook_methods.call("drift_of", self)

    def save(self, path: str | Path) -> Path:
        """Writes the table to one HTML file that needs no network and no kernel, and returns its path."""
        return Path(notebook_methods.call("save_torch_kernels", self, path))


def _number(value: float | None, scale: float = 1.0) -> str:
    """Three significant digits, and all digits of larger whole parts; "" for an unknown number."""
    if value is None:
        return ""
    value *= scale
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(eq=False)
class LaunchRecord:
    """The launches of a run. With `merged`, equal launches share a row, at the place of the first."""

    merged: bool = False
    rows: dict[Any, GeneratedKernel] = field(default_factory=dict)
    meter: LaunchMeter = field(default_factory=LaunchMeter)

    def add(self, found: GeneratedKernel) -> None:
        key = (id(found.autotuner), id(found.launch)) if self.merged else len(self.rows)
        old = self.rows.get(key)
        if old is not None:
            found = replace(
                old, launches=old.launches + 1, sites=(*old.sites, *(s for s in found.sites if s not in old.sites))
            )
        self.rows[key] = found

    @property
    def kernels(self) -> GeneratedKernels:
        return GeneratedKernels(tuple(self.rows.values()))


_compiled: list[GeneratedKernel] = []
#: The records that are open: the list itself stays the same.
open_records: list[LaunchRecord] = []
_lock = threading.Lock()
_trial = threading.local()


def compiled(autotuner: Any, config: Any, kernel: Compiled) -> None:
    """Adds a configuration to the kernels of this process."""
    with _lock:
        _compiled.append(GeneratedKernel(autotuner, config, kernel))


def launch(
    autotuner: Any,
    config: Any,
    kernel: Compiled,
    start: Callable[..., None],
    grid: tuple[int, int, int],
    raws: Sequence[Any],
    values: Sequence[Any],
) -> None:
    """Launches a kernel by `start(grid, raws, values)`; measures and records it before, if a record is open."""
    if open_records and not getattr(_trial, "running", False):
        site = call_site()
        for record in list(open_records):
            found = record.meter.measure(kernel, start, grid, values)
            with _lock:
                record.add(GeneratedKernel(autotuner, config, kernel, found, sites=(site,) if site else ()))
    start(grid, raws, values)


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Inside, launches of this thread are trials of an autotuner, which no record gets."""
    before, _trial.running = getattr(_trial, "running", False), True
    try:
        yield
    finally:
        _trial.running = before


@contextlib.contextmanager
def recorded(merged: bool = False, keep_bytes: int = KEEP_BYTES) -> Iterator[LaunchRecord]:
    """Records the launches of all threads; trials of an autotuner are left out. It keeps at most `keep_bytes` of their arguments."""
    record = LaunchRecord(merged, meter=LaunchMeter(ArgumentKeeper(keep_bytes)))
    open_records.append(record)
    try:
        yield record
    finally:
        open_records.remove(record)


def kernels(
    function: Callable[..., Any] | None = None, *args: Any, eager: Callable[..., Any] | None = None, **kwargs: Any
) -> GeneratedKernels:
    """Runs `function(*args, **kwargs)` and returns the kernels that it launched, in their order; its second run, so that no compilation is
    part of it. Without a function, returns all configurations that this process has compiled.

    The function is a model compiled with `backend="blocknb"`, or any function that runs one, such as a training step. Each kernel is
    measured on copies of what it writes, so the second run takes longer. With `eager`, a function for the same arguments, both are also
    timed as whole steps in turns: they run up to 23 times more. The operators of the eager step are counted. Warns if no kernel was
    launched. Raises LaunchError for an `eager` that is no function.
    """
    if function is None:
        return GeneratedKernels(_compiled)
    if eager is not None and not callable(eager):
        raise LaunchError(
            f"eager is a {type(eager).__name__}, not a function",
            hint="pass the model before torch.compile: eager=model",
        )
    function(*args, **kwargs)
    with recorded() as record:
        function(*args, **kwargs)
    found = record.kernels
    if not found:
        warnings.warn('no kernel of blocknb was launched: is it compiled with backend="blocknb"?', stacklevel=2)
    if eager is not None:
        steps = {"compiled": lambda: function(*args, **kwargs), "eager": lambda: eager(*args, **kwargs)}
        found.eager = eager_operators(steps["eager"])
        found.steps = step_times(steps, gpu=any(k.compiled.target.is_gpu for k in found))
    return found
