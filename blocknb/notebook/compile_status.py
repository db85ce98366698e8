"""Shows a compilation that takes long: the pass that runs, the number of passes that are done, and the elapsed seconds.

A thread watches the compilations (`runtime.compile_progress.active`) and draws after DELAY, so that a pass that takes seconds is shown,
too. In a cell the status is an output that disappears at the end. The page adds a button that interrupts the kernel
(labextension/src/lab/progress.ts). A request of a card sends the status to its page instead (`sent_to`).

ipykernel names the cell of an output by a context variable. A thread without a value gets that of the newest message, which can be a comm
message on a subshell; JupyterLab drops such an output. So the thread displays in the context of the cell.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from blocknb import forks
from blocknb.runtime import compile_progress

MIME = "application/vnd.blocknb.progress.v1+json"
DELAY, INTERVAL = 1.0, 0.2  # seconds before the first status, and between two

Sink = Callable[[str], Any]
_sink: Sink | None = None  # of the current request of a card


class CompileWatch:
    """The thread that watches the compilations; it ends with the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._output: Any = None
        self._context = contextvars.copy_context()
        forks.renewed(self, _lock=threading.Lock, _thread=lambda: None, _output=lambda: None)

    def cell_begins(self, info: Any = None) -> None:
        """From now on, the status is an output of the cell that begins: IPython calls this before each cell, on its thread."""
        with self._lock:
            self._clear()  # the thread may not have seen yet that the last cell has ended
            self._context = contextvars.copy_context()

    def begun(self) -> None:
        """Starts the thread, unless it runs."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # an error of the front end may have ended it
                self._thread = threading.Thread(target=self._watch, name="blocknb-progress", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        pause = DELAY / 10
        while True:
            time.sleep(pause)
            now = time.monotonic()
            found = [one for one in self._active() if now - one.began >= DELAY]
            if found:
                pause = INTERVAL
            with self._lock:
                if found:
                    self._show("compiling " + "; ".join(one.text for one in found))
                if not compile_progress.active:
                    self._thread = None
                    self._clear()
                    return

    @staticmethod
    def _active() -> list[compile_progress.CompileProgress]:
        """The compilations, that of the cell's own thread first: the code that runs. The others begin in any order."""
        own = threading.main_thread().ident
        return [one for _, one in sorted(compile_progress.active.items(), key=lambda item: item[0] != own)]

    def _show(self, text: str) -> None:
        if (sink := _sink) is not None:
            sink(text)
            return
        bundle = {"text/plain": text, MIME: {"text": text}}
        if self._output is None:
            from IPython.display import display

            self._output = self._context.run(display, bundle, raw=True, display_id=True)
        else:
            self._output.update(bundle, raw=True)

    def _clear(self) -> None:
        if self._output is not None:
            self._output.update({"text/plain": ""}, raw=True)
            self._output = None


@contextlib.contextmanager
def sent_to(sink: Sink) -> Iterator[None]:
    """Inside, the status goes to `sink` instead of the output of the cell."""
    global _sink
    before, _sink = _sink, sink
    try:
        yield
    finally:
        _sink = before
