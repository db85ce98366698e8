"""Registers an operator with torch's dispatcher, once per name and schema.

The registered functions look up the newest body under their name, so a cell that runs again replaces the body and registers nothing. A
cell with another schema adds an overload, and graphs that hold the old one stay valid. `Library.define` and `impl` cost half of what
`torch.library.custom_op` costs per call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Implementation(Protocol):
    """The functions that the dispatcher calls: the body, its version for tensors without memory, its gradient, and its rule for vmap."""

    def run(self, *args: Any) -> Any:
        """The body on tensors with memory."""

    def fake(self, *args: Any) -> Any:
        """The body without launches."""

    def batched(self, info: Any, in_dims: Any, *args: Any) -> Any:
        """(outputs, their batch dimensions) under `torch.vmap`."""

    def differentiable(self, *args: Any) -> Any:
        """Applies the autograd Function, or None if the arguments need no gradient."""


@dataclass(eq=False)
class Definition:
    """A registered schema. `newest` is the operator that its name stands for now."""

    overload: Any
    newest: Implementation


#: The libraries by namespace; they keep the registrations alive.
_libraries: dict[str, Any] = {}
#: The definitions by qualified name, and then by schema.
_definitions: dict[str, dict[str, Definition]] = {}


def define(qualified: str, schema: str, newest: Implementation) -> Definition:
    """Registers `qualified` ("ns::name") with a schema "(Tensor x) -> Tensor", or gives a registered one a new implementation."""
    versions = _definitions.setdefault(qualified, {})
    if schema in versions:
        versions[schema].newest = newest
        return versions[schema]
    namespace, name = qualified.split("::")
    version = f"v{len(versions) + 1}" if versions else ""
    library = _libraries.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    full = f"{name}.{version}" if version else name
    library.define(full + schema)
    overload = getattr(getattr(getattr(torch.ops, namespace), name), version or "default")
    definition = versions[schema] = Definition(overload, newest)
    _implement(library, f"{namespace}::{full}", full, definition)
    return definition


def _implement(library: Any, qualified: str, full: str, definition: Definition) -> None:
    def run(*args: Any) -> Any:
        return definition.newest.run(*args)

    def fake(*args: Any) -> Any:
        return definition.newest.fake(*args)

    def batched(info: Any, in_dims: Any, *args: Any) -> Any:
        return definition.newest.batched(info, in_dims, *args)

    def autograd(keyset: Any, *args: Any) -> Any:
        found = definition.newest.differentiable(*args)
        if found is not None:
            return found
        with torch._C._AutoDispatchBelowAutograd():
            return definition.overload.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    for device in ("CPU", "CUDA"):
        library.impl(full, run, device)
    library.impl(full, autograd, "Autograd", with_keyset=True)
    torch.library.register_fake(qualified, fake, lib=library)
    torch.library.register_vmap(qualified, batched, lib=library)
