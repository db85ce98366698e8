"""A step of a PyTorch benchmark: a function of tensors, or the loss of a model with its gradients, and the random inputs of both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Tensors = list[Any]


class RandomTensors:
    """Draws random tensors on a device ("cuda" or "cpu"). Equal seeds draw equal numbers."""

    def __init__(self, device: str, seed: int, dtype: Any = None) -> None:
        import torch

        self.torch, self.device, self.dtype = torch, device, dtype or torch.bfloat16
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: Any = None, gradient: bool = False) -> Any:
        """A tensor of normally distributed numbers; with `gradient`, its gradient is a result of the step."""
        made = self.torch.randn(shape, device=self.device, generator=self.generator) * scale
        return made.to(dtype or self.dtype).requires_grad_(gradient)

    def integers_below(self, limit: int, *shape: int) -> Any:
        """An int64 tensor of integers in [0, limit)."""
        return self.torch.randint(limit, shape, device=self.device, generator=self.generator)

    def positive(self, *shape: int) -> Any:
        """A float32 tensor of numbers in [0.5, 1.5)."""
        return self.torch.rand(shape, device=self.device, generator=self.generator) + 0.5


@dataclass(frozen=True)
class TorchStep:
    """`function(*inputs)` returns a tensor or a tuple of tensors. With a module, or if inputs require gradients, it returns a loss. The
    step then also computes the gradients of the parameters and of these inputs. With a module, the call is `function(module, *inputs)`.

    `draw` makes fresh inputs. `options` are Inductor's. `wide` is the dtype of the reference: "float64" or "float32". `as_reference` is
    called with the copy of the module that computes the reference."""

    name: str
    shape: str
    function: Callable[..., Any]
    draw: Callable[[RandomTensors], Tensors]
    module: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    wide: str = "float64"
    as_reference: Callable[[Any], None] = lambda module: None

    def bound(self, module: Any = None) -> Callable[..., Any]:
        """The function of the inputs alone, with this module or with its own."""
        module = self.module if module is None else module
        if module is None:
            return self.function
        function = self.function

        def step(*inputs: Any) -> Any:
            return function(module, *inputs)

        return step

    def results(self, run: Callable[..., Any], inputs: Sequence[Any], module: Any = None) -> Tensors:
        """Calls `run(*inputs)`, and returns its results and gradients."""
        import torch

        module = self.module if module is None else module
        wanted = [x for x in inputs if x.requires_grad]
        wanted += [] if module is None else [p for p in module.parameters() if p.requires_grad]
        if not wanted:
            with torch.no_grad():
                found = run(*inputs)
            return list(found) if isinstance(found, tuple | list) else [found]
        loss = run(*inputs)
        return [loss.detach(), *torch.autograd.grad(loss, wanted)]

    def exact(self, inputs: Sequence[Any]) -> Tensors:
        """The results of eager in the dtype `wide`."""
        import torch

        dtype = getattr(torch, self.wide)
        own = [x.detach().to(dtype).requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
        module = None if self.module is None else copy.deepcopy(self.module).to(dtype)
        if module is not None:
            self.as_reference(module)
        return self.results(self.bound(module), own, module)
