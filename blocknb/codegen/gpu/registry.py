"""The registry of lowerings: a class of lowerings marks its methods with the names of the ops that they lower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from blocknb.codegen.gpu.context import KernelPart
from blocknb.ir.core import Op

Lower = Callable[[Op], None]
F = TypeVar("F", bound=Callable[..., None])


def lowers(*names: str) -> Callable[[F], F]:
    """Registers a method as the lowering of the ops of these names."""

    def mark(method: F) -> F:
        method.__dict__["lowers"] = names
        return method

    return mark


class OpLowering(KernelPart):
    """A group of lowerings of similar ops."""

    methods: ClassVar[dict[str, str]] = {}  # by the name of the op

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.methods = {name: key for key, made in vars(cls).items() for name in getattr(made, "lowers", ())}


def table(*groups: OpLowering) -> dict[str, Lower]:
    """The lowering of each op by the op's name."""
    return {name: getattr(group, method) for group in groups for name, method in group.methods.items()}
