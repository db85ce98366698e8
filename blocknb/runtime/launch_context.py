"""The launch context: per-thread state that applies to the launches of every kernel.

It records whether observers see the launches, whether the interpreter runs them, and on which device the last one ran.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Grid = tuple[int, int, int]
#: Starts a compiled kernel, from its grid, the raw values of its arguments, and the arguments themselves.
Start = Callable[[Grid, Sequence[Any], Sequence[Any]], None]
#: Sees a launch before it starts: the compiled kernel, the names of its values, their Kinds, raw values, and the values.
Inspect = Callable[[Any, Sequence[str], Sequence[Any], Sequence[Any], Sequence[Any]], None]


class _ThisThread(threading.local):
    """The state of one thread.

    `device`: the device of the last launch inside `recording_device`; None without such a launch. `unobserved`: observers do not see
    its launches. `muted`: the output of its kernels is dropped. `interprets`: the interpreter runs its launches. `interpreted`: the
    count of interpreted launches by kernel. `capture`: the function that receives launches instead of the device (`captured`). `gathered`:
    the requests of `warmup`, which then compiles nothing (`parallel_compile.gathered`). `skips`: launches do nothing
    (`skipped`). `inspect`: the function that sees each launch before it starts (`inspected`)."""

    device: int | None = None
    unobserved: bool = False
    muted: bool = False
    interprets: bool = False
    interpreted: Counter[str] | None = None
    capture: Callable[[Any], None] | None = None
    gathered: list[Any] | None = None
    skips: bool = False
    inspect: Inspect | None = None


this_thread = _ThisThread()
#: The threads whose launches need the general path. While there is one, all launches take the general path, which reads
#: `this_thread` and records the device there.
slow_path_threads: list[int] = []

#: Called with a Launch after each launch of any kernel.
observers: list[Callable[[Any], None]] = []
#: Called before each launch that the observers will see, with the kernel, its compiled form and the LaunchSnapshot or None.
preludes: list[Callable[[Any, Any, Any], None]] = []
#: Called before a kernel is compiled for a launch, with its source, kinds, options and target. The function that a companion returns
#: is called after the compilation; it may wait for work that the companion started.
companions: list[Callable[[Any, Mapping[str, Any], Mapping[str, Any], Any], Callable[[], None] | None]] = []
#: Defaults of launch options, which a cell sets for every launch. A launch that gives an option itself overrides them.
enforced: dict[str, Any] = {}


@contextlib.contextmanager
def _on_slow_path() -> Iterator[None]:
    thread = threading.get_ident()
    slow_path_threads.append(thread)
    try:
        yield
    finally:
        slow_path_threads.remove(thread)


def _after_fork() -> None:
    slow_path_threads[:] = [thread for thread in slow_path_threads if thread == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def recording_device() -> Iterator[None]:
    """Records the device of this thread's launches in `this_thread.device`."""
    this_thread.device = None
    with _on_slow_path():
        yield


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Hides this thread's launches from the observers and mutes their output, for trials of an autotuner or repetitions of a benchmark."""
    before = this_thread.unobserved
    this_thread.unobserved = this_thread.muted = True
    try:
        yield
    finally:
        this_thread.unobserved = this_thread.muted = before


@contextlib.contextmanager
def interpreted(wanted: bool = True) -> Iterator[Counter[str]]:
    """Runs this thread's launches in the interpreter, if `wanted`. Yields the count of interpreted launches by kernel name."""
    before = this_thread.interprets, this_thread.interpreted
    this_thread.interprets, this_thread.interpreted = wanted or this_thread.interprets, Counter()
    try:
        with _on_slow_path() if this_thread.interprets else contextlib.nullcontext():
            yield this_thread.interpreted
    finally:
        this_thread.interprets, this_thread.interpreted = before


@contextlib.contextmanager
def skipped() -> Iterator[None]:
    """Skips this thread's launches: they describe no argument and compile nothing. So a function that launches kernels also runs with
    arrays that have a shape but no memory."""
    before, this_thread.skips = this_thread.skips, True
    try:
        with _on_slow_path():
            yield
    finally:
        this_thread.skips = before


@contextlib.contextmanager
def inspected(inspect: Inspect) -> Iterator[None]:
    """Calls `inspect` before each launch of this thread. An exception that it raises prevents the launch."""
    before, this_thread.inspect = this_thread.inspect, inspect
    try:
        with _on_slow_path():
            yield
    finally:
        this_thread.inspect = before


@contextlib.contextmanager
def captured(take: Callable[[Any], None]) -> Iterator[None]:
    """Passes this thread's launches to `take` instead of the device.

    A captured launch is compiled but not run. No observer sees it, and its time is 0. Its `snapshot` gives access to the arrays only
    until `take` returns. Launches inside `unobserved` run as usual."""

    def ignore(launch: Any) -> None:
        pass

    before, this_thread.capture = this_thread.capture, take
    observers.append(ignore)  # without an observer, launches take the fast path
    try:
        yield
    finally:
        this_thread.capture = before
        observers.remove(ignore)


def environment_switch(*names: str) -> bool:
    """Whether one of these environment variables is set to anything but 0."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in names)
