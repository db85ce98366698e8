"""Pauses Python's cyclic garbage collector while the front end, the passes and the code generator run: `paused`.

They allocate many small objects, which reference counts free. The collections that these objects would start traverse all objects of the
process. With torch imported these are more than a million, and the collections took a tenth of the time of a compilation.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

from blocknb import forks


class _Pauses:
    """The pauses in progress, of all threads."""

    def __init__(self) -> None:
        self.lock, self.count, self.enabled = threading.Lock(), 0, False


_pauses = _Pauses()


def _none() -> _Pauses:
    """No pauses. In the child of a fork, the other threads and their pauses are gone."""
    if _pauses.count and _pauses.enabled:
        gc.enable()
    return _Pauses()


forks.renewed(sys.modules[__name__], _pauses=_none)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No automatic collection starts until every thread has left its context. A collector that was disabled stays disabled."""
    pauses = _pauses
    with pauses.lock:
        if not pauses.count:
            pauses.enabled = gc.isenabled()
            gc.disable()
        pauses.count += 1
    try:
        yield
    finally:
        with pauses.lock:
            pauses.count -= 1
            if not pauses.count and pauses.enabled:
                gc.enable()
