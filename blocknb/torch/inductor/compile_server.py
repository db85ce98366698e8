"""The processes of a `CompilePool`: a server imports torch, the compiler and LLVM once, and forks a process for each of its sockets.

The server has one thread, so the forks are safe, and the processes share its memory. Each of them loads a generated file, compiles one
configuration with LLVM in the same process, and answers with the entry of the disk cache. LLVM aborts its process on code that it cannot
select. The pool then sees the end of the socket, and compiles the kernel itself. It also sends the server another socket through `control`,
and the server forks a new process for it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from blocknb.codegen import llvm, toolchain, worker
from blocknb.runtime import cache
from blocknb.runtime import compile as compiler
from blocknb.target import Target

POLL_S = 0.5  # seconds between two looks at processes that have ended
GRACE_S = 5.0  # seconds in which the pool asks for another process in place of a lost one


class LocalWorkers(llvm.Workers):
    """Does the jobs of LLVM and ptxas in this process."""

    def submit(self, job: dict) -> Future[dict]:
        """A finished future of a job's answer."""
        future: Future[dict] = Future()
        answer = worker.run(job)
        if "error" in answer:
            future.set_exception(llvm._as_error(answer, job))
        else:
            future.set_result(answer)
        return future

    def start(self) -> None:
        """Starts nothing."""


def compiled(job: dict[str, Any]) -> dict[str, Any]:
    """The answer to a job: `key` and `path` of a generated file, `name` of its kernel, `index` of the configuration.

    It holds the `digest` of the request, `meta` as JSON, and the blobs of its entry; nothing if this process cannot compile it."""
    from blocknb.runtime.job import Job
    from blocknb.torch.inductor import sources
    from blocknb.torch.inductor.compile_ahead import requests_of

    with open(job["path"], encoding="utf-8") as file:
        module = sources.load(job["key"], job["path"], file.read())
    autotuner = getattr(module, job["name"])
    (request,) = requests_of([(autotuner, autotuner.configs[job["index"]])])
    if request.unknown:
        return {}
    if (tool := request.ptxas()) is not None:
        worker.start_waiting({"ptxas": str(tool.path), "arch": request.target.arch})  # it starts while the passes run
    one = Job(request)
    code, trace = one.run()
    if one.calls:
        return {}
    meta, blobs = compiler.entry_of(request, code, trace)
    return {"digest": request.digest, "meta": json.dumps(meta), **blobs}


def serve(fd: int, idle: float) -> None:
    """Answers the jobs of one socket until it is closed, or silent for `idle` seconds."""
    worker.write_all(fd, worker.pack({"pid": os.getpid()}))
    while select.select([fd], [], [], idle)[0]:
        job = worker.read_frame(fd)
        try:
            answer = compiled(job)
        except Exception:
            answer = {}  # the pool's process compiles it again, and tells the error
        worker.write_all(fd, worker.pack(answer))


def prepare() -> None:
    """Imports what a compilation needs, and makes LLVM build its tables."""
    from blocknb.torch.inductor import results

    compiler.load_all()
    results.install()
    cache.environment_parts(toolchain.find_ptxas(Target.parse("sm_90a")))
    for job in worker._first_jobs():
        worker.run(job)


def main() -> None:
    """Serves the sockets whose numbers are arguments, after the seconds of idleness and the number of the socket `control`."""
    idle, control, *fds = float(sys.argv[2]), *map(int, sys.argv[3:])
    local = LocalWorkers(1)
    llvm.shared = lambda: local  # type: ignore[assignment]
    prepare()
    gc.collect()
    gc.freeze()  # the processes do not write to the pages that they share
    running = {forked(fd, [control, *(other for other in fds if other != fd)], idle) for fd in fds}
    for fd in fds:
        os.close(fd)
    replace_lost(socket.socket(fileno=control), running, idle)


def forked(fd: int, others: Sequence[int], idle: float) -> int:
    """Forks a process that serves a socket and closes the others. Returns its number."""
    if (pid := os.fork()) == 0:
        try:
            for other in others:
                os.close(other)
            serve(fd, idle)
        except (EOFError, OSError):
            pass  # the pool is gone
        finally:
            os._exit(0)
    return pid


def replace_lost(control: socket.socket, running: set[int], idle: float) -> None:
    """Forks a process for each socket that arrives, until all processes have ended.

    Waits a moment for a socket if the last process did not end by itself."""
    lost = -math.inf
    while running or time.monotonic() < lost + GRACE_S:
        if select.select([control], [], [], POLL_S)[0]:
            fds = socket.recv_fds(control, 1, 1)[1]
            if not fds:  # the pool is closed or gone, and so are its sockets
                break
            running.add(forked(fds[0], [control.fileno()], idle))
            os.close(fds[0])
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            running.discard(pid)
            lost = time.monotonic() if status else lost
    for _ in running:
        os.wait()
