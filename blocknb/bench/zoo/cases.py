"""A call of a library with its random inputs, and the registry of all calls."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: The libraries by the name on the command line, with the module that must be installed. "own" is the zoo of this project's tests.
LIBRARIES = {
    "liger": "liger_kernel",
    "fla": "fla",
    "xformers": "xformers",
    "bitsandbytes": "bitsandbytes",
    "torchao": "torchao",
    "unsloth": "unsloth",
    "own": "zoo",
}


class RandomInputs:
    """Draws the inputs of a case: torch tensors on a device, from one generator."""

    def __init__(self, torch: Any, device: str, seed: int) -> None:
        self.torch, self.device = torch, device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: str = "float16", scale: float = 1.0, grad: bool = False) -> Any:
        """Normally distributed floats, drawn as float32."""
        made = self.torch.randn(shape, generator=self.generator, device=self.device) * scale
        return made.to(getattr(self.torch, dtype)).requires_grad_(grad)

    def uniform(
        self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: str = "float32", grad: bool = False
    ) -> Any:
        """Uniformly distributed floats."""
        made = self.torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low
        return made.to(getattr(self.torch, dtype)).requires_grad_(grad)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
        """Integers from low up to, not including, high."""
        made = self.torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return made.to(getattr(self.torch, dtype))

    def tensor(self, values: Sequence[Any], dtype: str = "int64") -> Any:
        """The given values."""
        return self.torch.tensor(values, dtype=getattr(self.torch, dtype), device=self.device)


@dataclass(frozen=True)
class ZooCase:
    """`call(*make(inputs).values())` gives a tensor or several. If an input requires a gradient, the backward pass is part of the case.

    `exact`, if any, computes the results of `call` from the same inputs in float64.
    """

    library: str
    name: str
    make: Callable[[RandomInputs], dict[str, Any]]
    call: Callable[..., Any]
    exact: Callable[..., Any] | None = None


class CaseList:
    """Collects the cases of one library."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.cases: list[ZooCase] = []

    def add(
        self,
        name: str,
        call: Callable[..., Any],
        exact: Callable[..., Any] | None = None,
        **shapes: Callable[[RandomInputs], dict[str, Any]],
    ) -> None:
        """Adds a case for each named set of inputs."""
        for shape, make in shapes.items():
            self.cases.append(ZooCase(self.library, f"{name}[{shape}]", make, call, exact))


def missing(library: str) -> str:
    """Why a library cannot be measured; "" if it is installed."""
    module = LIBRARIES[library]
    if importlib.util.find_spec(module) is not None:
        return ""
    if library == "own":
        return "the folder tests/ of blocknb's repository is not on the path"
    return f"{module} is not installed"


def cases_of(library: str) -> list[ZooCase]:
    """The cases of a library, which is imported. Raises ImportError if it, or a package that it needs, is missing."""
    found = CaseList(library)
    importlib.import_module(f"blocknb.bench.zoo.libraries.{library}").register(found)
    return found.cases
