"""An endless kernel that a thread launched ends with an interrupt of the main thread, and by `stop_launches`."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.runtime import interrupts

LIMIT_S = 60  # of a wait that takes a fraction of a second on an idle machine


@blocknb.kernel
def wait_for(x):
    tl.atomic_add(x + 1, 1)  # how many programs have begun
    while tl.atomic_add(x, 0) == 0:
        pass


def until_it_runs(x: np.ndarray) -> None:
    """Waits until a launch of the kernel runs: what stops launches has no effect on later ones."""
    end = time.monotonic() + LIMIT_S
    while not x[1]:
        assert time.monotonic() < end, "the launch does not begin"
        time.sleep(0.01)


class Launch(threading.Thread):
    """A thread that runs the kernel, and the exception that ends it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.x, self.error, self.over = np.zeros(2, np.int32), None, threading.Event()
        self.start()

    def run(self):
        try:
            wait_for[(2,)](self.x)
        except BaseException as error:
            self.error = error
        finally:
            self.over.set()

    def ended(self) -> BaseException | None:
        assert self.over.wait(
            LIMIT_S
        )  # a thread counts as stopped after an interrupted join in Python 3.11, while it still runs
        return self.error


@pytest.fixture
def launch():
    ready = np.ones(2, np.int32)
    wait_for[(2,)](ready)  # compiled before
    made = Launch()
    until_it_runs(made.x)
    yield made
    made.x[:] = 1  # ends a kernel that the test did not end
    made.join(LIMIT_S)


def test_a_launch_of_a_thread_ends_by_stop_launches(launch):
    blocknb.stop_launches()
    assert isinstance(launch.ended(), KeyboardInterrupt)
    assert not launch.x[0]
    wait_for[(2,)](np.ones(2, np.int32))  # later launches run


def test_a_launch_of_the_main_thread_ends_by_stop_launches_of_another():
    x = np.zeros(2, np.int32)
    stopper = threading.Thread(target=lambda: (until_it_runs(x), blocknb.stop_launches()))
    stopper.start()
    with pytest.raises(KeyboardInterrupt, match="stop_launches"):
        wait_for[(2,)](x)
    stopper.join()


def test_a_launch_of_a_thread_receives_an_asynchronous_exception(launch):
    """By which a server or a debugger interrupts one thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(launch.ident), ctypes.py_object(KeyboardInterrupt))
    assert isinstance(launch.ended(), KeyboardInterrupt)


@pytest.fixture(autouse=True)
def handler():
    """A process that a shell starts in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_an_interrupt_ends_the_launches_of_a_pool_that_the_main_thread_waits_for():
    wait_for[(2,)](np.ones(2, np.int32))
    arrays = [np.zeros(2, np.int32) for _ in range(2)]
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(2) as pool:  # the exit of a pool waits for its threads
        futures = [pool.submit(wait_for[(2,)], x) for x in arrays]
        for x in arrays:
            until_it_runs(x)
        interrupt_soon()
        futures[0].result()
    assert time.monotonic() - begin < LIMIT_S and not any(x[0] for x in arrays)
    assert all(isinstance(future.exception(), KeyboardInterrupt) for future in futures)


def test_an_interrupted_cell_ends_the_launches_of_its_threads(launch):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.user_ns["launch"] = launch
    timer = interrupt_soon()
    result = shell.run_cell("launch.join()")
    timer.join()
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert isinstance(launch.ended(), KeyboardInterrupt)


def test_launches_that_begin_after_an_interrupt_are_not_stopped():
    """The clean-up after an interrupt may use kernels on threads."""
    wait_for[(2,)](np.ones(2, np.int32))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        launch = Launch()
        until_it_runs(launch.x)
        time.sleep(0.7)  # several polls
        assert launch.is_alive()
        launch.x[:] = 1
        assert launch.ended() is None


SCRIPT = """
import sys, threading, numpy as np, blocknb, blocknb.language as tl

@blocknb.kernel
def wait_for(x):
    while tl.atomic_add(x, 0) == 0:
        pass

def run():
    wait_for[(2,)](np.ones(2, np.int32))
    print("ready", flush=True)
    wait_for[(2,)](np.zeros(2, np.int32))

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def test_an_interrupted_script_ends_though_its_thread_is_no_daemon(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": str(Path(blocknb.__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode != 0 and said.count(b"KeyboardInterrupt") >= 1


def test_an_interrupt_waits_for_the_end_of_a_deferred_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("the block")
    assert done == ["the block"]
    with interrupts.deferred():
        done.append("a block without an interrupt")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Interrupter:
    """Interrupts the main thread from a `__del__` method, where Python drops the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_python_drops_arrives_again():
    with pytest.raises(KeyboardInterrupt), interrupts.redelivered():
        Interrupter()
        time.sleep(LIMIT_S)


def test_an_interrupt_that_python_drops_at_the_end_of_the_block_belongs_to_it():
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        with interrupts.redelivered():
            Interrupter()
        time.sleep(LIMIT_S)
    assert sys.unraisablehook is hook


def test_other_errors_that_python_drops_reach_the_earlier_hook(monkeypatch):
    class Fails:
        def __del__(self):
            raise ValueError("dropped")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(str(dropped.exc_value)))
    with interrupts.redelivered():
        Fails()
    assert seen == ["dropped"]


@pytest.mark.parametrize("inner_first", [True, False])
def test_blocks_that_end_in_any_order_leave_the_earlier_hook(inner_first):
    hook, blocks = sys.unraisablehook, [interrupts.redelivered(), interrupts.redelivered()]
    for block in blocks:
        block.__enter__()
    for block in reversed(blocks) if inner_first else blocks:
        assert sys.unraisablehook is not hook
        block.__exit__(None, None, None)
    assert sys.unraisablehook is hook


def test_a_block_ends_if_no_thread_can_repeat_the_interrupt(monkeypatch):
    def no_thread(function, arguments):
        raise RuntimeError("can't start new thread")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(dropped.exc_type))
    monkeypatch.setattr(interrupts._thread, "start_new_thread", no_thread)
    with interrupts.redelivered():
        Interrupter()
    assert seen == [KeyboardInterrupt]


def test_an_interrupt_that_python_drops_on_another_thread_is_not_repeated(monkeypatch):
    class Stopped:
        def __del__(self):
            raise KeyboardInterrupt("stop_launches() was called")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(dropped.exc_type))
    with interrupts.redelivered():
        thread = threading.Thread(target=Stopped)
        thread.start()
        thread.join()
    assert seen == [KeyboardInterrupt]


def test_an_interrupt_that_python_drops_ends_an_interpreted_launch():
    started = []

    @blocknb.kernel
    def k(x):
        if not started:
            started.append(Interrupter())
            started[0] = None
        tl.store(x, tl.program_id(0))

    x = np.zeros(1, np.int32)
    with pytest.raises(KeyboardInterrupt):
        k.interpret(10**8)(x)
    assert x[0] < 10**8 - 1
