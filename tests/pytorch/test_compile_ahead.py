"""The kernels of a graph are compiled on all workers before its file runs."""

from __future__ import annotations

import pytest
import seeds
import torch

import blocknb.torch
from blocknb.runtime import parallel_compile
from blocknb.runtime.job import Job
from blocknb.torch.inductor import compile_ahead


def test_all_kernels_of_a_graph_are_compiled_together_and_none_alone(monkeypatch):
    factor, asked = float(seeds.rng().uniform(1, 2)), []  # no cache has this factor
    inherited = parallel_compile.compile_all

    def compile_all(requests, *args):
        asked.extend(requests)
        return inherited(requests, *args)

    def f(x, w):
        return ((x.exp() * factor) @ w).softmax(-1)

    monkeypatch.setattr(parallel_compile, "compile_all", compile_all)
    monkeypatch.setattr(Job, "run", lambda job: pytest.fail(f"{job.source.name} was compiled alone"))
    x, w = torch.linspace(-1, 1, 150).reshape(10, 15), torch.eye(15)
    compiled = torch.compile(f, backend=blocknb.torch.backend)
    torch.testing.assert_close(compiled(x, w), f(x, w))
    assert len({request.source.name for request in asked}) == 2 < len(asked)  # some have several configurations


def test_the_kernels_of_a_file_are_found_by_its_calls():
    text = "async_compile = None\na = async_compile.triton('a', '''one''', device_str='cpu')\nb = other.triton(name, 'two')\n"
    assert list(compile_ahead.generated_kernels(text)) == [("a", "one")]
