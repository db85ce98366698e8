"""What is true of the launches of this thread, whichever kernel: kept from observers, interpreted, on which device the last one ran."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from blocknb.runtime.reports import muted


class _ThisThread(threading.local):
    """Of this thread: the device of the last launch while that is `recording_device` (None: no launch there), whether its launches are kept
    from the observers, whether they are interpreted, where interpreted launches are counted by kernel, and who gets launches instead
    of the device (`kernel.captured`)."""

    device: int | None = None
    unobserved: bool = False
    interprets: bool = False
    interpreted: Counter[str] | None = None
    capture: Callable[[Any], None] | None = None


this_thread = _ThisThread()
#: Not empty while some thread's launches are no usual ones, or are looked at: all launches then go the general way, which looks at
#: `this_thread`, and notes their device there.
slow_path_threads: list[int] = []  # the threads

#: Called with a Launch after each launch of any kernel.
observers: list[Callable[[Any], None]] = []
#: Called before a kernel is compiled for a launch, with its source, kinds, options and target. What they return is called when that is
#: done: it may wait for something that was begun.
companions: list[Callable[[Any, Mapping[str, Any], Mapping[str, Any], Any], Callable[[], None] | None]] = []
#: Launch options that every launch takes which does not give them itself: those of a cell.
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
    """Inside, `this_thread.device` is told of this thread's launches."""
    this_thread.device = None
    with _on_slow_path():
        yield


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Keeps this thread's launches from the observers, and what they print from the page: trials of an autotuner, repetitions of a
    benchmark."""
    before, this_thread.unobserved, muted.on = this_thread.unobserved, True, True
    try:
        yield
    finally:
        this_thread.unobserved = muted.on = before


@contextlib.contextmanager
def interpreted(wanted: bool = True) -> Iterator[Counter[str]]:
    """Interprets this thread's launches, if wanted; counts those that are interpreted, by the kernel's name."""
    before = this_thread.interprets, this_thread.interpreted
    this_thread.interprets, this_thread.interpreted = wanted or this_thread.interprets, Counter()
    try:
        with _on_slow_path() if this_thread.interprets else contextlib.nullcontext():
            yield this_thread.interpreted
    finally:
        this_thread.interprets, this_thread.interpreted = before


@contextlib.contextmanager
def captured(take: Callable[[Any], None]) -> Iterator[None]:
    """Inside, a launch of this thread compiles and then goes to `take` instead of to the device: nothing is run, no observer sees it,
    its time is 0. Arrays may be reached through its `snapshot` only until `take` returns. Launches inside `unobserved` happen."""

    def nobody(launch: Any) -> None:
        pass

    before, this_thread.capture = this_thread.capture, take
    observers.append(nobody)  # while there are none, launches do not look
    try:
        yield
    finally:
        this_thread.capture = before
        observers.remove(nobody)


def wanted_by_environment() -> bool | None:
    """True when BLOCKNB_INTERPRET or TRITON_INTERPRET asks for kernels that are interpreted."""
    asked = (os.environ.get(name, "0") for name in ("BLOCKNB_INTERPRET", "TRITON_INTERPRET"))
    return True if any(word not in ("", "0") for word in asked) else None
