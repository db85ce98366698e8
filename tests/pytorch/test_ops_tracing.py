"""Launches inside torch.compile become nodes of one graph, which knows what each kernel stores."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch

import blocknb
import blocknb.language as tl
from blocknb.torch import trace_kernels

trace_kernels()
Tensor = torch.Tensor


@blocknb.kernel
def scaled_kernel(x, bias, y, n, scale, BLOCK: tl.constexpr, UP: tl.constexpr = True):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n) * scale
    if bias is not None:
        v += tl.load(bias + at, mask=at < n)
    tl.store(y + at, v if UP else -v, mask=at < n)


def between(x: Tensor) -> Tensor:
    """Reads y before and after the launch, and launches twice into it."""
    y = torch.ones_like(x)
    before = y * 2
    scaled_kernel[(blocknb.cdiv(x.numel(), 32),)](x + 1, None, y, x.numel(), 0.5, BLOCK=32)
    middle = y * 3
    scaled_kernel[blocknb.cdiv(x.numel(), 32)](y, x, y, x.numel(), 1.0, BLOCK=32, UP=False, num_warps=2)
    return before + middle + y


def by_function(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    scaled_kernel[lambda c: (blocknb.cdiv(c["n"], c["BLOCK"]),)](x, x, y, n=x.numel(), scale=2.0, BLOCK=32)
    return y.sin()


@pytest.mark.sampled(2, each=["backend", "function"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [between, by_function])
def test_a_function_with_launches_is_one_graph_with_eagers_numbers(function: Any, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
    for n in (5, 33, 100):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


def test_the_node_lists_the_stored_tensors_apart_from_the_others() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []
    torch.compile(between, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)(torch.randn(5))
    nodes = [node for node in graphs[0].graph.nodes if "blocknb.launch" in str(node.target)]
    assert [(len(node.args[2]), len(node.args[3])) for node in nodes] == [(1, 1), (1, 2)]


def test_an_input_of_the_compiled_function_that_a_kernel_stores_to_is_changed() -> None:
    torch._dynamo.reset()

    def store(x: Tensor, out: Tensor) -> Tensor:
        scaled_kernel[(1,)](x, None, out, x.numel(), 3.0, BLOCK=32)
        return out + 1

    x, out = torch.randn(9), torch.zeros(9)
    found = torch.compile(store, fullgraph=True, backend="aot_eager")(x, out)
    torch.testing.assert_close(out, 3 * x)
    torch.testing.assert_close(found, 3 * x + 1)
