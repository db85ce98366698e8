"""Launches of GPU kernels with prints, assertions or checks: each launch gets a report buffer, which is read after the kernel ends.

Other kernels are launched by a `driver.Launcher` alone. A report buffer belongs to a stream and is reused by its next launch. A launch
zeroes only the counters, and the host copies back only the records that were written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blocknb import forks
from blocknb.codegen import report
from blocknb.errors import KernelError, LaunchError
from blocknb.runtime import cuda

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

Grid = tuple[int, int, int]
Start = Callable[[Grid, Sequence[Any], Sequence[Any]], None]
_TO_HOST = 2  # cudaMemcpyDeviceToHost


class _Muted(threading.local):
    """Whether what this thread's kernels print is dropped: while launches are only repeated to be timed."""

    on: bool = False


muted = _Muted()


def tell(text: str) -> None:
    """Prints what a kernel said, where Python prints."""
    if text and not muted.on:
        sys.stdout.write(text)
        sys.stdout.flush()


def asserting() -> bool:
    """Whether the environment asks for assertions on GPUs."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("BLOCKNB_DEBUG", "TRITON_DEBUG"))


class ReportBuffer:
    """The report of one stream: memory on its device."""

    def __init__(self) -> None:
        self.memory = cuda.cupy().cuda.alloc(8 * report.WORDS)
        self.lock = threading.Lock()
        forks.renewed(self, lock=threading.Lock)
        self.words = np.zeros(report.WORDS, np.int64)

    def clear(self, stream: int) -> None:
        cuda.cupy().cuda.runtime.memsetAsync(self.memory.ptr, 0, 8 * report.HEADER, stream)

    def read(self, stream: int) -> np.ndarray:
        """The words, as far as records are there; waits for the stream."""
        self._copy(0, report.HEADER, stream)
        for kind, region in report.REGIONS.items():
            self._copy(region.first, report.RECORD * report.counted(self.words, kind), stream)
        return self.words

    def _copy(self, first: int, count: int, stream: int) -> None:
        if count:
            runtime = cuda.cupy().cuda.runtime
            source, target = self.memory.ptr + 8 * first, self.words.ctypes.data + 8 * first
            runtime.memcpyAsync(target, source, 8 * count, _TO_HOST, stream)
            runtime.streamSynchronize(stream)


_blocks: dict[tuple[int, int], ReportBuffer] = {}
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _lock=threading.Lock)


def block_of(device: int, stream: int) -> ReportBuffer:
    """The report of a stream; the device must be the current one."""
    with _lock:
        if (device, stream) not in _blocks:
            _blocks[device, stream] = ReportBuffer()
        return _blocks[device, stream]


def hidden(code: Any, block_address: int, bounds: Sequence[tuple[int, int, int]]) -> list[int]:
    """The hidden arguments: the report, and of each extent the lowest address and in how many bytes an element may begin.

    `bounds` has (lower, upper, bytes of an element) for each argument of `code.extents`.
    """
    found = [block_address] if code.reports else []
    for lower, upper, size in bounds:
        found += [lower, max(upper - lower - size + 1, 0)]
    return found


def starter(compiled: Compiled, device: int, positions: Sequence[int], library: str, count: int) -> Start:
    """A function `start(grid, raws, values)` that launches, waits, prints and raises what the kernel said.

    `positions` says where in raws, of which there are `count`, the kernel's parameters lie. Raises KernelError.
    """
    from blocknb.runtime import driver
    from blocknb.runtime.extents import extent

    code, parameters = compiled.code, compiled.parameters
    more = code.reports + 2 * len(code.extents)
    launch = driver.Launcher(compiled, device, [*positions, *range(count, count + more)], library, hidden=more)
    stream_of, api = cuda.stream_of(device, library), cuda.cupy().cuda
    pointers = {i: positions[i] for i in code.extents}
    sizes = {i: parameters[i][1].element.bytes for i in code.extents}

    def start(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        with api.Device(device):
            stream = stream_of()
            if api.runtime.streamIsCapturing(stream):
                raise LaunchError(
                    f"{compiled.name} reports to the host when it has ended, which a CUDA graph that is being captured cannot do",
                    hint="capture it without checked=True, debug=True and prints, and test it by a plain launch before",
                )
            bounds = {i: extent(values[at], raws[at]) for i, at in pointers.items()}
            block = block_of(device, stream)
            with block.lock:
                block.clear(stream)
                extra = hidden(code, block.memory.ptr, [(*bounds[i], sizes[i]) for i in code.extents])
                launch(grid, [*raws, *extra], values)
                words = block.read(stream)
                arrays = {i: (parameters[i][0], raws[pointers[i]], *bounds[i]) for i in code.extents}
                said = report.decode(words, code.sites, arrays)
        driver.settled()
        tell(said.text)
        if said.error is not None:
            raise said.error

    def explained(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        try:
            start(grid, raws, values)
        except KernelError:
            raise
        except Exception as error:
            raise driver.explain(error, compiled.name) from error

    return explained
