"""One worker process and its pipes: `WorkerProcess().call(job)` does one job.

Workers run in their own session, so interrupts of the terminal do not reach them. They end when their standard input closes, at the
latest with the parent. A worker that is stopped (SIGSTOP) would never answer, so no read and no write waits without a limit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from blocknb.codegen import worker
from blocknb.codegen.tool_runs import memory_file
from blocknb.errors import KernelError

STOPPED_S = 10.0  # how long a worker may be stopped during a job
ANSWER_S = 1800.0  # how long a job may take; the largest kernels of the tests take seconds
POLL_MS = 1000  # how often a wait looks at the state of the worker
_PIECE = 1 << 20


class WorkerEnded(Exception):
    """A worker that ended during a job: its exit status and its last words."""

    def __init__(self, status: int, words: str):
        super().__init__(f"exit status {status}: {words}")
        self.status, self.words = status, words


class WorkerProcess:
    """One worker process and its pipes. One thread at a time uses `call`. `killed`: whether this process killed it."""

    def __init__(self) -> None:
        # Python without site packages or environment starts in 10 ms and runs no startup file that could print or fail.
        command = [sys.executable, "-I", "-S", worker.__file__, llvmlite_folder()]
        self.killed = False
        self._log = os.fdopen(memory_file("log"), "rb")
        os.set_inheritable(self._log.fileno(), False)  # for this child only
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            start_new_session=True,
        )
        assert self._popen.stdin
        assert self._popen.stdout
        self._stdin, self._stdout = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        if hasattr(select, "poll"):
            os.set_blocking(self._stdin, False)

    @property
    def ended(self) -> bool:
        return self._log.closed

    @property
    def alive(self) -> bool:
        """Whether a job can be sent; for an idle worker only: it has nothing to say, so a readable pipe is an ended one."""
        if self.killed or self._popen.poll() is not None:
            return False
        if not hasattr(select, "poll"):
            return True
        pipe = select.poll()
        pipe.register(self._stdout, select.POLLIN)
        return not pipe.poll(0)

    def kill(self) -> None:
        """Kills the process and the tool that it runs, which are a session of their own."""
        self.killed = True
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Ends the process if it has not ended; closes what belongs to it. Returns (exit status, last words)."""
        if self.ended:
            return self._popen.returncode, ""
        assert self._popen.stdin
        assert self._popen.stdout
        self._popen.stdin.close()  # at which a healthy worker ends
        try:
            status = self._popen.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            status = self._popen.wait()
        words = self._last_words()
        self._popen.stdout.close()
        self._log.close()
        return status, words

    def forget(self) -> None:
        """In the child of a fork: closes the pipes, which belong to the parent."""
        if self.ended:
            return
        os.close(self._stdin)
        os.close(self._stdout)
        self._popen.stdin = self._popen.stdout = None
        self._popen.returncode = 0
        self._log.close()

    def call(self, job: dict) -> dict:
        """Does one job and returns the worker's answer. Raises WorkerEnded, and KernelError for a worker that does not answer."""
        os.ftruncate(self._log.fileno(), 0)
        os.lseek(self._log.fileno(), 0, os.SEEK_SET)  # the offset is shared with the child
        try:
            self._send(worker.pack(job))
            answer = worker.read_frame(self._stdout, self._read)
        except (EOFError, OSError):
            raise WorkerEnded(*self.end()) from None
        except BaseException:
            self.kill()  # the pipe may hold half a frame
            raise
        if words := self._last_words():
            answer["stderr"] = words
        return answer

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin, view[:_PIECE]) :]
            except BlockingIOError:
                self._wait(self._stdin, select.POLLOUT)

    def _read(self, pipe: int, count: int) -> bytes:
        if hasattr(select, "poll"):
            self._wait(pipe, select.POLLIN)
        return os.read(pipe, count)

    def _wait(self, pipe: int, event: int) -> None:
        """Waits until a pipe is ready. Raises KernelError if the worker is stopped or takes too long."""
        ready = select.poll()
        ready.register(pipe, event)
        begin, stopped_at = time.monotonic(), None
        while not ready.poll(POLL_MS):
            now = time.monotonic()
            if not self._stopped():
                stopped_at = None
            elif stopped_at is None:
                stopped_at = now
            elif now - stopped_at >= STOPPED_S:
                raise KernelError(
                    f"the process that compiles kernels (pid {self._popen.pid}) was stopped by a signal, and did not continue "
                    f"within {STOPPED_S:g} seconds",
                    hint="launch the kernel again: blocknb has killed that process, and starts a new one",
                )
            if now - begin >= ANSWER_S:
                raise KernelError(
                    f"the process that compiles kernels (pid {self._popen.pid}) did not answer within {ANSWER_S:g} seconds",
                    hint="use smaller blocks, or fewer static ranges: the kernel may be too large for LLVM or ptxas",
                )

    def _stopped(self) -> bool:
        """Whether a signal has stopped the worker or the tool that it runs. Only Linux tells."""
        return any(process_state(pid) == "T" for pid in (self._popen.pid, *_children(self._popen.pid)))

    def _last_words(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - 65536)
        return os.pread(self._log.fileno(), size - start, start).decode("utf-8", "replace").strip()


def process_state(pid: int) -> str:
    """The state of a process: R, S, D, T (stopped), t (held by a debugger), Z; "" if unknown. See proc(5)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        yield from map(int, file.read().split())


@functools.cache
def llvmlite_folder() -> str:
    """The folder to import llvmlite from, found without importing it."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or not spec.submodule_search_locations:
        raise KernelError("blocknb compiles kernels with llvmlite, which is not installed", hint="pip install llvmlite")
    return os.path.dirname(next(iter(spec.submodule_search_locations)))
