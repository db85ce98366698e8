"""Workers that something kills or stops during a job."""

import os
import signal
import sys
import time

import pytest
from support import running

from blocknb.codegen import llvm
from blocknb.codegen import process as process_module
from blocknb.codegen.llvm import Workers
from blocknb.codegen.process import WorkerProcess
from blocknb.errors import KernelError


def slow_job(stores: int = 30000) -> dict:
    """A job that takes about a second."""
    lines = "\n".join(f"  %a{i} = fadd float %x, {i}.0\n  store volatile float %a{i}, ptr %p" for i in range(stores))
    text = f"define ptx_kernel void @k(ptr %p, float %x) {{\n{lines}\n  ret void\n}}\n"
    return {"kind": "ptx", "text": text, "arch": "sm_90a", "features": "+ptx88", "opt": 2}


def endless_job() -> dict:
    """A job that is not done when the test ends it, also if the test waits long for a processor."""
    return slow_job(300_000)


def busy(workers: Workers, future) -> WorkerProcess:
    """The process that works on a job, once it has begun."""
    while (found := workers._running.get(future)) is None:
        assert not future.done()
        time.sleep(0.001)
    time.sleep(0.05)
    return found


def test_an_idle_worker_ends_and_the_next_job_starts_another_one(monkeypatch):
    monkeypatch.setattr(llvm, "IDLE_S", 0.2)
    with Workers(1) as workers:
        first = workers.warm().result()["pid"]
        end = time.monotonic() + 120
        while running(first) and time.monotonic() < end:
            time.sleep(0.02)
        assert not running(first)
        assert workers.warm().result()["pid"] != first
        assert len(workers._threads) == 1


def test_an_abandoned_job_fails_and_the_next_one_works():
    with Workers(1) as workers:
        workers.warm().result()
        future = workers.submit(endless_job())
        busy(workers, future)
        workers.abandon(future)
        with pytest.raises(KernelError, match="something killed the process"):
            future.result(timeout=300)
        assert workers.warm().result(timeout=300)["llvm"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_job_of_a_killed_worker_is_done_by_another_one(number):
    with Workers(1) as workers:
        before = workers.warm().result()["pid"]
        future = workers.submit(slow_job())
        busy(workers, future)
        os.kill(before, number)
        assert future.result(timeout=300)["ptx"].count("st.volatile") == 30000
        assert workers.warm().result()["pid"] != before


def test_a_job_whose_workers_are_killed_twice_fails_with_a_message():
    with Workers(1) as workers:
        future, killed = workers.submit(endless_job()), []
        while not future.done():
            process = workers._running.get(future)
            if process is not None and process not in killed:
                time.sleep(0.05)
                os.kill(process._popen.pid, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.001)
        with pytest.raises(KernelError, match="killed the process that compiled the kernel, and the next one, too"):
            future.result()
        assert len(killed) == 2
        assert workers.warm().result(timeout=300)["llvm"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(process_module, "STOPPED_S", 0.3)
    monkeypatch.setattr(process_module, "POLL_MS", 20)


needs_states = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that a process is stopped")


@needs_states
def test_a_stopped_worker_fails_its_job_with_a_message(impatient):
    with Workers(1) as workers:
        pid = workers.warm().result()["pid"]
        future = workers.submit(endless_job())
        busy(workers, future)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(KernelError, match=rf"\(pid {pid}\) was stopped by a signal.*within 0.3 seconds"):
            future.result(timeout=300)
        assert workers.warm().result(timeout=300)["pid"] != pid and not running(pid)


@needs_states
def test_a_worker_that_is_stopped_before_it_reads_its_job_fails_with_a_message(impatient):
    """The text fills the pipe, so the write would wait."""
    with Workers(1) as workers:
        pid = workers.warm().result()["pid"]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(KernelError, match="was stopped by a signal"):
            workers.submit(slow_job() | {"more": "x" * (1 << 22)}).result(timeout=300)


@needs_states
def test_a_worker_that_continues_in_time_does_its_job(monkeypatch):
    monkeypatch.setattr(process_module, "POLL_MS", 20)
    with Workers(1) as workers:
        pid = workers.warm().result()["pid"]
        os.kill(pid, signal.SIGSTOP)
        future = workers.submit({"kind": "ping"})
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        assert future.result(timeout=300)["pid"] == pid


@needs_states
def test_a_stopped_tool_of_a_worker_fails_its_job_and_is_killed(impatient, tmp_path):
    tool = tmp_path / "ptxas"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nkill -STOP $$\n")
    tool.chmod(0o755)
    with Workers(1) as workers:
        workers.warm().result()
        job = {"kind": "assemble", "ptx": "", "arch": "sm_90a", "ptxas": str(tool)}
        with pytest.raises(KernelError, match="was stopped by a signal"):
            workers.submit(job).result(timeout=300)
    end = time.monotonic() + 120
    while running(pid := int((tmp_path / "pid").read_text())) and time.monotonic() < end:
        time.sleep(0.01)
    assert not running(pid)


def test_a_worker_that_does_not_answer_in_time_fails_its_job(monkeypatch):
    monkeypatch.setattr(process_module, "ANSWER_S", 0.1)
    monkeypatch.setattr(process_module, "POLL_MS", 20)
    with Workers(1) as workers:
        future = workers.submit(endless_job())
        with pytest.raises(KernelError, match=r"did not answer within 0\.1 seconds"):
            future.result(timeout=300)
