"""What is true of the launches of this thread, whichever kernel: kept from observers, interpreted, on which device the last one ran."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from blocknb.runtime.reports import muted


class _Recent(threading.local):
    """Of this thread: the device of the last launch while that is `noticed` (None: no launch there), whether its launches are kept
    from the observers, whether they are interpreted, where interpreted launches are counted by kernel, and who gets launches instead
    of the device (`kernel.captured`)."""

    device: int | None = None
    unobserved: bool = False
    interprets: bool = False
    interpreted: Counter[str] | None = None
    capture: Callable[[Any], None] | None = None


recent = _Recent()
#: Not empty while some thread's launches are no usual ones, or are looked at: all launches then go the general way, which looks at
#: `recent`, and notes their device there.
attended: list[int] = []  # the threads


@contextlib.contextmanager
def _attending() -> Iterator[None]:
    thread = threading.get_ident()
    attended.append(thread)
    try:
        yield
    finally:
        attended.remove(thread)


def _after_fork() -> None:
    attended[:] = [thread for thread in attended if thread == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Inside, `recent.device` is told of this thread's launches."""
    recent.device = None
    with _attending():
        yield


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Keeps this thread's launches from the observers, and what they print from the page: trials of an autotuner, repetitions of a
    benchmark."""
    before, recent.unobserved, muted.on = recent.unobserved, True, True
    try:
        yield
    finally:
        recent.unobserved = muted.on = before


@contextlib.contextmanager
def interpreted(wanted: bool = True) -> Iterator[Counter[str]]:
    """Interprets this thread's launches, if wanted; counts those that are interpreted, by the kernel's name."""
    before = recent.interprets, recent.interpreted
    recent.interprets, recent.interpreted = wanted or recent.interprets, Counter()
    try:
        with _attending() if recent.interprets else contextlib.nullcontext():
            yield recent.interpreted
    finally:
        recent.interprets, recent.interpreted = before


def wanted_by_environment() -> bool | None:
    """True when BLOCKNB_INTERPRET or TRITON_INTERPRET asks for kernels that are interpreted."""
    asked = (os.environ.get(name, "0") for name in ("BLOCKNB_INTERPRET", "TRITON_INTERPRET"))
    return True if any(word not in ("", "0") for word in asked) else None
