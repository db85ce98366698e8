"""Interrupts of launches on threads: Python raises a KeyboardInterrupt in the main thread only.

A thread that waits for a launch calls `state()` before and `check(state)` now and then. `check` raises KeyboardInterrupt in this thread,
too, after the main thread got one, and after `stop_launches`. Without this, an endless kernel on a thread would run as long as the
process, and a `with ThreadPoolExecutor()` block would wait for it for ever. `redelivered` repeats an interrupt that Python dropped.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

RETRY_S = 0.005  # seconds from an interrupt that Python dropped to the next one
_stops = 0  # how many times `stop_launches` was called

#: The number of stops, the last exception that the main thread did not catch, and the one that it is handling.
State = tuple[int, Any, Any]


def stop_launches() -> None:
    """Stops the kernels that run on the CPU in this process. Each of their launches raises KeyboardInterrupt within a second.

    An interrupt of a cell stops the launches of threads that the cell waits for. Call this function if a thread of an earlier cell runs
    an endless kernel. A kernel on a GPU cannot be stopped: restart the process.
    """
    global _stops
    _stops += 1


def state() -> State:
    """The interrupts before a launch."""
    return _stops, getattr(sys, "last_value", None), None if _is_main() else _handled_by_main()


def check(before: State) -> None:
    """Raises KeyboardInterrupt if this thread's launch must stop, because of an interrupt since `before`."""
    stops, uncaught, handled = before
    if stops != _stops:
        raise KeyboardInterrupt("stop_launches() was called")
    if _is_main():
        return
    for error, earlier in ((_handled_by_main(), handled), (getattr(sys, "last_value", None), uncaught)):
        if isinstance(error, KeyboardInterrupt) and error is not earlier:
            raise KeyboardInterrupt("the main thread was interrupted")


@contextmanager
def deferred() -> Iterator[None]:
    """Delays an interrupt of the main thread to the end of the block. A library whose import is interrupted may stay broken for the life
    of the process."""
    handler = signal.getsignal(signal.SIGINT)
    if not _is_main() or not callable(handler):
        yield
        return
    arrived: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])


@contextmanager
def redelivered() -> Iterator[None]:
    """Interrupts the main thread again after Python has dropped an interrupt in the block.

    The KeyboardInterrupt is raised in whatever Python code the main thread runs next. If that is a callback of a weak reference or a
    `__del__` method, as during a garbage collection, Python prints the exception and drops it. The code of the block would go on.
    """
    if not _is_main():
        yield
        return
    hook = sys.unraisablehook = _Redelivery(sys.unraisablehook)
    try:
        yield
        while hook.pending:  # the interrupt belongs to the block
            time.sleep(RETRY_S)
    finally:
        hook.ended = True
        # Blocks may end in another order than last in, first out. Other code in the block may have installed a hook of its own.
        while isinstance(sys.unraisablehook, _Redelivery) and sys.unraisablehook.ended:
            sys.unraisablehook = sys.unraisablehook.earlier


class _Redelivery:
    """The `sys.unraisablehook` of a block of `redelivered`. All but interrupts of the main thread goes to the earlier hook."""

    def __init__(self, earlier: Callable[[sys.UnraisableHookArgs], Any]):
        self.earlier, self.ended = earlier, False
        self.pending: list[None] = []  # one for each interrupt that a thread is about to send

    def __call__(self, dropped: sys.UnraisableHookArgs) -> None:
        kind: type[BaseException] | None = dropped.exc_type
        if self.ended or kind is None or not issubclass(kind, KeyboardInterrupt) or not _is_main():
            self.earlier(dropped)
            return
        self.pending.append(None)
        try:
            _thread.start_new_thread(self._interrupt, ())  # `threading` takes locks, and a collection may run anywhere
        except RuntimeError:  # there are too many threads
            self.pending.pop()
            self.earlier(dropped)

    def _interrupt(self) -> None:
        try:
            time.sleep(RETRY_S)  # the callback has ended then
            if hasattr(signal, "pthread_kill") and callable(signal.getsignal(signal.SIGINT)):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # ends a system call, too
            else:
                _thread.interrupt_main()
        finally:
            self.pending.pop()


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _handled_by_main() -> BaseException | None:
    """The exception that the main thread is handling, as while a `with` block waits for the threads of a pool."""
    found: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    return found[1] if isinstance(found, tuple) else found  # a tuple before Python 3.12
