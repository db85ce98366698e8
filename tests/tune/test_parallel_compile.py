"""Parallel compilation: it uses all workers, returns errors as results, survives interrupts, and fills the cache for trials."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.codegen import llvm
from blocknb.errors import KernelError, StaticAssertionFailed
from blocknb.runtime import cache, job, parallel_compile, progress
from blocknb.runtime import compile as compiler

X = np.arange(1000, dtype=np.float32)


def scale(x, out, n, factor, BLOCK: tl.constexpr, MOST: tl.constexpr = 4096):
    tl.static_assert(BLOCK <= MOST, "too long")
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


@pytest.fixture(autouse=True)
def begun(monkeypatch, tmp_path) -> list[Any]:
    """The BLOCKs of all started compilations, with an empty cache."""
    seen, real = [], job.Job.begin

    def begin(one: job.Job) -> None:
        seen.append(one.request.kinds["BLOCK"].constant[0])
        real(one)

    monkeypatch.setattr(job.Job, "begin", begin)
    monkeypatch.setattr(cache, "shared", lambda store=cache.Cache(tmp_path): store)
    compiler.forget()
    return seen


def requests(kernel: Any, *blocks: int) -> list[Any]:
    with parallel_compile.gathered() as found:
        for block in blocks:
            assert kernel.warmup(X, X, 1000, 2.0, BLOCK=block) is None
    return found


def by_first(call, quantiles):
    call()
    return [1.0] * len(quantiles)


def test_every_kernel_is_compiled_once_and_launches_find_it(begun):
    kernel = blocknb.kernel(scale)
    made = parallel_compile.compile_all(requests(kernel, 64, 128, 64, 256))
    assert begun == [64, 128, 256]
    assert made[0] is made[2] and len({one.trace.constants["BLOCK"] for one in made}) == 3
    out = np.empty_like(X)
    assert kernel[(16,)](X, out, 1000, 2.0, BLOCK=64) is made[0]
    np.testing.assert_array_equal(out, 2 * X)
    compiler.forget()
    again = parallel_compile.compile_all(requests(kernel, 256, 64))
    assert begun == [64, 128, 256] and all(one.trace.from_cache for one in again)


def test_code_of_the_user_compiles_kernels_while_requests_are_gathered(begun):
    kernel = blocknb.kernel(scale)
    with parallel_compile.gathered() as found:
        assert kernel.compile(X, X, 1000, 2.0, BLOCK=64, target="cpu").trace.constants["BLOCK"] == 64
        assert kernel.trace(X, X, 1000, 2.0, BLOCK=128, target="cpu").constants["BLOCK"] == 128
    assert not found and begun == [64, 128]


def test_the_request_of_a_kernel_for_a_target_is_compiled_later(begun):
    kernel = blocknb.kernel(scale)
    request = kernel.request(X, X, 1000, 2.0, BLOCK=64, target="cpu")
    assert not begun and kernel.latest is None
    (made,) = parallel_compile.compile_all([request])
    assert kernel.compile(X, X, 1000, 2.0, BLOCK=64, target="cpu") is made and begun == [64]


def test_a_kernel_that_does_not_compile_does_not_affect_the_others(begun, monkeypatch):
    made = parallel_compile.compile_all(requests(blocknb.kernel(scale), 64, 8192, 128))
    assert isinstance(made[1], StaticAssertionFailed) and not isinstance(made[0], KernelError)
    assert made[2].trace.constants["BLOCK"] == 128
    real = job.Job.generate

    def generate(one: job.Job, func: Any) -> Any:
        code, text = real(one, func)
        return code, text.replace("define", "defne") if one.request.kinds["BLOCK"].constant[0] == 512 else text

    monkeypatch.setattr(job.Job, "generate", generate)
    first, broken, last = parallel_compile.compile_all(requests(blocknb.kernel(scale), 256, 512, 1024))
    assert "LLVM cannot read" in broken.message and broken.trace.stages
    assert [one.trace.constants["BLOCK"] for one in (first, last)] == [256, 1024]


def test_an_interrupt_stops_the_workers_and_the_next_compile_works(begun, monkeypatch):
    kernel, real, stopped = blocknb.kernel(scale), job.Job.finish, []

    def interrupted(one: job.Job) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(job.Job, "finish", interrupted)
    monkeypatch.setattr(job.Job, "done", False)
    monkeypatch.setattr(job.Job, "abandon", lambda one, real=job.Job.abandon: (stopped.append(one), real(one)))
    with pytest.raises(KeyboardInterrupt):
        parallel_compile.compile_all(requests(kernel, 64, 128, 256))
    assert len(stopped) == len(begun) == 3
    for one in stopped:
        with contextlib.suppress(Exception, CancelledError):
            one.future.result(timeout=300)
        assert one.future.done()
    monkeypatch.setattr(job.Job, "finish", real)
    (made,) = parallel_compile.compile_all(requests(kernel, 64))
    assert made.trace.artifacts["object"]


def test_an_abandoned_compile_ends_its_worker():
    with llvm.Workers(1) as workers:
        pid = workers.warm().result()["pid"]
        endless = workers.submit({"kind": "assemble", "ptx": "", "arch": "", "ptxas": "/bin/sleep", "flags": []})
        converted = llvm.then(endless, lambda answer: answer)
        os.kill(pid, 19)  # SIGSTOP: it will not end by itself
        while not workers._running and not endless.done():
            pass
        workers.abandon(converted)
        assert workers.warm().result(timeout=300)["pid"] != pid


def test_progress_goes_to_the_display_function_and_nothing_is_printed(begun, monkeypatch, capsys):
    kernel = blocknb.kernel(scale)
    parallel_compile.compile_all(requests(kernel, 64, 128))
    assert capsys.readouterr() == ("", "")
    told = []

    @contextlib.contextmanager
    def shows(total: int, label: str) -> Iterator[Any]:
        told.append((total, label))
        yield told.append

    monkeypatch.setattr(parallel_compile, "shows", shows)
    parallel_compile.compile_all(requests(kernel, 64, 256, 512), "compiling")
    assert told == [(2, "compiling"), "1 of 2", "2 of 2"]
    parallel_compile.compile_all(requests(kernel, 64, 256, 512), "nothing to do")
    assert len(told) == 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_temporary_line_and_none_for_short_work(monkeypatch):
    now, lines = [100.0], Terminal()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((40, 24)))
    monkeypatch.setattr(sys, "stderr", lines)
    for seconds, said in ((0.01, []), (0.2, ["2 of 4, three", "3 of 4, four, of which there is much"])):
        lines.truncate(0)
        with pytest.raises(KeyboardInterrupt), progress.on_terminal(4, "k") as step:
            for what in ("one", "two", "three", "four, of which there is much to say"):
                step(what)
                now[0] += seconds
            raise KeyboardInterrupt
        written = lines.getvalue().lstrip("\0").split("\r")
        assert [text.strip() for text in written if text.strip()] == [f"k: {text}" for text in said]
        assert written[-1] == "" and all(len(text) < 40 for text in written)


def test_other_threads_and_files_get_no_progress(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)

    def work() -> None:
        with progress.on_terminal(2, "k") as step:
            step("one")

    for stream, run in ((Terminal(), in_a_thread), (io.StringIO(), lambda call: call())):
        monkeypatch.setattr(sys, "stderr", stream)
        run(work)
        assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    work()
    assert "k: 0 of 2, one" in sys.stderr.getvalue()


def in_a_thread(call: Any) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_an_autotuner_compiles_all_before_its_first_trial_and_begins_with_the_slowest(begun):
    tried = []

    def bench(call, quantiles):
        tried.append(list(begun))
        return by_first(call, quantiles)

    configs = [Config({"BLOCK": block}) for block in (64, 8192, 128)]
    tuned = blocknb.autotune(configs, ["n"], do_bench=bench)(blocknb.kernel(scale))
    out = np.empty_like(X)
    tuned[lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)](X, out, 1000, 2.0)
    np.testing.assert_array_equal(out, 2 * X)
    assert tried[0] == [8192, 128, 64] and begun.count(64) == begun.count(128) == 1
    assert tuned.best_config is configs[0]


def test_warmup_leaves_out_rejected_configurations(begun):
    configs = [Config({"BLOCK": block}) for block in (64, 8192, 128)]
    made = blocknb.autotune(configs, ["n"])(blocknb.kernel(scale)).warmup(X, X, 1000, 2.0)
    assert [one.trace.constants["BLOCK"] for one in made] == [64, 128]
    with pytest.raises(StaticAssertionFailed):
        blocknb.autotune(configs[1:2], ["n"])(blocknb.kernel(scale)).warmup(X, X, 1000, 2.0)


def test_a_single_configuration_is_not_compiled_in_advance(monkeypatch):
    monkeypatch.setattr(parallel_compile, "compile_all", None)
    tuned = blocknb.autotune([Config({"BLOCK": 64})], ["n"])(blocknb.kernel(scale))
    assert len(tuned.warmup(X, X, 1000, 2.0)) == 1
