"""Launches kernels on the CPU: `starter(compiled, positions)` for the runtime, and `HostKernel`, which runs the machine code.

The threads of a launch take ranges of programs from an atomic counter until none are left. They are Python threads: ctypes releases the
interpreter lock during a call, and no Python runs between two ranges. The threads live until the process ends. A launch that is expected
to be short, by the time of earlier launches, runs on the calling thread.

The calling thread must stay able to receive a KeyboardInterrupt. It takes its share of the programs in slices, and no share of a kernel
with loops. After an interrupt it sets the stop flag in the launch's status block, which programs poll, and waits for the other threads.
Python interrupts the main thread only, so launches of other threads end with it (`runtime.interrupts`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import queue
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blocknb import forks
from blocknb.codegen import report
from blocknb.codegen.cpu.status import NEXT, OFFSET, PROGRAM, READONLY, REPORT, SHADOW, SITE, STATUS_WORDS, STOP, VALUE
from blocknb.codegen.report import Site
from blocknb.cpus import cpu_count
from blocknb.errors import KernelError, LaunchError
from blocknb.ir.report import (
    NO_ARGUMENT,
    Access,
    Assertion,
    Overrun,
    Print,
    access_error,
    assertion_error,
    overrun_error,
    reach,
    readonly_error,
)
from blocknb.language.types import Pointer
from blocknb.runtime import interrupts
from blocknb.runtime.arguments import fp32_or_infinity
from blocknb.runtime.extents import UNBOUNDED, adopted, extent, readonly
from blocknb.runtime.launch_context import Grid, Start
from blocknb.runtime.reports import write_output

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

ONE_THREAD_NS = 60_000  # launches shorter than this run on the calling thread
RANGE_NS = 20_000  # wanted time of a range of programs, which a thread takes at once
SLICE_NS = 20_000_000  # the calling thread returns to Python this often
SIGNAL_POLL_S = 0.2  # the calling thread looks for signals this often while it waits for other threads
MAX_PROGRAMS = 2**31 - 1

Results = list[BaseException | None]  # of the other threads of a launch: the exception that each raised


def thread_count() -> int:
    """The number of threads that a launch may use: BLOCKNB_NUM_THREADS, or else the number of CPUs that this process may use.

    OMP_NUM_THREADS has no effect: Dask sets it to 1 in its workers, and in the process that starts a LocalCluster.

    Raises LaunchError if BLOCKNB_NUM_THREADS is no positive integer.
    """
    if text := os.environ.get("BLOCKNB_NUM_THREADS"):
        if not text.isdecimal() or int(text) < 1:
            raise LaunchError(f"BLOCKNB_NUM_THREADS is {text!r}, which is not a positive integer")
        return int(text)
    return cpu_count()


class _Scratch(threading.local):
    """Scratch memory of one thread, aligned to pages. It grows on demand and is never freed."""

    size, address, block = 0, 0, None

    def at_least(self, size: int) -> int:
        if size > self.size:
            self.block = ctypes.create_string_buffer(size + 4096)
            self.size, self.address = size, -(-ctypes.addressof(self.block) // 4096) * 4096
        return self.address


_scratch = _Scratch()


class _Pool:
    """Threads that wait for work. A launch that finds no idle thread starts a new one, so launches never wait for each other."""

    def __init__(self) -> None:
        self.idle: list[queue.SimpleQueue] = []

    def run(self, count: int, work: Callable[[], None], results: Results, done: queue.SimpleQueue) -> None:
        """Calls `work` on `count` threads. Each thread appends its exception or None to `results`, then puts None into `done`."""
        for _ in range(count):
            try:
                inbox = self.idle.pop()
            except IndexError:
                inbox = queue.SimpleQueue()
                threading.Thread(target=_serve, args=(inbox, self.idle), name="blocknb-cpu", daemon=True).start()
            inbox.put((work, results, done))


def _serve(inbox: queue.SimpleQueue, idle: list[queue.SimpleQueue]) -> None:
    while True:
        work, results, done = inbox.get()
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:
            failure = error
        idle.append(inbox)
        results.append(failure)
        done.put(None)
        del work, results, done, failure


_pool = _Pool()
forks.renewed(sys.modules[__name__], _pool=_Pool)


class HostKernel:
    """The machine code of one kernel, loaded into this process.

    `parameters` are (name, DType or Pointer) in the order of the arguments. `may_loop` says that a program may run for long, so the calling
    thread must not run it. `launch(grid, arguments)` takes numbers, and (address, lower, upper) for a pointer, with the byte bounds of
    its array. Bit i of `readonly` marks argument i as read-only. `shadow` is the address of the
    context of shadow memory. Raises AccessError and DeviceAssertionFailed.
    """

    def __init__(
        self,
        code: bytes,
        entry: str,
        parameters: Sequence[tuple[str, Any]],
        sites: Sequence[Site],
        scratch_bytes: int,
        may_loop: bool,
    ):
        from blocknb.codegen.loader import load_object

        self._loaded = load_object(code)  # keeps the code in memory
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 4)
        self._function = signature(self._loaded.address(entry))
        self.parameters, self.sites = tuple(parameters), tuple(sites)
        self.scratch_bytes, self.may_loop = scratch_bytes, may_loop
        self._layout = struct.Struct(f"<{STATUS_WORDS}q3q" + "".join(_format(kind) for _, kind in parameters))
        self._blocks: list[ctypes.Array] = []
        self.prints = any(isinstance(site, Print) for site in self.sites)
        #: Whether it stores through pointers of unknown provenance, whose arrays may be read-only.
        self.asks_readonly = any(
            isinstance(site, Access) and site.argument == NO_ARGUMENT and site.action != "load" for site in self.sites
        )
        self.program_ns = 0.0  # the time of one program in the last launch; 0 before the first launch

    def launch(self, grid: Sequence[int], arguments: Sequence[Any], readonly: int = 0, shadow: int = 0) -> None:
        total = grid[0] * grid[1] * grid[2]
        if total <= 0:
            return
        if total > MAX_PROGRAMS:
            raise LaunchError(
                f"the grid {tuple(grid)} has {total} programs, more than the limit of {MAX_PROGRAMS}",
                hint="let each program do more: a larger block, or a loop over blocks in steps of tl.num_programs(0)",
            )
        block = self._blocks.pop() if self._blocks else ctypes.create_string_buffer(self._layout.size + 128)
        # The threads' shared counter lies in the second half of the status block. No other data may share its cache line.
        offset = -ctypes.addressof(block) % 64
        self._pack(block, offset, grid, arguments, readonly, shadow)
        status = ctypes.addressof(block) + offset
        pointers = (status + 8 * STATUS_WORDS, status + 8 * (STATUS_WORDS + 3))  # of the grid and of the arguments
        printed = self._attach_report(status) if self.prints else None
        on_caller = not self.may_loop
        try:
            if on_caller and 0 < self.program_ns * total < ONE_THREAD_NS:
                begin = time.perf_counter_ns()
                self._function(total, total, total, *pointers, self.scratch(), status)
                self.program_ns = (time.perf_counter_ns() - begin) / total
            else:
                self._run_on_threads(total, on_caller, pointers, status)
        finally:  # prints the output of programs that ran before an interrupt, too
            if printed is not None:
                write_output(report.decode(printed, self.sites, {}).text)
        words = struct.unpack_from("<3q3i", block, offset)
        if words[SITE]:
            (value,) = struct.unpack_from("<q", block, offset + 8 * VALUE)
            raise self._violation(words, arguments, readonly, value)
        self._blocks.append(block)

    def scratch(self) -> int:
        """The address of the scratch memory of this thread."""
        return _scratch.at_least(self.scratch_bytes)

    def _attach_report(self, status: int) -> np.ndarray:
        """Makes the report to which the launch writes its prints."""
        words = np.zeros(report.WORDS, np.int64)
        ctypes.c_int64.from_address(status + 8 * REPORT).value = words.ctypes.data
        return words

    def _pack(
        self,
        block: ctypes.Array,
        offset: int,
        grid: Sequence[int],
        arguments: Sequence[Any],
        readonly: int,
        shadow: int = 0,
    ) -> None:
        words: list[Any] = [0] * STATUS_WORDS
        words[READONLY], words[SHADOW] = readonly, shadow
        words += grid
        for argument in arguments:
            if type(argument) is tuple:
                words += argument
            else:
                words.append(argument)
        try:
            self._layout.pack_into(block, offset, *words)
        except OverflowError:
            self._layout.pack_into(block, offset, *map(fp32_or_infinity, words))

    def _run_on_threads(self, total: int, on_caller: bool, pointers: tuple[int, int], status: int) -> None:
        """Runs the programs on several threads, one of which may be the caller (`on_caller`), and waits for all of them."""
        threads, expected = min(thread_count(), total), self.program_ns * total
        chunk = max(1, total // (threads * 8))
        if expected:
            threads = max(1, min(threads, int(expected / ONE_THREAD_NS) + 1))
            chunk = max(1, min(max(chunk, int(RANGE_NS / self.program_ns)), total // threads))
        times: list[int] = []

        def work() -> None:
            begin = time.perf_counter_ns()
            self._function(chunk, total, total, *pointers, self.scratch(), status)
            times.append(time.perf_counter_ns() - begin)

        done: queue.SimpleQueue = queue.SimpleQueue()
        results: Results = []
        others = threads - on_caller
        _pool.run(others, work, results, done)
        slices = self._slices(chunk, total, pointers, status, times) if on_caller else ()
        _run_and_wait(slices, results, done, others, status)
        for failure in results:
            if failure is not None:
                raise failure
        self.program_ns = max(sum(times) / total, 1e-3)

    def _slices(
        self, chunk: int, total: int, pointers: tuple[int, int], status: int, times: list[int]
    ) -> Iterator[None]:
        """Runs the calling thread's share in slices of about SLICE_NS. Python can receive an interrupt between them."""
        counter, scratch = ctypes.c_int64.from_address(status + 8 * NEXT), self.scratch()
        stop, step = ctypes.c_int64.from_address(status + 8 * STOP), chunk
        while counter.value < total and not stop.value:
            if self.program_ns:
                step = max(chunk, int(SLICE_NS / self.program_ns))
            begin = time.perf_counter_ns()
            self._function(chunk, min(counter.value + step, total), total, *pointers, scratch, status)
            times.append(time.perf_counter_ns() - begin)
            if times[-1] < SLICE_NS // 2:
                step *= 2
            yield

    def _violation(self, words: Sequence[int], arguments: Sequence[Any], readonly: int, value: int) -> KernelError:
        site, index = self.sites[words[SITE] - 1], words[OFFSET]
        program = (words[PROGRAM], words[PROGRAM + 1], words[PROGRAM + 2])
        if isinstance(site, Assertion):
            return assertion_error(site, program, index, value=value)
        if isinstance(site, Overrun):
            return overrun_error(site, program)
        assert isinstance(site, Access), "only accesses and assertions fail"
        if site.argument == NO_ARGUMENT:
            return access_error(site, "", program, index, (0, -1))
        name = self.parameters[site.argument][0]
        if readonly >> site.argument & 1 and site.action != "load":
            return readonly_error(site, name, program)
        address, lower, upper = arguments[site.argument]
        return access_error(site, name, program, index, reach(address, lower, upper, site.bytes))


def _run_and_wait(slices: Iterable[None], results: Results, done: queue.SimpleQueue, others: int, status: int) -> None:
    """Runs the calling thread's slices and waits for `others` results of other threads. An interrupt stops all threads first.

    A signal that arrives just before `get` blocks does not wake it, so `get` has a timeout. An interrupt can also drop what `get` returns,
    so the loop counts `results`.
    """
    interrupted: BaseException | None = None
    before = interrupts.state()
    while True:
        try:
            for _ in slices:
                interrupts.check(before)
            while len(results) < others:
                try:
                    done.get(timeout=SIGNAL_POLL_S)
                except queue.Empty:
                    if interrupted is None:
                        interrupts.check(before)
            break
        except BaseException as error:
            ctypes.c_int64.from_address(status + 8 * STOP).value = 1
            interrupted, slices = error, ()
    if interrupted is not None:
        raise interrupted


def _format(kind: Any) -> str:
    """The struct format of an argument, in words of 8 bytes."""
    if isinstance(kind, Pointer):
        return "3Q"
    if kind.is_float:
        return "d" if kind.bits == 64 else "f4x"
    return "Q" if kind.kind == "uint" else "q"


def _rounder(kind: Any) -> Callable[[Any], float] | None:
    """Returns the function that rounds an fp16 or bf16 argument, which is passed as fp32. None for other arguments."""
    if isinstance(kind, Pointer) or not kind.is_float or kind.bits != 16:
        return None
    return lambda value: float(kind.numpy.type(value))


def starter(compiled: Compiled, positions: Sequence[int], kernel_class: type[HostKernel] = HostKernel) -> Start:
    """Returns `start(grid, raws, values)`, which launches the kernel. `positions` are the indices of its parameters in raws and values.
    `kernel_class` is the class that runs the machine code."""
    code = compiled.code
    kernel = kernel_class(
        compiled.trace.artifacts["object"],
        code.entry,
        compiled.parameters,
        code.sites,
        code.scratch_bytes,
        code.may_loop,
    )
    kinds = [kind for _, kind in compiled.parameters]
    plan = [(i, isinstance(kind, Pointer), _rounder(kind)) for i, kind in zip(positions, kinds, strict=True)]
    pointers = [(n, i) for n, (i, is_pointer, _) in enumerate(plan) if is_pointer and n < 63]
    starter_of = functools.cache(lambda other: starter(other, positions, kernel_class))

    def start(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        arguments: list[Any] = []
        unknown = False
        for i, is_pointer, rounded in plan:
            raw = raws[i]
            if is_pointer:
                bounds = extent(values[i], raw)
                unknown |= bounds is UNBOUNDED
                arguments.append((raw, *bounds))
            else:
                arguments.append(raw if rounded is None else rounded(raw))
        if unknown:
            extents = [argument[1:] for argument in arguments if type(argument) is tuple]
            for n, (_, is_pointer, _) in enumerate(plan):
                if is_pointer and arguments[n][1:] == UNBOUNDED:
                    arguments[n] = arguments[n][0], *adopted(arguments[n][0], extents)
        locked = sum(readonly(values[i]) << n for n, i in pointers) if kernel.asks_readonly else 0
        if code.shadow is None:
            kernel.launch(grid, arguments, locked)
            return
        from blocknb.runtime.shadow import HostShadow, all_noted

        arrays = shadowed(compiled.parameters, arguments)
        if (other := all_noted(compiled, arrays)) is not None:
            starter_of(other)(grid, raws, values)
            return
        memory = HostShadow(code.shadow, arrays, grid)
        kernel.launch(grid, arguments, locked, memory.context)
        memory.raise_error()

    return start


def shadowed(parameters: Sequence[tuple[str, Any]], arguments: Sequence[Any]) -> dict[int, tuple[str, int, int, int]]:
    """For each argument that is an array: its name, its address, and the bytes that may be accessed (from, to)."""
    return {
        i: (name, *argument)
        for i, ((name, _), argument) in enumerate(zip(parameters, arguments, strict=True))
        if type(argument) is tuple
    }
