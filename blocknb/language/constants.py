"""`constexpr`, a compile-time constant that a kernel may read, and the enumerations that builtins take.

Outside a kernel, arithmetic on constexprs computes on their values: `BLOCK = tl.constexpr(16); HALF = tl.constexpr(BLOCK // 2)`. In a
kernel, the front end replaces a constexpr by its value.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable
from typing import Any


class constexpr:
    """A compile-time constant: an annotation (`BLOCK: tl.constexpr`) or a value (`BLOCK = tl.constexpr(16)`)."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = unwrap(value)

    def __repr__(self) -> str:
        return f"constexpr({self.value!r})"

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.value[unwrap(index)]

    def __iter__(self) -> Any:
        return iter(self.value)


class const:
    """An annotation of parameters that are pointers to read-only data: `x_ptr: tl.const`. A store through one is an error."""


def unwrap(value: Any) -> Any:
    """Returns the value of a constexpr, and any other object unchanged."""
    return value.value if isinstance(value, constexpr) else value


def like(x: tuple, elements: Iterable[Any]) -> tuple:
    """Makes a tuple of `elements`, of the class of `x` if that is a namedtuple."""
    return getattr(type(x), "_make", tuple)(elements)


def classes(value: Any) -> Any:
    """Returns the class of a value, or for a tuple its class followed by those of its elements. Classes compare by identity."""
    return (type(value), *map(classes, value)) if isinstance(value, tuple) else type(value)


def _forward(name: str, swapped: bool = False) -> Callable:
    function = getattr(operator, name)

    def forward(self: constexpr, *others: Any) -> constexpr:
        operands = (self.value, *map(unwrap, others))
        return constexpr(function(*(reversed(operands) if swapped else operands)))

    return forward


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"):
    _stem = _name.rstrip("_")
    setattr(constexpr, f"__{_stem}__", _forward(_name))
    setattr(constexpr, f"__r{_stem}__", _forward(_name, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "invert"):
    setattr(constexpr, f"__{_name}__", _forward(_name))


class PropagateNan(enum.Enum):
    """Tells `maximum`, `minimum` and `clamp` whether a number (NONE) or the NaN (ALL) wins a comparison with NaN."""

    NONE = 0
    ALL = 0xFFFF
