"""Shows the progress of long work: a bar in a notebook, one line of text elsewhere, updated at most ten times per second.

`of_compiles` is the bar for compiling many configurations and for autotuning. It appears in notebooks only, and after a delay.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from blocknb.runtime.progress import DELAY, INTERVAL, ProgressLine


class Progress:
    """`with Progress(total, label) as progress: progress.step("what comes now")`, once for each of `total` steps."""

    def __init__(self, total: int, label: str, stream: Any = None, patience: float = 0.0):
        self.total, self.label, self.stream, self.patience = total, label, stream, patience
        self.done, self.drawn = -1, 0.0
        self.line: ProgressLine | None = None
        self.bar: Any = None
        self.shown: Any = None

    def __enter__(self) -> Progress:
        self.drawn = time.monotonic() + self.patience - INTERVAL if self.patience else 0.0
        if not self.patience:
            self._show()
        return self

    def _show(self) -> None:
        if self.stream is None and _in_notebook():
            import ipywidgets
            from IPython.display import display

            self.bar = ipywidgets.FloatProgress(min=0, max=max(1, self.total), description=self.label)
            self.bar.style.description_width = "initial"
            self.bar.layout.width, self.bar.layout.max_width = "95%", "50em"  # otherwise a long text leaves no room
            self.shown = display(self.bar, display_id=True)
        elif self.stream is None:
            self.stream = sys.stderr

    def step(self, what: str) -> None:
        """Starts the next step; the ones before are done."""
        self.done += 1
        self.say(what)

    def say(self, what: str) -> None:
        """Shows a text without starting a step."""
        now = time.monotonic()
        if now - self.drawn < INTERVAL:
            return
        self.drawn = now
        if self.bar is None and self.stream is None:
            self._show()
        if self.bar is not None:
            self.bar.value, self.bar.description = max(self.done, 0), f"{self.label}: {what}"
        elif self.stream is not None and self.stream.isatty():
            self.line = self.line or ProgressLine(self.stream)
            self.line.say(f"{self.label}: {max(self.done, 0)} of {self.total}, {what}")

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            # A saved notebook would keep a bar that no longer exists, and a page without a kernel would lack its model.
            self.shown.update({"text/plain": ""}, raw=True)
            self.bar.close()
        elif self.line is not None:
            self.line.clear()


@contextlib.contextmanager
def of_compiles(total: int, label: str) -> Iterator[Callable[[str], None]]:
    """The notebook's implementation of `runtime.parallel_compile.shows`. A page accepts bars only from the thread that runs cells."""
    if threading.current_thread() is not threading.main_thread() or not _in_notebook():
        yield lambda what: None
        return
    with Progress(total, label, patience=DELAY) as progress:
        yield progress.step


def _in_notebook() -> bool:
    """Whether the output goes to a page that can show widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return False
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True
