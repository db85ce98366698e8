"""The kernels of a graph are compiled on all workers before its file runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import blocknb.torch
from blocknb.runtime import cache, parallel_compile
from blocknb.runtime import compile as compiler
from blocknb.runtime.job import Job
from blocknb.torch.inductor import compile_ahead


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.Cache(tmp_path)  # without the kernels of earlier runs
    monkeypatch.setattr(cache, "shared", lambda: own)
    compiler.forget()


def test_all_kernels_of_a_graph_are_compiled_together_and_none_alone(monkeypatch, own_cache):
    asked = []
    inherited = parallel_compile.compile_all

    def compile_all(requests, *args):
        asked.extend(requests)
        return inherited(requests, *args)

    def f(x, w):
        return ((x.exp() * 1.375) @ w).softmax(-1)

    monkeypatch.setattr(parallel_compile, "compile_all", compile_all)
    monkeypatch.setattr(Job, "run", lambda job: pytest.fail(f"{job.source.name} was compiled alone"))
    x, w = torch.linspace(-1, 1, 150).reshape(10, 15), torch.eye(15)
    compiled = torch.compile(f, backend=blocknb.torch.backend)
    torch.testing.assert_close(compiled(x, w), f(x, w))
    assert len({request.source.name for request in asked}) == 2 < len(asked)  # some have several configurations


def test_the_kernels_of_a_file_are_found_by_its_calls():
    text = "async_compile = None\na = async_compile.triton('a', '''one''', device_str='cpu')\nb = other.triton(name, 'two')\n"
    text += "c = other.triton('c')\nd = other.triton(*names)\ne = other.triton('e', source='three')\n"
    assert list(compile_ahead.generated_kernels(text)) == [("a", "one")]


@pytest.mark.parametrize("source", ["raise OSError('no such kernel')", "without_the_kernel = 1"])
def test_a_kernel_that_does_not_load_is_left_to_the_run_of_the_file(source, monkeypatch):
    text = f"a = async_compile.triton('a', {source!r})\n"
    with pytest.raises((OSError, AttributeError), match="no such kernel|'a'"):
        compile_ahead.compile_ahead(text)  # the tests set BLOCKNB_STRICT
    monkeypatch.delenv("BLOCKNB_STRICT")
    compile_ahead.compile_ahead(text)


def test_an_error_of_the_user_is_left_to_the_run_of_the_file():
    compile_ahead.compile_ahead("a = async_compile.triton('a', 'import blocknb; blocknb.kernel(1)')\n")
