"""Launches on the CPU: `starter(compiled, positions)` for the runtime, and `HostKernel` beneath it.

The exported function of a kernel takes ranges of programs from an atomic counter until none are left, so running on several
threads is calling it on several Python threads: ctypes lets go of the interpreter lock during the call, and no Python runs between
ranges. The threads are kept; short launches run on the calling thread, by the time that earlier launches took.

The main thread never enters machine code that may run for long: it takes its share of the programs in slices, and none of kernels
with loops. So a KeyboardInterrupt reaches it, between slices or while it waits for the others; then it raises the stop flag in the
launch's status block, which programs look at, and waits until they have left.
"""

from __future__ import annotations

import ctypes
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blocknb.codegen import report
from blocknb.codegen.report import Site
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
from blocknb.runtime.reports import tell

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

Grid = tuple[int, int, int]
Start = Callable[[Grid, Sequence[Any], Sequence[Any]], None]

#: The status block of a launch, in words of 8 bytes (see `codegen.cpu.status`), in front of the grid and the arguments.
STOP, SITE, OFFSET, PROGRAM, READONLY, REPORT, NEXT, WORDS = 0, 1, 2, 3, 5, 6, 8, 16
ALONE_NS = 60_000  # launches shorter than this run on the calling thread
SHARE_NS = 20_000  # a thread takes ranges of about this length at least
SLICE_NS = 20_000_000  # the calling thread returns to Python this often
MAX_PROGRAMS = 2**31 - 1


def thread_count() -> int:
    """How many threads a launch may use: BLOCKNB_NUM_THREADS, else the CPUs that this process may use."""
    text = os.environ.get("BLOCKNB_NUM_THREADS", "")
    if text:
        if not text.isdigit() or int(text) < 1:
            raise LaunchError(f"BLOCKNB_NUM_THREADS is {text!r}, which is no positive number")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Memory(threading.local):
    """Scratch of one thread, aligned to cache lines, grown as needed and kept."""

    size, address, block = 0, 0, None

    def at_least(self, size: int) -> int:
        if size > self.size:
            self.block = ctypes.create_string_buffer(size + 4096)
            self.size, self.address = size, -(-ctypes.addressof(self.block) // 4096) * 4096
        return self.address


_memory = _Memory()


class _Pool:
    """Threads that wait for work; started when all others are busy, so that a launch never waits behind another one."""

    def __init__(self) -> None:
        self.idle: list[queue.SimpleQueue] = []

    def run(self, count: int, work: Callable[[], None], done: queue.SimpleQueue) -> None:
        """Has `count` threads call `work`; each puts what it raised (or None) into `done`."""
        for _ in range(count):
            try:
                inbox = self.idle.pop()
            except IndexError:
                inbox = queue.SimpleQueue()
                threading.Thread(target=_serve, args=(inbox, self.idle), name="blocknb-cpu", daemon=True).start()
            inbox.put((work, done))


def _serve(inbox: queue.SimpleQueue, idle: list[queue.SimpleQueue]) -> None:
    while True:
        work, done = inbox.get()
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:
            failure = error
        idle.append(inbox)
        done.put(failure)
        del work, done, failure


_pool = _Pool()


def _after_fork() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class HostKernel:
    """Machine code of one kernel in this process.

    `parameters` are (name, DType or Pointer) in the order of the arguments; `may_loop`: a program may run for long, so the main
    thread must not run it. `launch(grid, arguments)` takes (address, lower, upper) for a pointer, the bounds in bytes being
    those that may be touched, and numbers; bit i of `readonly` says that nothing may be stored to argument i. Raises AccessError
    and DeviceAssertionFailed.
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
        self.parameters, self.sites, self.scratch_bytes, self.may_loop = (
            tuple(parameters),
            tuple(sites),
            scratch_bytes,
            may_loop,
        )
        self._layout = struct.Struct(f"<{WORDS}q3q" + "".join(_format(kind) for _, kind in parameters))
        self._narrow = [
            i
            for i, (_, kind) in enumerate(parameters)
            if not isinstance(kind, Pointer) and kind.is_float and kind.bits < 64
        ]
        self._blocks: list[ctypes.Array] = []
        self.prints = any(isinstance(site, Print) for site in self.sites)
        #: Whether it stores through pointers of which only the address tells the array, and so asks which arrays are read-only.
        self.asks_readonly = any(
            isinstance(site, Access) and site.argument == NO_ARGUMENT and site.action != "load" for site in self.sites
        )
        self.program_ns = 0.0  # what a program took lately; 0: not known yet

    def launch(self, grid: Sequence[int], arguments: Sequence[Any], readonly: int = 0) -> None:
        total = grid[0] * grid[1] * grid[2]
        if total <= 0:
            return
        if total > MAX_PROGRAMS:
            raise LaunchError(
                f"the grid {tuple(grid)} has {total} programs; at most {MAX_PROGRAMS} are possible",
                hint="let each program do more: a larger block, or a loop over blocks in steps of tl.num_programs(0)",
            )
        block = self._blocks.pop() if self._blocks else ctypes.create_string_buffer(self._layout.size + 128)
        # The counter that threads share lies in the second half of the status; neither may share a line with other data.
        at = -ctypes.addressof(block) % 64
        self._pack(block, at, grid, arguments, readonly)
        status = ctypes.addressof(block) + at
        places = (status + 8 * WORDS, status + 8 * (WORDS + 3))
        said = self._listen(status) if self.prints else None
        here = not self.may_loop or threading.current_thread() is not threading.main_thread()
        try:
            if here and 0 < self.program_ns * total < ALONE_NS:
                begin = time.perf_counter_ns()
                self._function(total, total, total, *places, _memory.at_least(self.scratch_bytes), status)
                self.program_ns = (time.perf_counter_ns() - begin) / total
            else:
                self._share(total, here, places, status)
        finally:  # also what was said before an interrupt
            if said is not None:
                tell(report.decode(said, self.sites, {}).text)
        words = struct.unpack_from("<3q3i", block, at)
        if words[SITE]:
            raise self._violation(words, arguments, readonly)
        self._blocks.append(block)

    def _listen(self, status: int) -> np.ndarray:
        """A report that the launch writes what it prints to."""
        said = np.zeros(report.WORDS, np.int64)
        ctypes.c_int64.from_address(status + 8 * REPORT).value = said.ctypes.data
        return said

    def _pack(self, block: ctypes.Array, at: int, grid: Sequence[int], arguments: Sequence[Any], readonly: int) -> None:
        flat: list[Any] = [0] * WORDS
        flat[READONLY] = readonly
        flat += grid
        for argument in arguments:
            if type(argument) is tuple:
                flat += argument
            else:
                flat.append(argument)
        try:
            self._layout.pack_into(block, at, *flat)
        except OverflowError:  # a number beyond fp32 is infinite there
            self._layout.pack_into(
                block,
                at,
                *(float("inf" if v > 0 else "-inf") if isinstance(v, float) and abs(v) > 3.4e38 else v for v in flat),
            )

    def _share(self, total: int, here: bool, places: tuple[int, int], status: int) -> None:
        """Runs on several threads, of which the calling one is one if it may (`here`), and waits for all."""
        threads, expected = min(thread_count(), total), self.program_ns * total
        chunk = max(1, total // (threads * 8))
        if expected:
            threads = max(1, min(threads, int(expected / ALONE_NS) + 1))
            chunk = max(1, min(max(chunk, int(SHARE_NS / self.program_ns)), total // threads))
        times: list[int] = []

        def work() -> None:
            begin = time.perf_counter_ns()
            self._function(chunk, total, total, *places, _memory.at_least(self.scratch_bytes), status)
            times.append(time.perf_counter_ns() - begin)

        done: queue.SimpleQueue = queue.SimpleQueue()
        others = threads - here
        _pool.run(others, work, done)
        failures = _together(self._slices(chunk, total, places, status, times) if here else (), done, others, status)
        if failures:
            raise failures[0]
        self.program_ns = max(sum(times) / total, 1e-3)

    def _slices(self, chunk: int, total: int, places: tuple[int, int], status: int, times: list[int]) -> Iterator[None]:
        """The calling thread's share, in steps of about SLICE_NS, between which Python can see an interrupt."""
        counter, scratch = ctypes.c_int64.from_address(status + 8 * NEXT), _memory.at_least(self.scratch_bytes)
        stop, step = ctypes.c_int64.from_address(status + 8 * STOP), chunk
        while counter.value < total and not stop.value:
            if self.program_ns:
                step = max(chunk, int(SLICE_NS / self.program_ns))
            begin = time.perf_counter_ns()
            self._function(chunk, min(counter.value + step, total), total, *places, scratch, status)
            times.append(time.perf_counter_ns() - begin)
            if times[-1] < SLICE_NS // 2:
                step *= 2
            yield

    def _violation(self, words: Sequence[int], arguments: Sequence[Any], readonly: int) -> KernelError:
        site, index = self.sites[words[SITE] - 1], words[OFFSET]
        program = (words[PROGRAM], words[PROGRAM + 1], words[PROGRAM + 2])
        if isinstance(site, Assertion):
            return assertion_error(site, program, index)
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


def _together(own: Iterable[None], done: queue.SimpleQueue, others: int, status: int) -> list[BaseException]:
    """Runs the calling thread's steps, then waits for the others, also after an interrupt, which stops them first.

    Returns what the other threads raised.
    """
    failures, interrupted = [], None
    try:
        for _ in own:
            pass
    except BaseException as error:
        interrupted = error
        ctypes.c_int64.from_address(status + 8 * STOP).value = 1
    while others:
        try:
            failure = done.get()  # no timeout: a signal at the moment it ran out was lost
            others -= 1
            if failure is not None:
                failures.append(failure)
        except BaseException as error:
            interrupted = error
            ctypes.c_int64.from_address(status + 8 * STOP).value = 1
    if interrupted is not None:
        raise interrupted
    return failures


def _format(kind: Any) -> str:
    """How struct packs an argument into words of 8 bytes."""
    if isinstance(kind, Pointer):
        return "3Q"
    if kind.is_float:
        return "d" if kind.bits == 64 else "f4x"
    return "Q" if kind.kind == "uint" else "q"


def _rounder(kind: Any) -> Callable[[Any], float] | None:
    """fp16 and bf16 arguments travel as an fp32 of that precision."""
    if isinstance(kind, Pointer) or not kind.is_float or kind.bits != 16:
        return None
    return lambda value: float(kind.numpy.type(value))


def starter(compiled: Compiled, positions: Sequence[int]) -> Start:
    """A function `start(grid, raws, values)` that launches; `positions` says where in raws the kernel's parameters lie."""
    from blocknb.runtime.extents import UNBOUNDED, adopted, extent, readonly

    code = compiled.code
    kernel = HostKernel(
        compiled.artifacts["object"], code.entry, compiled.parameters, code.sites, code.scratch_bytes, code.may_loop
    )
    kinds = [kind for _, kind in compiled.parameters]
    plan = [(i, isinstance(kind, Pointer), _rounder(kind)) for i, kind in zip(positions, kinds, strict=True)]

    pointers = [(n, i) for n, (i, is_pointer, _) in enumerate(plan) if is_pointer and n < 63]

    def start(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        packed: list[Any] = []
        unknown = False
        for i, is_pointer, rounded in plan:
            raw = raws[i]
            if is_pointer:
                bounds = extent(values[i], raw)
                unknown |= bounds is UNBOUNDED
                packed.append((raw, *bounds))
            else:
                packed.append(raw if rounded is None else rounded(raw))
        if unknown:
            extents = [words[1:] for words in packed if type(words) is tuple]
            packed = [
                (words[0], *adopted(words[0], extents)) if type(words) is tuple and words[1:] == UNBOUNDED else words
                for words in packed
            ]
        locked = sum(readonly(values[i]) << n for n, i in pointers) if kernel.asks_readonly else 0
        kernel.launch(grid, packed, locked)

    start.kernel = kernel  # type: ignore[attr-defined]
    return start
