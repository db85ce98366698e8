"""A pool of processes compiles whole kernels of a graph; what it cannot compile, this process compiles."""

from __future__ import annotations

import os
import runpy
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import blocknb.torch
from blocknb.errors import KernelError
from blocknb.runtime import cache
from blocknb.runtime import compile as compiler
from blocknb.runtime.job import Job
from blocknb.torch.inductor import compile_ahead, compile_pool, sources

START_S = 240  # of the server, which imports torch


@pytest.fixture(scope="module")
def pool() -> Iterator[compile_pool.CompilePool]:
    found = compile_pool.start(2)
    assert found is not None
    assert found.wait_for_all(START_S)
    yield found
    compile_pool.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.Cache(tmp_path / "cache")
    monkeypatch.setattr(cache, "shared", lambda: own)
    compiler.forget()


def f(x, w):
    return ((x.exp() * 1.625) @ w).softmax(-1)


def graph_file(monkeypatch, function, *args) -> list[tuple[object, str]]:
    """The loaded files of the kernels of a graph, which nothing has compiled, with their names."""
    from torch._inductor.codecache import PyCodeCache

    found = []
    inherited = compile_ahead.generated_kernels

    def generated_kernels(text):
        kernels = list(inherited(text))
        found.extend((PyCodeCache.load(source), name) for name, source in kernels)
        return iter(())

    with monkeypatch.context() as patch:
        patch.setattr(compile_ahead, "generated_kernels", generated_kernels)
        torch.compile(function, backend=blocknb.torch.backend)(*args)
    compiler.forget()
    cache.shared().clear()
    files = [(module.key, module.__file__, name) for module, name in found]
    return [(sources.load(key, path, Path(path).read_text()), name) for key, path, name in files]


def test_the_pool_compiles_all_kernels_of_a_graph_and_this_process_none(pool, monkeypatch):
    monkeypatch.setattr(Job, "begin", lambda job: pytest.fail(f"this process compiled {job.source.name}"))
    x, w = torch.linspace(-1, 1, 174).reshape(6, 29), torch.eye(29)
    torch.testing.assert_close(torch.compile(f, backend=blocknb.torch.backend)(x, w), f(x, w))


def test_the_code_of_the_pool_is_that_of_this_process_and_its_stages_are_there(pool, monkeypatch):
    x, w = torch.linspace(-1, 1, 77).reshape(7, 11), torch.eye(11)
    modules = graph_file(monkeypatch, f, x, w)
    by_pool = compile_ahead.compile_modules(modules)
    compiler.forget()
    cache.shared().clear()
    monkeypatch.setattr(compile_pool, "running", lambda: None)
    by_us = compile_ahead.compile_modules(modules)
    assert len(by_pool) == len(by_us) > 1
    for one, other in zip(by_pool, by_us, strict=True):
        assert vars(one.code) == vars(other.code)
        assert dict(one.trace.artifacts) == dict(other.trace.artifacts)
        assert [stage.name for stage in one.trace.stages] == [stage.name for stage in other.trace.stages]
        assert not one.trace.from_cache
        assert "llvm emit" in one.trace.milliseconds


def test_kernels_begin_while_inductor_generates_the_rest_of_the_graph(pool, monkeypatch):
    begun, waiting = [], []
    begin, ahead = pool.begin, compile_ahead.compile_ahead
    monkeypatch.setattr(pool, "begin", lambda request, job: (begun.append(request.key), begin(request, job))[1])
    monkeypatch.setattr(compile_ahead, "compile_ahead", lambda text: (waiting.extend(begun), ahead(text)))
    x, w = torch.linspace(-1, 1, 186).reshape(6, 31), torch.eye(31)
    torch.testing.assert_close(torch.compile(f, backend=blocknb.torch.backend)(x, w), f(x, w))
    assert len(waiting) > 1
    assert set(begun) == set(waiting)  # the same requests are asked for again, and compiled once
    assert not pool._begun


def test_results_of_the_pool_are_in_the_disk_cache(pool, monkeypatch):
    x, w = torch.linspace(-1, 1, 91).reshape(7, 13), torch.eye(13)
    modules = graph_file(monkeypatch, f, x, w)
    compile_ahead.compile_modules(modules)
    compiler.forget()
    assert all(one.trace.from_cache for one in compile_ahead.compile_modules(modules))


def test_an_answer_with_another_digest_is_not_taken(pool, monkeypatch):
    x, w = torch.linspace(-1, 1, 119).reshape(7, 17), torch.eye(17)
    modules = graph_file(monkeypatch, f, x, w)
    inherited, compiled_here = pool.submit, []
    other = next(m for m in modules if m is not modules[0])

    def submit(job):
        wrong = {"path": other[0].__file__, "name": other[1], "key": other[0].key}
        return inherited(job | wrong if job["name"] == modules[0][1] else job)

    begin = Job.begin
    monkeypatch.setattr(pool, "submit", submit)
    monkeypatch.setattr(Job, "begin", lambda job: (compiled_here.append(job.source.name), begin(job)))
    compile_ahead.compile_modules(modules)
    assert set(compiled_here) == {modules[0][1]}


def test_a_file_that_does_not_load_there_yields_the_error_here(pool, tmp_path):
    path = tmp_path / "kernel.py"
    future = pool.submit({"key": "k", "path": str(path), "name": "k", "index": 0})
    assert future.result(300) == {}


def test_a_pool_that_is_not_ready_leaves_the_work_to_this_process(monkeypatch):
    x, w = torch.linspace(-1, 1, 133).reshape(7, 19), torch.eye(19)
    modules = graph_file(monkeypatch, f, x, w)
    late = compile_pool.CompilePool(1)
    try:
        os.kill(late._server.pid, signal.SIGSTOP)
        monkeypatch.setattr(compile_pool, "running", lambda: late)
        found = compile_ahead.compile_modules(modules)
        assert found
        assert not any(isinstance(one, KernelError) for one in found)
    finally:
        late._server.kill()
        late.close()


def test_a_pool_that_ends_leaves_the_work_to_this_process(monkeypatch):
    x, w = torch.linspace(-1, 1, 161).reshape(7, 23), torch.eye(23)
    modules = graph_file(monkeypatch, f, x, w)
    ended = compile_pool.CompilePool(2)
    ended._server.kill()
    monkeypatch.setattr(compile_pool, "running", lambda: ended)
    assert not any(isinstance(one, KernelError) for one in compile_ahead.compile_modules(modules))
    ended.close()


def newest_process(pool: compile_pool.CompilePool) -> int:
    """The process that the server of a pool has forked last."""
    return int(Path(f"/proc/{pool._server.pid}/task/{pool._server.pid}/children").read_text().split()[-1])


def death_of_a_process(pool: compile_pool.CompilePool, kind: signal.Signals) -> None:
    """Sends a signal to the process of a pool of one, whose next job fails; the job after it has another process."""
    job = {"key": "k", "path": "/dev/null", "name": "k", "index": 0}
    assert pool.submit(job).result(300) == {}
    process = newest_process(pool)
    os.kill(process, kind)
    with pytest.raises(compile_pool.PoolEnded):
        pool.submit(job).result(300)
    assert pool.submit(job).result(300) == {} and pool.alive
    assert newest_process(pool) != process


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_is_stopped_is_replaced(kind, monkeypatch):
    monkeypatch.setattr(compile_pool, "STOPPED_S", 0.2)
    monkeypatch.setattr(compile_pool, "LOOKS", 0.1)
    one = compile_pool.CompilePool(1)
    try:
        assert one.wait_for_all(START_S)
        death_of_a_process(one, kind)
        death_of_a_process(one, kind)
    finally:
        one.close()
    one._server.wait(START_S)


def test_two_requests_with_one_key_take_the_same_answer(pool, monkeypatch):
    x, w = torch.linspace(-1, 1, 221).reshape(13, 17), torch.eye(17)
    modules = graph_file(monkeypatch, f, x, w)
    (request, job), *_ = compile_ahead._jobs(modules, [])
    assert pool.compile([(request, job), (request, job)]) == []


def test_a_server_that_cannot_start_is_not_started_again(monkeypatch):
    monkeypatch.setattr(compile_pool, "_pool", None)
    monkeypatch.setattr(compile_pool, "_COMMAND", "raise ImportError")
    failed = compile_pool.start(1)
    failed._server.wait(START_S)
    for _ in range(10 * START_S):
        if not failed.alive:
            break
        time.sleep(0.1)
    assert compile_pool.running() is None
    monkeypatch.setattr(compile_pool, "CompilePool", lambda count: pytest.fail("the server was started again"))
    assert compile_pool.start(1) is None


def test_a_suspended_pool_gets_no_kernels(pool):
    with compile_pool.suspended():
        assert compile_pool.running() is None
    assert compile_pool.running() is pool


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux has smaps_rollup")
def test_the_command_of_the_docs_measures_the_memory_of_the_server_and_its_processes(pool):
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "torch_compile_times.py"))
    pids = script["family"](pool.pid)
    shared, private = script["memory_of"](pids)
    assert len(pids) == len(private) == 3 and pids[0] == pool.pid
    assert shared > max(private) > min(private) > 0


def test_a_fork_does_not_have_the_pool(pool):
    if (child := os.fork()) == 0:
        os._exit(0 if compile_pool.running() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compile_pool.running() is pool


def test_one_compile_thread_of_inductor_means_no_pool(monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(compile_pool, "cpu_count", lambda: 64)
    with config.patch(compile_threads=1):
        assert compile_pool.size() == 0
    with config.patch(compile_threads=8):
        assert compile_pool.size() == 8
    with config.patch(compile_threads=64):
        assert compile_pool.size() == compile_pool.MOST


def test_imports_are_rewritten_wherever_they_stand():
    text = "def f():\n    try:\n        import triton\n    except ImportError:\n        from triton import language\n    return triton\n"
    text += "match 1:\n    case 1:\n        import triton.language as tl\n"
    names = {}
    exec(sources.compiled(text, "file.py"), names)
    assert names["tl"].__name__ == "blocknb.language"
    assert names["f"]().__name__ == "blocknb.compat.triton"


def test_a_pool_whose_processes_were_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "_pool", None)
    monkeypatch.setattr(compile_pool, "IDLE_S", 0.2)
    idle = compile_pool.start(1)
    assert idle is not None and idle.wait_for_all(START_S)
    idle._server.wait(START_S)
    assert not idle.alive and compile_pool.running() is None
    with pytest.raises(compile_pool.PoolEnded):
        idle.submit({}).result(START_S)
    try:
        again = compile_pool.start(1)
        assert again is not None and again is not idle and again.alive
    finally:
        compile_pool.close()
