"""The kernels of compiled models: in the order of their launches, each with its origins, its configuration and its Trace."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from blocknb.runtime.compile import Compiled
from blocknb.torch.inductor.graphs import Origin, origin_of
from blocknb.trace import Trace


@dataclass(frozen=True, eq=False)
class GeneratedKernel:
    """A kernel that Inductor generated and blocknb compiled. `milliseconds`: the time of its launch by the clock, None without a launch;
    on a GPU it is the time to start it."""

    autotuner: Any
    config: Any
    compiled: Compiled
    milliseconds: float | None = None

    @property
    def origin(self) -> Origin:
        return origin_of(self.autotuner)

    @property
    def name(self) -> str:
        return self.origin.kernel

    @property
    def operators(self) -> tuple[str, ...]:
        """The ATen operators that the kernel fuses."""
        return self.origin.operators

    @property
    def lines(self) -> tuple[tuple[str, int, str], ...]:
        """(file, line, text) of the user's program."""
        return self.origin.lines

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

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.operators)} ({self.configuration})>"


class GeneratedKernels(Sequence[GeneratedKernel]):
    """A list of kernels that shows itself as a table."""

    COLUMNS = ("#", "kernel", "operators", "lines", "configuration", "ms")

    def __init__(self, kernels: Sequence[GeneratedKernel]):
        self._kernels = tuple(kernels)

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

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, in the order of COLUMNS."""
        return [
            (
                str(i),
                k.name,
                ", ".join(k.operators),
                "; ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line, _ in k.lines),
                k.configuration,
                "" if k.milliseconds is None else f"{k.milliseconds:.3f}",
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
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows())
        return f"<table><thead>{row(self.COLUMNS, 'th')}</thead><tbody>{body}</tbody></table>"


_compiled: list[GeneratedKernel] = []
_recording: list[list[GeneratedKernel]] = []
_lock = threading.Lock()


def compiled(autotuner: Any, config: Any, kernel: Compiled) -> None:
    """Adds a configuration to the kernels of this process."""
    with _lock:
        _compiled.append(GeneratedKernel(autotuner, config, kernel))


def launch(autotuner: Any, config: Any, kernel: Compiled, start: Callable[[], None]) -> None:
    """Launches a kernel, and records it for `kernels`."""
    if not _recording:
        start()
        return
    begin = time.perf_counter()
    start()
    found = GeneratedKernel(autotuner, config, kernel, (time.perf_counter() - begin) * 1e3)
    for record in list(_recording):
        record.append(found)


def kernels(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> GeneratedKernels:
    """Runs `function(*args, **kwargs)` and returns the kernels that it launched, in their order; its second run, so that no trial of an
    autotuner is among them. Without a function, returns all configurations that this process has compiled.

    The function is a model compiled with `backend="blocknb"`, or any function that runs one, such as a training step.
    """
    if function is None:
        return GeneratedKernels(_compiled)
    function(*args, **kwargs)
    record: list[GeneratedKernel] = []
    _recording.append(record)
    try:
        function(*args, **kwargs)
    finally:
        _recording.remove(record)
    return GeneratedKernels(record)
