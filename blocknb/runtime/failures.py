"""Optimizations that failed on this machine: one line each, in a file of the cache's folder, for `blocknb doctor --report`.

Such a failure costs the optimization, not the kernel (see `trace.left_out`), so without a record its user would never report it.
"""

from __future__ import annotations

import contextlib
import os

from blocknb.runtime import cache
from blocknb.trace import Trace

FILE = "failures.txt"
MOST = 100  # lines that are kept


def record(trace: Trace) -> None:
    """Writes down what was left out of a compilation, once for each kernel, target and failure."""
    failed = [note.text for note in trace.notes if note.failed]
    if not failed:
        return
    before = recorded()
    lines = dict.fromkeys([*before, *(f"`{trace.name}` for {trace.target}: {text}" for text in failed)])
    folder = cache.shared().root
    with contextlib.suppress(OSError):  # where nothing can be written the note at the kernel is all there is
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in list(lines)[-MOST:])


def recorded() -> list[str]:
    """The lines, the oldest first."""
    try:
        with open(os.path.join(cache.shared().root, FILE), encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
