"""The collector pauses while the compiler runs, and then runs as before."""

from __future__ import annotations

import gc
import os
import threading

import pytest

import blocknb as bn
import blocknb.language as tl
from blocknb.runtime.gc_pause import paused
from blocknb.runtime.job import Job


def test_the_collector_stays_off_until_the_last_thread_is_done():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with paused():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with paused():
        thread.start()
        assert entered.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_ends_the_pause():
    with pytest.raises(ZeroDivisionError), paused():
        raise ZeroDivisionError
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_child_of_a_fork_does_not_inherit_the_pause_of_another_thread():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with paused():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    if (child := os.fork()) == 0:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_compiler_runs_without_the_collector(monkeypatch):
    seen, generate = [], Job.generate
    monkeypatch.setattr(Job, "generate", lambda job, func: (seen.append(gc.isenabled()), generate(job, func))[1])

    @bn.kernel
    def k(x, N: tl.constexpr):
        tl.store(x + tl.arange(0, N), tl.load(x + tl.arange(0, N)) * 3.0625)

    Job(k.request("*fp32", N=64, target="sm_90a")).run()
    assert seen == [False]
    assert gc.isenabled()
