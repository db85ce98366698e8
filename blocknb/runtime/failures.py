"""A log of optimizations that failed on this machine, in the cache's folder, for `blocknb doctor --report`.

The compiler leaves out an optimization that fails (see `trace.left_out`) and still compiles the kernel. Without the log, a user would
not notice the failure and not report it.
"""

from __future__ import annotations

import contextlib
import os

from blocknb.runtime import cache
from blocknb.trace import Trace

FILE = "failures.txt"
MAX_LINES = 100


def record(trace: Trace) -> None:
    """Logs the optimizations that a compilation left out, once for each kernel, target and failure."""
    failed = [note.text for note in trace.notes if note.failed]
    if not failed:
        return
    lines = dict.fromkeys([*recorded(), *(f"`{trace.name}` for {trace.target}: {text}" for text in failed)])
    folder = cache.shared().root
    with contextlib.suppress(OSError):  # without a writable folder, only the note at the kernel reports it
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in list(lines)[-MAX_LINES:])


def recorded() -> list[str]:
    """The lines of the log, the oldest first."""
    try:
        with open(os.path.join(cache.shared().root, FILE), encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
