"""Launches of GPU kernels with prints, assertions or checks: each launch gets a report buffer, which is read after the kernel ends.

Other kernels are launched by a `driver.Launcher` alone. A report buffer belongs to a stream and is reused by its next launch. A launch
zeroes only the counters, and the host copies back only the records that were written.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blocknb import forks
from blocknb.codegen import report
from blocknb.errors import KernelError, LaunchError
from blocknb.language.types import Pointer
from blocknb.runtime import cuda
from blocknb.runtime.launch_context import Grid, Start, this_thread

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

_TO_HOST = 2  # cudaMemcpyDeviceToHost


def write_output(text: str) -> None:
    """Writes the output of a kernel to `sys.stdout`, unless this thread's launches are muted."""
    if text and not this_thread.muted:
        sys.stdout.write(text)
        sys.stdout.flush()


class ReportBuffer:
    """The report buffer of one stream, in the memory of its device."""

    def __init__(self) -> None:
        self.memory = cuda.api().alloc(8 * report.WORDS)
        self.lock = threading.Lock()
        forks.renewed(self, lock=threading.Lock)
        self.words = np.zeros(report.WORDS, np.int64)

    def clear(self, stream: int) -> None:
        cuda.api().runtime.memsetAsync(self.memory.ptr, 0, 8 * report.HEADER, stream)

    def read(self, stream: int) -> np.ndarray:
        """Waits for the stream, copies the written records to the host, and returns the words."""
        self._copy(0, report.HEADER, stream)
        for kind, region in report.REGIONS.items():
            self._copy(region.first, report.RECORD * report.counted(self.words, kind), stream)
        return self.words

    def _copy(self, first: int, count: int, stream: int) -> None:
        if count:
            runtime = cuda.api().runtime
            source, target = self.memory.ptr + 8 * first, self.words.ctypes.data + 8 * first
            runtime.memcpyAsync(target, source, 8 * count, _TO_HOST, stream)
            runtime.streamSynchronize(stream)


_buffers: dict[tuple[int, int], ReportBuffer] = {}
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _lock=threading.Lock)


def buffer_of(device: int, stream: int) -> ReportBuffer:
    """The report buffer of a stream. The device must be the current one."""
    with _lock:
        if (device, stream) not in _buffers:
            _buffers[device, stream] = ReportBuffer()
        return _buffers[device, stream]


def hidden(code: Any, buffer_address: int, bounds: Sequence[tuple[int, int, int]]) -> list[int]:
    """The hidden arguments. They are the address of the report buffer, and two numbers for each extent. These are its lowest address, and
    the number of bytes at which an element may begin. `bounds` holds (lower, upper, bytes of an element) for each argument of
    `code.extents`."""
    found = [buffer_address] if code.reports else []
    for lower, upper, size in bounds:
        found += [lower, max(upper - lower - size + 1, 0)]
    return found


def starter(compiled: Compiled, device: int, positions: Sequence[int], library: str, count: int) -> Start:
    """Returns `start(grid, raws, values)`, which launches the kernel, waits for it, prints its output, and raises its errors.

    `positions` are the indices of the kernel's parameters in raws, which holds `count` values. Raises KernelError.
    """
    from blocknb.runtime import driver
    from blocknb.runtime.extents import extent

    code, parameters = compiled.code, compiled.parameters
    plan = code.shadow
    more = code.reports + 2 * len(code.extents) + (plan is not None)
    launch = driver.Launcher(compiled, device, [*positions, *range(count, count + more)], library, hidden=more)
    api = cuda.api()
    pointers = {i: positions[i] for i in code.extents}
    if plan is not None:
        pointers = {i: positions[i] for i, (_, kind) in enumerate(parameters) if isinstance(kind, Pointer)}
    sizes = {i: parameters[i][1].element.bytes for i in code.extents}
    starter_of = functools.cache(lambda other: starter(other, device, positions, library, count))

    def start(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        with api.Device(device):
            stream = launch.queue.handle()
            if api.runtime.streamIsCapturing(stream):
                raise LaunchError(
                    f"a CUDA graph cannot capture {compiled.name}, because the host reads its report after each launch",
                    hint="capture it without checked=True, debug=True and prints; test it by an ordinary launch before",
                )
            bounds = {i: extent(values[at], raws[at]) for i, at in pointers.items()}
            shadowed = {}
            if plan is not None:
                from blocknb.runtime.shadow import DeviceShadow, all_noted

                shadowed = {i: (parameters[i][0], raws[at], *bounds[i]) for i, at in pointers.items()}
                if (other := all_noted(compiled, shadowed)) is not None:
                    starter_of(other)(grid, raws, values)
                    return
            buffer = buffer_of(device, stream)
            with buffer.lock:
                buffer.clear(stream)
                extra = hidden(code, buffer.memory.ptr, [(*bounds[i], sizes[i]) for i in code.extents])
                memory = None
                if plan is not None:
                    memory = DeviceShadow(plan, shadowed, grid, device, stream)
                    extra.append(memory.context)
                launch(grid, [*raws, *extra], values)
                words = buffer.read(stream)
                arrays = {i: (parameters[i][0], raws[pointers[i]], *bounds[i]) for i in code.extents}
                output = report.decode(words, code.sites, arrays)
            driver.forget_launches()
            write_output(output.text)
            if output.error is not None:
                raise output.error
            if memory is not None:
                memory.raise_error()

    def explained(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        try:
            start(grid, raws, values)
        except KernelError:
            raise
        except Exception as error:
            raise driver.explain(error, compiled.name) from error

    return explained
