"""The compilers that a step is compiled by, its CUDA graph, and the launches of its generated kernels.

Both compilers run in one process. Each call of `compiled` is a compilation of its own: the backend is among Dynamo's guards.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from blocknb.bench.torch_steps.definition import Tensors, TorchStep

OURS, TRITON, EAGER = "blocknb", "Triton", "eager"


def compiled(step: TorchStep, peer: str) -> Callable[..., Any]:
    """The function of a step for a peer: compiled at its first call, or eager. Graph breaks are errors."""
    import torch

    function = step.bound()
    if peer == EAGER:
        return function
    if peer == OURS:
        from blocknb.torch import backend
    else:
        backend = "inductor"  # type: ignore[assignment]
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False, options=dict(step.options) or None)


class CapturedStep:
    """A step that is captured as a CUDA graph, with inputs and outputs at fixed addresses. A call replays it. Without a GPU, a call runs
    the step."""

    def __init__(self, step: TorchStep, run: Callable[..., Any], inputs: Sequence[Any]) -> None:
        self.step, self.run = step, run
        self.inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        self.outputs: Tensors = []
        self.graph: Any = None
        if self.inputs[0].is_cuda:
            self._capture()

    def _capture(self) -> None:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step.results(self.run, self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.step.results(self.run, self.inputs)

    def __call__(self) -> None:
        if self.graph is None:
            self.outputs = self.step.results(self.run, self.inputs)
        else:
            self.graph.replay()

    def on(self, inputs: Sequence[Any]) -> Tensors:
        """The results for other inputs of the same shapes. The outputs are poisoned before, which detects missing writes."""
        import torch

        with torch.no_grad():
            for own, given in zip(self.inputs, inputs, strict=True):
                own.copy_(given)
            for output in self.outputs:
                if output.is_contiguous():
                    output.fill_(math.nan if output.is_floating_point() else -77)
        self()
        return self.outputs


@dataclass(frozen=True)
class GeneratedLaunch:
    """A launch of a generated kernel: the compiler, the kernel's name, and the configuration that it launched."""

    compiler: str
    name: str
    config: str


@contextlib.contextmanager
def launches() -> Iterator[list[GeneratedLaunch]]:
    """Collects the launches of generated kernels inside, in their order."""
    from torch._inductor.runtime import triton_heuristics

    from blocknb.torch.inductor import sources

    found: list[GeneratedLaunch] = []
    with contextlib.ExitStack() as stack:
        for peer, module in ((OURS, sources.private("triton_heuristics")), (TRITON, triton_heuristics)):
            stack.enter_context(mock.patch.object(module.CachingAutotuner, "run", _noted(module, peer, found)))
        yield found


def _noted(module: Any, peer: str, found: list[GeneratedLaunch]) -> Callable[..., Any]:
    inherited = module.CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = inherited(self, *args, **kwargs)
        config = self.launchers[0].config
        sizes = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
        text = ", ".join(f"{name}={value}" for name, value in sizes.items())
        found.append(GeneratedLaunch(peer, self.fn.__name__, text))
        return result

    return run
