"""Runs kernels in a child process, so that a crash or a hang is a finding and does not end the run.

`Worker` is the parent's end, `serve` the child's.
"""

from __future__ import annotations

import linecache
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blocknb.fuzz import tree as t
from blocknb.fuzz.execute import Outcome

PATIENCE = 120.0  # seconds for one kernel


@dataclass(frozen=True)
class Setup:
    """How a worker runs kernels: on "cpu" or "cuda", with which CPU features ("": this machine's) and how many compiler threads.

    The worker first imports the module `prepare`, with which a test breaks the compiler, or which adds to REQUESTS.
    """

    device: str = "cpu"
    features: str = ""
    threads: int = 2
    prepare: str = ""


@dataclass(frozen=True)
class Fault:
    """A fatal error of a worker: an exception that no kernel may cause, or a lost GPU context."""

    text: str


class Died(Exception):
    """The worker crashed or hung; `outcome` tells which."""

    def __init__(self, outcome: Outcome):
        super().__init__(outcome.detail)
        self.outcome = outcome


class Worker:
    """The parent's end. `ask` sends a request and waits for its answer; `post` only sends, and answers arrive at `connection`."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.connection: Any = None
        self.process: Any = None
        self.folder: Any = None  # the process's temporary folder, which the parent removes, since it kills the process
        self.last: tuple[Any, ...] = ()  # the arguments of the newest request
        self.heard = 0.0

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.folder = tempfile.TemporaryDirectory(prefix="blocknb-fuzz-", ignore_cleanup_errors=True)
        given = (theirs, self.setup, list(sys.path), self.folder.name)
        self.process = context.Process(target=serve, args=given, daemon=True)
        self.process.start()
        theirs.close()

    def post(self, name: str, *args: Any) -> None:
        if self.process is None:
            self.start()
        self.last, self.heard = args, time.monotonic()
        self.connection.send((name, args))

    def take(self, seconds: float = PATIENCE) -> Any:
        """The next answer. Raises Died."""
        try:
            if not self.connection.poll(seconds):
                self.stop()
                raise Died(Outcome("hung", f"no answer in {self.silent:.0f} s"))
            found = self.connection.recv()
            self.heard = time.monotonic()
            if isinstance(found, Fault):
                self.stop()
                raise Died(Outcome("crashed", found.text))
            return found
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            code = self.process.exitcode
            self.stop()
            raise Died(Outcome("crashed", f"the process ended with {code}")) from None

    @property
    def silent(self) -> float:
        """The seconds since the newest request or answer."""
        return time.monotonic() - self.heard

    def ask(self, name: str, *args: Any, seconds: float = PATIENCE) -> Any:
        self.post(name, *args)
        return self.take(seconds)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.folder.cleanup()
        self.process = None


def serve(connection: Any, setup: Setup, path: list[str], folder: str) -> None:
    """The child's end: answers requests until the connection closes. The `folder` is for the cache and for temporary files."""
    sys.path[:] = path
    os.environ["BLOCKNB_CACHE_DIR"] = folder  # keeps thousands of kernels that run once out of the user's cache
    threading.Thread(target=_end_with_parent, args=(folder,), name="blocknb-parent", daemon=True).start()
    _prepare(setup)
    while True:
        try:
            name, args = connection.recv()
        except EOFError:
            return
        try:
            for answer in REQUESTS[name](setup, *args):
                connection.send(answer)
        except Exception:
            connection.send(Fault(traceback.format_exc(limit=-6)))
            return
        for file in [file for file in linecache.cache if file.startswith("<fuzz ")]:
            del linecache.cache[file]


def _end_with_parent(folder: str) -> None:
    """Ends this process when its parent has died, and removes the folder: a kernel that hangs never reads from its connection."""
    parent = multiprocessing.parent_process()
    if parent is None:  # not a child: a test serves in its own process
        return
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _prepare(setup: Setup) -> None:
    if setup.features:
        from blocknb import target

        target.assume_host(setup.features)
    if setup.device == "cpu":
        from blocknb.fuzz.execute import stress

        stress()
    if setup.prepare:
        __import__(setup.prepare)


def _run(setup: Setup, seed: int, start: int, count: int) -> Any:
    """Runs kernels by number; returns (number, outcome, seconds) for each, in order."""
    from blocknb.fuzz.execute import attempts
    from blocknb.fuzz.generate import generate

    kernels = [generate(seed, i) for i in range(start, start + count)]
    outcomes = attempts(kernels, setup.device, setup.threads)
    yield from zip(range(start, start + count), outcomes, strict=True)


def _attempt(setup: Setup, kernel: t.KernelTree) -> Any:
    from blocknb.fuzz.execute import attempt

    yield attempt(kernel, setup.device)


def _blame(setup: Setup, kernel: t.KernelTree, outcome: Outcome) -> Any:
    from blocknb.fuzz.blame import blame

    yield blame(kernel, outcome, setup.device)


REQUESTS: dict[str, Callable[..., Any]] = {"run": _run, "attempt": _attempt, "blame": _blame}
