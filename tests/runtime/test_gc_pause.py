"""The collector pauses while the compiler runs, and then runs as before.

Threads of other tests may compile in this process, and pause the collector, too. Each test here has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PAUSED_BY_A_THREAD = """
    import gc, os, threading
    from blocknb.runtime.gc_pause import paused

    entered, leave = threading.Event(), threading.Event()

    def other():
        with paused():
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
"""


def run(code: str, setup: str = "import gc\nfrom blocknb.runtime.gc_pause import paused\n") -> None:
    """Runs code in a new process. Fails with its traceback."""
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(code)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr


def test_the_collector_stays_off_until_the_last_thread_is_done():
    run(
        """
        with paused():
            thread.start()
            assert entered.wait(60)
        assert not gc.isenabled()
        leave.set()
        thread.join()
        assert gc.isenabled()
        """,
        PAUSED_BY_A_THREAD,
    )


def test_a_collector_that_was_off_stays_off():
    run("""
        gc.disable()
        with paused():
            pass
        assert not gc.isenabled()
    """)


def test_an_error_ends_the_pause():
    run("""
        try:
            with paused():
                assert not gc.isenabled()
                raise ZeroDivisionError
        except ZeroDivisionError:
            assert gc.isenabled()
    """)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_child_of_a_fork_does_not_inherit_the_pause_of_another_thread():
    run(
        """
        thread.start()
        assert entered.wait(60)
        if (child := os.fork()) == 0:
            os._exit(0 if gc.isenabled() else 1)
        leave.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """,
        PAUSED_BY_A_THREAD,
    )


def test_the_compiler_runs_without_the_collector(tmp_path):
    module = tmp_path / "kernels.py"  # a kernel needs a file with its source
    module.write_text(
        textwrap.dedent("""
            import gc
            import blocknb as bn
            import blocknb.language as tl
            from blocknb.runtime.job import Job

            @bn.kernel
            def k(x, N: tl.constexpr):
                tl.store(x + tl.arange(0, N), tl.load(x + tl.arange(0, N)) * 3.0625)

            seen, generate = [], Job.generate
            Job.generate = lambda job, func: (seen.append(gc.isenabled()), generate(job, func))[1]
            Job(k.request("*fp32", N=64, target="sm_90a")).run()
            assert seen == [False]
            assert gc.isenabled()
        """)
    )
    answer = subprocess.run([sys.executable, str(module)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
