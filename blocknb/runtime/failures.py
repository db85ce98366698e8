"""A log of optimizations that failed on this machine, in the cache's folder, for `blocknb doctor --report`.

The compiler leaves out an optimization that fails (see `trace.left_out`) and still compiles the kernel. Without the log, a user would
not notice the failure and not report it.
"""

from __future__ import annotations

from blocknb.runtime import cache
from blocknb.trace import Trace

FILE = "failures.txt"
MAX_LINES = 100
SIZE_LIMIT = 1 << 20  # bytes that are read


def record(trace: Trace) -> None:
    """Logs the optimizations that a compilation left out, once for each kernel, target and failure."""
    failed = [note.text for note in trace.notes if note.failed]
    if not failed:
        return
    lines = dict.fromkeys([*recorded(), *(f"`{trace.name}` for {trace.target}: {text}" for text in failed)])
    text = "".join(f"{line}\n" for line in list(lines)[-MAX_LINES:])
    cache.shared().write(FILE, text.encode("utf-8", "replace"))  # if this fails, only the note at the kernel reports it


def recorded() -> list[str]:
    """The lines of the log, the oldest first."""
    data = cache.shared().read(FILE, SIZE_LIMIT)
    return [] if data is None else data.decode("utf-8", "replace").splitlines()
