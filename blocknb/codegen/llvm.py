"""Runs LLVM and ptxas in worker processes: `Workers.submit(job)` returns a `concurrent.futures.Future`.

LLVM aborts its process on code that it cannot select, so it runs in a separate process (`worker.py`). One thread per worker writes the
requests and reads the answers. This thread owns the pipes, not the waiting caller, so an interrupt of the caller cannot leave half a
frame behind. When a worker dies, its job fails with LLVM's last output, and the next job starts a new worker. If something else killed the
worker, a new one repeats the job once.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import re
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from blocknb.codegen.process import WorkerEnded, WorkerProcess
from blocknb.codegen.toolchain import PtxasResources, Tool, find_ptxas, read_ptxas_log
from blocknb.cpus import cpu_count
from blocknb.errors import AssemblyError, CompilerBug, KernelError, OutOfResources, Unsupported
from blocknb.target import Target


@dataclass(frozen=True)
class CudaCode:
    """The result of a compilation for a GPU: PTX always; cubin, resources by kernel and warnings if ptxas was there.

    `llvm` is the optimised LLVM text if the job requested it; `ms` milliseconds by stage (parse, optimise, emit, ptxas).
    """

    ptx: str
    cubin: bytes | None = field(default=None, repr=False)
    resources: dict[str, PtxasResources] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    llvm: str | None = None
    ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CpuCode:
    """The result of a compilation for a CPU: a relocatable object (see `loader.load_object`) and its global names."""

    object: bytes = field(repr=False)
    exports: tuple[str, ...]
    llvm: str | None = None
    ms: dict[str, float] = field(default_factory=dict)


POLL = 0.1  # seconds between two looks at interrupts while a worker is busy
#: Seconds after which an idle worker ends. It holds 25 MB together with its waiting ptxas, and the next worker is ready in 0.3 s.
IDLE_S = 300.0
#: Functions of the C library that CPU code may call: LLVM makes them of loops that copy or clear. The loader provides them.
LIBRARY = ("memcpy", "memmove", "memset")


def compile_cuda(
    text: str,
    target: Target,
    *,
    opt: int = 1,
    select: int | None = None,
    llvm: bool = False,
    tool: Tool | None = None,
    workers: Workers | None = None,
) -> Future[CudaCode]:
    """Compiles LLVM text to PTX and, where a ptxas for the target is found (or given as `tool`), to a cubin.

    `opt` is how hard LLVM optimises, `select` how hard its back end does (as `opt` if None).

    The future raises CompilerBug if LLVM text is wrong or ptxas refuses it. It raises Unsupported if the target lacks an instruction, and
    OutOfResources if ptxas counts too much shared memory.
    """
    tool = tool or find_ptxas(target)
    job = {"kind": "cubin" if tool else "ptx", "text": text, "opt": opt, "llvm": llvm}
    job |= {"arch": target.arch, "features": target.features, "select": opt if select is None else select}
    if tool:
        job["ptxas"] = str(tool.path)
    return then((workers or shared()).submit(job), _cuda_code)


def compile_cpu(
    text: str, target: Target, *, opt: int = 2, llvm: bool = False, workers: Workers | None = None
) -> Future[CpuCode]:
    """Compiles LLVM text to an object for `load_object`; the future raises CompilerBug, also for undefined functions."""
    job = {"kind": "object", "text": text, "opt": opt, "llvm": llvm, "allowed": LIBRARY}
    job |= {"cpu": target.llvm_cpu, "features": target.features, "isa": target.isa}
    return then((workers or shared()).submit(job), _cpu_code)


def list_cpu(text: str, target: Target, *, opt: int = 2, workers: Workers | None = None) -> Future[str]:
    """The assembly of the code that `compile_cpu` makes of the same text; LLVM runs once more for it."""
    job = {"kind": "listing", "text": text, "opt": opt}
    job |= {"cpu": target.llvm_cpu, "features": target.features, "isa": target.isa}
    return then((workers or shared()).submit(job), lambda answer: answer["asm"])


def _cuda_code(answer: dict) -> CudaCode:
    resources, warnings = read_ptxas_log(answer.get("log", ""))
    return CudaCode(answer["ptx"], answer.get("cubin"), resources, warnings, answer.get("llvm"), answer["ms"])


def _cpu_code(answer: dict) -> CpuCode:
    return CpuCode(answer["object"], tuple(answer["exports"]), answer.get("llvm"), answer["ms"])


def then(future: Future, convert: Callable) -> Future:
    """A future of `convert(result)`; cancelling it cancels a job that has not started."""
    result: Future = Future()
    result.source = future  # type: ignore[attr-defined]

    def done(source: Future) -> None:
        if source.cancelled():
            result.cancel()
            return
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(convert(source.result()))
        except Exception as error:
            result.set_exception(error)

    result.add_done_callback(lambda r: r.cancelled() and future.cancel())
    future.add_done_callback(done)
    return result


class Workers:
    """An executor of LLVM jobs on `count` processes, each started when there is work for it and none is idle.

    The default count is the number of CPUs, at most 8, for this process has to write their texts. `submit` never blocks. Use as a
    context manager or `close` it; the pool that `shared()` gives lives as long as the process.
    """

    def __init__(self, count: int | None = None):
        self.count = count or min(8, cpu_count())
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._running: dict[Future, WorkerProcess] = {}
        self._processes: set[WorkerProcess] = set()
        self._closed = False

    def submit(self, job: dict) -> Future[dict]:
        """Queues a job (see worker.py) and returns the future of its answer."""
        future: Future = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("these workers are closed")
            self._queue.put((future, job))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self.count:
                self._add_thread()
        return future

    def _add_thread(self, ahead: bool = False) -> None:
        thread = threading.Thread(target=self._serve, args=(ahead,), name="blocknb-worker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def start(self) -> None:
        """Starts the first worker, in the background, if none is there; it warms up by itself, and stops doing so for a job."""
        with self._lock:
            if not self._threads and not self._closed:
                self._add_thread(ahead=True)
                self._idle.release()

    def warm(self, target: Target | None = None) -> Future[dict]:
        """Starts a worker in the background; the future tells its LLVM version, CPU name and CPU features.

        With a GPU as target, the worker also compiles an empty kernel. LLVM then builds its tables, and the system reads ptxas from the
        disk. The first real kernel would wait 0.1 s for both.
        """
        job: dict[str, Any] = {"kind": "ping"}
        if target and target.is_gpu:
            tool = find_ptxas(target)
            job |= {"arch": target.arch, "features": target.features, "ptxas": str(tool.path) if tool else None}
        return self.submit(job)

    def wait(self, future: Future, check: Callable[[], None] = lambda: None) -> Any:
        """The future's result; an interrupt of the waiting thread also ends the worker that is busy with it. `check` is called now and
        then, and may raise KeyboardInterrupt."""
        try:
            while not wait([future], POLL).done:
                check()
            return future.result()
        except KeyboardInterrupt:
            self.abandon(future)
            raise

    def abandon(self, future: Future) -> None:
        """Cancels a job of `submit` (or what `then` made of it), even one in progress: its worker is killed and the future fails."""
        while (source := getattr(future, "source", None)) is not None:
            future = source
        if not future.cancel() and (process := self._running.get(future)):
            process.kill()

    def close(self) -> None:
        """Ends the processes; jobs that wait are cancelled, jobs in progress fail."""
        with self._lock:
            self._closed = True
            while True:
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
                if item is not None:
                    item[0].cancel()
            for _ in self._threads:
                self._queue.put(None)
            for process in list(self._processes):
                process.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(2)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, ahead: bool) -> None:
        process = self._start() if ahead else None
        while (item := self._next(process)) is not None:
            future, job = item
            if future.set_running_or_notify_cancel():
                try:
                    if process is None or not process.alive:
                        if process is not None:
                            process.end()
                        process = self._start()
                    future.set_result(self._answer(future, process, job))
                except BaseException as error:
                    future.set_exception(error)
                finally:
                    process = self._running.pop(future, process)  # `_answer` may have replaced it
            self._idle.release()
            del future, job, item
        if process is not None:
            process.end()

    def _next(self, process: WorkerProcess | None) -> Any:
        """The next item of the queue. The process ends if none comes for a long time; `_serve` then starts another one."""
        try:
            return self._queue.get(timeout=IDLE_S)
        except queue.Empty:
            if process is not None:
                process.end()
            return self._queue.get()

    def _answer(self, future: Future, process: WorkerProcess, job: dict) -> dict:
        """The answer to a job. A process that something killed is replaced once, and so is one whose NewGVN died. `_running` has the last
        process. Raises KernelError."""
        once_more = [_killed_from_outside, _newgvn_failed]
        while True:
            self._running[future] = process
            try:
                answer = process.call(job)
                break
            except WorkerEnded as ended:
                reason = next((test for test in once_more if test(ended, job)), None)
                if reason is None or process.killed:
                    raise _worker_error(
                        ended.status, ended.words, job, second_time=_killed_from_outside not in once_more
                    ) from None
            once_more.remove(reason)
            process = self._start()
            job = job | {"gvn": False} if reason is _newgvn_failed else job
        if "error" in answer:
            raise _as_error(answer, job)
        return answer

    def _start(self) -> WorkerProcess:
        process = WorkerProcess()
        with self._lock:
            if self._closed:
                process.kill()
            self._processes = {p for p in self._processes if not p.ended} | {process}
        return process

    def _forget(self) -> None:
        """In the child of a fork: the processes belong to the parent, so let go of their pipes and begin anew."""
        for process in self._processes:
            process.forget()
        self._reset()


def _killed_from_outside(ended: WorkerEnded, job: dict) -> bool:
    """Whether another process ended the worker: the kernel for lack of memory, or a user. LLVM's own ends have other signals."""
    return ended.status in [-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]


def _newgvn_failed(ended: WorkerEnded, job: dict) -> bool:
    """Whether LLVM's NewGVN gave up. It does so by an assertion on some functions of many blocks; the code is right without it, too."""
    return "NewGVN.cpp" in ended.words and job.get("gvn", True)


def _worker_error(status: int, words: str, job: dict, second_time: bool = False) -> KernelError:
    """The error for a job whose worker died with that exit status and these last lines on standard error. `second_time`: for the second
    time."""
    target = job.get("arch") or job.get("cpu") or "this machine"
    if _killed_from_outside(WorkerEnded(status, words), job):
        return KernelError(
            "something killed the process that compiled the kernel"
            + (", and the next one, too" if second_time else ""),
            hint="the system kills processes if memory runs out; free some, or compile fewer kernels at a time",
        )
    found = re.search(r"^(?:LLVM ERROR|error): *(.*)$", words, re.MULTILINE)
    tail = "\n".join(words.splitlines()[-8:])
    if found and (intrinsic := re.search(r"Cannot select: intrinsic %(\S+)", found[1])):
        hint = "it is an instruction of another architecture; compile for one that has it"
        return Unsupported(f"{target} has no instruction for {intrinsic[1]}", hint=hint)
    why = found[1] if found else (tail or f"exit status {status}")
    return CompilerBug(f"LLVM stopped its process while compiling for {target}: {why}")


def _as_error(answer: dict, job: dict) -> KernelError:
    """The error for an orderly refusal of a worker."""
    target = job.get("arch") or job.get("cpu") or "this machine"
    message = answer["message"]
    match answer["error"]:
        case "parse":
            source = f"\n    {answer['source']}" if answer.get("source") else ""
            return CompilerBug(message + source)
        case "ptxas":
            return _ptxas_error(message, target, answer.get("ptx", ""))
        case "undefined":
            return CompilerBug(f"{message} (for {target})")
    return CompilerBug(message)


def _ptxas_error(log: str, target: str, ptx: str) -> KernelError:
    lines = [line for line in log.splitlines() if re.search(r"\b(error|fatal)\b", line)]
    first = lines[0] if lines else (log.splitlines() or ["ptxas failed"])[-1]
    if found := re.search(r"uses too much (.*?) \((\w+) bytes, (\w+) max\)", first):
        needs, has = int(found[2], 0), int(found[3], 0)
        hint = "use smaller tiles or fewer num_stages"
        return OutOfResources(
            f"the kernel needs {needs} bytes of {found[1].strip()}, and {target} has {has}", hint=hint
        )
    if found := re.search(r"(?:Feature|Instruction|Modifier) '(.*?)'.* requires \.target (\S+)", first):
        message = f"{target} has no {found[1]}, which needs {found[2]}"
        place = re.search(r"line (\d+)", first)
        if place and (inline := inline_place(ptx, int(place[1]))):
            return AssemblyError(message, line=inline[0], column=inline[1])
        return Unsupported(message)
    place = re.search(r"line (\d+)", first)
    if place and (inline := inline_place(ptx, int(place[1]))):
        said = re.sub(r"^.*?line \d+; *(?:error|fatal) *: *", "", first).strip()
        hint = "each instruction ends with `;`, and names made with .reg live in braces: { .reg .b32 t; ... }"
        return AssemblyError(f"ptxas rejects the assembly: {said}", hint=hint, line=inline[0], column=inline[1])
    source = ptx.split("\n")[int(place[1]) - 1].strip() if place and ptx else ""
    return CompilerBug(
        f"ptxas rejects the code for {target}: " + "\n".join(lines[:8] or [first]) + f"\n    {source}".rstrip()
    )


def inline_place(ptx: str, line: int) -> tuple[int, int] | None:
    """Line and column in the kernel of the inline assembly at a line of PTX, or right above it. ptxas refuses a text without its last
    semicolon only where the next instruction begins."""
    lines = ptx.split("\n")[:line]
    begin = max((i for i, text in enumerate(lines) if text.strip() == "// begin inline asm"), default=-1)
    if begin < 0:
        return None
    ended = [i for i, text in enumerate(lines) if i > begin and text.strip() == "// end inline asm"]
    between = lines[ended[0] + 1 : -1] if ended else []
    if any(text.strip() and not re.match(r"\s*(//|\.loc\b|\$\w+:)", text) for text in between):
        return None
    found = (re.match(r"\s*\.loc\s+\d+\s+(\d+)\s+(\d+)", text) for text in reversed(lines[:begin]))
    loc = next((match for match in found if match), None)
    return (int(loc[1]), int(loc[2])) if loc else (0, 0)


_pools: weakref.WeakSet[Workers] = weakref.WeakSet()


@functools.cache
def shared() -> Workers:
    """The pool of this process."""
    return Workers()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
