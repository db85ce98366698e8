"""`constexpr`: compile-time constants that a kernel may read, and the few enumerations its keywords take.

Outside a kernel a constexpr computes like the value it holds, so `BLOCK = tl.constexpr(16); HALF = tl.constexpr(BLOCK // 2)`
works; inside a kernel the front end sees the plain value.
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


def unwrap(value: Any) -> Any:
    """The plain value of a constexpr; anything else as it is."""
    return value.value if isinstance(value, constexpr) else value


def like(x: tuple, elements: Iterable[Any]) -> tuple:
    """A tuple of other elements, of the same class where that is a namedtuple."""
    return getattr(type(x), "_make", tuple)(elements)


def classes(value: Any) -> Any:
    """The class of a value, and of a tuple those of its elements, too. Two classes of one name are not the same."""
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
    """What `maximum`, `minimum` and `clamp` do with a NaN: NONE lets it lose against a number, ALL lets it win."""

    NONE = 0
    ALL = 0xFFFF
