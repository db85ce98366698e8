"""The child of a fork can compile and launch, even if other threads of the parent did so at the time of the fork.

Each test runs a script in a process of its own; an alarm ends a child that hangs.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import blocknb

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")

PRELUDE = """
import multiprocessing, os, signal, sys, threading, time
import numpy as np
import blocknb
import blocknb.language as tl

arrived, gate = threading.Event(), threading.Event()
N = 256
CHILD_S = 120  # a child takes a second or two on an idle machine

def blocked():
    arrived.set()
    gate.wait()
    return 3

@blocknb.kernel
def scaled(x, o, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i) * blocked())

@blocknb.kernel
def shifted(x, o, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i) + 5)

@blocknb.kernel
def sorted_often(x, o, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    for j in tl.static_range(2):
        v = tl.sort(v * 3 + j)
    tl.store(o + i, v)

@blocknb.kernel
def slow(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    for j in range(n):
        v = v * 5 + j
    tl.store(o + i, v)

def numbers(n=N):
    return np.random.default_rng(os.getpid()).integers(0, 1000, n).astype(np.int32)

def check(kernel, expected, *more, n=N):
    x, o = numbers(n), np.full(n, -1, np.int32)
    kernel[(n // 64 if n > N or kernel is not sorted_often else 1,)](x, o, *more, BLOCK=N if kernel is sorted_often else 64)
    np.testing.assert_array_equal(o, expected(x))

def sorts(x):
    for j in range(2):
        x = np.sort(x * 3 + np.int32(j))
    return x

def loops(n):
    def run(x):
        with np.errstate(over="ignore"):
            for j in range(n):
                x = x * np.int32(5) + np.int32(j)
        return x
    return run

def forked(*work):
    # The process id of a child that does all this within CHILD_S.
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(CHILD_S)
    code = 1
    try:
        for call in work:
            call()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(code)

def ended(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status} (14: it was still waiting after {CHILD_S} s)"

class Aside(threading.Thread):
    # A thread whose error is raised where it is joined.
    error = None
    def run(self):
        try:
            super().run()
        except BaseException as error:
            self.error = error
    def join(self):
        super().join()
        if self.error:
            raise self.error

def aside(work):
    thread = Aside(target=work)
    thread.start()
    return thread
"""


def runs(script: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(script))
    root = Path(blocknb.__file__).parent.parent
    environment = {**os.environ, "BLOCKNB_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(tmp_path / "script.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_a_child_compiles_a_kernel_that_the_parent_is_compiling(tmp_path):
    """The thread is in the front end, where it holds the locks of the kernel and of the compilation."""
    runs(
        """
        thread = aside(lambda: check(scaled, lambda x: x * 3))
        arrived.wait()
        child = forked(gate.set, lambda: check(scaled, lambda x: x * 3), lambda: check(shifted, lambda x: x + 5))
        ended(child)

        def work(number):
            gate.set()
            check(scaled, lambda x: x * 3)
            return number

        signal.alarm(3 * CHILD_S)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(work, range(4)) == [0, 1, 2, 3]
        assert thread.is_alive()
        gate.set()
        thread.join()
        check(shifted, lambda x: x + 5)
        """,
        tmp_path,
    )


def test_a_child_does_not_wait_for_the_workers_of_its_parent(tmp_path):
    """The parent's worker is busy. The child starts its own worker, and the parent still receives its result."""
    runs(
        """
        from blocknb.codegen.process import WorkerProcess

        def call(process, job, call=WorkerProcess.call):
            arrived.set()
            return call(process, job)

        WorkerProcess.call = call
        thread = aside(lambda: check(sorted_often, sorts))
        assert arrived.wait(CHILD_S)
        children = [forked(lambda: check(sorted_often, sorts), lambda: check(shifted, lambda x: x + 5))]
        thread.join()
        check(sorted_often, sorts)
        for child in children:
            ended(child)
        """,
        tmp_path,
    )


def test_locks_that_other_threads_hold_are_free_in_the_child(tmp_path):
    runs(
        """
        import functools
        from blocknb.codegen import llvm
        from blocknb.frontend.source import Source
        from blocknb.notebook import live
        from blocknb.runtime import compile as compiler, reports, request, tensormaps
        from blocknb.tune import autotuner

        tuned = blocknb.autotune([blocknb.Config({"BLOCK": 64})], key=[])(shifted)
        properties = [p for p in vars(Source).values() if isinstance(p, functools.cached_property)]
        locks = [scaled._lock, shifted._lock, shifted.source._lock, compiler._lock, request.finding_tools, reports._lock]
        locks += [tensormaps.Encoder._lock, live._lock, tuned._searches.lock, llvm.shared()._lock]
        locks += [p.lock for p in properties if hasattr(p, "lock")]

        def hold():
            for lock in locks:
                lock.acquire()
            arrived.set()
            gate.wait()
            for lock in locks:
                lock.release()

        def all_are_free():
            now = [scaled._lock, shifted._lock, shifted.source._lock, compiler._lock, request.finding_tools, reports._lock]
            now += [tensormaps.Encoder._lock, live._lock, tuned._searches.lock, llvm.shared()._lock]
            for number, lock in enumerate(now):
                assert lock.acquire(timeout=1), number
                lock.release()

        thread = aside(hold)
        arrived.wait()
        child = forked(all_are_free, gate.set, lambda: check(shifted, lambda x: x + 5), lambda: check(scaled, lambda x: x * 3))
        ended(child)
        gate.set()
        thread.join()
        check(scaled, lambda x: x * 3)
        """,
        tmp_path,
    )


def test_a_fork_waits_while_a_thread_loads_modules_of_the_compiler(tmp_path):
    runs(
        """
        from blocknb import forks
        order = []

        def load():
            with forks.guard:
                arrived.set()
                time.sleep(0.3)
                order.append("loaded")

        thread = aside(load)
        arrived.wait()
        child = forked(lambda: order == ["loaded"] or os._exit(2), lambda: check(shifted, lambda x: x + 5))
        ended(child)
        thread.join()
        for _ in range(2):  # at moments of a first compilation that nothing fixes
            aside(lambda: shifted.trace("*i32", "*i32", BLOCK=64, target="sm_90a"))
            ended(forked(lambda: shifted.trace("*i32", "*i32", BLOCK=64, target="cpu")))
        """,
        tmp_path,
    )


def test_a_child_launches_while_threads_of_the_host_run_a_kernel(tmp_path):
    runs(
        """
        os.environ["BLOCKNB_NUM_THREADS"] = "3"
        check(slow, loops(10), 10)
        check(slow, loops(2000), 2000, n=64 * 512)
        rounds = 2000
        thread = aside(lambda: [check(slow, loops(rounds), rounds, n=64 * 512) for _ in range(3)])
        children = []
        while thread.is_alive() and len(children) < 4:
            children.append(forked(lambda: check(slow, loops(10), 10), lambda: check(slow, loops(50), 50, n=64 * 512)))
            time.sleep(0.03)
        thread.join()
        for child in children:
            ended(child)
        check(slow, loops(10), 10)
        """,
        tmp_path,
    )
