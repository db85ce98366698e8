"""The progress of the compilations of this process: which pass or stage runs, how many passes are done, and for how long.

A compilation has one CompileProgress, and `running` lists it in `active` while it lasts. The notebook installs `begun`, which shows a long
one. A compilation on a thread stops after an interrupt of the main thread, which alone gets a KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from blocknb import forks
from blocknb.runtime import interrupts


@dataclass(eq=False)
class CompileProgress:
    """One compilation: `step` is the pass or stage that runs, `done` the number of passes before it, of `total` passes.

    `began` is a time of `time.monotonic`."""

    kernel: str
    target: str
    total: int = 0
    step: str = "parse"
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    interrupts: interrupts.State = field(default_factory=interrupts.state)

    def begin_pass(self, name: str) -> None:
        """Notes that a pass begins. Raises KeyboardInterrupt if this compilation must stop."""
        self.check()
        self.step, self.done = name, self.done + (self.step != "parse")

    def begin_stage(self, name: str) -> None:
        """Notes that a stage after the passes begins."""
        self.step, self.done = name, self.total

    def check(self) -> None:
        """Raises KeyboardInterrupt on a thread, after an interrupt of the main thread."""
        interrupts.check(self.interrupts)

    @property
    def text(self) -> str:
        """ "softmax for sm_90a: coalesce, 12 of 36 passes done, 2.4 s"."""
        seconds = time.monotonic() - self.began
        passes = f"{self.done} of {self.total} passes done, " if self.total else ""
        return f"{self.kernel} for {self.target}: {self.step}, {passes}{seconds:.1f} s"


def _shows_nothing() -> None:
    pass


#: The compilations that run now, by thread.
active: dict[int, CompileProgress] = {}
#: Called when a compilation begins, on its thread.
begun: Callable[[], Any] = _shows_nothing
forks.renewed(sys.modules[__name__], active=dict)


@contextlib.contextmanager
def running(progress: CompileProgress) -> Iterator[None]:
    """Lists a compilation of this thread while the block runs."""
    thread = threading.get_ident()
    active[thread] = progress
    begun()
    try:
        yield
    finally:
        active.pop(thread, None)
