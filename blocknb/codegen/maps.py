"""Tensor maps: the descriptors that the host encodes at the launch of a kernel that copies boxes by TMA.

A tensor map is a hidden parameter of 128 bytes. It describes an array by numbers that the host computes from the arguments of the launch.
A `MapSpec` holds these as expressions over the kernel's parameters: plain nested tuples, which the disk cache stores as they are.

    7                        an int
    ("arg", 3)               the scalar parameter of that index (in `Func.params`, elements of tuples and descriptors' fields counted)
    ("add", a, b)            likewise sub, mul, div (truncated; by zero 0), rem (the dividend's sign), min, max
    ("lt", a, b)             likewise le, gt, ge, eq, ne: 1 or 0
    ("select", c, a, b)      a where c is not 0
    ("cast", "i32", a)       a wrapped to a dtype (its short name)

Integers have no bounds. Expressions come from the disk cache, so `evaluator` builds a function from these ops, and rejects everything
else. No text is ever run as Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.language.types import BY_SHORT, DType

#: An int or a nested tuple, as above.
Expression = Any


@dataclass(frozen=True)
class MapSpec:
    """One tensor map.

    `base` is the index of the parameter that points to the array. `box` has the extents that one instruction moves, and `swizzle` (bytes:
    128, 64, 32 or 0) is the swizzle of the box in shared memory. `dims` are expressions for the array's extents, and `strides` for its
    strides along all axes but the last, which is contiguous. All numbers are in elements, outer to inner. If stores go through the map
    (`stored`), the map of an empty array must name memory that nothing else reads."""

    base: int
    dtype: DType
    box: tuple[int, ...]
    swizzle: int
    dims: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    stored: bool = False


def parameters(expression: Expression) -> frozenset[int]:
    """The indices of the parameters that an expression reads."""
    if not isinstance(expression, tuple):
        return frozenset()
    if expression[0] == "arg":
        return frozenset((expression[1],))
    return frozenset[int]().union(*map(parameters, expression[1:]))


#: Computes an expression from the values of the parameters.
Evaluator = Callable[[Sequence[int]], int]


def evaluator(expression: Expression, positions: Mapping[int, int]) -> Evaluator:
    """The function of the parameters' values. `positions` are the places of the parameters in it, by their indices.

    Raises ValueError for anything that is no expression, and for a parameter without a position."""
    if type(expression) is int:
        number: int = expression
        return lambda values: number
    match expression:
        case ("arg", int(index)) if index in positions:
            return operator.itemgetter(positions[index])
        case ("cast", str(short), inner) if short in BY_SHORT and BY_SHORT[short].is_int():
            return _wrapped(evaluator(inner, positions), BY_SHORT[short])
        case ("select", condition, a, b):
            test, one, other = (evaluator(e, positions) for e in (condition, a, b))
            return lambda values: one(values) if test(values) else other(values)
        case (str(op), a, b) if op in _FUNCTIONS:
            function, left, right = _FUNCTIONS[op], evaluator(a, positions), evaluator(b, positions)
            return lambda values: function(left(values), right(values))
    raise ValueError(f"{expression!r:.100} is no expression of a tensor map")


def _wrapped(inner: Evaluator, dtype: DType) -> Evaluator:
    mask, half = (1 << dtype.bits) - 1, 1 << dtype.bits - 1
    if dtype.is_signed:
        return lambda values: (inner(values) + half & mask) - half
    return lambda values: inner(values) & mask


def quotient(a: int, b: int) -> int:
    """a / b without its fraction; 0 for b = 0, which is undefined in a kernel, too."""
    if b == 0:
        return 0
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def remainder(a: int, b: int) -> int:
    """The remainder of `quotient`, with the sign of a."""
    return a - b * quotient(a, b)


_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "eq": operator.eq, "ne": operator.ne, "div": quotient, "rem": remainder, "min": min, "max": max,
}  # fmt: skip
