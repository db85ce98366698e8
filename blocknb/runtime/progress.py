"""Progress of long work on a terminal: one line on standard error, erased when the work ends.

The line appears only if standard error is a terminal, in the main thread, and for work that takes a while. The notebook draws a bar
instead (`notebook.progress`).
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

INTERVAL = 0.1  # seconds between two drawings
DELAY = 0.3  # seconds before the line appears


class ProgressLine:
    """A line of a terminal that is overwritten in place."""

    def __init__(self, stream: TextIO):
        self.stream, self.width = stream, 0

    def say(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be overwritten
        self.stream.write("\r" + text.ljust(self.width))
        self.stream.flush()
        self.width = len(text)

    def clear(self) -> None:
        if self.width:
            self.stream.write("\r" + " " * self.width + "\r")
            self.stream.flush()
            self.width = 0


@contextlib.contextmanager
def on_terminal(total: int, label: str) -> Iterator[Callable[[str], None]]:
    """Shows the progress of `total` steps on a terminal. Yields a function to be called with a text as each step begins."""
    if threading.current_thread() is not threading.main_thread() or not sys.stderr or not sys.stderr.isatty():
        yield lambda text: None
        return
    line, done, due = ProgressLine(sys.stderr), -1, time.monotonic() + DELAY

    def step(text: str) -> None:
        nonlocal done, due
        done, now = done + 1, time.monotonic()
        if now >= due:
            due = now + INTERVAL
            line.say(f"{label}: {done} of {total}, {text}")

    try:
        yield step
    finally:
        line.clear()
