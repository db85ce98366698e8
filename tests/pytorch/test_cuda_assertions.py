"""Assertions of generated CUDA kernels, such as those of indices: their launches do not wait, so a CUDA graph can capture them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import blocknb.torch
from blocknb.torch.inductor.without_gpu import CudaKernels

pytestmark = pytest.mark.own_count


def loss(logits, classes):
    return F.cross_entropy(logits, classes)


def with_assertions() -> list:
    found = CudaKernels()
    torch._dynamo.reset()
    logits, classes = torch.randn(8, 40), torch.arange(8)
    torch.compile(loss, backend=found.backend)(logits, classes)
    return [one for kernel in found.kernels if "device_assert" in kernel.source for one in kernel.compiled]


def test_a_kernel_with_an_assertion_stops_as_cudas_assert_does():
    compiled = with_assertions()
    assert compiled and not any(one.code.reports for one in compiled)
    assert all("__assertfail" in one.asm["ptx"] for one in compiled)


def test_blocking_launches_report_the_failed_assertion(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    compiled = with_assertions()
    assert compiled and all(one.code.reports for one in compiled)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_captures_a_kernel_with_an_assertion():
    compiled = torch.compile(loss, backend=blocknb.torch.backend)
    logits, classes = torch.randn(64, 40, device="cuda"), torch.arange(64, device="cuda") % 40
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        compiled(logits, classes)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(logits, classes)
    logits.normal_()
    graph.replay()
    torch.testing.assert_close(out, loss(logits, classes))
