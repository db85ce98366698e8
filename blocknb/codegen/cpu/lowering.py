"""How operations find their lowerings: `@lowers("dot")` names the op that a method lowers, and `lowering_table` collects the methods.

A lowering is a method of a small object that holds only what its operations use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.ir.core import Value

Method = TypeVar("Method", bound=Callable[..., Any])
#: For each tile that a block yields: the buffer it should be made in, and the argument that lives there now.
Targets = Mapping[Value, tuple[ScratchBuffer, Value]]


def lowers(*names: str) -> Callable[[Method], Method]:
    """Registers a method as the lowering of the ops with these names."""

    def register(method: Method) -> Method:
        method.__dict__["lowers"] = names
        return method

    return register


def lowering_table(*objects: object) -> dict[str, Callable[..., Any]]:
    """The lowerings of some objects, as bound methods by op name."""
    found: dict[str, Callable[..., Any]] = {}
    for one in objects:
        for attribute, method in vars(type(one)).items():
            for name in getattr(method, "lowers", ()):
                assert name not in found, f"{name} has two lowerings"
                found[name] = getattr(one, attribute)
    return found
