"""Compiles Inductor's kernels in processes of their own, from the source to the machine code: `CompilePool`, and the pool of this process.

One thread per process writes the jobs and reads the answers. A job is a configuration of a generated file, and its answer is an entry
of the disk cache with its digest. This process takes an answer only if it has computed the same digest for its own request. A job that
fails there for any reason is compiled here, which gives the result, or the error with its locations. Another process replaces one that dies
or does not answer.

`start` begins a pool in the background when the backend is imported. Like Inductor's own pool it has at most
`torch._inductor.config.compile_threads` processes. It ends when it has been idle for `IDLE_S` seconds.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import math
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextvars import ContextVar

from blocknb import forks
from blocknb.codegen import worker
from blocknb.codegen.process import STOPPED_S, process_state
from blocknb.cpus import cpu_count
from blocknb.runtime import cache, parallel_compile
from blocknb.runtime import compile as compiler
from blocknb.runtime.request import Request

#: Processes of a pool. Two gain nothing over this process and its LLVM worker.
FEWEST, MOST = 3, 16
IDLE_S = 300.0
#: How long a job may take. The largest kernels of models take seconds, and this process can compile them, too.
JOB_S = 120.0
POLL = 0.1  # seconds between two looks at interrupts
LOOKS = 1.0  # seconds between two looks at the state of a process that has a job
LABEL = "compiling the kernels of a graph"
BEGUN = 512  # answers that wait for their graph; that of a graph that is given up comes never
CHUNK = 8  # requests that this process compiles between two looks at a pool that is not ready
_COMMAND = "import sys; sys.path[:] = sys.argv[1].split('\\n'); from blocknb.torch.inductor import compile_server; compile_server.main()"
#: Libraries with threads of their own; a process that has one thread can be forked safely.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def _shows_nothing(steps: int, label: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
    """A progress display that shows nothing."""
    return contextlib.nullcontext(lambda step: None)


class PoolEnded(Exception):
    """The process that had a job has ended."""


class CompilePool:
    """`count` processes that compile configurations of generated files. Raises OSError if they cannot be started."""

    def __init__(self, count: int):
        pairs = [socket.socketpair() for _ in range(1 + count)]  # the first one is for new sockets
        theirs = [str(pair[1].fileno()) for pair in pairs]
        arguments = ["\n".join(sys.path), str(IDLE_S), *theirs]
        try:
            self._server = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[pair[1].fileno() for pair in pairs],
                env=os.environ | _ONE_THREAD,
                start_new_session=True,  # an interrupt at the terminal is for this process
            )
        finally:
            for pair in pairs:
                pair[1].close()
        self._control, *self._sockets = [pair[0] for pair in pairs]
        self._queue: queue.SimpleQueue[tuple[Future[dict], dict] | None] = queue.SimpleQueue()
        self._lock, self._serving, self._closed = threading.Lock(), count, False
        self._begun: collections.OrderedDict[tuple[str, str], Future[dict]] = collections.OrderedDict()
        self.ready, self._all_ready = threading.Event(), threading.Semaphore(0)
        for place in range(count):
            threading.Thread(target=self._serve, args=(place,), name="blocknb-compile-pool", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process from which those of the pool are forked."""
        return self._server.pid

    @property
    def alive(self) -> bool:
        """Whether a process serves. A thread that waits for a job does not see that its process was idle and has ended."""
        return self._serving > 0 and self._server.poll() is None

    def wait_for_all(self, seconds: float) -> bool:
        """Waits until all processes are ready, once. Returns False if one was not ready within `seconds` of another."""
        return all(self._all_ready.acquire(timeout=seconds) for _ in self._sockets)

    def submit(self, job: dict) -> Future[dict]:
        """Queues a job of `compile_server`. The future raises PoolEnded if its process ends."""
        future: Future[dict] = Future()
        with self._lock:
            if self.alive:
                self._queue.put((future, job))
            else:
                future.set_exception(PoolEnded())
        return future

    def begin(self, request: Request, job: dict) -> Future[dict]:
        """The future of a request's job, which is queued unless it has been since the last `compile` with the request."""
        with self._lock:
            future = self._begun.get(request.key)
        if future is None:
            future = self.submit(job)
            with self._lock:
                self._begun[request.key] = future
                while len(self._begun) > BEGUN:
                    self._begun.popitem(last=False)
        return future

    def _serve(self, place: int) -> None:
        """Gives jobs to the process of a socket, and to those that replace it."""
        try:
            while True:
                ours = self._sockets[place]
                process = worker.read_frame(ours.fileno())["pid"]  # it is ready
                self.ready.set()
                self._all_ready.release()
                if self._give_jobs(ours, process):
                    return
                self._replace(place)
        except (EOFError, OSError, ValueError):
            pass
        finally:
            self._stop_serving()

    def _give_jobs(self, ours: socket.socket, process: int) -> bool:
        """Gives jobs to a process. Returns True when the pool is closed, and False if the process is lost; its job then fails."""
        while (item := self._queue.get()) is not None:
            future, job = item
            if future.set_running_or_notify_cancel():
                try:
                    worker.write_all(ours.fileno(), worker.pack(job))
                    answer = self._answer(ours, process)
                except (EOFError, OSError, ValueError):
                    future.set_exception(PoolEnded())
                    return False
                future.set_result(answer)
        return True

    @staticmethod
    def _answer(ours: socket.socket, process: int) -> dict:
        """The answer of a process. Kills one that is stopped by a signal or takes too long, and raises EOFError."""
        ready = select.poll()
        ready.register(ours, select.POLLIN)
        begin, stopped = time.monotonic(), math.inf
        while not ready.poll(LOOKS * 1e3):
            now = time.monotonic()
            stopped = min(stopped, now) if process_state(process) == "T" else math.inf
            if now - begin >= JOB_S or now - stopped >= STOPPED_S:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
                raise EOFError
        return worker.read_frame(ours.fileno())

    def _replace(self, place: int) -> None:
        """Asks the server for a process in place of a lost one. Raises OSError if the server or the pool has ended."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._sockets[place].close()
            self._sockets[place] = ours
            if self._closed:
                raise OSError("the pool is closed")
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])

    def _stop_serving(self) -> None:
        with self._lock:
            self._serving -= 1
            if self.alive:
                return
            with contextlib.suppress(queue.Empty):
                while True:
                    if (item := self._queue.get_nowait()) is not None and item[0].set_running_or_notify_cancel():
                        item[0].set_exception(PoolEnded())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(10)  # it ends with the last of its processes

    def compile(self, jobs: Iterable[tuple[Request, dict]]) -> list[Request]:
        """Compiles requests, each by its job, and puts them into the memory cache. Returns the requests that failed.

        While no process is ready, this process compiles, too. An interrupt cancels the jobs that have not begun."""
        given = [(request, self.begin(request, job)) for request, job in jobs]
        if not given:
            return []
        try:
            with parallel_compile.shows(len(given), LABEL) as step:
                while not self.ready.is_set() and self.alive and (taken := self._taken_back(given)):
                    parallel_compile.compile_all(taken, LABEL, _shows_nothing)
                left = []
                for i, (request, future) in enumerate(given, 1):
                    step(f"{i} of {len(given)}")
                    if not self._adopted(request, future):
                        left.append(request)
                return left
        except BaseException:
            for _, future in given:
                future.cancel()
            raise
        finally:
            with self._lock:
                for request, _ in given:
                    self._begun.pop(request.key, None)

    @staticmethod
    def _taken_back(given: Sequence[tuple[Request, Future[dict]]]) -> list[Request]:
        taken: list[Request] = []
        for request, future in reversed(given):
            if len(taken) == CHUNK:
                break
            if not future.cancelled() and future.cancel():
                taken.append(request)
        return taken

    @staticmethod
    def _adopted(request: Request, future: Future[dict]) -> bool:
        """Whether the answer is the compilation of the request, which is then in the memory cache."""
        if future.cancelled():
            return True  # this process has compiled it
        while not futures.wait([future], POLL).done:  # an interrupt arrives between two waits
            pass
        if future.exception() is not None:
            return False
        answer = dict(future.result())  # another request with the same key may get it, too
        if answer.pop("digest", None) != request.digest:
            return False
        meta = json.loads(answer.pop("meta"))
        try:
            found = compiler.read_entry(request, cache.Entry(meta, answer))
        except (AttributeError, ImportError, LookupError, TypeError, ValueError, RecursionError):
            return False
        found.trace.from_cache = False
        cache.shared().put(request.digest, meta, answer)
        compiler.keep(request, found)
        return True

    def close(self) -> None:
        """Ends the processes; jobs in progress fail."""
        with self._lock:
            self._closed = True
        for ours in (self._control, *self._sockets):
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # ends a read
            self._queue.put(None)

    def forget(self) -> None:
        """In the child of a fork: closes the sockets, which belong to the parent."""
        for ours in (self._control, *self._sockets):
            ours.close()


_pool: CompilePool | None = None
_suspended: ContextVar[bool] = ContextVar("_suspended", default=False)


def size() -> int:
    """The processes of a pool here, or 0 for none: Inductor's compile_threads, but no more than CPUs and MOST."""
    if "torch" not in sys.modules:
        return 0
    from torch._inductor import config

    count = min(config.compile_threads or 1, cpu_count(), MOST)
    return count if count >= FEWEST and sys.executable and hasattr(os, "fork") else 0


def start(count: int | None = None) -> CompilePool | None:
    """The pool of this process, which starts in the background if there is none; None where it would not pay (see `size`)."""
    global _pool
    with forks.guard:
        if _pool is None or (not _pool.alive and _pool.ready.is_set()):  # one that was never ready would fail again
            close()  # ends the threads of one whose processes were idle
            if count := size() if count is None else count:
                with contextlib.suppress(OSError):
                    _pool = CompilePool(count)
        return running()


def running() -> CompilePool | None:
    """The pool of this process if it serves and is not suspended."""
    return _pool if _pool is not None and _pool.alive and not _suspended.get() else None


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """The pool gets no kernels of the graphs that are compiled here, for callers who compile them in another way."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


def close() -> None:
    """Ends the pool of this process."""
    global _pool
    if _pool is not None:
        _pool.close()
    _pool = None


def _forget() -> None:
    global _pool
    if _pool is not None:
        _pool.forget()
    _pool = None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
